"""Where the server keeps state: one promise, kept by SQLite and by PostgreSQL."""
