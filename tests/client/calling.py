"""A command line that is pointed at the daemon of a test."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.command import PATIENCE, Answer, Coord, assert_presentable

_PROGRAM = "import sys; sys.argv[0] = 'agent-coord'; {before}\nfrom agentcoord.__main__ import main; main()"


class Client(Coord):
    """`agent-coord` as its console script starts it, and pointed at the daemon of the test."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.runtime = Path(self.env["AGENT_COORD_RUNTIME_DIR"])
        self.before = "pass"
        """What happens in the process before the command does."""

    def argv(self, *words: str | bytes) -> list[str | bytes]:
        """Give the words of a process that runs one command."""
        return [sys.executable, "-c", _PROGRAM.format(before=self.before), *words]

    def __call__(
        self, *argv: str | bytes, env: Mapping[str, str | None] | None = None, stdin: str | bytes = b""
    ) -> Answer:
        """Run one command to its end."""
        ran = subprocess.run(
            self.argv(*argv),
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            check=False,
            cwd=self.work,
            env=self.environment(env),
            timeout=PATIENCE,
        )
        answer = Answer(ran.returncode, os.fsdecode(ran.stdout), ran.stderr.decode())
        assert_presentable(answer.err)
        return answer

    def environment(self, env: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """Give the scrubbed environment with some of it changed, or with None taken away."""
        return {name: value for name, value in {**self.env, **(env or {})}.items() if value is not None}

    def alone(self, *argv: str | bytes, stdin: str | bytes = b"") -> Answer:
        """Run one command as if there were no daemon."""
        return self(*argv, env={"AGENT_COORD_DAEMON": "off"}, stdin=stdin)
