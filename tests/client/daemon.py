"""A daemon that does as a test says: one command a connection, over a real socket, line by line."""

import errno
import json
import os
import socket
import stat
import threading
from base64 import b64decode
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from io import BufferedReader
from pathlib import Path
from typing import Any

from agentcoord.cli.chance import stream
from agentcoord.cli.output import Invocation, Terminal
from agentcoord.cli.run import run_alone
from agentcoord.files import printable
from tests.command import PATIENCE

Frame = dict[str, Any]
PART = 1024 * 1024


class Gone(Exception):
    """The client closed the connection."""


class Conversation:
    """One connection as the daemon sees it, from the `cli.run` that was sent first."""

    def __init__(self, connection: socket.socket, lines: BufferedReader) -> None:
        self.connection = connection
        self._lines = lines
        self.request = self.hear()
        self.params: Frame = self.request["params"]
        self._reads = 0

    def hear(self) -> Frame:
        """Give the next line of the client. Raises Gone."""
        try:
            line = self._lines.readline()
        except ConnectionError as error:
            raise Gone from error
        if not line:
            raise Gone
        return json.loads(line)

    def say(self, frame: Frame) -> None:
        """Send one line."""
        self.say_raw(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n")

    def say_raw(self, data: bytes) -> None:
        """Send bytes, whatever they are."""
        try:
            self.connection.sendall(data)
        except ConnectionError as error:
            raise Gone from error

    def tell(self, method: str, **told: object) -> None:
        """Send one notification."""
        self.say({"method": method, "params": {"id": self.request["id"], **told}})

    def accept(self) -> None:
        """Take the command and wait for the word to begin."""
        self.tell("accepted")
        said = self.hear()
        assert (said["method"], said["params"]["id"]) == ("go", self.request["id"])

    def refuse(self, code: int, message: str) -> None:
        """Answer with an error."""
        self.say({"id": self.request["id"], "error": {"code": code, "message": message}})

    def output(self, name: str, data: bytes) -> None:
        """Send what a stream says, in parts."""
        for start in range(0, len(data), PART):
            self.tell("output", stream=name, data=data[start : start + PART].decode("utf-8", "surrogateescape"))

    def finish(self, status: int = 0) -> None:
        """Give the exit status, and with it the end."""
        self.say({"id": self.request["id"], "result": {"exit": status}})

    def die(self) -> None:
        """End the connection as the system does for a process that was killed."""
        self.connection.shutdown(socket.SHUT_RDWR)

    def read(self, path: str, most: int = 8 * PART) -> bytes:
        """Have the client read a file. Raises OSError as the client was told by the system."""
        self._reads += 1
        self.tell("read", read=self._reads, path=path, most=most)
        data, more = b"", True
        while more:
            said = self.hear()
            assert said["method"] == "content"
            told = said["params"]
            assert told["read"] == self._reads
            if "errno" in told:
                number = told["errno"]
                raise OSError(number, "larger than 8 MiB" if number == errno.EFBIG else os.strerror(number))
            data += b64decode(told["data"])
            more = told["more"]
        return data

    def invocation(self) -> Invocation:
        """The command as the client described it."""
        told = self.params
        now = datetime.fromisoformat(told["now"])

        async def read(path: str = "-") -> bytes:
            return self.read(path)

        return Invocation(
            argv=tuple(told["argv"]),
            env=told["env"],
            cwd=told["cwd"],
            now=lambda: now,
            random=stream(bytes.fromhex(told["seed"])),
            read_file=read,
            stdin=read,
            program=told["program"],
            node=told["node"],
            terminal=Terminal(**told["terminal"]),
        )

    def perform(self) -> tuple[bytes, bytes, int]:
        """Run the command; gives stdout, stderr and the exit status."""
        output = run_alone(self.invocation())
        lines = "".join(f"{line}\n" for line in output.stderr)
        return output.stdout, printable(lines).encode(), output.exit


Script = Callable[[Conversation], None]


def serve(told: Conversation) -> None:
    """Do what a daemon does that nothing is wrong with."""
    told.accept()
    out, err, status = told.perform()
    told.tell("working")
    told.output("stderr", err)
    told.output("stdout", out)
    told.finish(status)


class Daemon:
    """Answers each connection with a script. What goes wrong in one is raised when the test ends."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "daemon.sock"
        self.script: Script = serve
        self.told: list[Frame] = []
        """The parameters of each command that was sent."""
        self.faults: list[BaseException] = []
        self.ended = threading.Event()
        """Set when a script came to its end."""
        self._listener = socket.socket(socket.AF_UNIX)

    @contextmanager
    def running(self) -> Generator["Daemon"]:
        """Listen until the block ends."""
        self.directory.mkdir(mode=0o700)
        self._listener.bind(str(self.path))
        self.path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        self._listener.listen(64)
        thread = threading.Thread(target=self._accept)
        thread.start()
        try:
            yield self
        finally:
            self.stop()
            thread.join(PATIENCE)
        for fault in self.faults:
            raise fault

    def stop(self) -> None:
        """Listen no more; the socket stays where it is, as after a SIGKILL."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(PATIENCE)
                self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection.makefile("rb") as lines:
                told = Conversation(connection, lines)
                self.told.append(told.params)
                self.script(told)
        except Gone:
            pass
        except Exception as fault:  # the test's own thread raises it
            self.faults.append(fault)
        finally:
            self.ended.set()
