-- Which change is the newest of a record stands in the record, where a write is anyway: an index of all changes by
-- path, and a counter in a table of its own, were most of what a transaction had to bring to the disk.
ALTER TABLE state ADD COLUMN seq INTEGER NOT NULL DEFAULT 0;

UPDATE state SET seq = (SELECT max(changes.seq) FROM changes WHERE changes.path = state.path)
WHERE path IN (SELECT path FROM changes);

-- A number is given once, also after the newest change was forgotten: `feed` remembers up to where that is.
CREATE TABLE numbered (
    seq INTEGER PRIMARY KEY,
    path TEXT NOT NULL,
    version INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    updated_by TEXT NOT NULL,
    at TEXT NOT NULL
);

INSERT INTO numbered SELECT seq, path, version, deleted, updated_by, at FROM changes;

DROP TABLE changes;

ALTER TABLE numbered RENAME TO changes;
