"""What docs/server.md says about PostgreSQL, carried out: roles with few rights, several servers, dump and restore."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.command import PATIENCE
from tests.deploy.running import DAEMON, ROOT, free_port, notified

PAGE = (ROOT / "docs/server.md").read_text("utf-8")
OWNER, LESS = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
CREATE = {"If-None-Match": "*"}


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    here = shutil.which("initdb")
    return found[-1].parent if found else Path(here).parent if here else None


class Cluster:
    """A PostgreSQL of the test's own, and the roles that the page makes."""

    def __init__(self, programs: Path, port: int) -> None:
        self._programs, self._port = programs, port

    def url(self, role: str, database: str = "agent_coord") -> str:
        return f"postgresql://{role}@127.0.0.1:{self._port}/{database}"

    def run(self, name: str, *argv: str) -> str:
        """Run one of PostgreSQL's own programs to its end."""
        command = [str(self._programs / name), *argv]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout

    def sql(self, role: str, database: str, script: str) -> str:
        return self.run("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", self.url(role, database), "-c", script)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    as_another: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(directory, "postgres")
            as_another = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        data, port = f"{directory}/data", free_port()
        initdb = [*as_another, programs / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, timeout=PATIENCE, cwd="/")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={directory} -c fsync=off"
        control = [*as_another, programs / "pg_ctl", "-D", data, "-w", "-l", f"{directory}/log"]
        subprocess.run(
            [*control, "-o", options, "start"], check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE, cwd="/"
        )
        try:
            yield Cluster(programs, port)
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, stdout=subprocess.DEVNULL, cwd="/")


def _token(url: str, machine: str) -> str:
    command = [*DAEMON, "token", "add", machine, "--all-state", "--db", url]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout
    return said.partition("token:")[2].split()[0]


def _server(stack: ExitStack, url: str, token: str) -> httpx.Client:
    listening, address = stack.enter_context(notified())
    port = free_port()
    process = subprocess.Popen(
        [*DAEMON, "server", "--listen", f"127.0.0.1:{port}", "--no-access-log"],
        env={**os.environ, "AGENT_COORD_SERVER_DB": url, "NOTIFY_SOCKET": address},
    )
    stack.callback(process.wait, PATIENCE)
    stack.callback(process.terminate)
    assert listening.recv(100) == b"READY=1"
    headers = {"Authorization": f"Bearer {token}"}
    base = f"http://127.0.0.1:{port}"
    return stack.enter_context(httpx.Client(base_url=base, headers=headers, timeout=PATIENCE, trust_env=False))


@pytest.mark.skipif(sys.platform != "linux", reason="starts PostgreSQL as another user with setpriv")
def test_the_page_on_postgresql_is_true(cluster: Cluster, tmp_path: Path) -> None:
    for statement in OWNER.split(";\n"):
        if statement.strip():
            cluster.sql("postgres", "postgres", statement)
    owner = cluster.url("agent_coord")
    token = _token(owner, "m1")
    connecting, inside = LESS.split("-- in the database agent_coord:\n")
    cluster.sql("postgres", "postgres", connecting)
    cluster.sql("agent_coord", "agent_coord", inside)
    less = cluster.url("agent_coord_server")

    with ExitStack() as stack:  # two servers that may do less share the database, and one knows what the other wrote
        one, other = (_server(stack, less, token) for _ in range(2))
        cursor = other.get("/v1/changes").json()["cursor"]
        assert one.put("/v1/state/heartbeats/a1.json", json={"data": {"n": 1}}, headers=CREATE).status_code == 201
        followed = other.get("/v1/changes", params={"since": cursor, "wait": "30"}).json()
        assert [change["path"] for change in followed["changes"]] == ["heartbeats/a1.json"]
        assert other.get("/v1/state/heartbeats/a1.json").json()["data"] == {"n": 1}
        refused = subprocess.run(
            [*DAEMON, "token", "add", "m2", "--all-state", "--db", less], capture_output=True, check=False
        )
        assert refused.returncode == 2
        dump = tmp_path / "fleet.dump"
        cluster.run("pg_dump", "--format=custom", f"--file={dump}", owner)
        assert one.put("/v1/state/heartbeats/late.json", json={"data": {}}, headers=CREATE).status_code == 201
        cursor = one.get("/v1/changes").json()["cursor"]

    cluster.sql("postgres", "postgres", "CREATE DATABASE restored OWNER agent_coord TEMPLATE template0")
    restored = cluster.url("agent_coord", "restored")
    cluster.run("pg_restore", "--no-owner", f"--dbname={restored}", str(dump))
    rename = re.search(r'psql "\$AGENT_COORD_SERVER_DB" -c "(.*)"', PAGE)
    assert rename
    cluster.sql("agent_coord", "restored", rename.group(1))
    with ExitStack() as stack:
        again = _server(stack, restored, token)
        entries = again.get("/v1/state", params={"prefix": "heartbeats"}).json()["entries"]
        assert [entry["path"] for entry in entries] == ["heartbeats/a1.json"]
        again.put("/v1/state/heartbeats/new.json", json={"data": {}}, headers=CREATE)
        assert again.get("/v1/changes", params={"since": cursor}).json() == {"error": "cursor_expired"}
