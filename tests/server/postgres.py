"""A PostgreSQL cluster that lives as long as the tests: real, durable, and reached through a socket of its own."""

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.command import PATIENCE

_NEEDED = ("initdb", "pg_ctl", "postgres")
_DEBIAN = Path("/usr/lib/postgresql")
_MISSING = (
    "PostgreSQL is not installed; these tests are included once initdb is on PATH (Debian: apt install postgresql)"
)


class Cluster:
    """A running cluster. Each database made in it is empty."""

    def __init__(self, programs: Path, directory: Path) -> None:
        self._programs, self._directory = programs, directory
        self._numbers, self._runs = count(1), False
        self._user: int | None = None
        self._group: int | None = None
        if os.getuid() == 0:  # which PostgreSQL refuses to run as
            owner = _unprivileged()
            os.chown(directory, owner.pw_uid, owner.pw_gid)
            self._user, self._group = owner.pw_uid, owner.pw_gid

    def make(self) -> None:
        """Initialize the cluster's files."""
        self._run("initdb", "--username=tester", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._runs = True
        settings = f"-c listen_addresses='' -c unix_socket_directories='{self._directory}' -c fsync=on"
        limits = "-c max_connections=100 -c shared_buffers=32MB -c logging_collector=off"
        log = str(self._directory / "log")
        self._run("pg_ctl", "--wait", "--log", log, "--options", f"{settings} {limits}", "start")

    def stop(self) -> None:
        """Stop it as a crash would, if it runs."""
        if self._runs:
            self._runs = False
            self._run("pg_ctl", "--wait", "--mode=immediate", "stop")

    def database(self) -> str:
        """Make an empty database and give its URL."""
        name = f"test{next(self._numbers)}"
        asyncio.run(execute(self.url("postgres"), f"CREATE DATABASE {name}"))
        return self.url(name)

    def url(self, name: str) -> str:
        """Name a database of this cluster."""
        return f"postgresql://tester@/{name}?host={self._directory}"

    def _run(self, program: str, *arguments: str) -> None:
        # The output goes to a file: a pipe would stay open in the server that pg_ctl leaves behind.
        with tempfile.TemporaryFile() as output:
            ran = subprocess.run(
                [self._programs / program, "--pgdata", self._directory / "data", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                cwd=self._directory,
                env={"PATH": os.defpath, "LC_ALL": "C", "HOME": str(self._directory)},
                timeout=PATIENCE,
                user=self._user,
                group=self._group,
                extra_groups=None if self._user is None else [],
            )
            output.seek(0)
            assert ran.returncode == 0, output.read().decode()


async def execute(url: str, statement: str, *values: object) -> list[Any]:
    """Run one statement on a connection of its own and give its rows."""
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(statement, *values)]
    finally:
        await connection.close()


async def execute_script(url: str, text: str) -> None:
    """Run many statements on a connection of their own."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(text)
    finally:
        await connection.close()


@contextmanager
def running_cluster() -> Generator[Cluster]:
    """Make and start a cluster; skip where PostgreSQL is not installed, unless it was asked for."""
    programs = _programs()
    if programs is None:
        if os.environ.get("CI") == "true" or os.environ.get("AGENT_COORD_REQUIRE_POSTGRES") == "1":
            pytest.fail(_MISSING, pytrace=False)
        pytest.skip(_MISSING)
    # Not below pytest's own directories: those are closed to other users, and too long for a socket's path.
    directory = Path(tempfile.mkdtemp(prefix="coord-pg-"))
    try:
        cluster = Cluster(programs, directory)
        cluster.make()
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(directory)


def _programs() -> Path | None:
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    versions = sorted(_DEBIAN.glob("*/bin"), key=lambda place: (len(place.parent.name), place.parent.name))
    for place in [*places, *reversed(versions)]:
        if all((place / name).exists() for name in _NEEDED):
            return place
    return None


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise AssertionError("neither postgres nor nobody is a user of this system")
