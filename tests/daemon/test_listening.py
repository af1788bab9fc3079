"""Who may be the daemon of this machine, and when it is so no more."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agentcoord.errors import ConfigError
from agentcoord.wire import socket_path
from agentcoordd.configuration import load_configuration
from tests.command import PATIENCE
from tests.daemon.running import COMMAND, Caller, Daemon, until


def test_what_it_makes_is_closed_to_others(daemon: Daemon) -> None:
    daemon.start()
    modes = [path.stat().st_mode & 0o777 for path in (daemon.runtime, daemon.socket, daemon.lock)]
    assert modes == [0o700, 0o600, 0o600]
    assert (daemon.home / ".local/state/agentcoordd").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(daemon: Daemon, number: signal.Signals) -> None:
    process = daemon.start()
    caller = daemon.call()
    process.send_signal(number)
    assert process.wait(PATIENCE) == 0
    assert caller.ended()
    assert not daemon.socket.exists()


def test_a_second_daemon_says_so_and_disturbs_nothing(daemon: Daemon) -> None:
    first = daemon.start()
    caller = daemon.call()
    assert "a daemon is running already" in daemon.refused()
    assert caller.ask("hello")["result"]["pid"] == first.pid


FIFTY = """\
import os, sys
from agentcoordd import daemon
from agentcoordd.__main__ import main
for _ in range(50):
    if os.fork() == 0:
        sys.exit(main())
print("ended with", {os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(49)}, file=sys.stderr, flush=True)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
"""Daemons that start at the same moment: what each would load for itself is loaded once, before."""


def test_of_fifty_starts_at_once_one_wins(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.daemon.running.COMMAND", [sys.executable, "-c", FIFTY, "run"])
    starting = daemon.launch()
    until(lambda: "ended with" in daemon.said() and "listening on" in daemon.said())
    assert "ended with {2}\n" in daemon.said()
    assert daemon.said().count("listening on") == 1
    os.kill(daemon.call().ask("hello")["result"]["pid"], signal.SIGTERM)
    assert starting.wait(PATIENCE) == 0


def test_a_killed_daemon_leaves_nothing_in_the_way_of_the_next(daemon: Daemon) -> None:
    for _ in range(3):
        process = daemon.start()
        process.kill()
        process.wait(PATIENCE)
        assert daemon.socket.exists()
        assert daemon.lock.exists()
    last = daemon.start()
    assert daemon.call().ask("hello")["result"]["pid"] == last.pid


@pytest.mark.parametrize("content", [b"", b"garbage \x00\xff", b"1\n", b"9" * 100_000])
def test_what_the_lock_file_says_is_of_no_account(daemon: Daemon, content: bytes) -> None:
    daemon.runtime.mkdir(mode=0o700)
    daemon.lock.write_bytes(content)
    process = daemon.start()
    assert daemon.lock.read_text() == f"{process.pid}\n"


def test_a_lock_that_somebody_holds_is_respected_whatever_else_is_there(daemon: Daemon) -> None:
    daemon.runtime.mkdir(mode=0o700)
    with daemon.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(daemon.socket))
        assert "is locked" in daemon.refused()
        assert daemon.socket.exists()


@pytest.mark.parametrize("name", ["daemon.sock", "daemon.lock"])
@pytest.mark.parametrize("kind", ["directory", "symlink"])
def test_nothing_else_is_ever_removed_or_followed(daemon: Daemon, name: str, kind: str) -> None:
    daemon.runtime.mkdir(mode=0o700)
    target = daemon.directory / "precious"
    target.write_text("mine")
    place = daemon.runtime / name
    if kind == "directory":
        place.mkdir()
    else:
        place.symlink_to(target)
    assert str(place) in daemon.refused()
    assert place.is_symlink() or place.is_dir()
    assert target.read_text() == "mine"


def test_a_file_in_the_place_of_the_socket_stays(daemon: Daemon) -> None:
    daemon.runtime.mkdir(mode=0o700)
    daemon.socket.write_text("notes")
    assert "is in the way" in daemon.refused()
    assert daemon.socket.read_text() == "notes"


def test_a_runtime_directory_that_others_may_enter_is_refused(daemon: Daemon) -> None:
    daemon.runtime.mkdir()
    daemon.runtime.chmod(0o755)
    assert "chmod 700" in daemon.refused()


def test_a_runtime_directory_that_is_a_symlink_is_refused(daemon: Daemon) -> None:
    real = daemon.directory / "real"
    real.mkdir(mode=0o700)
    daemon.runtime.symlink_to(real)
    assert "symlink" in daemon.refused()
    assert list(real.iterdir()) == []


def test_a_runtime_directory_that_cannot_be_made_is_named(daemon: Daemon) -> None:
    daemon.runtime.write_text("a file")
    below = daemon.runtime / "run"
    assert str(below) in daemon.refused(env={"AGENT_COORD_RUNTIME_DIR": str(below)})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_runtime_directory_of_somebody_else_is_refused(daemon: Daemon) -> None:
    daemon.runtime.mkdir(mode=0o700)
    os.chown(daemon.runtime, 12345, -1)
    assert "belongs to user 12345" in daemon.refused()


