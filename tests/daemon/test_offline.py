"""Answers without the network: real servers that die and come back, real daemons that are killed, real commands."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentcoord.protocol.paths import FAMILIES
from tests.command import PATIENCE, assert_presentable
from tests.daemon.remembering import configure, lay
from tests.daemon.running import Daemon, until
from tests.server.calling import Caller, calling, grant
from tests.server.postgres import Cluster
from tests.server.running import Running, start
from tests.settings.conftest import private_directory
from tests.stores.http_server import TOKEN, Asked, Reply, Server, State

CLAIM = {"agent_id": "a1", "repo": "o/r", "target": "7", "status": "active"}


def replica_of(daemon: Daemon) -> Path:
    return daemon.home / ".local/state/agentcoordd/replica.db"


def copied(daemon: Daemon) -> dict[str, tuple[str, Any]]:
    """Read the replica's file as it is: paths, versions and data."""
    path = replica_of(daemon)
    if not path.exists():
        return {}
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        try:
            rows = connection.execute("SELECT path, version, data FROM records").fetchall()
        except sqlite3.OperationalError:
            return {}
    return {path: (version, json.loads(data)) for path, version, data in rows}


def kept(caller: Caller) -> dict[str, tuple[str, Any]]:
    """List all that a server has."""
    entries = [entry for family in FAMILIES for entry in caller.list(family).json()["entries"]]
    return {entry["path"]: (str(entry["version"]), entry["data"]) for entry in entries}


