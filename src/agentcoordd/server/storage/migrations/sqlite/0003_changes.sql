-- The feed. AUTOINCREMENT, so that a number is never given twice, also after the newest change was forgotten.
CREATE TABLE changes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT NOT NULL,
    version INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    updated_by TEXT NOT NULL,
    at TEXT NOT NULL
);

-- Which change is the newest of a record: only that one carries data.
CREATE INDEX changes_path ON changes (path, seq);

CREATE TABLE feed (
    name TEXT NOT NULL,
    forgotten INTEGER NOT NULL
);

INSERT INTO feed (name, forgotten) VALUES (lower(hex(randomblob(8))), 0);
