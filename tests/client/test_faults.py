"""A daemon that is missing, foreign, silent, broken or out of reach never makes a command worse than no daemon."""

import json
import os
import socket
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.client.calling import Client
from tests.client.daemon import Conversation, Daemon, Gone
from tests.command import Answer

ITEM = ("--repo", "o/r", "--target", "7")
HELD = ("--repo", "o/r", "--target", "8")
MANIFEST = {"batch_id": "b1", "lanes": [{"name": "worker", "owner": "a1", "targets": ["7", "8"]}]}
CLAIM = ("claim", "--agent-id", "a1", *ITEM, "--json")
REQUIRE = {"AGENT_COORD_DAEMON": "require"}
QUICK = "import agentcoord.client as c; c.ACCEPT_SECONDS = c.SILENCE_SECONDS = c.CANCEL_SECONDS = 0.3"


def assert_silent(client: Client) -> None:
    """Check that a command does not even mention the daemon, unless it is required."""
    ran = client("status")
    assert ran == client.alone("status")
    assert ran.exit == 0
    required = client("status", env=REQUIRE)
    assert (required.exit, required.out) == (2, "")
    assert required.err == (
        f"no daemon answers at {client.runtime}/daemon.sock (AGENT_COORD_DAEMON=require); "
        "agent-coord daemon start starts one\n"
    )


def assert_told(client: Client, why: str) -> None:
    """Check that a command says once why it does without the daemon, and is otherwise what it is alone."""
    ran = client("status")
    alone = client.alone("status")
    assert ran == Answer(0, alone.out, f"notice: {why}; the command runs without it\n{alone.err}")
    required = client("status", env=REQUIRE)
    assert required == Answer(2, "", f"{why} (AGENT_COORD_DAEMON=require)\n")


# Nobody there, or somebody else ----------------------------------------------------------------------


def test_no_directory(client: Client) -> None:
    assert_silent(client)


def test_no_socket(client: Client) -> None:
    client.runtime.mkdir(mode=0o700)
    assert_silent(client)


def test_a_socket_that_a_dead_daemon_left(client: Client) -> None:
    with Daemon(client.runtime).running():
        pass
    assert client.runtime.joinpath("daemon.sock").is_socket()
    assert_silent(client)


def test_a_file_where_the_directory_should_be(client: Client) -> None:
    client.runtime.write_text("")
    assert_told(client, f"the daemon cannot be reached: {client.runtime} is no directory")


def test_a_link_to_the_directory(client: Client, daemon: Daemon) -> None:
    moved = client.runtime.rename(client.runtime.with_name("moved"))
    client.runtime.symlink_to(moved)
    assert_told(client, f"the daemon cannot be reached: {client.runtime} is no directory")
    assert daemon.told == []


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, partial(os.symlink, "elsewhere")])
def test_something_else_where_the_socket_should_be(client: Client, make: Callable[[Path], None]) -> None:
    client.runtime.mkdir(mode=0o700)
    path = client.runtime / "daemon.sock"
    make(path)
    assert_told(client, f"the daemon cannot be reached: {path} is no socket")


def test_a_directory_that_others_can_use(client: Client, daemon: Daemon) -> None:
    client.runtime.chmod(0o750)
    assert_told(client, f"the daemon's directory {client.runtime} is open to others: it must have mode 0700")
    assert daemon.told == []


def test_a_socket_that_others_can_use(client: Client, daemon: Daemon) -> None:
    daemon.path.chmod(0o606)
    assert_told(client, f"the daemon's socket {daemon.path} is open to others: it must have mode 0600")
    assert daemon.told == []


def test_the_directory_of_another_user(client: Client, daemon: Daemon) -> None:
    own = os.getuid()
    client.before = f"import os; os.getuid = lambda: {own + 1}"
    ran = client("status")
    assert f"the daemon's directory {client.runtime} belongs to another user (uid {own})" in ran.err
    assert ran.exit == 0
    assert daemon.told == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_the_socket_of_another_user(client: Client, daemon: Daemon) -> None:
    os.chown(daemon.path, 4242, -1)
    assert_told(client, f"the daemon's socket {daemon.path} belongs to another user (uid 4242)")
    assert daemon.told == []


def test_a_socket_that_another_user_answers(client: Client, daemon: Daemon) -> None:
    client.before = "import agentcoord.client as c; c.Line.peer = lambda self: 4242"
    assert_told(client, f"the socket {daemon.path} is answered by another user (uid 4242)")
    assert daemon.told == []


