"""Subscribers learn who asks for attention, whichever program wrote it, and once."""

import json
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentcoord.protocol.documents import Document
from agentcoordd.api.subscriptions import Feed
from agentcoordd.clock import SystemClock
from agentcoordd.services.attention import Attention
from agentcoordd.stamps import Tree
from tests.command import PATIENCE
from tests.daemon.remembering import command, configure, lay
from tests.daemon.running import Caller, Daemon, run, until, words
from tests.protocol.test_attention import OPEN as EXAMPLE
from tests.stores.http_server import TOKEN, Server, State

OPEN: Document = EXAMPLE | {"created_at": "2025-12-31T23:00:00Z", "refreshed_at": "2025-12-31T23:50:00Z"}
KEY = ("--workspace", "w", "--repo", "o/r", "--attention-id", "a-1")
FACTS = {name: OPEN[name] for name in ("priority_class", "target", "kind", "question")}


def path_of(id_: str) -> str:
    return f"attention/w/o/r/{id_}.json"


def subscriber(daemon: Daemon) -> Caller:
    caller = daemon.call()
    assert caller.ask("subscribe", {"topics": ["attention.changed"]})["result"] == {"ok": True}
    return caller


def next_told(caller: Caller) -> dict[str, Any]:
    frame = caller.next()
    assert (frame["method"], frame["params"]["topic"]) == ("event", "attention.changed")
    return frame["params"]["data"]


def test_what_any_program_asks_and_settles_is_told(daemon: Daemon) -> None:
    lay(daemon.root, path_of("a-0"), OPEN | {"id": "a-0"})
    daemon.start()
    caller = subscriber(daemon)
    record = daemon.directory / "a.json"
    record.write_text(json.dumps(OPEN))
    assert command(daemon, "attention-upsert", "--record-json", str(record)).returncode == 0
    told = next_told(caller)
    assert told.pop("at").endswith("Z")
    expected = {"backend": str(daemon.root), "workspace": "w", "repository": "o/r", "id": "a-1", **FACTS}
    assert told == expected | {"status": "open", "source_generation": 3}
    assert command(daemon, "attention-resolve", *KEY, "--source-generation", "4").returncode == 0
    told = next_told(caller)
    assert (told["id"], told["status"], told["source_generation"]) == ("a-1", "resolved", 4)
    (daemon.root / path_of("a-0")).unlink()
    told = next_told(caller)
    assert (told["id"], told["status"], told["question"]) == ("a-0", None, None)
    lay(daemon.root, "attention/w/o/.github/a-2.json", OPEN | {"id": "a-2", "repository": "o/.github"})
    assert next_told(caller)["repository"] == "o/.github"
    lay(daemon.root, path_of("a-3"), b"{")
    told = next_told(caller)
    assert (told["id"], told["status"]) == ("a-3", None)


async def test_a_root_that_does_not_answer_keeps_no_daemon_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go, looked = threading.Event(), list[str]()

    def hang(tree: Tree, closed: object) -> list[str]:
        let_go.wait(PATIENCE)
        looked.append("at last")
        return []

    monkeypatch.setattr("agentcoordd.services.attention._FIRST", 0.01)
    monkeypatch.setattr(Tree, "look", hang)
    async with anyio.create_task_group() as tasks:
        await tasks.start(Attention([str(tmp_path)], Feed(), SystemClock()).run)
        assert looked == []
        tasks.cancel_scope.cancel()
    assert looked == []
    let_go.set()


def test_a_root_that_comes_later_is_watched(daemon: Daemon) -> None:
    daemon.start()
    caller = subscriber(daemon)
    assert not daemon.root.exists()
    lay(daemon.root, path_of("a-1"), OPEN)
    assert next_told(caller)["id"] == "a-1"


def test_a_command_through_the_daemon_is_told_once(daemon: Daemon) -> None:
    daemon.start()
    caller, env = subscriber(daemon), {"HOME": str(daemon.home)}
    files: dict[str, bytes | int] = {f"/{name}": json.dumps(OPEN | {"id": name}).encode() for name in ("a-1", "a-2")}
    for name in ("a-1", "a-2"):
        assert run(daemon.call(), words("attention-upsert", "--record-json", f"/{name}", env=env), files).exit == 0
        assert next_told(caller)["id"] == name
    assert run(daemon.call(), words("attention-resolve", *KEY, "--source-generation", "3", env=env)).exit == 0
    told = next_told(caller)
    assert (told["id"], told["status"]) == ("a-1", "resolved")
    assert run(daemon.call(), words("attention-list", *KEY[:4], env=env)).exit == 0
    lay(daemon.root, path_of("last"), OPEN | {"id": "last"})
    assert next_told(caller)["id"] == "last"


