"""`watch --json` as a process: one object a line, from a snapshot on, and an end whenever somebody wants one."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.command import PATIENCE, Coord
from tests.daemon.conftest import daemon as daemon  # noqa: PLC0414 - a fixture
from tests.daemon.remembering import command, lay
from tests.daemon.running import Daemon, hurried, until
from tests.e2e.running import CLAIM, SIGNALS, finish, start
from tests.server.calling import grant
from tests.server.running import start as serve
from tests.stores.http_server import TOKEN, Server, State

WATCH = ("watch", "--json", "--interval", "1")
ALONE = (sys.executable, "-m", "agentcoord", *WATCH)


class Stream:
    """What a process of ours prints, object by object."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), line
        return json.loads(line)

    def until(self, kind: str, **facts: object) -> dict[str, Any]:
        """Read up to a line of a kind with these facts."""
        while True:
            line = self.next()
            if line["kind"] == kind and all(line.get(name) == value for name, value in facts.items()):
                return line


@contextmanager
def watching(*options: str, env: Mapping[str, str], cwd: Path | str = "/") -> Generator[Stream]:
    argv = [sys.executable, "-m", "agentcoord", *WATCH, *options]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=dict(env), cwd=cwd) as process:
        try:
            yield Stream(process)
        finally:
            process.kill()


def rows(line: dict[str, Any], section: str) -> list[str]:
    return [str(row["path"]) for row in line[section]]


def test_without_a_daemon_it_looks_again_and_again(coord: Coord) -> None:
    assert coord(*CLAIM, "--batch-id", "b1").exit == 0
    with watching(env=coord.env, cwd=coord.work) as stream:
        first = stream.next()
        assert first["kind"] == "snapshot"
        assert first["at"].endswith("Z")
        assert (first["backend"], first["told"]) == (str(coord.state), False)
        assert first["source"] == "looking every 1 s: no daemon"
        assert (first["filters"], first["heartbeats"], first["attention"]) == ({}, [], [])
        assert rows(first, "claims") == ["claims/o/r/7.json"]
        assert len(first["events"]) == 1
        assert coord("heartbeat", "--agent-id", "a1").exit == 0
        line = stream.next()
        assert (line["kind"], line["section"], line["change"]) == ("change", "heartbeats", "added")
        assert (line["row"]["agent_id"], line["row"]["liveness"]) == ("a1", "live")
        assert coord("release", *CLAIM[1:]).exit == 0
        line = stream.until("change", section="claims")
        assert (line["change"], line["row"]["status"]) == ("changed", "released")
        (coord.state / "heartbeats/a1.json").unlink()
        line = stream.until("change", section="heartbeats")
        assert (line["change"], line["row"]["agent_id"]) == ("removed", "a1")


def test_what_the_daemon_tells_is_read_at_once(daemon: Daemon) -> None:
    lay(daemon.root, "claims/o/r/1.json", {"agent_id": "a0"})
    daemon.start()
    with watching("--interval", "3600", env=daemon.env) as stream:
        first = stream.next()
        assert (first["told"], first["source"]) == (True, "the daemon tells of changes")
        assert rows(first, "claims") == ["claims/o/r/1.json"]
        assert command(daemon, *CLAIM).returncode == 0
        assert stream.next()["row"]["path"] == "claims/o/r/7.json"
        (daemon.root / "claims/o/r/1.json").unlink()
        assert stream.until("change", change="removed")["row"]["agent_id"] == "a0"
        asked = {"workspace": "w", "repository": "o/r", "id": "a-1"}
        lay(daemon.root, "attention/w/o/r/a-1.json", asked)  # no sound request, and so one that cannot be read
        assert "attention" in stream.until("trouble")["message"]
        (daemon.root / "attention/w/o/r/a-1.json").unlink()
        assert stream.until("trouble")["message"] is None


@pytest.fixture
def elsewhere() -> Generator[Daemon]:
    """A daemon of another machine."""
    daemon = Daemon()
    try:
        yield daemon
    finally:
        daemon.close()


def test_what_happens_on_another_machine_is_told_by_the_feed_of_the_server(
    daemon: Daemon, elsewhere: Daemon, tmp_path: Path
) -> None:
    db = f"sqlite:///{tmp_path}/state.db"
    server = serve(db)
    try:
        for machine, name in ((daemon, "m1"), (elsewhere, "m2")):
            token = grant(db, name, reads=[""], writes=[""])
            machine.env |= {"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": token}
            machine.start()
        until(lambda: daemon.status()["replicas"][0]["state"] == "current")
        with watching("--interval", "3600", env=daemon.env) as stream:
            assert stream.next()["source"] == "the daemon tells of changes"
            assert command(elsewhere, *CLAIM).returncode == 0
            assert stream.next()["row"]["path"] == "claims/o/r/7.json"
            assert command(elsewhere, "release", *CLAIM[1:]).returncode == 0
            line = stream.until("change", section="claims")
            assert (line["change"], line["row"]["status"]) == ("changed", "released")
    finally:
        server.kill()


