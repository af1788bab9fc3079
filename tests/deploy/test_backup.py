"""A backup is taken while the server runs, and a restored one is followed as a feed of its own (docs/server.md)."""

import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.command import PATIENCE
from tests.deploy.running import ROOT, Server, daemon, issue, program, serving

BACKUP = ("BEGIN", "SELECT name FROM feed")
"""What keeps the copy at one moment: without it, each write of the server begins the copy anew."""

RENAME = "UPDATE feed SET name = lower(hex(randomblob(8)))"
CREATE = {"If-None-Match": "*"}

pytestmark = pytest.mark.skipif(program("sqlite3") is None, reason="sqlite3 is not installed")


class Load:
    """Writers that go on until told to stop, and the paths of what was acknowledged to them."""

    def __init__(self, server: Server) -> None:
        self.acknowledged: list[str] = []
        self.begun = threading.Event()
        self._server, self._ended = server, threading.Event()
        self._writers = [threading.Thread(target=self._write, args=(number,)) for number in range(3)]

    def __enter__(self) -> "Load":
        for writer in self._writers:
            writer.start()
        assert self.begun.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for writer in self._writers:
            writer.join()

    def _write(self, number: int) -> None:
        with self._server.client() as client:
            made = 0
            while not self._ended.is_set():
                made += 1
                path = f"heartbeats/w{number}-{made}.json"
                if client.put(f"/v1/state/{path}", json={"data": {"n": made}}, headers=CREATE).status_code == 201:
                    self.acknowledged.append(path)
                if made == 20:
                    self.begun.set()


def _sqlite(db: Path, *commands: str) -> str:
    ran = subprocess.run(["sqlite3", db, *commands], check=True, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.stderr == ""
    return ran.stdout


def _paths(server: Server) -> set[str]:
    with server.client() as client:
        listed = client.get("/v1/state", params={"prefix": "heartbeats"}).json()
    return {entry["path"] for entry in listed["entries"]}


def _enlarge(db: Path) -> None:
    """Give the file enough pages that a copy takes longer than the pause between two writes."""
    row = ('"' + "x" * 200_000 + '"',)
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.executemany(
            "INSERT INTO state (path, data, version, updated_at, updated_by) "
            "VALUES ('archive/batches/b' || hex(randomblob(8)) || '.json', ?, 1, 'then', 'm')",
            [row] * 200,
        )


def test_a_backup_under_load_has_all_that_was_acknowledged_before(tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    with serving(tmp_path) as server:
        _enlarge(server.db)
        with Load(server) as load:
            before = set(load.acknowledged)
            _sqlite(server.db, *BACKUP, f".backup {backup}")
            during = len(load.acknowledged)
        assert during > len(before), "nobody wrote while the copy was made"
        issue(server.db, "late")
    assert _sqlite(backup, "PRAGMA integrity_check") == "ok\n"

    restored = tmp_path / "restored"
    restored.mkdir()
    backup.rename(restored / "state.db")
    with serving(restored, token=server.token) as again:
        found = _paths(again)
    assert before <= found <= set(load.acknowledged)
    assert "late" not in daemon("token", "list", "--db", f"sqlite:///{restored}/state.db")


def test_who_followed_the_feed_is_told_that_it_is_another_one(tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    with serving(tmp_path) as server, server.client() as client:
        client.put("/v1/state/heartbeats/kept.json", json={"data": {}}, headers=CREATE)
        _sqlite(server.db, *BACKUP, f".backup {backup}")
        client.put("/v1/state/heartbeats/lost.json", json={"data": {}}, headers=CREATE)
        cursor = client.get("/v1/changes").json()["cursor"]

    def overtaken(name: str, db: Path) -> tuple[int, Any]:
        """Restore, let the feed grow past the cursor, and go on from there."""
        place = tmp_path / name
        place.mkdir()
        with serving(place, db=db, token=server.token) as again, again.client() as client:
            for new in ("new", "newer"):
                client.put(f"/v1/state/heartbeats/{new}.json", json={"data": {}}, headers=CREATE)
            answer = client.get("/v1/changes", params={"since": cursor})
            return answer.status_code, answer.json()

    plain = tmp_path / "plain.db"
    plain.write_bytes(backup.read_bytes())
    status, said = overtaken("plain", plain)
    assert (status, [change["path"] for change in said["changes"]]) == (200, ["heartbeats/newer.json"]), (
        "under its old name, a restored feed lets followers miss a change: then why rename it?"
    )
    _sqlite(backup, RENAME)
    assert overtaken("renamed", backup) == (410, {"error": "cursor_expired"})


def test_a_restored_backup_forgets_that_a_token_was_revoked(tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    with serving(tmp_path) as server:
        leaked = issue(server.db, "laptop")
        _sqlite(server.db, *BACKUP, f".backup {backup}")
        assert daemon("token", "revoke", "laptop", "--db", f"sqlite:///{server.db}") == "revoked laptop\n"
        with server.client(token=leaked) as client:
            assert client.get("/v1/whoami").json() == {"error": "unknown_token"}
    with serving(tmp_path, db=backup, token=server.token) as again, again.client(token=leaked) as client:
        assert client.get("/v1/whoami").json()["machine"] == "laptop"
        daemon("token", "revoke", "laptop", "--db", f"sqlite:///{backup}")
        assert client.get("/v1/whoami").json() == {"error": "unknown_token"}


def test_the_page_says_what_was_tested() -> None:
    page = (ROOT / "docs/server.md").read_text("utf-8")
    assert f'"{BACKUP[0]}" "{BACKUP[1]}" ".backup ' in page
    assert f'"{RENAME}"' in page
