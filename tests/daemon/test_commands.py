"""Commands over the socket: two phases, the caller's files, what is said in parts, and every way to stop in between."""

import errno
import json
import signal
import socket
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from agentcoord.files import release_lock, take_lock
from tests.cli.line import Line
from tests.command import PATIENCE
from tests.daemon.running import NOW, Caller, Daemon, hurried, run, until, words

ITEM = ("--repo", "acme/widgets", "--target", "7")
CLAIM = ("claim", "--agent-id", "worker-a", *ITEM)


@pytest.fixture
def caller(shared: Daemon) -> Generator[Caller]:
    caller = Caller(shared.socket)
    yield caller
    caller.close()


@pytest.fixture
def env(shared: Daemon, tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(shared.home), "AGENT_COORD_STATE_ROOT": str(tmp_path / "state")}


def test_a_command_says_over_the_socket_what_it_says_in_process(
    caller: Caller, env: dict[str, str], tmp_path: Path
) -> None:
    line = Line(tmp_path)
    line.env = env
    line("claim", "--agent-id", "worker-a", *ITEM)
    now = line.clock.now().isoformat()
    for argv, exit_ in (
        (("claim", "--agent-id", "worker-b", *ITEM), 3),
        (("status", *ITEM), 0),
        (("status", "--json"), 0),
        (("log", *ITEM), 0),
        (("gc", "--dry-run"), 0),
        (("batch-audit", "--batch-id", "none"), 2),
        (("claim", "--help"), 0),
        (("claim", "--nonsense"), 1),
        (("claim",), 1),
    ):
        ran = run(caller, words(*argv, env=env, now=now))
        assert (ran.error, ran.notified[0]) == ({}, "accepted")
        own = line(*argv)
        assert (ran.exit, ran.stdout.encode(), ran.stderr.splitlines()) == (own.exit, own.stdout, own.stderr)
        assert ran.exit == exit_, argv


@pytest.mark.parametrize("plain", [False, True])
def test_a_full_status_is_that_of_the_files_also_when_it_comes_from_memory(
    caller: Caller, env: dict[str, str], tmp_path: Path, shared: Daemon, plain: bool
) -> None:
    place = tmp_path / "state/claims/acme/widgets"
    place.mkdir(parents=True)
    for number in range(3000):
        claim = {"agent_id": "worker-é", "status": "active", "branch": f"work/{number}", "phase": "\\" * 20 + "\x7f"}
        (place / f"{number}.json").write_text(json.dumps(claim))
    line = Line(tmp_path)
    line.env = env
    params = words("status", "--json", env=env, now=line.clock.now().isoformat(), plain=plain)
    for number in range(3):
        (place / f"{number}.json").write_text("{}")
        ran = run(caller, params)
        own = line("status", "--json")
        assert (ran.exit, ran.error, ran.stderr) == (0, {}, "")
        assert ran.stdout.encode() == own.stdout
        assert ("plain" in ran.notified) is plain
        assert ("output" in ran.notified) is not plain
    assert shared.status()["records"]["used"] >= 3000
    assert shared.status()["records_memory"]["used"] > 3000 * 100


def test_instant_and_chance_are_the_callers(caller: Caller, env: dict[str, str], tmp_path: Path) -> None:
    argv = ("record-event", "--batch-id", "spring", "--type", "note", "--message", "hello", "--json")
    first = run(caller, words(*argv, env=env)).stdout
    assert NOW[:19] in first
    again = run(caller, words(*argv, env=env | {"AGENT_COORD_STATE_ROOT": str(tmp_path / "other")})).stdout
    assert first == again
    other = run(caller, words(*argv, env=env, seed="00" * 32)).stdout
    assert json.loads(other) != json.loads(first)


@pytest.mark.parametrize("end", ["close", "half-close", "cancel"])
def test_nothing_is_done_before_go(
    caller: Caller, shared: Daemon, env: dict[str, str], tmp_path: Path, end: str
) -> None:
    caller.send(id=1, method="cli.run", params=words(*CLAIM, env=env))
    assert caller.next()["method"] == "accepted"
    if end == "cancel":
        caller.send(method="cancel", params={"id": 1})
        assert caller.answer()["error"]["code"] == -32003
    else:
        caller.socket.shutdown(socket.SHUT_RDWR if end == "close" else socket.SHUT_WR)
    until(lambda: shared.status()["commands"]["used"] == 0)
    assert not (tmp_path / "state").exists()


