"""A database becomes what this release needs, once, whoever comes first; one from the future is left alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentcoordd.server.storage.migrations import migrations
from tests.command import PATIENCE
from tests.server.calling import calling, grant, script, sql
from tests.server.postgres import Cluster
from tests.server.running import agentcoordd, running

HASH = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"  # of the token "test"


def _steps(db: str) -> list[str]:
    dialect = "sqlite" if db.startswith("sqlite") else "postgres"
    return [step.sql for step in migrations(dialect)]


def test_both_databases_take_the_same_steps() -> None:
    sqlite, postgres = ([step.name for step in migrations(dialect)] for dialect in ("sqlite", "postgres"))
    assert [name for name in sqlite if name in postgres] == postgres  # SQLite has a step that only it needs
    assert [step.number for step in migrations("sqlite")] == list(range(1, len(sqlite) + 1))
    assert [step.number for step in migrations("postgres")] == list(range(1, len(postgres) + 1))


def test_opening_twice_changes_nothing(db: str) -> None:
    token = grant(db, "m", reads=[""], writes=[""])
    for version in (1, 2):
        with running(db) as server, calling(server, token) as caller:
            condition = {"if_match": str(version - 1)} if version > 1 else {"if_none_match": "*"}
            assert caller.put("claims/o/r/7.json", version, **condition).json()["version"] == version
            feed = caller.changes().json()["cursor"]
            assert feed.endswith(f".{version}")
    [(name,)] = sql(db, "SELECT name FROM feed")
    assert feed == f"{name}.2"


def test_a_database_of_the_first_step_is_brought_up_to_date(db: str) -> None:
    for statement in _steps(db)[0].split(";"):
        if statement.strip():
            sql(db, statement)
    if db.startswith("sqlite"):
        sql(db, "PRAGMA user_version = 1")
    else:
        sql(db, "CREATE TABLE migrations (number integer PRIMARY KEY, name text NOT NULL)")
        sql(db, "INSERT INTO migrations VALUES (1, '0001_state.sql')")
    sql(db, "INSERT INTO machines VALUES ('old', $1, '2020-01-01T00:00:00Z', NULL)", HASH)
    sql(db, "INSERT INTO machines VALUES ('gone', 'x', '2020-01-01T00:00:00Z', '2020-01-02T00:00:00Z')")
    sql(db, "INSERT INTO state VALUES ('claims/o/r/7.json', '{\"a\":1}', 4, '2020-01-01T00:00:00.000Z')")
    with running(db) as server, calling(server, "test") as caller:
        who = caller.ask("GET", "/v1/whoami").json()
        assert who == {"machine": "old", "read_prefixes": [""], "write_prefixes": [""]}
        assert caller.get("claims/o/r/7.json").json() == {"path": "claims/o/r/7.json", "data": {"a": 1}, "version": 4}
        assert caller.changes().json()["changes"] == []
        assert caller.put("claims/o/r/7.json", 2, if_match="4").json()["updated_by"] == "old"
        assert caller.get("claims/o/r/7.json").json()["updated_by"] == "old"


def test_the_changes_from_before_each_record_had_its_newest_are_told_as_they_were(db: str) -> None:
    sqlite = db.startswith("sqlite")
    for step in _steps(db)[:3]:
        script(db, step)
    if sqlite:
        script(db, "PRAGMA user_version = 3")
    else:
        script(db, "CREATE TABLE migrations (number integer PRIMARY KEY, name text NOT NULL)")
        script(db, "INSERT INTO migrations VALUES (1, 'state'), (2, 'scopes'), (3, 'changes')")
    sql(db, "INSERT INTO machines (machine, token_hash, created_at) VALUES ('m', $1, '2020-01-01T00:00:00Z')", HASH)
    for path, version, deleted in (("a", 1, 0), ("b", 1, 0), ("a", 1, 1), ("a", 1, 0), ("c", 1, 0), ("c", 1, 1)):
        flag = deleted if sqlite else bool(deleted)
        sql(
            db,
            "INSERT INTO changes (path, version, deleted, updated_by, at) VALUES ($1, $2, $3, 'm', 'then')",
            f"events/x/{path}.json",
            version,
            flag,
        )
    for path in ("a", "b", "old"):
        sql(
            db,
            "INSERT INTO state (path, data, version, updated_at, updated_by) VALUES ($1, $2, 1, 'then', 'm')",
            f"events/x/{path}.json",
            f'"{path}"',
        )
    [(name,)] = sql(db, "SELECT name FROM feed")
    with running(db) as server, calling(server, "test") as caller:
        changes = caller.changes(f"{name}.0").json()["changes"]
        told = [(change["path"][9:-5], change.get("data"), change.get("deleted")) for change in changes]
        assert told == [
            ("a", None, None),
            ("b", "b", None),
            ("a", None, True),
            ("a", "a", None),
            ("c", None, None),
            ("c", None, True),
        ]
        caller.put("events/x/old.json", "new", if_match="1")
        [change] = caller.changes(f"{name}.6").json()["changes"]
        assert (change["path"], change["data"], change["version"]) == ("events/x/old.json", "new", 2)
        assert caller.changes().json()["cursor"] == f"{name}.7"


def test_a_database_of_a_newer_release_is_refused(db: str) -> None:
    grant(db, "m", reads=[""], writes=[""])
    if db.startswith("sqlite"):
        sql(db, "PRAGMA user_version = 99")
    else:
        sql(db, "INSERT INTO migrations VALUES (99, '0099_future.sql')")
    for command in (["token", "list", "--db", db], ["token", "add", "m", "--all-state", "--db", db]):
        answer = agentcoordd(*command)
        assert (answer.exit, answer.out) == (1, "")
        [line] = answer.err.splitlines()
        assert line.startswith(f"the database is of a newer release: schema 99, this one knows {len(_steps(db))}; ")
    answer = agentcoordd("server", "--db", db, "--listen", "127.0.0.1:0")
    assert answer.exit == 1
    assert answer.err.splitlines()[1:] == [line]


@pytest.mark.parametrize("round_", range(3))
def test_processes_that_come_at_once_migrate_once(cluster: Cluster, round_: int) -> None:
    del round_
    db = cluster.database()
    command = [sys.executable, "-m", "agentcoordd", "token", "list", "--json", "--db", db]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe) for _ in range(4)]
    for process in processes:
        _, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, err) == (0, "")
    assert sql(db, "SELECT number FROM migrations ORDER BY number") == [(1,), (2,), (3,)]
    assert len(sql(db, "SELECT name FROM feed")) == 1


def test_a_token_command_changes_no_schema_under_a_server(sqlite: str, tmp_path: Path) -> None:
    grant(sqlite, "m", reads=[""], writes=[""])
    with running(sqlite):
        sql(sqlite, "PRAGMA user_version = 3")  # as a server of an earlier release would have it
        answer = agentcoordd("token", "list", "--db", sqlite)
        assert (answer.exit, answer.out) == (2, "")
        assert answer.err == (
            f"another server has this database: {tmp_path}/state.db, "
            "of an earlier release: stop it first, then start this release's\n"
        )
        sql(sqlite, "PRAGMA user_version = 4")
        assert agentcoordd("token", "list", "--db", sqlite).exit == 0


def test_a_migration_that_fails_leaves_nothing(sqlite: str, tmp_path: Path) -> None:
    sql(sqlite, "CREATE TABLE feed (name TEXT)")  # in the way of the last step
    answer = agentcoordd("token", "list", "--db", sqlite)
    assert answer.exit == 2
    assert answer.err == f"database error: {tmp_path}/state.db: table feed already exists\n"
    assert sql(sqlite, "SELECT name FROM sqlite_schema WHERE type = 'table'") == [("feed",)]
    assert sql(sqlite, "PRAGMA user_version") == [(0,)]
