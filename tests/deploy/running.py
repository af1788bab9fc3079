"""A state server as an operator runs it: a process with a database of its own, ready when it says so."""

import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from tests.command import PATIENCE

ROOT = Path(__file__).parents[2]
DAEMON = (sys.executable, "-m", "agentcoordd")
_PORT = re.compile(r"listening on https?://[^\s]+:(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Server:
    """A server that is running: where, from which database, with which token for all state."""

    url: str
    db: Path
    token: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, url: str | None = None, *, ca: Path | None = None, token: str | None = None) -> httpx.Client:
        """A client with the token, directly or by another way that ends at this server."""
        return httpx.Client(
            base_url=url or self.url,
            headers={"Authorization": f"Bearer {token or self.token}"},
            verify=ssl.create_default_context(cafile=ca) if ca else True,
            timeout=PATIENCE,
            trust_env=False,
        )

    def stop(self) -> int:
        """End it as a service manager does, and give its exit status."""
        self.process.terminate()
        return self.process.wait(PATIENCE)


def daemon(*argv: str | Path) -> str:
    """Run one command of `agentcoordd` to its end; what it prints."""
    return subprocess.run([*DAEMON, *argv], check=True, capture_output=True, text=True, timeout=PATIENCE).stdout


def issue(db: Path, machine: str, *scopes: str) -> str:
    """Make a token for a machine; for all state if no scopes are named."""
    said = daemon("token", "add", machine, "--db", f"sqlite:///{db}", *(scopes or ("--all-state",)))
    return said.partition("token:")[2].split()[0]


@contextmanager
def serving(
    directory: Path,
    *options: str | Path,
    db: Path | None = None,
    token: str | None = None,
    program: tuple[str, ...] = DAEMON,
) -> Generator[Server]:
    """Start a server on a free port and end it with the block; `token` is one that the database already has."""
    db = db or directory / "state.db"
    token = token or issue(db, "tester")
    log = directory / "server.log"
    command = (*program, "server", "--db", f"sqlite:///{db}", "--listen", "127.0.0.1:0", *options)
    with notified() as (listening, address), log.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=stderr, env={**os.environ, "NOTIFY_SOCKET": address}
        )
        try:
            assert listening.recv(100) == b"READY=1", log.read_text()
            found = _PORT.search(log.read_text())
            assert found, log.read_text()
            scheme = "https" if "--tls-cert" in options else "http"
            yield Server(f"{scheme}://127.0.0.1:{found.group(1)}", db, token, log, process)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()


@contextmanager
def notified() -> Generator[tuple[socket.socket, str]]:
    """The service manager's end of readiness: a datagram socket, and the path that a service is told of it."""
    with TemporaryDirectory() as short, closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        address = f"{short}/notify"
        listening.bind(address)
        listening.settimeout(PATIENCE)
        yield listening, address


def free_port() -> int:
    """A port of this machine that nobody has at the moment."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def program(name: str) -> str | None:
    """Where a program is, if it is installed; system programs need not be on the path of a user."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


@dataclass(frozen=True)
class Certificate:
    """A certificate for 127.0.0.1 that is worth nothing beyond this test, and its key."""

    chain: Path
    key: Path


def certificate(directory: Path) -> Certificate:
    """Make a throw-away certificate with openssl."""
    made = Certificate(directory / "fullchain.pem", directory / "privkey.pem")
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
            ),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", made.key, "-out", made.chain),
        ],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    return made
