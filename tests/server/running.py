"""`agentcoordd` as processes: servers that a test holds on to, and commands that it runs to their end."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.command import PATIENCE, Answer, assert_presentable

LOG = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ")
_LISTENING = re.compile(r"listening on (https?)://(.+):(\d+)$")

_SCRIPT = """\
import json, sys
from functools import partial
import anyio
from agentcoordd.server.serve import Serving, serve
def say(line):
    print("2000-01-01T00:00:00Z", line, file=sys.stderr, flush=True)
serving = Serving(sys.argv[1], port=0, **json.loads(sys.argv[2]))
anyio.run(partial(serve, serving, say), backend_options={"use_uvloop": True})
"""
"""A server with what the command line does not offer: shorter patience."""


class Running:
    """One server process that accepts requests."""

    def __init__(self, db: str, process: subprocess.Popen[str]) -> None:
        self.db, self.process = db, process
        self.lines: list[str] = []
        self.scheme, self.host, port = self._listening()
        self.port = int(port)
        self._drain = threading.Thread(target=self._follow, daemon=True)
        self._drain.start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    def stop(self) -> None:
        """End it as a supervisor would; it has to leave in good order."""
        self.process.send_signal(signal.SIGTERM)
        self.ended()

    def ended(self) -> None:
        """Wait for an orderly end: exit 0, and nothing on stderr but log lines."""
        assert self.process.wait(PATIENCE) == 0, self.lines
        self._close()
        strange = [line for line in self.lines if not LOG.match(line)]
        assert strange == [], strange

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait(PATIENCE)
        self._close()

    def _listening(self) -> Sequence[str]:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if (found := _LISTENING.search(self.lines[-1])) is not None:
                return found.groups()
        self.process.wait(PATIENCE)
        self.process.stderr.close()
        raise AssertionError(f"it did not begin: {self.lines}")

    def _follow(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(line.rstrip("\n") for line in self.process.stderr)

    def _close(self) -> None:
        self._drain.join(PATIENCE)
        assert self.process.stderr is not None
        self.process.stderr.close()


def start(db: str, *options: str, **fields: object) -> Running:
    """Start a server on a free port and wait for it; `fields` are of `Serving`, for what no option says."""
    if fields:
        command = [sys.executable, "-c", _SCRIPT, db, json.dumps(fields)]
    else:
        command = [sys.executable, "-m", "agentcoordd", "server", "--db", db, "--listen", "127.0.0.1:0", *options]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=_env()
    )
    return Running(db, process)


@contextmanager
def running(db: str, *options: str, **fields: object) -> Generator[Running]:
    """Run a server for a block: it has to end in good order, unless the block ended it or failed."""
    server = start(db, *options, **fields)
    try:
        yield server
    except BaseException:
        server.kill()
        raise
    if server.process.returncode is None:
        server.stop()


def agentcoordd(*argv: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Answer:
    """Run one command to its end."""
    ran = subprocess.run(
        [sys.executable, "-m", "agentcoordd", *argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env=_env() | dict(env or {}),
        cwd=cwd,
        timeout=PATIENCE,
    )
    answer = Answer(ran.returncode, ran.stdout.decode(), ran.stderr.decode())
    assert_presentable(answer.err)
    return answer


def _env() -> dict[str, str]:
    return {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
