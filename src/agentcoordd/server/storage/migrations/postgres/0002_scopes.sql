-- Who wrote a record, and what a machine may see and change. A machine from before may do all.
ALTER TABLE state ADD COLUMN updated_by text;
ALTER TABLE machines ADD COLUMN read_prefixes text NOT NULL DEFAULT '[""]';
ALTER TABLE machines ADD COLUMN write_prefixes text NOT NULL DEFAULT '[""]';
