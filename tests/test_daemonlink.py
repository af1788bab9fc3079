"""Asking, starting and stopping a daemon: a stand-in's processes, real sockets, and what is said when it goes wrong."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

from agentcoord import daemonlife, daemonlink
from agentcoord.daemonlife import start_daemon, stop_daemon
from agentcoord.daemonlink import Connection, Declined, NoDaemon, Ran, Silent, Untrusted, Walled, ask, place_of
from agentcoord.errors import StoreError
from agentcoord.files import cause_of
from agentcoord.version import VERSION
from tests.command import PATIENCE
from tests.fakedaemon import PROGRAM, Runtime, runtime

ROOT = Path(__file__).parents[1]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Generator[Runtime]:
    monkeypatch.setattr(daemonlife, "program", lambda: PROGRAM)
    with runtime() as made:
        yield made


class TestAsking:
    def test_an_answer_is_found_among_what_is_said_unasked(self, at: Runtime) -> None:
        with at.daemon():
            assert ask(at.env, "lease.list", {}) == {"lanes": []}
            with Connection(at.env) as connection:
                assert connection.daemon.version == VERSION
                assert connection.ask("lease.drop", {"lane": "x"}) == {"dropped": False}
                assert connection.ask("lease.list", {}) == {"lanes": []}

    @pytest.mark.parametrize("most", [5, 4])
    def test_no_more_is_kept_of_a_command_than_one_may_say(
        self, at: Runtime, most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(daemonlink, "ANSWER_BYTES", most)
        with at.daemon(FAKE_SAYS="hello"), Connection(at.env) as connection:
            if most == 5:
                assert connection.run({}) == Ran("hello", "", 0)
                return
            with pytest.raises(Silent, match="answer is larger than"):
                connection.run({})

    def test_what_is_declined_is_said(self, at: Runtime) -> None:
        with at.daemon(), pytest.raises(Declined, match="refused sing: unknown method: sing") as raised:
            ask(at.env, "sing", {})
        assert raised.value.code == -32601

    def test_a_name_that_is_not_utf_8_is_not_told(self, at: Runtime) -> None:
        params = {"backend": {"type": "local", "root": os.fsdecode(b"/st\xff")}}
        with at.daemon(), pytest.raises(StoreError, match="^lease.hold: text that is not UTF-8, such as the path"):
            ask(at.env, "lease.hold", params)

    def test_there_is_none(self, at: Runtime) -> None:
        with pytest.raises(NoDaemon, match="agent-coord daemon start starts one"):
            ask(at.env, "lease.list", {})

    def test_a_socket_that_nobody_listens_on_is_no_daemon(self, at: Runtime) -> None:
        at.place.mkdir(mode=0o700)
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(place_of(at.env).socket)
        with pytest.raises(NoDaemon):
            ask(at.env, "lease.list", {})

    @pytest.mark.parametrize("method", ["hello", "lease.list"])
    def test_one_that_hangs_is_given_up(self, at: Runtime, method: str) -> None:
        with (
            at.daemon(FAKE_SILENT=method),
            pytest.raises(Silent, match=r"within 0.3 seconds; if it hangs, end it: kill -9 \d+$"),
        ):
            ask(at.env, "lease.list", {}, wait=0.3)

    def test_one_that_goes_away_is_not_waited_for(self, at: Runtime) -> None:
        with at.daemon(FAKE_CUT="lease.list"), pytest.raises(Silent, match="ended the conversation"):
            ask(at.env, "lease.list", {})

    def test_another_way_of_talking_is_not_talked(self, at: Runtime) -> None:
        with at.daemon(FAKE_API="99", FAKE_VERSION="9.9.9"), pytest.raises(Silent, match="agent-coord daemon restart"):
            ask(at.env, "lease.list", {})

    @pytest.mark.parametrize(
        "said",
        [
            b"\xff\xfe\n",
            b"[]\n",
            b"{\n",
            b'{"id":1,"result":7}\n',
            b'{"id":1,"result":{"version":3}}\n',
            b"x" * 9000000,
        ],
    )
    def test_garbage_is_no_answer(self, at: Runtime, said: bytes) -> None:
        at.place.mkdir(mode=0o700)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(place_of(at.env).socket)
            listening.listen()

            def answer() -> None:
                connected, _ = listening.accept()
                with connected, suppress(OSError):
                    connected.recv(65536)
                    connected.sendall(said)

            answering = threading.Thread(target=answer)
            answering.start()
            with pytest.raises(Silent):
                ask(at.env, "lease.list", {})
            answering.join(PATIENCE)

    def test_others_are_not_let_in(self, at: Runtime) -> None:
        with at.daemon():
            at.place.chmod(0o750)
            with pytest.raises(Untrusted, match="chmod 700"):
                ask(at.env, "lease.list", {})

    def test_a_link_is_not_followed(self, at: Runtime) -> None:
        with at.daemon():
            link = at.place.with_name("link")
            link.symlink_to(at.place)
            with pytest.raises(Untrusted, match="is not a directory"):
                ask({"AGENT_COORD_RUNTIME_DIR": str(link)}, "lease.list", {})

    def test_what_stands_in_the_sockets_place_is_not_connected_to(self, at: Runtime) -> None:
        at.place.mkdir(mode=0o700)
        (at.place / "daemon.sock").mkdir()
        with pytest.raises(Untrusted, match="is not a socket"):
            ask(at.env, "lease.list", {})

    def test_a_foreign_directory_is_not_entered(self, at: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        at.place.mkdir(mode=0o700)
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        with pytest.raises(Untrusted, match="belongs to another user"):
            ask(at.env, "lease.list", {})

    def test_a_foreign_process_is_not_asked(self, at: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        with at.daemon():
            monkeypatch.setattr(daemonlink, "_behind", _foreign)
            with pytest.raises(Untrusted, match="user 4242 answers"):
                ask(at.env, "lease.list", {})

    @pytest.mark.parametrize(
        "fault", [PermissionError(1, "Operation not permitted"), PermissionError(13, "Permission denied")]
    )
    def test_a_sandbox_is_told_from_no_daemon(
        self, at: Runtime, monkeypatch: pytest.MonkeyPatch, fault: OSError
    ) -> None:
        def refuse(connecting: socket.socket, address: str) -> None:
            raise fault

        with at.daemon():
            monkeypatch.setattr(socket.socket, "connect", refuse)
            with pytest.raises(Walled) as raised:
                ask(at.env, "lease.list", {}, start=True)
        assert str(raised.value) == (
            f"this process may not connect to the daemon ({cause_of(fault)}), as in a sandbox: "
            f"allow Unix sockets in the directory {at.place} in its settings"
        )


class TestStarting:
    def test_one_is_started_when_there_is_none(self, at: Runtime) -> None:
        assert ask(at.env, "lease.list", {}, start=True) == {"lanes": []}
        daemon, new = start_daemon(at.env)
        assert (at.noted("starts"), new) == ([daemon.pid], False)
        assert os.getsid(daemon.pid) == daemon.pid
        if sys.platform == "linux":
            assert os.readlink(f"/proc/{daemon.pid}/cwd") == "/"
        assert at.place.stat().st_mode & 0o777 == 0o700

    def test_fifty_at_once_start_one(self, at: Runtime) -> None:
        code = (
            "from agentcoord import daemonlife, daemonlink\n"
            "import os\n"
            "from tests.fakedaemon import PROGRAM\n"
            "daemonlife.program = lambda: PROGRAM\n"
            "daemonlink.ask(dict(os.environ), 'lease.list', {}, start=True, wait=60)\n"
        )
        running = [subprocess.Popen([sys.executable, "-c", code], env=at.env, cwd=ROOT) for _ in range(50)]
        assert [process.wait(PATIENCE) for process in running] == [0] * 50
        assert len(at.noted("starts")) == 1

    @pytest.mark.skipif(sys.platform != "linux", reason="a process's environment is read from /proc")
    def test_what_is_the_callers_own_is_not_passed_on(self, at: Runtime) -> None:
        at.env |= {"CODEX_THREAD_ID": "t", "NOTIFY_SOCKET": "/x", "AGENT_COORD_STATE_ROOT": "/r"}
        daemon, _ = start_daemon(at.env)
        names = [entry.partition("=")[0] for entry in Path(f"/proc/{daemon.pid}/environ").read_text().split("\0")]
        assert "AGENT_COORD_STATE_ROOT" in names
        assert not {"CODEX_THREAD_ID", "NOTIFY_SOCKET"} & set(names)

    def test_why_it_did_not_start_is_said(self, at: Runtime) -> None:
        with pytest.raises(StoreError, match="the daemon did not start: the roster is gone"):
            start_daemon(at.env | {"FAKE_FAILS": "the roster is gone"})

    def test_one_that_another_has_started_in_its_own_way_is_found(self, at: Runtime) -> None:
        """The process started here ends at once, since the other one has the lock; that one is the daemon."""
        with at.daemon():
            socket_of = at.place / "daemon.sock"
            aside = socket_of.rename(at.place / "aside")
            timer = threading.Timer(0.2, lambda: aside.rename(socket_of))
            timer.start()
            daemon, _ = start_daemon(at.env)
            timer.join()
            assert at.noted("starts") == [daemon.pid]

    def test_a_stop_is_respected_until_a_person_starts_it(self, at: Runtime) -> None:
        first, _ = start_daemon(at.env)
        assert stop_daemon(at.env) == first
        if sys.platform == "linux":
            assert not _lives(first.pid)
        with pytest.raises(NoDaemon, match="was stopped; agent-coord daemon start"):
            ask(at.env, "lease.list", {}, start=True)
        second, new = start_daemon(at.env, asked=True)
        assert new
        assert at.noted("starts") == [first.pid, second.pid]
        assert not place_of(at.env).stopped

    def test_stopping_what_does_not_run_leaves_the_mark(self, at: Runtime) -> None:
        assert stop_daemon(at.env) is None
        assert place_of(at.env).stopped

    def test_one_that_does_not_end_is_named(self, at: Runtime) -> None:
        with at.daemon(FAKE_STAYS="yes"), pytest.raises(Silent, match=rf"kill -9 {at.noted('starts')[0]}"):
            stop_daemon(at.env, wait=0.5)

    def test_one_that_talks_in_another_way_can_be_stopped(self, at: Runtime) -> None:
        with at.daemon(FAKE_API="99"):
            stopped = stop_daemon(at.env, mark=False)
            assert stopped is not None
            assert at.noted("starts") == [stopped.pid]
            assert not place_of(at.env).stopped

    def test_a_place_that_cannot_be_made_is_named(self, at: Runtime) -> None:
        at.place.write_text("")
        with pytest.raises(StoreError, match=f"{at.place}"):
            start_daemon(at.env)

    def test_the_program_is_named_by_its_whole_path(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.undo()
        beside = Path(sys.executable).with_name("agentcoordd")
        assert daemonlife.program() == (str(beside), "run")
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        assert daemonlife.program() == (str(tmp_path / "python"), "-P", "-m", "agentcoordd", "run")
        monkeypatch.setattr(sys, "executable", "python")
        with pytest.raises(StoreError, match="agentcoordd run"):
            daemonlife.program()


def _foreign(connected: socket.socket) -> tuple[int, int]:
    return 1, 4242


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
