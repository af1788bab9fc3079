"""What systemd and launchd are told, and the sockets they hand over."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from agentcoordd.supervision import LAUNCHD_SOCKET, Notifier, given_socket, launchd_sockets
from tests.command import PATIENCE
from tests.daemon.running import COMMAND, Daemon

ACTIVATED = """\
import os, socket, sys
path, options = sys.argv[1], sys.argv[2:]
listening = socket.socket(socket.AF_UNIX)
listening.bind(path)
os.chmod(path, 0o600)
listening.listen()
os.dup2(listening.fileno(), 3)
os.set_inheritable(3, True)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, "-m", "agentcoordd", "run", *options])
"""
"""What systemd does before it starts a service that is activated by its socket."""


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_is_told(daemon: Daemon, abstract: bool) -> None:
    path = daemon.directory / "notify"
    name = f"acd-{os.getpid()}" if abstract else str(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}" if abstract else name)
        manager.settimeout(PATIENCE)
        process = daemon.start(
            env={"NOTIFY_SOCKET": f"@{name}" if abstract else name, "WATCHDOG_USEC": "400000", "LISTEN_FDS": "1"}
        )
        assert manager.recv(999).decode().splitlines() == ["READY=1", f"STATUS=listening on {daemon.socket}"]
        assert [manager.recv(999) for _ in range(2)] == [b"WATCHDOG=1"] * 2
        process.terminate()
        while (said := manager.recv(999)) == b"WATCHDOG=1":
            pass
        assert said == b"STOPPING=1"
        assert process.wait(PATIENCE) == 0


def test_a_watchdog_meant_for_somebody_else_is_not_ours() -> None:
    assert Notifier({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).interval is None
    assert Notifier({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid())}).interval == 0.5
    assert Notifier({"WATCHDOG_USEC": "soon"}).interval is None
    Notifier({"NOTIFY_SOCKET": "/nonexistent"}).tell("READY=1")
    Notifier({"NOTIFY_SOCKET": "relative"}).tell("READY=1")
    Notifier({}).tell("READY=1")


def test_a_socket_of_systemd_is_taken_over_and_left_to_it(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.runtime.mkdir(mode=0o700)
    monkeypatch.setattr("tests.daemon.running.COMMAND", [COMMAND[0], "-c", ACTIVATED, str(daemon.socket)])
    process = daemon.start()
    assert daemon.call().ask("hello")["result"]["pid"] == process.pid
    process.terminate()
    assert process.wait(PATIENCE) == 0
    assert daemon.socket.exists(), "it is systemd's, who still listens on it"


def test_a_descriptor_that_is_no_socket_of_ours_is_refused(tmp_path: Path) -> None:
    script = (
        "import os, sys; from agentcoordd.supervision import given_socket\n"
        "os.dup2(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), 3)\n"
        "count = sys.argv[2]\n"
        "try:\n"
        "    given_socket({'LISTEN_FDS': count, 'LISTEN_PID': str(os.getpid())})\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    for count, said in (("1", "no socket"), ("2", "one socket is needed")):
        ran = subprocess.run(
            [COMMAND[0], "-c", script, str(tmp_path / "file"), count],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        assert ran.stdout.startswith("StoreError ")
        assert said in ran.stdout


def test_descriptors_for_another_process_are_not_ours() -> None:
    assert given_socket({"LISTEN_FDS": "1", "LISTEN_PID": "1"}) is None
    assert given_socket({}) is None


def test_launchd_is_asked_by_the_name_in_the_property_list() -> None:
    asked: list[str] = []

    def activate(name: str) -> list[int]:
        asked.append(name)
        return [7]

    def stranger(name: str) -> list[int]:
        raise OSError(3, "not started by launchd")

    assert launchd_sockets(activate) == [7]
    assert asked == [LAUNCHD_SOCKET]
    assert launchd_sockets(stranger) == []
    assert launchd_sockets(None) == []
