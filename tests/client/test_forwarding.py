"""A command through a daemon that nothing is wrong with: the same bytes, the same exit, and little loaded."""

import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentcoord.wire import travels
from tests.cli.line import Line
from tests.client.calling import Client
from tests.client.daemon import Conversation, Daemon
from tests.command import PATIENCE

ITEM = ("--repo", "o/r", "--target", "7")
MANIFEST = {"batch_id": "b1", "lanes": [{"name": "worker", "owner": "a1", "targets": ["7"]}]}
COMMANDS = {
    "a table": ("status",),
    "a document": ("status", "--json"),
    "one target": ("status", *ITEM),
    "help of a command": ("claim", "--help"),
    "nothing found": ("log", *ITEM),
    "no such command": ("nonsense",),
    "no such option": ("status", "--nonsense"),
    "a refusal": ("claim", "--agent-id", "other", *ITEM),
    "a renewal": ("claim", "--agent-id", "a1", *ITEM, "--json"),
    "not ASCII": ("claim", "--agent-id", "a1", *ITEM, "--phase", "prüfen ☃"),
    "bytes that are not UTF-8": ("claim", "--agent-id", "a1", *ITEM, "--phase", b"\xff"),
    "a file that is missing": ("register-batch", "--file", "missing.json"),
    "a directory for a file": ("register-batch", "--file", "."),
    "a device without an end": ("register-batch", "--file", "/dev/zero"),
    "a file": ("register-batch", "--file", "m.json", "--dry-run"),
}
HEAVY = {
    *("msgspec", "typer", "click", "asyncio", "anyio", "rich", "pydantic", "httpx"),
    *("re", "typing", "json", "socket", "pathlib", "enum", "functools", "collections", "dataclasses", "datetime"),
    *("subprocess", "signal", "selectors", "struct", "base64", "hashlib", "logging"),
}

SAME = """
import agentcoord.client as c
same = c.Broken("{now}", bytes.fromhex("{seed}"))
c.forwarded = lambda argv: same
"""
"""Has a command run in its own process at the instant, and with the chance, of another one."""


@pytest.fixture
def claimed(client: Client) -> Client:
    """A client whose state has one claim, held by a1 for a while: one of this second could be run again."""
    client.before = SAME.format(now=(datetime.now(UTC) - timedelta(minutes=1)).isoformat(), seed="00" * 32)
    assert client.alone("heartbeat", "--agent-id", "a1").exit == 0
    assert client.alone("claim", "--agent-id", "a1", *ITEM).exit == 0
    client.before = "pass"
    client.work.joinpath("m.json").write_text(json.dumps(MANIFEST))
    return client


@pytest.mark.parametrize("argv", COMMANDS.values(), ids=COMMANDS)
def test_says_what_the_same_command_says_alone(claimed: Client, daemon: Daemon, argv: tuple[str | bytes, ...]) -> None:
    forwarded = claimed(*argv)
    if b"\xff" in argv:  # JSON cannot carry it
        assert daemon.told == []
    else:
        (told,) = daemon.told
        claimed.before = SAME.format(now=told["now"], seed=told["seed"])
    assert forwarded == claimed.alone(*argv)


