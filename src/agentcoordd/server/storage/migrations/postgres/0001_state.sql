-- Records and machines. The collation compares paths byte by byte, whatever the database's own one is.
CREATE TABLE state (
    path text COLLATE "C" PRIMARY KEY,
    data text NOT NULL,
    version bigint NOT NULL,
    updated_at text NOT NULL
);

CREATE TABLE machines (
    machine text COLLATE "C" PRIMARY KEY,
    token_hash text COLLATE "C" NOT NULL UNIQUE,
    created_at text NOT NULL,
    revoked_at text
);