@pytest.mark.parametrize("step", ["__init__", "connect"])
@pytest.mark.parametrize(("number", "cause"), [("EPERM", "Operation not permitted"), ("EACCES", "Permission denied")])
def test_a_sandbox_is_told_from_no_daemon(client: Client, daemon: Daemon, step: str, number: str, cause: str) -> None:
    client.before = (
        "import errno, os, _socket\n"
        f"def refuse(self, *given): raise OSError(errno.{number}, os.strerror(errno.{number}))\n"
        f"_socket.socket = type('socket', (_socket.socket,), {{'{step}': refuse}})\n"
    )
    assert_told(
        client,
        f"the daemon's socket {daemon.path} may not be used here: {cause}; "
        f"if this is a sandbox, allow the directory {client.runtime.resolve()} in its settings",
    )


@pytest.mark.skipif(os.getuid() == 0, reason="nothing is closed to root")
def test_a_directory_that_is_closed_to_us(client: Client, daemon: Daemon) -> None:
    client.runtime.chmod(0)
    try:
        ran = client("status")
    finally:
        client.runtime.chmod(0o700)
    assert "may not be used here: Permission denied; if this is a sandbox, allow the directory" in ran.err
    assert ran.exit == 0


def test_a_daemon_that_does_not_take_connections(client: Client) -> None:
    client.before = QUICK
    client.runtime.mkdir(mode=0o700)
    path = client.runtime / "daemon.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(0)
        waiting.connect(str(path))
        assert_told(client, "the daemon did not answer within 0.3 s")


# Before the command is begun -------------------------------------------------------------------------


def hang(told: Conversation) -> None:
    """Say nothing more until the client has had enough."""
    with pytest.raises(Gone):
        told.hear()


def test_silence_before_it_is_taken(client: Client, daemon: Daemon) -> None:
    client.before = QUICK
    daemon.script = hang
    assert_told(client, "the daemon did not answer within 0.3 s")


def test_death_before_it_is_taken(client: Client, daemon: Daemon) -> None:
    daemon.script = Conversation.die
    assert_told(client, "the daemon broke off the connection")


def test_what_is_not_the_daemons_is_nobodys_business(client: Client, daemon: Daemon) -> None:
    daemon.script = lambda told: told.refuse(-32001, "not a root that is served here")
    assert client("status") == client.alone("status")
    assert client("status", env=REQUIRE) == client.alone("status")
    assert len(daemon.told) == 2


@pytest.mark.parametrize("code", [-32002, -32601])
def test_another_version(client: Client, daemon: Daemon, code: int) -> None:
    daemon.script = lambda told: told.refuse(code, "no such thing")
    assert_told(client, "the daemon is of a version that does not go with this one (0.1.0); restart it")


def test_a_refusal(client: Client, daemon: Daemon) -> None:
    daemon.script = lambda told: told.refuse(-32000, "too many commands at once")
    assert_told(client, "the daemon refused the command: too many commands at once")


def test_a_refusal_moves_no_cursor(client: Client, daemon: Daemon) -> None:
    daemon.script = lambda told: told.refuse(-32000, "a\x1b[2Jb\nc")
    assert client("status").err == (
        "notice: the daemon refused the command: a\\x1b[2Jb\\nc; the command runs without it\n"
        + client.alone("status").err
    )