def test_loads_next_to_nothing(claimed: Client, daemon: Daemon) -> None:
    program = (
        "import sys; from agentcoord.__main__ import main; status = main(sys.argv[1:]); "
        "sys.stderr.write(' '.join(sys.modules)); sys.exit(status)"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", program, "status", *ITEM],
        env=claimed.environment({"AGENT_COORD_DAEMON": "require"}),
        cwd=claimed.work,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    bare = subprocess.run(
        [sys.executable, "-I", "-c", "import sys; sys.stderr.write(' '.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "a1" in ran.stdout
    loaded = set(ran.stderr.split())
    assert not loaded & HEAVY
    assert loaded - set(bare.stderr.split()) == {
        "_json",
        "_socket",
        "agentcoord",
        "agentcoord.__main__",
        "agentcoord.client",
        "agentcoord.process",
        "agentcoord.version",
        "agentcoord.wire",
    }
    assert len(daemon.told) == 1


def test_tells_the_daemon_what_there_is(client: Client, daemon: Daemon) -> None:
    client("status", "--json", env={"XDG_CONFIG_HOME": "/c", "https_proxy": "http://p", "SECRET_OF_OTHERS": "x"})
    (told,) = daemon.told
    assert told["argv"] == ["status", "--json"]
    assert told["api"] == 1
    assert told["cwd"] == str(client.work)
    assert told["program"] == str(client.work / "agent-coord")
    assert told["node"] == os.uname().nodename
    assert told["terminal"] == {"person": False, "columns": 80, "colour": False, "notices": False}
    assert len(bytes.fromhex(told["seed"])) == 32
    assert len(told["now"]) == len("2026-01-02T03:04:05.678901Z")
    assert told["env"]["AGENT_COORD_STATE_ROOT"] == str(client.state)
    assert (told["env"]["XDG_CONFIG_HOME"], told["env"]["https_proxy"]) == ("/c", "http://p")
    assert "SECRET_OF_OTHERS" not in told["env"]
    assert "PATH" not in told["env"]


class Watched(dict[str, str]):
    """An environment that remembers what it was asked for."""

    def __init__(self, *given: dict[str, str]) -> None:
        super().__init__(*given)
        self.asked: set[str] = set()

    def get(self, key: str, default: str | None = None) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> str:
        self.asked.add(key)
        return super().__getitem__(key)


@pytest.mark.parametrize("words", [("status",), ("claim", "--agent-id", "a1", *ITEM), ("record-event",), ("gc",)])
def test_all_that_a_command_looks_for_goes_along(line: Line, words: tuple[str, ...]) -> None:
    line.env = watched = Watched(
        line.env | {"AGENT_COORD_API_URL": "https://127.0.0.1:9", "AGENT_COORD_API_TOKEN": "t"}
    )
    line(*words)
    assert watched.asked
    assert {name for name in watched.asked if not travels(name)} == set()


def test_a_person_sees_colours_and_columns(claimed: Client, daemon: Daemon) -> None:
    leader, follower = pty.openpty()
    ran = subprocess.Popen(
        claimed.argv("status"),
        env=claimed.environment({"TERM": "xterm"}),
        cwd=claimed.work,
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    shown = _all_of(leader)
    assert ran.wait(PATIENCE) == 0
    assert daemon.told[0]["terminal"] == {"person": True, "columns": 80, "colour": True, "notices": True}
    assert b"a1" in shown


def _all_of(descriptor: int) -> bytes:
    data = b""
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # what a terminal says when nobody writes to it any more
            part = b""
        if not part:
            os.close(descriptor)
            return data
        data += part


def test_words_are_text_in_any_locale(claimed: Client, daemon: Daemon) -> None:
    plain = {"LC_ALL": "POSIX", "LANG": None, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    assert claimed("claim", "--agent-id", "a1", *ITEM, "--phase", "prüfen ☃", env=plain).exit == 0
    assert daemon.told[0]["argv"][-1] == "prüfen ☃"


def test_a_directory_that_is_gone_is_told_as_such(claimed: Client, daemon: Daemon) -> None:
    gone = claimed.work / "gone"
    gone.mkdir()
    ran = subprocess.run(
        ["/bin/sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *claimed.argv("register-batch", "--file", "m.json")],
        env=claimed.env,
        cwd=gone,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "the working directory is gone, so m.json leads nowhere; pass an absolute path\n"
    assert daemon.told[0]["cwd"] == ""


def test_stdin_travels(claimed: Client, daemon: Daemon) -> None:
    words = ("register-batch", "--file", "m.json", "--launch-prompt", "-")
    told = claimed(*words, stdin="do this\n")
    assert told.exit == 0, told.err
    assert len(daemon.told) == 1
    assert claimed.alone(*words, stdin="do this\n").exit == 0


@pytest.mark.parametrize("size", [0, 1, 3 * 512 * 1024, 3 * 512 * 1024 + 1, 8 * 1024 * 1024])
def test_a_file_travels_whole(client: Client, daemon: Daemon, size: int) -> None:
    client.work.joinpath("f").write_bytes(os.urandom(size))
    got: list[bytes] = []

    def script(told: Conversation) -> None:
        told.accept()
        got.append(told.read(f"{told.params['cwd']}/f"))
        told.finish()

    daemon.script = script
    assert client("status").exit == 0
    assert got == [client.work.joinpath("f").read_bytes()]


def test_a_large_answer_arrives_whole(client: Client, daemon: Daemon) -> None:
    answer = b"".join(b"%d\xff\n" % number for number in range(900_000))

    def script(told: Conversation) -> None:
        told.accept()
        told.output("stdout", answer)
        told.finish(3)

    daemon.script = script
    ran = client("status")
    assert (ran.exit, os.fsencode(ran.out), ran.err) == (3, answer, "")


def test_an_answer_may_come_as_plain_bytes_between_the_lines(client: Client, daemon: Daemon) -> None:
    parts = [b"\xff\n" * 200_000, b'{"id":1,"result":{"exit":5}}\n', b"", b"end" * 100_000]

    def script(told: Conversation) -> None:
        assert told.params["plain"] is True
        told.accept()
        for part in parts:
            told.tell("plain", stream="stdout", length=len(part))
            told.say_raw(part)
            told.tell("working")
        told.output("stdout", b"!\n")
        told.finish(3)

    daemon.script = script
    ran = client("status")
    assert (ran.exit, os.fsencode(ran.out), ran.err) == (3, b"".join([*parts, b"!\n"]), "")


@pytest.mark.parametrize("status", [0, 1, 2, 3, 64, 255])
def test_the_exit_status_is_the_daemons(client: Client, daemon: Daemon, status: int) -> None:
    def script(told: Conversation) -> None:
        told.accept()
        told.output("stderr", b"so it is\n")
        told.finish(status)

    daemon.script = script
    ran = client("status")
    assert (ran.exit, ran.out, ran.err) == (status, "", "so it is\n")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("help",),
        ("--help",),
        ("version",),
        ("config", "show"),
        ("demo",),
        ("doctor",),
        ("bootstrap", "--help"),
    ],
)
def test_some_commands_never_go_there(client: Client, daemon: Daemon, words: tuple[str, ...]) -> None:
    client(*words)
    client(*words, env={"AGENT_COORD_DAEMON": "require"})
    assert daemon.told == []


@pytest.mark.parametrize(
    "words", [("claim", "--agent-id", "a1", *ITEM, "--keep"), ("heartbeat", "--agent-id", "a1", "--kee")]
)
def test_what_is_to_be_kept_is_done_here_and_then_asked_for(
    client: Client, daemon: Daemon, words: tuple[str, ...]
) -> None:
    daemon.script = Conversation.die
    ran = client(*words)
    assert ran.exit == 2
    assert "it is written, but nobody keeps it" in ran.err
    assert daemon.told
    assert not any("argv" in told for told in daemon.told)


def test_off_asks_nobody(client: Client, daemon: Daemon) -> None:
    assert client("status", env={"AGENT_COORD_DAEMON": "off"}).exit == 0
    assert daemon.told == []


def test_the_variable_is_read_strictly(client: Client, daemon: Daemon) -> None:
    ran = client("status", env={"AGENT_COORD_DAEMON": "yes"})
    assert (ran.exit, ran.out, ran.err) == (1, "", "AGENT_COORD_DAEMON must be auto, off or require\n")
    assert client("status", env={"AGENT_COORD_DAEMON": " "}).exit == 0
    assert len(daemon.told) == 1


def test_a_reader_that_went_away_is_no_fault(client: Client, daemon: Daemon) -> None:
    def script(told: Conversation) -> None:
        told.accept()
        told.output("stdout", b"x\n" * 200_000)
        told.finish(3)

    daemon.script = script
    ran = subprocess.Popen(
        client.argv("status"), env=client.env, cwd=client.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert ran.stdout is not None
    assert ran.stderr is not None
    ran.stdout.close()
    assert ran.stderr.read() == b""
    ran.stderr.close()
    assert ran.wait(PATIENCE) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_told(client: Client, daemon: Daemon) -> None:
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            client.argv("status", "--json"),
            env=client.env,
            cwd=client.work,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=PATIENCE,
        )
    assert ran.returncode == 2
    assert ran.stderr.startswith(b"cannot write the answer to stdout: ")
    assert len(daemon.told) == 1


def test_closed_descriptors_stay_harmless(claimed: Client, daemon: Daemon) -> None:
    ran = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *claimed.argv("status")],
        env=claimed.env,
        cwd=claimed.work,
        check=False,
        timeout=PATIENCE,
    )
    assert ran.returncode == 0
    assert len(daemon.told) == 1