def coord(daemon: Daemon, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, which asks the daemon if there is one."""
    ran = subprocess.run(
        [sys.executable, "-m", "agentcoord", *argv],
        env=daemon.env | env,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert_presentable(ran.stderr)
    return ran


def replica(daemon: Daemon) -> dict[str, Any]:
    (found,) = daemon.status()["replicas"]
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state.db"
    cluster: Cluster = request.getfixturevalue("cluster")
    return cluster.database()


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def worker(state: State) -> Generator[Server]:
    """A server without a feed."""
    with Server(state).running() as server:
        yield server


@pytest.fixture
def user_file(daemon: Daemon) -> Generator[Path]:
    """The user file, in a home that nobody else could have written to."""
    with private_directory() as home:
        daemon.home = home
        daemon.env["HOME"] = str(home)
        place = home / ".config/agent-coord/env"
        place.parent.mkdir(parents=True, mode=0o700)
        yield place


def at(server: Server | Running, token: str) -> dict[str, str]:
    return {"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": token}


def test_the_network_goes_and_comes_back(daemon: Daemon, db: str) -> None:
    server = start(db)
    own, other = (grant(db, machine, reads=[""], writes=[""]) for machine in ("m1", "m2"))
    env = at(server, own)
    try:
        with calling(server, other) as caller:
            caller.create("claims/o/r/7.json", CLAIM)
            caller.create("events/b1/e1.json", {"event_id": "e1"})
            caller.create("attention/w/o/r/x.json", {"any": ["thing", None, 1.5, "é"]})
            daemon.start(env=env)
            until(lambda: copied(daemon) == kept(caller) and replica(daemon)["state"] == "current")
            expected = kept(caller)
        server.kill()
        until(lambda: replica(daemon)["state"] == "failing")

        ran = coord(daemon, "status", "--offline", "--json", **env)
        assert (ran.returncode, ran.stderr) == (0, "")
        seen = json.loads(ran.stdout)
        assert [row["target"] for row in seen["claims"]] == ["7"]
        assert seen["source"] == "replica"
        assert seen["age_seconds"] >= 0
        assert "complete" not in seen
        assert copied(daemon) == expected
        text = coord(daemon, "status", "--offline", **env).stdout.splitlines()
        assert text[-1].startswith(f"from the replica, as of {seen['as_of'][:10]}T")
        assert coord(daemon, "status", **env).returncode == 2  # nobody asked for an old answer
        assert coord(daemon, "status", "--max-age", "0", **env).returncode == 2
        assert json.loads(coord(daemon, "status", "--max-age", "3600", "--json", **env).stdout)["source"] == "replica"

        elsewhere = start(db)  # others go on meanwhile
        with calling(elsewhere, other) as caller:
            caller.put("claims/o/r/7.json", {**CLAIM, "status": "done"}, if_match="1")
            caller.delete("events/b1/e1.json", if_match="1")
            caller.create("events/b1/e2.json", {"event_id": "e2"})
            expected = kept(caller)
        elsewhere.stop()
        server = start(db, "--listen", f"127.0.0.1:{server.port}")
        until(lambda: copied(daemon) == expected)
        until(lambda: replica(daemon)["state"] == "current")
        said = daemon.said()
        assert said.count("is not copied") == said.count("is copied again") == 1
    finally:
        server.kill()


def test_subscribers_are_told_of_what_others_change(daemon: Daemon, tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/state.db"
    server = start(db)
    try:
        daemon.start(env=at(server, grant(db, "m1", reads=[""], writes=[""])))
        until(lambda: replica(daemon)["state"] == "current")
        listener = daemon.call()
        listener.ask("subscribe", {"topics": ["changed"]})
        with calling(server, grant(db, "m2", reads=[""], writes=[""])) as caller:
            caller.create("claims/o/r/7.json", CLAIM)
        told = listener.next()["params"]
        assert told["topic"] == "changed"
        assert (told["data"]["backend"], told["data"]["families"]) == (server.url, ["claims"])
        assert set(told["data"]) == {"backend", "families", "at"}
    finally:
        server.kill()


def test_a_token_is_rotated(daemon: Daemon, tmp_path: Path, user_file: Path) -> None:
    db = f"sqlite:///{tmp_path}/state.db"
    server = start(db)

    def save(token: str) -> None:
        user_file.write_text(f"AGENT_COORD_API_URL={server.url}\nAGENT_COORD_API_TOKEN={token}\n")
        user_file.chmod(0o600)

    try:
        save(grant(db, "m1", reads=[""], writes=[""]))
        with calling(server, grant(db, "m2", reads=[""], writes=[""])) as caller:
            caller.create("claims/o/r/7.json", CLAIM)
            caller.create("heartbeats/a1.json", {"agent_id": "a1"})
            daemon.start()
            until(lambda: copied(daemon) == kept(caller) and replica(daemon)["state"] == "current")
            rotated = grant(db, "m1", reads=["claims"], writes=[], rotate=True)
            until(lambda: replica(daemon)["state"] == "failing")
            assert json.loads(coord(daemon, "status", "--offline", "--json").stdout)["heartbeats"] != []
            save(rotated)
            until(lambda: set(copied(daemon)) == {"claims/o/r/7.json"})
            until(lambda: replica(daemon)["state"] == "current")
        seen = json.loads(coord(daemon, "status", "--offline", "--json").stdout)
        assert (seen["complete"], seen["filtered"]) == (False, True)
        assert seen["section_notes"]["heartbeats"] == "heartbeats not readable by scoped token"
        assert "may not see all records" in coord(daemon, "status", "--offline").stdout.splitlines()[-1]
    finally:
        server.kill()


@pytest.mark.parametrize("fatal", [2, 4, 7])
def test_a_daemon_that_is_killed_while_it_copies(daemon: Daemon, state: State, worker: Server, fatal: int) -> None:
    for number in range(2500):
        state.put(f"events/b1/e{number:04}.json", {"event_id": f"e{number:04}"})
        state.put(f"claims/o/r/{number:04}.json", CLAIM)
    listed: list[str] = []

    def answering(asked: Asked) -> Reply:
        if asked.target.startswith("/v1/state?"):
            listed.append(asked.target)
            if len(listed) == fatal:
                process.kill()
        return state(asked)

    worker.answering = answering
    process = daemon.start(env=at(worker, TOKEN))
    process.wait(PATIENCE)
    state.put("claims/o/r/0001.json", CLAIM | {"status": "done"}, 2)
    del state.records["events/b1/e0002.json"]
    daemon.start(env=at(worker, TOKEN))
    expected = {path: (str(version), json.loads(data)) for path, (data, version) in state.records.items()}
    until(lambda: replica(daemon)["state"] == "current")
    assert copied(daemon) == expected
    shown = replica(daemon)
    assert (shown["records"], shown["by"]) == (len(expected), "polls")


# Who is answered ------------------------------------------------------------------------------------


@pytest.fixture
def serving(daemon: Daemon, state: State, worker: Server) -> dict[str, str]:
    """A daemon with a current replica; gives the environment of its callers."""
    state.put("claims/o/r/7.json", CLAIM)
    state.put("batches/b1.json", {"batch_id": "b1", "lanes": []})
    env = at(worker, TOKEN)
    daemon.start(env=env)
    until(lambda: replica(daemon)["state"] == "current")
    return env


COMMANDS = (
    ["status"],
    ["status", "--repo", "o/r", "--target", "7"],
    ["log"],
    ["batch-audit", "--batch-id", "b1"],
    ["attention-list", "--workspace", "w", "--repo", "o/r"],
)


def test_each_command_answers_as_the_backend_would(daemon: Daemon, worker: Server, serving: dict[str, str]) -> None:
    for argv in COMMANDS:
        _require_alike(daemon, worker, serving, argv)


def _require_alike(daemon: Daemon, worker: Server, serving: dict[str, str], argv: list[str]) -> None:
    plain, labelled = (
        coord(daemon, *argv, "--json", **serving),
        coord(daemon, *argv, "--max-age", "0", "--json", **serving),
    )
    asked = len(worker.asked)
    offline = coord(daemon, *argv, "--offline", "--json", **serving)
    assert [
        each.target for each in worker.asked[asked:] if "limit" not in each.target and "whoami" not in each.target
    ] == []
    answers = [json.loads(ran.stdout) for ran in (plain, labelled, offline)]
    assert (plain.returncode, plain.stderr) == (labelled.returncode, labelled.stderr)
    assert (plain.returncode, plain.stderr) == (offline.returncode, offline.stderr)
    assert "source" not in answers[0]
    labels = [[answer.pop(name) for name in ("source", "as_of", "age_seconds")] for answer in answers[1:]]
    assert answers[0] == answers[1] == answers[2]
    assert (labels[0][0], labels[0][2], labels[1][0]) == ("backend", 0, "replica")
    said = coord(daemon, *argv, **serving).stdout
    offline = coord(daemon, *argv, "--offline", **serving)
    assert offline.stdout.startswith(said)
    assert offline.stdout.removeprefix(said).count("\n") == 1


def test_a_table_stays_a_table_and_others_are_not_answered(daemon: Daemon, serving: dict[str, str]) -> None:
    ran = coord(daemon, "log", "--format", "tsv", "--offline", **serving)
    assert ran.stdout == ""
    assert ran.stderr.splitlines()[-1].startswith("from the replica, as of ")
    another = serving | {"AGENT_COORD_API_TOKEN": "t0ken-of-another"}
    ran = coord(daemon, "status", "--offline", **another)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        "--offline: the replica shows what the daemon's own token may see, and yours is another one\n"
    )
    ran = coord(daemon, "status", "--max-age", "60", **another)
    assert "401 unknown_token" in ran.stderr  # the backend was asked, with that token
    ran = coord(daemon, "status", "--offline", **serving | {"AGENT_COORD_API_URL": "http://127.0.0.1:1"})
    assert ran.returncode == 2
    assert "--offline needs the daemon's replica" in ran.stderr


def test_without_a_daemon(daemon: Daemon, worker: Server) -> None:
    ran = coord(daemon, "status", "--offline", **at(worker, TOKEN))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "agent-coord daemon start" in ran.stderr
    ran = coord(daemon, "status", "--max-age", "60", "--json", **at(worker, TOKEN))
    assert (ran.returncode, json.loads(ran.stdout)["source"]) == (0, "backend")
    assert worker.targets("GET") != []


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["status", "--offline", "--max-age", "3"], "--offline takes an answer of any age"),
        (["status", "--max-age", "-1"], "--max-age must be zero or greater"),
        (["log", "--sync", "--offline"], "--sync reads the backend; leave out --offline"),
        (["log", "--sync", "--max-age", "3"], "--sync reads the backend; leave out --max-age"),
        (["claim", "--offline"], "invalid option: --offline"),
        (["attention", "--max-age", "3"], "invalid option: --max-age"),
    ],
)
def test_wrong_calls(daemon: Daemon, argv: list[str], said: str) -> None:
    ran = coord(daemon, *argv)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(said)


def test_a_backend_without_a_replica(daemon: Daemon) -> None:
    ran = coord(daemon, "status", "--offline", "--backend", "o/r")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "of the GitHub backend there is no replica" in ran.stderr


def test_a_local_root_is_its_own_backend(daemon: Daemon) -> None:
    lay(daemon.root, "claims/o/r/7.json", CLAIM)
    for running in (False, True):
        if running:
            daemon.start()
        for flags in (["--offline"], ["--max-age", "5"]):
            seen = json.loads(coord(daemon, "status", "--json", *flags).stdout)
            assert (seen["source"], seen["age_seconds"], len(seen["claims"])) == ("backend", 0, 1)
    assert daemon.status()["replicas"] == []
    assert not replica_of(daemon).exists()


def test_the_replica_may_be_switched_off(daemon: Daemon, worker: Server) -> None:
    replica_of(daemon).parent.mkdir(parents=True, mode=0o700)
    replica_of(daemon).write_bytes(b"of yesterday")
    configure(daemon, replica={"on": False}, mirror={"on": False})
    daemon.start(env=at(worker, TOKEN))
    assert not replica_of(daemon).exists()
    ran = coord(daemon, "status", "--offline", **at(worker, TOKEN))
    assert (ran.returncode, "replica.on is false" in ran.stderr) == (2, True)
    assert worker.asked == []


def test_two_backends_at_once(daemon: Daemon, state: State, worker: Server, user_file: Path) -> None:
    """One of the environment, one of the user file, of which one is gone."""
    state.put("claims/o/r/7.json", CLAIM)
    user_file.write_text("AGENT_COORD_API_URL=http://127.0.0.1:1\nAGENT_COORD_API_TOKEN=t0ken\n")
    user_file.chmod(0o600)
    daemon.start(env=at(worker, TOKEN))
    until(lambda: {each["state"] for each in daemon.status()["replicas"]} == {"current", "failing"})
    shown = coord(daemon, "daemon", "status").stdout
    assert f"- backend {worker.url}, state current, by polls, records 1" in shown
    assert "- backend http://127.0.0.1:1, state failing" in shown


# Over the socket ------------------------------------------------------------------------------------


METHODS: dict[str, dict[str, str]] = {
    "status.target": {"repo": "o/r", "target": "7"},
    "status.batch": {"batch_id": "b1"},
    "status.all": {},
    "trail.log": {},
    "batch.audit": {"batch_id": "b1"},
    "attention.list": {"workspace": "w", "repo": "o/r"},
}


def test_methods_take_the_same_params(daemon: Daemon, worker: Server, serving: dict[str, str]) -> None:
    del serving
    for method, named in METHODS.items():
        params: dict[str, object] = {**named, "backend": {"kind": "http", "url": worker.url}}
        plain = daemon.call().ask(method, params)["result"]
        offline = daemon.call().ask(method, params | {"offline": True})["result"]
        asked = daemon.call().ask(method, params | {"max_age": 0})["result"]
        assert (offline["source"], asked["source"], "source" in plain) == ("replica", "backend", False)
        for answer in (offline, asked):
            for name in ("source", "as_of", "age_seconds"):
                del answer[name]
        assert plain == offline == asked
    both = daemon.call().ask("status.all", {"offline": True, "max_age": 3})["error"]
    assert (both["code"], both["data"]["exit"]) == (-32000, 1)
    assert daemon.call().ask("status.all", {"max_age": -1})["error"]["code"] == -32602
    assert daemon.call().ask("claim.verify", {"repo": "o/r", "target": "7", "fence": "f", "offline": True})["error"]


def test_a_target_on_a_local_root_says_its_age_if_asked(daemon: Daemon) -> None:
    lay(daemon.root, "claims/o/r/7.json", CLAIM)
    daemon.start()
    params = {"repo": "o/r", "target": "7", "backend": {"kind": "local", "root": str(daemon.root)}}
    for _ in range(2):  # the answer that is kept is another one
        assert "source" not in daemon.call().ask("status.target", params)["result"]
        assert daemon.call().ask("status.target", params | {"max_age": 9})["result"]["source"] == "backend"
