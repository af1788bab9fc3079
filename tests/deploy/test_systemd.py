"""The unit says what a service manager needs, and the server tells that manager when it is ready."""

import os
import shutil
import socket
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import httpx
import pytest

from tests.command import PATIENCE
from tests.deploy.running import DAEMON, ROOT, free_port, notified

UNIT = ROOT / "systemd/agent-coord-server.service"

ESSENTIAL = {
    "Type": "notify",
    "EnvironmentFile": "/etc/agent-coord/server.env",
    "User": "agent-coord",
    "StateDirectory": "agent-coord",
    "StateDirectoryMode": "0700",
    "UMask": "0077",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "CapabilityBoundingSet": "",
    "Restart": "on-failure",
}


def _settings() -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for line in UNIT.read_text("utf-8").splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found[name].append(value)
    return found


@pytest.mark.parametrize("name", ESSENTIAL)
def test_the_unit_has_what_is_essential(name: str) -> None:
    assert _settings()[name] == [ESSENTIAL[name]]


def test_the_limits_leave_room_for_what_the_server_does() -> None:
    settings = _settings()
    assert int(settings["LimitNOFILE"][0]) >= 20_000 + 128  # its connections and what it keeps for itself
    assert int(settings["TimeoutStopSec"][0]) > 20  # the time that requests have to end
    assert "AF_UNIX" in settings["RestrictAddressFamilies"][0].split()  # READY=1, and PostgreSQL's socket
    assert not any("@resources" in value for value in settings["SystemCallFilter"])  # it raises its own limit


def test_the_command_of_the_unit_is_one_that_the_server_takes(tmp_path: Path) -> None:
    """With the program of this environment and another port, it starts from the variable alone and says READY=1."""
    program, *arguments = _settings()["ExecStart"][0].split()
    assert Path(program).name == "agentcoordd"
    port = free_port()
    assert arguments[-1] == "127.0.0.1:8787"
    arguments[-1] = f"127.0.0.1:{port}"
    environment = {**os.environ, "AGENT_COORD_SERVER_DB": f"sqlite:///{tmp_path}/state.db"}
    with notified() as (listening, address):
        process = subprocess.Popen([*DAEMON, *arguments], env=environment | {"NOTIFY_SOCKET": address})
        try:
            assert listening.recv(100) == b"READY=1"
            assert httpx.get(f"http://127.0.0.1:{port}/v1/health", trust_env=False).json() == {"status": "ok"}
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0
    assert (tmp_path / "state.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_readiness_is_also_told_on_an_abstract_socket(tmp_path: Path) -> None:
    name = f"agent-coord-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(PATIENCE)
        command = [*DAEMON, "server", "--db", f"sqlite:///{tmp_path}/state.db", "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(command, env={**os.environ, "NOTIFY_SOCKET": f"@{name}"})
        try:
            assert listening.recv(100) == b"READY=1"
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0


@pytest.fixture
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("systemd-analyze is not installed")
    return found


def _here(tmp_path: Path) -> Path:
    """The unit with a program that is on this machine."""
    unit = tmp_path / UNIT.name
    script = Path(sys.executable).with_name("agentcoordd")
    unit.write_text(UNIT.read_text("utf-8").replace("/opt/agent-coord/bin/agentcoordd", str(script)), "utf-8")
    return unit


def test_systemd_finds_no_fault_in_the_unit(analyze: str, tmp_path: Path) -> None:
    command = [analyze, "verify", "--man=no", "--recursive-errors=no", _here(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (ran.returncode, [line for line in ran.stderr.splitlines() if UNIT.name in line]) == (0, []), ran.stderr


def test_systemd_counts_the_unit_among_the_well_guarded(analyze: str, tmp_path: Path) -> None:
    command = [analyze, "security", "--offline=true", "--threshold=25", "--no-pager", _here(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr
