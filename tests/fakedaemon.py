"""A stand-in for the daemon: what commands need of one, as a process of its own that a test can look into.

`FAKE_*` in its environment makes it misbehave. It writes its process id into `starts`, beside the socket, each time
it has become the daemon, and every request into `asked`.
"""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentcoord.version import VERSION
from agentcoord.wire import API, runtime_directory, socket_path

PROGRAM = (sys.executable, "-P", str(Path(__file__)), "run")
NEXT = "2026-11-29T12:05:00Z"


class Fake:
    """One daemon: it answers each connection in a thread."""

    def __init__(self, place: Path, env: dict[str, str]) -> None:
        self.place, self.env = place, env
        self.lanes: list[dict[str, Any]] = []
        self.mutex = threading.Lock()
        self.ended = threading.Event()

    def serve(self) -> None:
        with suppress(FileNotFoundError):
            (self.place / "daemon.sock").unlink()
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(self.place / "daemon.sock"))
        (self.place / "daemon.sock").chmod(0o600)
        self.note("starts", os.getpid())
        listening.listen(128)
        threading.Thread(target=self.accept, args=(listening,), daemon=True).start()
        self.ended.wait()
        (self.place / "daemon.sock").unlink(missing_ok=True)

    def note(self, name: str, what: object) -> None:
        with self.mutex, (self.place / name).open("a") as file:
            file.write(json.dumps(what) + "\n")

    def accept(self, listening: socket.socket) -> None:
        while True:
            connected, _ = listening.accept()
            threading.Thread(target=self.converse, args=(connected,), daemon=True).start()

    def converse(self, connected: socket.socket) -> None:
        with suppress(OSError), connected, connected.makefile("rwb") as stream:
            for line in stream:
                asked = json.loads(line)
                if asked["method"] != "hello":
                    self.note("asked", asked)
                if self.env.get("FAKE_SILENT") == asked["method"]:
                    threading.Event().wait()
                if self.env.get("FAKE_CUT") == asked["method"]:
                    return
                stream.write(b'{"jsonrpc":"2.0","method":"event","params":{"seq":1}}\n')
                if "FAKE_SAYS" in self.env and asked["method"] == "cli.run":
                    said = {"id": asked["id"], "stream": "stdout", "data": self.env["FAKE_SAYS"]}
                    stream.write(json.dumps({"jsonrpc": "2.0", "method": "output", "params": said}).encode() + b"\n")
                answer = self.answer(asked["method"], asked["params"])
                stream.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}).encode() + b"\n")
                stream.flush()
                if asked["method"] == "daemon.stop" and not self.env.get("FAKE_STAYS"):
                    self.ended.set()
                    self.ended.wait()

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match "unknown" if method == self.env.get("FAKE_UNKNOWN") else method:
            case "hello":
                api = int(self.env.get("FAKE_API", API))
                said = {"version": self.env.get("FAKE_VERSION", VERSION), "api": api, "pid": os.getpid()}
                return {"result": said | {"started_at": "2026-11-29T10:00:00Z", "features": ["lease"]}}
            case "cli.run":
                return {"result": {"exit": 0}}
            case "daemon.status":
                return {"result": json.loads(self.env.get("FAKE_STATUS", "{}")) or {"pid": os.getpid()}}
            case "daemon.stop":
                if params["mark"]:
                    (self.place / "stopped").touch()
                return {"result": {}}
            case "lease.hold":
                if "FAKE_DECLINES" in self.env:
                    return {"error": {"code": -32000, "message": self.env["FAKE_DECLINES"]}}
                pid = params["pid"] or params["from_pid"]
                lane = {
                    "lane": f"L{len(self.lanes) + 1}",
                    "pid": pid,
                    "program": "claude",
                    "chosen": "by the test",
                }
                self.lanes.append(
                    {name: params[name] for name in ("agent_id", "repo", "target", "ttl")}
                    | lane
                    | {"state": "kept", "last_renewal": NEXT, "next_renewal": NEXT, "error": None}
                )
                return {"result": lane | {"next_renewal": NEXT}}
            case "lease.list":
                return {"result": {"lanes": json.loads(self.env.get("FAKE_LANES", "null")) or self.lanes}}
            case "lease.drop":
                left = [lane for lane in self.lanes if lane["lane"] != params["lane"]]
                dropped, self.lanes = len(left) < len(self.lanes), left
                return {"result": {"dropped": dropped}}
            case _:
                return {"error": {"code": -32601, "message": f"unknown method: {method}"}}


def main() -> int:
    """Be the daemon, unless there is one."""
    env = dict(os.environ)
    if "FAKE_FAILS" in env:
        sys.stderr.write(f"first\n{env['FAKE_FAILS']}\n")
        return 2
    place = Path(socket_path(runtime_directory(env, os.geteuid()), os.geteuid())).parent
    place.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(place / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 2
    Fake(place, env).serve()
    return 0


class Runtime:
    """A runtime directory with a short name, for a daemon that a test starts or has started."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.env = {"AGENT_COORD_RUNTIME_DIR": str(place), "HOME": str(place.parent / "home"), "PATH": os.defpath}

    def noted(self, name: str) -> list[Any]:
        """What a daemon wrote down."""
        path = self.place / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def asked(self, method: str) -> list[dict[str, Any]]:
        """With which parameters something was asked."""
        return [asked["params"] for asked in self.noted("asked") if asked["method"] == method]

    @contextmanager
    def daemon(self, **misbehaving: str) -> Generator[None]:
        """Have a daemon of the test's own running."""
        from agentcoord.daemonlink import Connection, NoDaemon, StoreError
        from tests.command import PATIENCE

        self.place.mkdir(mode=0o700, exist_ok=True)
        process = subprocess.Popen(PROGRAM, env=self.env | misbehaving, cwd=Path(__file__).parents[1])
        try:
            for _ in range(int(PATIENCE * 100)):
                try:
                    Connection(self.env, 0.5).close()
                    break
                except NoDaemon:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(0.01)
                except StoreError:  # one that misbehaves is there all the same
                    break
            yield
        finally:
            process.kill()
            process.wait(PATIENCE)


@contextmanager
def runtime() -> Generator[Runtime]:
    """A runtime directory; daemons that were started in it end with the block."""
    with TemporaryDirectory(prefix="ac-", dir="/tmp") as above:
        made = Runtime(Path(above) / "run")
        try:
            yield made
        finally:
            for pid in made.noted("starts"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