def test_whoever_never_says_go_is_told(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    command = hurried("import agentcoordd.api.commands as c; c.GO_SECONDS = 1.0")
    monkeypatch.setattr("tests.daemon.running.COMMAND", command)
    daemon.start()
    caller = daemon.call()
    caller.send(id=1, method="cli.run", params=words(*CLAIM, env={"HOME": str(daemon.home)}))
    assert caller.answer()["error"]["message"] == "no go within 1 s; nothing was done"
    assert not daemon.root.exists()


def test_a_long_command_gives_signs_of_life_and_ends_for_its_caller_when_cancelled(
    caller: Caller, shared: Daemon, env: dict[str, str], tmp_path: Path
) -> None:
    assert run(caller, words(*CLAIM, env=env)).exit == 0
    lock = take_lock(str(tmp_path / "state/claims/acme/widgets/7.json"))
    try:
        caller.send(id=1, method="cli.run", params=words(*CLAIM, env=env))
        assert caller.next()["method"] == "accepted"
        caller.send(method="go", params={"id": 1})
        began = time.monotonic()
        assert [caller.next()["method"] for _ in range(2)] == ["working", "working"]
        assert time.monotonic() - began < PATIENCE
        assert caller.ask("hello", id=2)["result"], "the loop is free meanwhile"
        caller.send(method="cancel", params={"id": 1})
        assert caller.answer()["error"] == {"code": -32003, "message": "cancelled"}
        assert shared.status()["commands"]["used"] == 1, "what works on files cannot be stopped, and counts"
    finally:
        release_lock(lock)
    until(lambda: shared.status()["commands"]["used"] == 0)


def test_files_come_through_the_client(caller: Caller, env: dict[str, str], tmp_path: Path) -> None:
    manifest: dict[str, object] = {"batch_id": "spring", "repo": "acme/widgets", "lanes": []}
    files: dict[str, bytes | int] = {
        "/work/batch.json": json.dumps(manifest).encode(),
        "-": b"do it\n",
        "/work/gone.json": errno.ENOENT,
        "/work/vast.json": errno.EFBIG,
        "/work/large.json": b" " * (6 * 1024 * 1024) + b"{}",
    }
    argv = ("register-batch", "--launch-prompt", "-", "--file")
    ran = run(caller, words(*argv, "batch.json", env=env, cwd="/work"), files)
    assert ran.asked == ["/work/batch.json", "-"], ran.stderr
    line = Line(tmp_path)
    line.env = env
    line.stdin = b"do it\n"
    line.root = tmp_path / "state"
    own = line("register-batch", "--file", line.file("batch.json", json.dumps(manifest).encode()), *argv[1:3])
    assert (ran.exit, ran.stderr) == (own.exit, "".join(f"{said}\n" for said in own.stderr))
    assert "No such file or directory" in run(caller, words(*argv, "gone.json", env=env, cwd="/work"), files).stderr
    assert "larger than 8 MiB" in run(caller, words(*argv, "vast.json", env=env, cwd="/work"), files).stderr
    large = run(caller, words("attention-upsert", "--record-json", "large.json", env=env, cwd="/work"), files)
    assert large.stderr == "attention record exceeds 262144 bytes\n"


def test_content_that_is_too_much_or_no_base64_is_a_file_that_cannot_be_read(
    caller: Caller, env: dict[str, str]
) -> None:
    for data, said in (("====", "Input/output error"), ("A" * (3 * 1024 * 1024), "larger than 8 MiB")):
        caller.send(id=1, method="cli.run", params=words("register-batch", "--file", "/x", env=env))
        assert caller.next()["method"] == "accepted"
        caller.send(method="go", params={"id": 1})
        while (frame := caller.next())["method"] != "read":
            assert frame["method"] == "working"
        for _ in range(5):
            caller.send(method="content", params={"id": 1, "read": 1, "data": data, "more": True})
        while (frame := caller.next()).get("method") == "working":
            pass
        assert said in frame["params"]["data"]
        assert caller.answer()["result"] == {"exit": 2}


def test_an_answer_of_several_megabytes_comes_in_parts(caller: Caller, env: dict[str, str], tmp_path: Path) -> None:
    line = Line(tmp_path)
    line.env = env
    for number in range(300):
        event = {"schema_version": 1, "event_id": f"e{number}", "batch_id": "spring", "type": "note", "timestamp": NOW}
        line.lay(f"events/spring/e{number}.json", event | {"message": "→\x01\\" * 4000})
    ran = run(caller, words("status", "--json", env=env))
    assert ran.stdout.encode() == line("status", "--json").stdout
    if len(ran.stdout) > 2_000_000:
        assert ran.parts >= 4


def test_a_command_can_be_cancelled_while_its_caller_reads(caller: Caller, shared: Daemon, env: dict[str, str]) -> None:
    caller.send(id=1, method="cli.run", params=words("register-batch", "--file", "/slow", env=env))
    assert caller.next()["method"] == "accepted"
    caller.send(method="go", params={"id": 1})
    while (frame := caller.next())["method"] != "read":
        assert frame["method"] == "working"
    caller.send(method="cancel", params={"id": 1})
    assert caller.answer()["error"]["code"] == -32003
    until(lambda: shared.status()["commands"]["used"] == 0)
    assert shared.status()["errors"] == []


def test_no_more_than_sixty_four_commands_run(shared: Daemon, env: dict[str, str]) -> None:
    callers = [Caller(shared.socket) for _ in range(5)]
    for caller in callers[:4]:
        for number in range(16):
            caller.send(id=number, method="cli.run", params=words("status", env=env))
        assert {caller.next()["method"] for _ in range(16)} == {"accepted"}
    assert "64 commands" in callers[4].ask("cli.run", words("status", env=env))["error"]["message"]
    assert callers[4].ask("hello", id=2)["result"]
    for caller in callers:
        caller.close()
    until(lambda: shared.status()["commands"]["used"] == 0)


def test_commands_of_many_callers_do_not_mix(shared: Daemon, env: dict[str, str]) -> None:
    said: dict[int, str] = {}

    def work(number: int) -> None:
        caller = Caller(shared.socket)
        for _ in range(5):
            said[number] = run(
                caller, words("claim", "--agent-id", f"w{number}", "--repo", "a/b", "--target", str(number), env=env)
            ).stdout
        caller.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 21)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert all(said[number].startswith(f"claimed a/b#{number} by w{number} until") for number in range(1, 21))