def test_the_queue_comes_through_the_daemon_as_without_it(daemon: Daemon) -> None:
    daemon.start()
    lay(daemon.root, path_of("a-1"), OPEN)
    terminal = {"person": True, "columns": 50, "colour": True}
    ran = run(daemon.call(), words("attention", env={"HOME": str(daemon.home)}, terminal=terminal))
    assert ran.exit == 0
    assert "\x1b[33munblocks-work\x1b[0m" in ran.stdout
    asked = words("attention", "--json", env={"HOME": str(daemon.home)})
    assert run(daemon.call(), asked).stdout == command(daemon, "attention", "--json").stdout


def test_whoever_is_too_slow_learns_how_much_it_missed(daemon: Daemon) -> None:
    configure(daemon, mirror={"on": False})
    daemon.start()
    slow, quick = subscriber(daemon), subscriber(daemon)
    many = 3000
    for number in range(many):
        lay(daemon.directory, f"drafts/a-{number}.json", OPEN | {"id": f"a-{number}", "question": "é" * 4000})
    place = daemon.root / "attention/w/o"
    place.mkdir(parents=True)
    (daemon.directory / "drafts").rename(place / "r")
    assert {next_told(quick)["id"] for _ in range(many)} >= {f"a-{number}" for number in range(many)}
    told = 0
    while (frame := slow.next())["method"] == "event":
        told += 1
    assert frame["method"] == "gap"
    assert told + frame["params"]["missed"] == many
    assert daemon.status()["missed"] == frame["params"]["missed"] > 0
    lay(daemon.root, path_of("last"), OPEN | {"id": "last"})
    assert next_told(slow)["id"] == "last"


# -- a server


@pytest.fixture
def server() -> Generator[Server]:
    with Server(State()).running() as server:
        yield server


def test_what_a_command_writes_on_a_server_is_told(daemon: Daemon, server: Server) -> None:
    own = {"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN}
    daemon.start(env=own)
    caller, env = subscriber(daemon), {"HOME": str(daemon.home), **own}
    files: dict[str, bytes | int] = {"/a": json.dumps(OPEN).encode()}
    assert run(daemon.call(), words("attention-upsert", "--record-json", "/a", env=env), files).exit == 0
    told = next_told(caller)
    assert (told["backend"], told["id"], told["status"]) == (server.url, "a-1", "open")
    resolve = words("attention-resolve", *KEY, "--source-generation", "3", env=env)
    assert [run(daemon.call(), resolve).exit for _ in range(2)] == [0, 0]
    assert next_told(caller)["status"] == "resolved"
    again = {"/a": json.dumps(OPEN | {"source_generation": 4, "refreshed_at": "2026-04-01T00:00:00Z"}).encode()}
    assert run(daemon.call(), words("attention-upsert", "--record-json", "/a", env=env), again).exit == 0
    assert next_told(caller)["source_generation"] == 4, "a resolution that changed nothing is not told"


def test_what_a_method_writes_on_a_server_is_told(daemon: Daemon, server: Server) -> None:
    daemon.start(env={"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN})
    caller, asking = subscriber(daemon), daemon.call()
    assert asking.ask("attention.upsert", {"record": OPEN})["result"]["record"] == OPEN
    told = next_told(caller)
    assert (told["backend"], told["id"], told["status"]) == (server.url, "a-1", "open")
    key = {"workspace": "w", "repo": "o/r", "attention_id": "a-1", "source_generation": 3}
    for _ in range(2):
        assert asking.ask("attention.resolve", key)["result"]["record"]["status"] == "resolved"
    assert next_told(caller)["status"] == "resolved"
    assert asking.ask("attention.upsert", {"record": OPEN | {"id": "a-2"}})["result"]["record"]["id"] == "a-2"
    assert next_told(caller)["id"] == "a-2", "a resolution that changed nothing is not told"


def test_the_topic_is_in_the_published_schema(daemon: Daemon) -> None:
    daemon.start()
    caller = daemon.call()
    assert "error" in caller.ask("subscribe", {"topics": ["attention.else"]})
    until(lambda: daemon.status()["subscribers"]["used"] == 0)
