"""A command that is interrupted takes the daemon's part of it along."""

import signal
import subprocess
import threading

import pytest

from tests.client.calling import Client
from tests.client.daemon import Conversation, Daemon, Gone
from tests.command import PATIENCE

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def interrupted(client: Client, ready: threading.Event, number: int) -> tuple[int, bytes, bytes]:
    """Run a command, and send it a signal as soon as the daemon is ready for that."""
    ran = subprocess.Popen(
        client.argv("status"), env=client.env, cwd=client.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert ready.wait(PATIENCE)
        ran.send_signal(number)
        out, err = ran.communicate(timeout=PATIENCE)
    finally:
        ran.kill()
    return ran.returncode, out, err


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_cancels_the_command(client: Client, daemon: Daemon, number: int) -> None:
    ready = threading.Event()
    said: list[str] = []

    def script(told: Conversation) -> None:
        told.accept()
        told.output("stdout", b"what is never shown")
        ready.set()
        said.append(told.hear()["method"])
        told.finish(128 + number)
        with pytest.raises(Gone):
            told.hear()

    daemon.script = script
    assert interrupted(client, ready, number) == (128 + number, b"", b"")
    assert daemon.ended.wait(PATIENCE)
    assert said == ["cancel"]


def test_a_daemon_that_does_not_care_is_left(client: Client, daemon: Daemon) -> None:
    client.before = "import agentcoord.client as c; c.CANCEL_SECONDS = 0.2"
    ready = threading.Event()

    def script(told: Conversation) -> None:
        told.accept()
        ready.set()
        told.hear()
        with pytest.raises(Gone):
            told.hear()

    daemon.script = script
    assert interrupted(client, ready, signal.SIGINT) == (130, b"", b"")


def test_before_it_is_taken_nothing_is_begun(client: Client, daemon: Daemon) -> None:
    client.before = "import agentcoord.client as c; c.ACCEPT_SECONDS = 60"
    ready = threading.Event()

    def script(told: Conversation) -> None:
        ready.set()
        with pytest.raises(Gone):
            told.hear()

    daemon.script = script
    assert interrupted(client, ready, signal.SIGINT) == (130, b"", b"")


def test_while_stdin_is_awaited(client: Client, daemon: Daemon) -> None:
    ready = threading.Event()
    said: list[str] = []

    def script(told: Conversation) -> None:
        told.accept()
        told.tell("read", read=1, path="-", most=10)
        ready.set()
        said.append(told.hear()["method"])
        told.finish(130)

    daemon.script = script
    ran = subprocess.Popen(
        client.argv("status"), env=client.env, cwd=client.work, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert ready.wait(PATIENCE)
        ran.send_signal(signal.SIGINT)
        assert ran.wait(PATIENCE) == 130
    finally:
        ran.kill()
        ran.communicate()
    assert daemon.ended.wait(PATIENCE)
    assert said == ["cancel"]


def test_an_ignored_signal_stays_ignored(client: Client, daemon: Daemon) -> None:
    ready = threading.Event()
    go_on = threading.Event()

    def script(told: Conversation) -> None:
        told.accept()
        ready.set()
        assert go_on.wait(PATIENCE)
        told.finish(7)

    daemon.script = script
    ran = subprocess.Popen(
        ["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", *client.argv("status")], env=client.env, cwd=client.work
    )
    try:
        assert ready.wait(PATIENCE)
        ran.send_signal(signal.SIGHUP)
        go_on.set()
        assert ran.wait(PATIENCE) == 7
    finally:
        ran.kill()
        ran.wait()