def test_a_server_without_a_feed_is_polled_for_who_watches(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = hurried("import agentcoord.protocol.replica as r; r.SOONEST = 0.5; r._SPACING = 0.05")
    monkeypatch.setattr("tests.daemon.running.COMMAND", quick)
    state = State()
    with Server(state).running() as server:
        daemon.env |= {"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN}
        daemon.start()
        with watching("--interval", "3600", env=daemon.env) as stream:
            stream.next()
            state.put("claims/o/r/7.json", {"agent_id": "a1", "repo": "o/r", "target": "7", "status": "active"})
            assert stream.until("change")["row"]["path"] == "claims/o/r/7.json"


def test_what_the_daemon_does_with_leases_is_told(daemon: Daemon) -> None:
    daemon.start()
    with watching("--interval", "3600", env=daemon.env) as stream:
        assert stream.next()["told"]
        hold = {
            "agent_id": "a1",
            "kinds": ["heartbeat"],
            "ttl": 60,
            "backend": {"kind": "local", "root": str(daemon.root)},
        }
        lane = daemon.call().ask("lease.hold", hold)["result"]["lane"]
        line = stream.until("lease", topic="lease.held")
        assert (line["data"]["agent_id"], line["data"]["lane"]) == ("a1", lane)
        daemon.call().ask("lease.drop", {"lane": lane})
        assert stream.until("lease")["topic"] == "lease.dropped"


def test_a_daemon_that_goes_is_replaced_by_looks_and_found_again(daemon: Daemon) -> None:
    process = daemon.start()
    with watching(env=daemon.env) as stream:
        assert stream.next()["told"]
        process.kill()
        process.wait()
        line = stream.until("source")
        assert not line["told"]
        assert line["source"].startswith("looking every 1 s: ")
        assert command(daemon, *CLAIM).returncode == 0
        assert stream.until("change")["section"] == "claims"
        daemon.start()
        assert stream.until("source")["told"]
        assert command(daemon, "heartbeat", "--agent-id", "a1").returncode == 0
        assert stream.until("change")["section"] == "heartbeats"


def test_a_root_that_the_daemon_does_not_serve_is_looked_at(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start()
    lay(tmp_path, "claims/o/r/1.json", {})
    with watching("--state-root", str(tmp_path), env=daemon.env) as stream:
        first = stream.next()
        assert rows(first, "claims") == ["claims/o/r/1.json"]
        assert first["source"] == "looking every 1 s: the daemon does not serve this backend"


def test_a_daemon_is_not_asked_when_it_is_declined(daemon: Daemon) -> None:
    daemon.start()
    with watching(env=daemon.env | {"AGENT_COORD_DAEMON": "off"}) as stream:
        assert stream.next()["source"] == "looking every 1 s: AGENT_COORD_DAEMON is off"


@pytest.mark.parametrize(
    ("options", "claims", "heartbeats"),
    [
        (("--repo", "o/r"), ["claims/o/r/7.json"], ["heartbeats/a1.json"]),
        (("--batch-id", "b2"), ["claims/o/s/7.json"], []),
        (("--machine", "m1"), ["claims/o/r/7.json"], ["heartbeats/a1.json"]),
        (("--machine", "m1", "--repo", "o/s"), [], []),
    ],
)
def test_filters_leave_out_what_is_not_wanted(
    coord: Coord, options: tuple[str, ...], claims: list[str], heartbeats: list[str]
) -> None:
    lay(coord.state, "claims/o/r/7.json", {"agent_id": "a1", "repo": "o/r", "target": "7"})
    lay(coord.state, "claims/o/s/7.json", {"agent_id": "a2", "repo": "o/s", "target": "7", "batch_id": "b2"})
    lay(coord.state, "heartbeats/a1.json", {"agent_id": "a1", "repo": "o/r", "target": "7", "machine_id": "m1"})
    with watching(*options, env=coord.env, cwd=coord.work) as stream:
        first = stream.next()
    assert (rows(first, "claims"), rows(first, "heartbeats")) == (claims, heartbeats)


def test_only_the_newest_events_are_in_the_snapshot(coord: Coord) -> None:
    for number in range(250):
        lay(
            coord.state,
            f"events/b1/e{number:03}.json",
            {"batch_id": "b1", "at": f"2026-01-01T12:{number // 60:02}:00Z"},
        )
    with watching(env=coord.env, cwd=coord.work) as stream:
        assert rows(stream.next(), "events") == [f"events/b1/e{number:03}.json" for number in range(50, 250)]


def test_what_cannot_be_read_is_said_until_it_can_be(coord: Coord) -> None:
    lay(coord.state, "claims/o/r/7.json", b"[]")
    with watching(env=coord.env, cwd=coord.work) as stream:
        assert stream.next()["claims"] == []
        assert "claims/o/r/7.json" in stream.next()["message"]
        lay(coord.state, "claims/o/r/7.json", {"agent_id": "a1"})
        assert stream.next()["change"] == "added"
        assert stream.next()["message"] is None


def test_a_server_is_looked_at_in_intervals(coord: Coord) -> None:
    state = State()
    state.put("claims/o/r/7.json", {"agent_id": "a1"})
    env = coord.env | {"AGENT_COORD_API_TOKEN": TOKEN}
    del env["AGENT_COORD_STATE_ROOT"]
    with Server(state).running() as server, watching(env=env | {"AGENT_COORD_API_URL": server.url}) as stream:
        first = stream.next()
        assert (first["backend"], rows(first, "claims")) == (server.url, ["claims/o/r/7.json"])
        state.put("claims/o/r/8.json", {"agent_id": "a2"})
        assert stream.until("change")["row"]["agent_id"] == "a2"


def test_it_ends_when_nobody_reads_any_more(coord: Coord) -> None:
    with watching("--interval", "3600", env=coord.env, cwd=coord.work) as stream:
        stream.next()
        assert stream.process.stdout is not None
        stream.process.stdout.close()
        assert stream.process.wait(PATIENCE) == 0


def test_it_ends_when_nobody_is_at_the_other_end_of_a_socket_any_more(coord: Coord) -> None:
    """As it is started by programs that give their children sockets for streams."""
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        subprocess.Popen(
            [*ALONE, "--interval", "3600"], stdout=theirs.fileno(), env=coord.env, cwd=coord.work
        ) as process,
    ):
        try:
            theirs.close()
            ours.settimeout(PATIENCE)
            assert ours.recv(1) == b"{"
            ours.close()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_disk_without_room_ends_it_in_one_line(coord: Coord) -> None:
    with Path("/dev/full").open("wb") as full:
        process = subprocess.run(
            ALONE, stdout=full, stderr=subprocess.PIPE, env=coord.env, cwd=coord.work, timeout=PATIENCE, check=False
        )
    assert process.returncode == 2
    assert process.stderr.decode().splitlines()[-1] == "cannot write what is seen to stdout: no space left on device"


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_a_signal_ends_it(coord: Coord, number: int, status: int) -> None:
    with watching(env=coord.env, cwd=coord.work) as stream:
        stream.next()
        stream.process.send_signal(number)
        assert stream.process.wait(PATIENCE) == status


def test_a_signal_ends_it_while_a_backend_hangs(coord: Coord) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        env = coord.env | {"AGENT_COORD_API_TOKEN": TOKEN}
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        process = start(coord, *WATCH, "--api-url", url, env=env)
        asked, _ = deaf.accept()  # and never answered
        assert finish(process, with_=signal.SIGTERM).exit == 143
        asked.close()


def test_a_signal_ends_it_while_a_reader_sleeps(coord: Coord) -> None:
    for number in range(400):
        lay(coord.state, f"claims/o/r/{number}.json", {"agent_id": "a" * 300})
    with watching(env=coord.env, cwd=coord.work) as stream:
        assert stream.process.stdout is not None
        os.read(stream.process.stdout.fileno(), 1)  # it has begun, and no pipe holds all of it
        until(lambda: _sleeps(stream.process.pid))
        stream.process.send_signal(signal.SIGTERM)
        assert stream.process.wait(PATIENCE) == 143


def _sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "watch is a view on a terminal, and stdout is none; --json prints changes line by line\n"),
        (("--interval", "0"), "--interval must be between 1 and 3600 seconds\n"),
        (("--json", "--repo", "x"), "invalid repo: x\n"),
        (("--json", "now"), "unexpected arguments: now\n"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(coord: Coord, options: tuple[str, ...], said: str) -> None:
    answer = coord("watch", *options)
    assert (answer.exit, answer.out, answer.err) == (1, "", said)


@pytest.mark.parametrize(
    "code",
    [
        "from agentcoord.__main__ import main; main(['status']); main(['log']); main(['doctor']); main(['help'])",
        "from agentcoordd.daemon import warm; warm(remote=False)",
        "from agentcoord.client import forwarded; forwarded(['status'])",
        "import agentcoord.cli.watching",
    ],
)
def test_only_the_live_view_loads_what_it_is_drawn_with(coord: Coord, code: str) -> None:
    program = f"import sys; {code}; sys.exit('rich' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], env=coord.env, cwd=coord.work, capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
