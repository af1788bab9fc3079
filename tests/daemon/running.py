"""`agentcoordd run` as a process that a test holds on to, and a caller that speaks to it line by line."""

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.command import PATIENCE, assert_presentable

NOW = "2026-03-01T12:00:00.000000Z"
SEED = "5e" * 32
PART = 1024 * 1024
COMMAND = [sys.executable, "-m", "agentcoordd", "run"]


def hurried(change: str) -> list[str]:
    """What COMMAND may be replaced by where a test would only wait: the daemon, after a statement of the test's."""
    return [sys.executable, "-c", f"{change}\nfrom agentcoordd.__main__ import main; raise SystemExit(main())", "run"]


def until(holds: Callable[[], bool]) -> None:
    """Look until something holds that nobody announces."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


class Caller:
    """One connection. Frames are sent and read one at a time."""

    def __init__(self, path: str | Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self.socket.connect(str(path))  # waits its turn, which a socket with a timeout would not
        except OSError:
            self.socket.close()
            raise
        self.socket.settimeout(PATIENCE)
        self.lines = self.socket.makefile("rb")

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, **frame: object) -> None:
        self.raw(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n")

    def next(self) -> dict[str, Any]:
        """Read one frame; {} at the end."""
        line = self.lines.readline()
        return json.loads(line) if line else {}

    def ask(self, method: str, params: object = None, *, id: int | str = 1) -> dict[str, Any]:
        """Ask for one thing, and give the answer, what is notified before it left out."""
        self.send(id=id, method=method, params={} if params is None else params)
        return self.answer(id)

    def answer(self, id: int | str = 1) -> dict[str, Any]:
        while frame := self.next():
            if frame.get("id") == id and "method" not in frame:
                return frame
        raise AssertionError("the connection ended without an answer")

    def ended(self) -> bool:
        """Read to the end of the connection."""
        try:
            while self.lines.readline():
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


class Daemon:
    """A daemon in a home and a runtime directory of its own, with a short path as sockets need."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="acd-"))
        self.home = self.directory / "home"
        self.home.mkdir()
        self.runtime = self.directory / "run"
        self.socket = self.runtime / "daemon.sock"
        self.lock = self.runtime / "daemon.lock"
        self.root = self.home / ".local/state/agent-coordination"
        self.log = self.directory / "log"
        self.env = {
            "HOME": str(self.home),
            "AGENT_COORD_RUNTIME_DIR": str(self.runtime),
            "PATH": os.defpath,
            "LC_ALL": "C.UTF-8",
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        self.callers: list[Caller] = []

    def launch(
        self, *options: str, env: Mapping[str, str] | None = None, before: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """Start a process, which may well end at once."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*before, *COMMAND, *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=self.env | dict(env or {}),
                cwd=self.directory,
            )
        self.processes.append(process)
        return process

    def start(
        self, *options: str, env: Mapping[str, str] | None = None, before: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """Start a daemon and wait until it answers."""
        said = self.said().count("listening on")
        process = self.launch(*options, env=env, before=before)
        until(lambda: self.said().count("listening on") > said or process.poll() is not None)
        assert process.poll() is None, self.said()
        return process

    def refused(self, *options: str, env: Mapping[str, str] | None = None) -> str:
        """Start a daemon that has to end with one line, and give it."""
        before = len(self.said())
        assert self.launch(*options, env=env).wait(PATIENCE) == 2
        said = self.said()[before:]
        assert_presentable(said)
        assert said.count("\n") == 1, said
        return said

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def call(self) -> Caller:
        caller = Caller(self.socket)
        self.callers.append(caller)
        return caller

    def status(self) -> dict[str, Any]:
        caller = self.call()
        result = caller.ask("daemon.status")["result"]
        caller.close()
        return result

    def close_callers(self) -> None:
        while self.callers:
            self.callers.pop().close()

    def close(self) -> None:
        """End what the test has not ended, and leave nothing behind."""
        self.close_callers()
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE)
        shutil.rmtree(self.directory)


def words(*argv: str, env: Mapping[str, str], cwd: str = "/", **other: object) -> dict[str, object]:
    """The params of cli.run."""
    return {"api": 1, "version": "test", "argv": argv, "cwd": cwd, "env": env, "now": NOW, "seed": SEED, **other}


class Ran:
    """What came of a command over the socket."""

    def __init__(self) -> None:
        self.stdout = self.stderr = ""
        self.parts = 0
        self.exit: int | None = None
        self.error: dict[str, Any] = {}
        self.notified: list[str] = []
        self.asked: list[str] = []


def run(caller: Caller, params: Mapping[str, object], files: Mapping[str, bytes | int] | None = None) -> Ran:
    """Play the client: agree to everything, and read files from `files`; a number there is an errno."""
    ran = Ran()
    caller.send(id=7, method="cli.run", params=params)
    while frame := caller.next():
        match frame.get("method"):
            case "accepted":
                caller.send(method="go", params={"id": 7})
            case "output":
                said = frame["params"]
                assert said["stream"] in ("stdout", "stderr")
                setattr(ran, said["stream"], getattr(ran, said["stream"]) + said["data"])
                ran.parts += 1
            case "plain":
                said = frame["params"]
                data = caller.lines.read(said["length"]).decode("utf-8", "surrogateescape")
                setattr(ran, said["stream"], getattr(ran, said["stream"]) + data)
            case "read":
                asked = frame["params"]
                ran.asked.append(asked["path"])
                about = {"id": 7, "read": asked["read"]}
                content = (files or {})[asked["path"]]
                if isinstance(content, int):
                    caller.send(method="content", params=about | {"errno": content})
                else:
                    parts = [content[at : at + PART] for at in range(0, len(content), PART)] or [b""]
                    for number, part in enumerate(parts, 1):
                        data = {"data": base64.b64encode(part).decode(), "more": number < len(parts)}
                        caller.send(method="content", params=about | data)
            case None:
                ran.exit = frame.get("result", {}).get("exit")
                ran.error = frame.get("error", {})
                return ran
            case _:
                pass
        ran.notified.append(frame["method"])
    raise AssertionError("the connection ended in the middle of a command")


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Generator[None]:
    """Hold a process for a block."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