def test_a_daemon_killed_in_the_middle_has_written_all_or_nothing(daemon: Daemon) -> None:
    env = {"HOME": str(daemon.home)}
    record = daemon.root / "claims/acme/widgets/7.json"
    for _ in range(10):
        process = daemon.start()
        caller = daemon.call()
        caller.send(id=1, method="cli.run", params=words(*CLAIM, env=env))
        assert caller.next()["method"] == "accepted"
        caller.send(method="go", params={"id": 1})
        process.kill()
        process.wait(PATIENCE)
        frames = [frame for frame in iter(_safely(caller), {}) if "result" in frame]
        if record.exists():
            assert json.loads(record.read_bytes())["agent_id"] == "worker-a"
        assert record.exists() or not frames


def _safely(caller: Caller):
    def following() -> dict[str, object]:
        try:
            return caller.next()
        except ConnectionResetError:
            return {}

    return following


def test_what_runs_may_end_before_the_daemon_does(daemon: Daemon) -> None:
    process = daemon.start()
    env = {"HOME": str(daemon.home)}
    caller = daemon.call()
    assert run(caller, words(*CLAIM, env=env)).exit == 0
    lock = take_lock(str(daemon.root / "claims/acme/widgets/7.json"))
    caller.send(id=1, method="cli.run", params=words(*CLAIM, env=env))
    assert caller.next()["method"] == "accepted"
    caller.send(method="go", params={"id": 1})
    assert caller.next()["method"] == "working"
    process.send_signal(signal.SIGTERM)
    until(lambda: "ending on SIGTERM" in daemon.said())
    release_lock(lock)
    assert caller.answer()["result"] == {"exit": 0}
    assert process.wait(PATIENCE) == 0


def test_words_that_are_no_text_are_left_to_their_caller(caller: Caller, env: dict[str, str]) -> None:
    params = words("register-batch", "--file", "/\udcff", env=env)
    assert caller.ask("cli.run", params)["error"]["code"] == -32001
    assert caller.ask("hello", id=2)["result"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"api": 2}, -32002),
        ({"api": 0}, -32002),
        ({"seed": "x"}, -32602),
        ({"now": "today"}, -32602),
        ({"argv": "a"}, -32602),
    ],
)
def test_params_of_another_time_are_refused(
    caller: Caller, env: dict[str, str], change: dict[str, object], code: int
) -> None:
    assert caller.ask("cli.run", words("status", env=env) | change)["error"]["code"] == code
