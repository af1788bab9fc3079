"""How changes are made in an SQLite database: many in a transaction, each with a verdict and a number of its own."""

import sqlite3
from collections.abc import Sequence
from math import inf
from time import monotonic

from agentcoordd.server.storage.base import Verdict, Write

BUSY = 7.0
"""Seconds to wait for another process that has the file, such as one that adds a token."""

HEAD = "SELECT max(forgotten, ifnull((SELECT max(seq) FROM changes), 0)) FROM feed"
"""The number of the newest change, also when that is forgotten already."""


def begun(connection: sqlite3.Connection) -> bool:
    """Begin a transaction, unless another process is in one."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            return False
        raise
    return True


def begin(connection: sqlite3.Connection) -> None:
    """Begin a transaction as soon as other processes let us."""
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY * 1000)}")
    try:
        connection.execute("BEGIN IMMEDIATE")
    finally:
        connection.execute("PRAGMA busy_timeout = 0")


def applied(connection: sqlite3.Connection, writes: Sequence[Write], at: str, *, seconds: float = inf) -> list[Verdict]:
    """Make changes within a transaction, each with the number that follows; as many as there is time for."""
    until = monotonic() + seconds
    (head,) = connection.execute(HEAD).fetchone()
    verdicts: list[Verdict] = []
    for write in writes:
        verdict = _apply(connection, write, at, head + 1)
        head += verdict is not None
        verdicts.append(verdict)
        if monotonic() > until:
            break
    return verdicts


def _apply(connection: sqlite3.Connection, write: Write, at: str, seq: int) -> Verdict:
    match write.kind:
        case "create":
            made = connection.execute(
                "INSERT INTO state (path, data, version, updated_at, updated_by, seq) VALUES (?, ?, 1, ?, ?, ?) "
                "ON CONFLICT (path) DO NOTHING",
                (write.path, write.data, at, write.machine, seq),
            )
            version = 1
        case "update":
            made = connection.execute(
                "UPDATE state SET data = ?, version = version + 1, updated_at = ?, updated_by = ?, seq = ? "
                "WHERE path = ? AND version = ?",
                (write.data, at, write.machine, seq, write.path, write.version),
            )
            version = write.version + 1
        case "delete":
            made = connection.execute("DELETE FROM state WHERE path = ? AND version = ?", (write.path, write.version))
            version = write.version
    if made.rowcount != 1:
        return None
    connection.execute(
        "INSERT INTO changes (seq, path, version, deleted, updated_by, at) VALUES (?, ?, ?, ?, ?, ?)",
        (seq, write.path, version, write.kind == "delete", write.machine, at),
    )
    return version


def trim(connection: sqlite3.Connection, keep: int) -> None:
    """Forget the oldest changes, but `keep` of them, and say up to where."""
    (head,) = connection.execute(HEAD).fetchone()
    last = head - keep
    if last <= 0:
        return
    begin(connection)
    try:
        connection.execute("UPDATE feed SET forgotten = max(forgotten, ?)", (last,))
        connection.execute("DELETE FROM changes WHERE seq <= ?", (last,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
