"""The installed command, run as a person would: a process of its own, in a home of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds until a command that hangs fails its test; nothing here measures time


@dataclass(frozen=True)
class Answer:
    """What a command left behind: its exit status and both streams."""

    exit: int
    out: str
    err: str

    def json(self) -> Any:
        """What stdout says, which has to be one JSON document and nothing else."""
        return json.loads(self.out)


class Coord:
    """`agent-coord` in a scrubbed environment: nothing of the person who runs the tests reaches it."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.state = directory / "state"
        self.tmp = directory / "tmp"
        self.work = directory / "work"
        for made in (self.home, self.tmp, self.work):
            made.mkdir()
        self.env: dict[str, str] = {
            "AGENT_COORD_RUNTIME_DIR": str(directory / "run"),  # no daemon of the person who runs the tests
            "AGENT_COORD_STATE_ROOT": str(self.state),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "PATH": os.defpath,
            "TMPDIR": str(self.tmp),
        }

    def __call__(
        self, *argv: str | bytes, env: Mapping[str, str | None] | None = None, stdin: str | bytes = b""
    ) -> Answer:
        """Run one command to its end; `env` adds to the scrubbed environment, or with None takes away."""
        chosen = {**self.env, **(env or {})}
        ran = subprocess.run(
            [sys.executable, "-m", "agentcoord", *argv],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            check=False,
            cwd=self.work,
            env={name: value for name, value in chosen.items() if value is not None},
            timeout=PATIENCE,
        )
        answer = Answer(ran.returncode, ran.stdout.decode(), ran.stderr.decode())
        assert_presentable(answer.err)
        return answer


def assert_presentable(err: str) -> None:
    """Check what no command may ever show, whatever it was asked and wherever it runs."""
    assert "Traceback" not in err, err
    assert "internal error" not in err, err