def test_a_path_too_long_for_a_socket_is_replaced_by_a_short_one(daemon: Daemon) -> None:
    long = daemon.directory / ("x" * 120)
    short = Path(socket_path(str(long), os.geteuid()))
    assert not str(short).startswith(str(daemon.directory))
    try:
        daemon.start(env={"AGENT_COORD_RUNTIME_DIR": str(long)})
        assert short.parent.stat().st_mode & 0o777 == 0o700
        caller = Caller(short)
        daemon.callers.append(caller)
        assert caller.ask("daemon.status")["result"]["socket"] == str(short)
    finally:
        for process in daemon.processes:
            process.terminate()
            process.wait(PATIENCE)
        (short.parent / "daemon.lock").unlink(missing_ok=True)
        short.parent.rmdir()


@pytest.mark.parametrize("lost", ["daemon.sock", "daemon.lock", ".", "state"])
def test_it_leaves_when_it_is_no_longer_itself(daemon: Daemon, lost: str) -> None:
    process = daemon.start()
    if lost == "state":
        (daemon.home / ".local/state/agentcoordd").rename(daemon.directory / "moved")
    elif lost == ".":
        daemon.runtime.rename(daemon.directory / "moved")
    else:
        (daemon.runtime / lost).unlink()
    assert process.wait(PATIENCE) == 2
    assert "not this machine's daemon any more" in daemon.said()


def test_it_leaves_the_socket_of_its_successor_alone(daemon: Daemon) -> None:
    process = daemon.start()
    daemon.socket.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(daemon.socket))
    assert process.wait(PATIENCE) == 2
    assert daemon.socket.exists()


def test_a_start_removes_the_mark_that_a_stop_left(daemon: Daemon) -> None:
    mark = daemon.runtime / "stopped"
    process = daemon.start()
    assert daemon.call().ask("daemon.stop", {"mark": True})["result"] == {"pid": process.pid}
    assert process.wait(PATIENCE) == 0
    assert mark.exists()
    process = daemon.start()
    assert not mark.exists()
    daemon.call().ask("daemon.stop")
    assert process.wait(PATIENCE) == 0
    assert not mark.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_caller_of_another_user_is_hung_up_on(daemon: Daemon) -> None:
    daemon.start()
    for opened, mode in ((daemon.directory, 0o755), (daemon.runtime, 0o711), (daemon.socket, 0o666)):
        opened.chmod(mode)
    script = (
        "import os, socket; os.setuid(12345)\n"
        f"s = socket.socket(socket.AF_UNIX); s.connect({str(daemon.socket)!r})\n"
        "try:\n"
        '    s.sendall(b\'{"jsonrpc":"2.0","id":1,"method":"hello"}\\n\'); print(s.recv(99))\n'
        "except OSError:\n"
        "    print(b'')\n"
    )
    ran = subprocess.run([COMMAND[0], "-I", "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert ran.stdout == "b''\n"


@pytest.mark.parametrize("words", [["--nonsense"], ["extra"], ["\x1b[31mred\n"]])
def test_words_it_does_not_know_are_a_usage_error(daemon: Daemon, words: list[str]) -> None:
    process = daemon.launch(*words)
    assert process.wait(PATIENCE) == 1
    assert words[0].strip("\x1b\n") in daemon.said()
    assert daemon.said().strip().isprintable(), "one line, that moves no cursor"


def test_a_settings_file_it_does_not_understand_is_named(daemon: Daemon) -> None:
    place = daemon.home / ".config/agentcoordd/config.json"
    place.parent.mkdir(parents=True)
    for content in ("{", '{"unknown": 1}', '{"serve_roots": ["relative"]}', '{"notify": ["notify-send"]}'):
        place.write_text(content)
        place.chmod(0o600)
        with pytest.raises(ConfigError, match=str(place)):
            load_configuration(daemon.env, os.geteuid())
    assert str(place) in daemon.refused()


@pytest.mark.parametrize("kind", ["file", "symlink", "open"])
def test_a_state_directory_that_is_not_its_own_is_refused(daemon: Daemon, kind: str) -> None:
    place = daemon.home / ".local/state/agentcoordd"
    place.parent.mkdir(parents=True)
    if kind == "file":
        place.write_text("")
    elif kind == "symlink":
        place.symlink_to(daemon.directory)
    else:
        place.mkdir()
        place.chmod(0o755)
    assert str(place) in daemon.refused()
    assert "XDG_STATE_HOME or HOME" in daemon.refused(env={"HOME": ""})


def test_it_logs_to_a_file_of_its_own_when_asked(daemon: Daemon) -> None:
    process = daemon.launch("--log-file")
    log = daemon.home / ".local/state/agentcoordd/daemon.log"
    until(lambda: log.exists() and "listening on" in log.read_text())
    assert log.stat().st_mode & 0o777 == 0o600
    process.terminate()
    assert process.wait(PATIENCE) == 0
    assert daemon.said() == ""