GARBAGE = {
    "not JSON": b"\x00\xff\n",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "an empty line": b"\n",
    "not an object": b"[]\n",
    "no method": b"{}\n",
    "parameters of another kind": b'{"method":"accepted","params":7}\n',
    "an error of another kind": b'{"id":1,"error":7}\n',
    "a result too soon": b'{"id":1,"result":{"exit":0}}\n',
    "deeply nested": b'{"a":' + b"[" * 200_000 + b"\n",
    "more than an object": b'{"method":"accepted","params":{"id":1}} {}\n',
    "a line without an end": b"x" * (5 * 1024 * 1024),
    "a line that is too long": b'{"method":"' + b"x" * (4 * 1024 * 1024) + b'"}\n',
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_instead_of_an_answer(client: Client, daemon: Daemon, garbage: bytes) -> None:
    def script(told: Conversation) -> None:
        told.say_raw(garbage)
        hang(told)

    daemon.script = script
    assert_told(client, "the daemon's answer is not of the protocol")


def test_what_no_line_can_carry_stays_here(client: Client, daemon: Daemon) -> None:
    client.before = "import agentcoord.client as c; c.FRAME_BYTES = 100"
    assert client("status") == client.alone("status")
    assert daemon.told == []


# After it was begun ----------------------------------------------------------------------------------


def records(client: Client) -> dict[str, object]:
    """Give all that the state holds."""
    return {
        str(path.relative_to(client.state)): json.loads(path.read_bytes())
        for path in sorted(client.state.rglob("*.json"))
        if path.is_file()
    }


def assert_brought_to_its_end(client: Client, daemon: Daemon, ran: Answer, why: str) -> None:
    assert (ran.exit, ran.err.splitlines()[0]) == (
        0,
        f"notice: {why}; the command is brought to its end without it",
    ), ran.err
    assert len(daemon.told) == 1


@pytest.mark.parametrize("done", [False, True], ids=["nothing was done", "all was done"])
@pytest.mark.parametrize(
    "words",
    [
        CLAIM,
        (*CLAIM, "--batch-id", "b1"),
        ("record-event", "--agent-id", "a1", *ITEM, "--type", "note", "--batch-id", "b1"),
        ("heartbeat", "--agent-id", "a1"),
        ("heartbeat", "--agent-id", "a1", "--batch-id", "b1"),
        ("register-batch", "--file", "m.json"),
        ("release", "--agent-id", "a1", *HELD),
        ("release", "--agent-id", "a1", *HELD, "--terminal", "done"),
        ("gc", "--execute"),
    ],
    ids=" ".join,
)
def test_death_in_mid_command_writes_nothing_twice(
    client: Client, daemon: Daemon, words: tuple[str, ...], done: bool
) -> None:
    client.work.joinpath("m.json").write_text(json.dumps(MANIFEST))
    assert client.alone("register-batch", "--file", "m.json").exit == 0
    assert client.alone("claim", "--agent-id", "a1", *HELD, "--batch-id", "b1").exit == 0
    written: list[dict[str, object]] = []

    def script(told: Conversation) -> None:
        told.accept()
        if done:
            out, _, status = told.perform()
            assert status == 0, out
            written.append(records(client))
            told.output("stdout", out[:10])
        told.die()

    daemon.script = script
    ran = client(*words)
    assert_brought_to_its_end(client, daemon, ran, "the daemon broke off the connection")
    if done:
        assert records(client) == written[0]


def test_silence_after_it_was_begun(client: Client, daemon: Daemon) -> None:
    client.before = QUICK

    def script(told: Conversation) -> None:
        told.accept()
        told.perform()
        hang(told)

    daemon.script = script
    ran = client(*CLAIM)
    assert_brought_to_its_end(client, daemon, ran, "the daemon did not answer within 0.3 s")
    assert ran.json()["record"]["agent_id"] == "a1"


def test_required_it_says_that_nothing_is_known(client: Client, daemon: Daemon) -> None:
    def script(told: Conversation) -> None:
        told.accept()
        told.output("stdout", b"half of")
        told.die()

    daemon.script = script
    assert client(*CLAIM, env=REQUIRE) == Answer(
        2,
        "",
        "the daemon broke off the connection; what the command did is unknown (AGENT_COORD_DAEMON=require)\n",
    )
    assert records(client) == {}


FAULTS = {
    "an error": (
        b'{"id":1,"error":{"code":-32603,"message":"a bug"}}\n',
        "the daemon failed: a bug",
    ),
    "no exit": (b'{"id":1,"result":{}}\n', "the daemon's answer is not of the protocol"),
    "an exit that is none": (b'{"id":1,"result":{"exit":true}}\n', "the daemon's answer is not of the protocol"),
    "an exit too large": (b'{"id":1,"result":{"exit":256}}\n', "the daemon's answer is not of the protocol"),
    "the answer to another": (b'{"id":2,"result":{"exit":0}}\n', "the daemon's answer is not of the protocol"),
    "an unknown stream": (
        b'{"method":"output","params":{"id":1,"stream":"x","data":"y"}}\n',
        "the daemon's answer is not of the protocol",
    ),
    "data of another kind": (
        b'{"method":"output","params":{"id":1,"stream":"stdout","data":7}}\n',
        "the daemon's answer is not of the protocol",
    ),
    "a path of another kind": (
        b'{"method":"read","params":{"id":1,"read":1,"path":[],"most":1}}\n',
        "the daemon's answer is not of the protocol",
    ),
    "plain bytes of an unknown stream": (
        b'{"method":"plain","params":{"id":1,"stream":"x","length":1}}\ny',
        "the daemon's answer is not of the protocol",
    ),
    "a length that is none": (
        b'{"method":"plain","params":{"id":1,"stream":"stdout","length":"1"}}\ny',
        "the daemon's answer is not of the protocol",
    ),
    "a length below nothing": (
        b'{"method":"plain","params":{"id":1,"stream":"stdout","length":-1}}\ny',
        "the daemon's answer is not of the protocol",
    ),
    "a length beyond all measure": (
        b'{"method":"plain","params":{"id":1,"stream":"stdout","length":999999999999}}\ny',
        "the answer is larger than 64 MiB",
    ),
    "not JSON": (b"oops\n", "the daemon's answer is not of the protocol"),
    "a line without an end": (b"x" * (5 * 1024 * 1024), "the daemon's answer is not of the protocol"),
}


@pytest.mark.parametrize(("line", "why"), FAULTS.values(), ids=FAULTS)
def test_faults_in_the_answer_show_nothing_of_it(client: Client, daemon: Daemon, line: bytes, why: str) -> None:
    def script(told: Conversation) -> None:
        told.accept()
        told.output("stdout", b"what is never shown")
        told.output("stderr", b"nor this\n")
        told.say_raw(line)
        hang(told)

    daemon.script = script
    ran = client("status", "--json")
    assert_brought_to_its_end(client, daemon, ran, why)
    assert ran.out == client.alone("status", "--json").out
    assert "nor this" not in ran.err


def test_plain_bytes_that_end_too_early(client: Client, daemon: Daemon) -> None:
    def script(told: Conversation) -> None:
        told.accept()
        told.tell("plain", stream="stdout", length=10)
        told.say_raw(b"half")
        told.die()

    daemon.script = script
    ran = client("status", "--json")
    assert_brought_to_its_end(client, daemon, ran, "the daemon broke off the connection")
    assert ran.out == client.alone("status", "--json").out


def test_an_answer_beyond_all_measure(client: Client, daemon: Daemon) -> None:
    client.before = "import agentcoord.client as c; c.ANSWER_BYTES = 3 << 20"

    def script(told: Conversation) -> None:
        told.accept()
        told.output("stdout", b"x" * 4 * 1024 * 1024)
        hang(told)

    daemon.script = script
    ran = client("status")
    assert_brought_to_its_end(client, daemon, ran, "the answer is larger than 3 MiB")


def test_an_input_is_read_once(client: Client, daemon: Daemon) -> None:
    """A pipe cannot be read again by the second run, so what it said is kept."""
    manifest = '{"batch_id": "b1", "lanes": [{"name": "worker", "owner": "a1", "targets": ["7"]}]}'
    read: list[bytes] = []

    def script(told: Conversation) -> None:
        told.accept()
        read.extend((told.read("/dev/stdin"), told.read("-")))
        told.die()

    daemon.script = script
    ran = client("register-batch", "--file", "/dev/stdin", "--json", stdin=manifest)
    assert read == [manifest.encode(), b""]
    assert_brought_to_its_end(client, daemon, ran, "the daemon broke off the connection")


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("missing", "No such file or directory"),
        (".", "Is a directory"),
        ("/dev/zero", "larger than 8 MiB"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_its_cause(
    client: Client, daemon: Daemon, path: str, cause: str
) -> None:
    told_causes: list[str | None] = []

    def script(told: Conversation) -> None:
        told.accept()
        try:
            told.read(path)
        except OSError as error:
            told_causes.append(error.strerror)
        told.finish()

    daemon.script = script
    assert client("status").exit == 0
    assert told_causes == [cause]


# The clock -------------------------------------------------------------------------------------------

TICKING = """
import agentcoord.client as c, agentcoord.wire as w, itertools, types, time
ticks = itertools.count()
c.time = w.time = types.SimpleNamespace(monotonic=lambda: next(ticks), time_ns=time.time_ns, gmtime=time.gmtime)
c.ACCEPT_SECONDS = 10
"""
"""A clock that is a second later each time it is looked at."""


def test_a_command_that_works_on_is_waited_for(client: Client, daemon: Daemon) -> None:
    client.before = TICKING + "\nc.ACCEPT_SECONDS = c.SILENCE_SECONDS = 100"

    def script(told: Conversation) -> None:
        told.accept()
        for _ in range(300):
            told.tell("working")
        told.tell("of a later version", news=7)
        told.finish(3)

    daemon.script = script
    assert client("status") == Answer(3, "", "")


def test_bytes_that_never_become_a_line_are_not_waited_for(client: Client, daemon: Daemon) -> None:
    client.before = TICKING + "\nc.ACCEPT_SECONDS = 1000\nw._RECEIVE_BYTES = 1"

    def script(told: Conversation) -> None:
        told.accept()
        told.say_raw(b"x" * 1000)
        hang(told)

    daemon.script = script
    ran = client("status")
    assert_brought_to_its_end(client, daemon, ran, "the daemon did not answer within 10 s")


def test_many_at_once(client: Client, daemon: Daemon) -> None:
    started = [
        subprocess.Popen(
            client.argv("claim", "--agent-id", f"a{number}", "--repo", "o/r", "--target", str(number)),
            env=client.env,
            cwd=client.work,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for number in range(20)
    ]
    for ran in started:
        _, err = ran.communicate()
        assert (ran.returncode, err) == (0, b"")
    assert len(daemon.told) == 20
