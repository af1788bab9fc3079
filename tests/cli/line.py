"""The command line without a process: one invocation in, one output out, at a frozen time."""

import os
import re
from pathlib import Path
from typing import Any

from agentcoord.cli.output import Invocation, Output, Terminal
from agentcoord.cli.run import run_alone
from agentcoord.protocol.documents import encode_pretty
from tests.operations.stage import Chance, FakeClock


class Line:
    """Calls commands with a home and a state root below one directory; neither exists until somebody makes it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.root = directory / "state"
        self.clock = FakeClock()
        self.chance = Chance()
        self.env: dict[str, str] = {"HOME": str(self.home)}
        self.stdin = b""
        self.files: dict[str, bytes] = {}
        """What files of the system say, in place of this machine's own."""
        self.node = ""
        """What the machine calls itself."""

    def __call__(self, *argv: str, terminal: Terminal | None = None) -> Output:
        """Run one command in the state root that the environment selects."""
        output = run_alone(
            Invocation(
                argv=argv,
                env=self.env,
                cwd=str(self.directory),
                now=self.clock.now,
                random=self.chance,
                read_file=self._read_file,
                stdin=self._read_stdin,
                program="/opt/bin/agent-coord",
                node=self.node,
                terminal=terminal or Terminal(),
            )
        )
        for line in output.stderr:
            assert "\n" not in line, "a line on stderr is one line"
        return output

    def local(self, *argv: str) -> Output:
        """Run one command in the state root of the test."""
        return self(*argv, "--state-root", str(self.root))

    def lay(self, path: str, document: object) -> None:
        """Put a record, or any bytes, below the state root."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(document if isinstance(document, bytes) else encode_pretty(document))

    def file(self, name: str, document: object) -> str:
        """Put a file beside the state root, and give its path."""
        place = self.directory / name
        place.write_bytes(document if isinstance(document, bytes) else encode_pretty(document))
        return str(place)

    def tree(self) -> dict[str, Any]:
        """Give everything below the directory: the bytes of files, None for directories."""
        return {
            str(path.relative_to(self.directory)): path.read_bytes() if path.is_file() else None
            for path in sorted(self.directory.rglob("*"))
        }

    def shown(self, output: Output) -> bytes:
        """Give stdout with the state root's own name left out."""
        return re.sub(re.escape(os.fsencode(self.root)), b"$ROOT", output.stdout)

    async def _read_stdin(self) -> bytes:
        return self.stdin

    async def _read_file(self, path: str) -> bytes:
        return self._content(path)

    def _content(self, path: str) -> bytes:
        if path in self.files:
            return self.files[path]
        if path.startswith("/proc/self/fdinfo/") and self.files:  # which numbers mounts of this machine's own table
            raise FileNotFoundError(path)
        return Path(path).read_bytes()


async def nothing(path: str = "-") -> bytes:
    """Read an empty file, whatever it is called."""
    del path
    return b""


def said(output: Output) -> tuple[int, bytes, list[str]]:
    """Give all that a command said, and how it ended."""
    return output.exit, output.stdout, output.stderr
