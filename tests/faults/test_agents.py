"""The process behind a lease: stopped, left by its launcher, and gone with its number given to another."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.command import PATIENCE
from tests.daemon.running import COMMAND, Daemon, until
from tests.daemon.stage import sleeping
from tests.faults.commands import ALONE, ITEM, Machine

KEEP = ("claim", "--agent-id", "ana", *ITEM, "--keep", "--ttl", "3")


def renewed(machine: Machine, times: int) -> None:
    """Wait until a lease was renewed so often, at different seconds."""
    for _ in range(times):
        before = machine.beat("ana")["updated_at"]
        until(lambda before=before: machine.beat("ana")["updated_at"] > before)


def test_an_agent_that_is_stopped_is_not_dead(daemon: Daemon, machine: Machine) -> None:
    daemon.start()
    with sleeping() as agent:
        assert machine(*KEEP, "--watch-pid", str(agent.pid)).exit == 0
        agent.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, agent.pid, os.WSTOPPED)
        renewed(machine, 3)
        assert machine.lane("ana")["state"] == "kept"
        assert machine("claim", "--agent-id", "ben", *ITEM, env=ALONE).exit == 3
        agent.kill()  # which ends a stopped process, too
        until(lambda: machine.lane("ana")["state"] == "dead")


@pytest.fixture
def launched(daemon: Daemon, machine: Machine) -> Generator[tuple[int, "subprocess.Popen[bytes]"]]:
    """An agent, started in the background by a launcher, that has its lease kept by a command in a shell."""
    daemon.start()
    program = daemon.directory / "claude"
    program.write_text(
        f"#!{sys.executable}\nimport os, subprocess, sys\n"
        "shell = ['sh', '-c', '\"$@\"; true', 'sh', sys.executable, '-m', 'agentcoord']\n"
        "subprocess.run([*shell, *sys.argv[1:]], stdout=2)\n"
        "print(os.getpid(), flush=True)\nsys.stdin.read()\n"
    )
    program.chmod(0o755)
    launcher = daemon.directory / "npx"
    launcher.write_text(f"#!{sys.executable}\nimport subprocess, sys\nsubprocess.Popen(sys.argv[1:]).wait()\n")
    launcher.chmod(0o755)
    pipe = subprocess.PIPE
    process = subprocess.Popen([str(launcher), str(program), *KEEP], stdin=pipe, stdout=pipe, env=machine.env)
    with process:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process
        process.kill()  # the agent, if it is still there, ends with its stdin


def test_a_launcher_exits_and_its_agent_lives_on(
    machine: Machine, launched: tuple[int, "subprocess.Popen[bytes]"]
) -> None:
    agent, launcher = launched
    lane = machine.lane("ana")
    assert (lane["pid"], lane["program"], lane["state"]) == (agent, "claude", "kept")
    assert launcher.pid != agent
    launcher.send_signal(signal.SIGKILL)
    assert launcher.wait(PATIENCE) == -signal.SIGKILL
    renewed(machine, 3)
    assert machine.lane("ana")["state"] == "kept"
    os.kill(agent, signal.SIGKILL)
    until(lambda: machine.lane("ana")["state"] == "dead")
    until(lambda: machine("claim", "--agent-id", "ben", *ITEM, env=ALONE).exit == 0)


REUSED = """\
import subprocess
from pathlib import Path
from tests.daemon.running import Daemon, until
from tests.faults.commands import Machine
from tests.faults.test_agents import ALONE, ITEM, KEEP, renewed

daemon = Daemon()
try:
    machine = Machine(daemon)
    process = daemon.start()
    agent = subprocess.Popen(["/bin/sleep", "600"])
    assert machine(*KEEP, "--watch-pid", str(agent.pid)).exit == 0
    renewed(machine, 1)
    process.kill()
    process.wait()
    agent.kill()
    agent.wait()
    while True:  # other processes may come in between
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(agent.pid - 1))
        stranger = subprocess.Popen(["/bin/sleep", "600"])
        if stranger.pid == agent.pid:
            break
        stranger.kill()
        stranger.wait()
    daemon.start()
    until(lambda: machine.lane("ana")["state"] == "dead")
    until(lambda: machine("claim", "--agent-id", "ben", *ITEM, env=ALONE).exit == 0)
    assert stranger.poll() is None
    print("dead, although", agent.pid, "is there", flush=True)
    stranger.kill()
    stranger.wait()
finally:
    daemon.close()
"""
"""Played in a namespace of processes of its own, where numbers can be chosen."""


def test_a_number_that_was_given_to_another_process_is_not_the_agent(tmp_path: Path) -> None:
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a namespace of its own for processes")
    ran = subprocess.run(
        [*apart, COMMAND[0], "-c", REUSED],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        cwd=Path(__file__).parents[2],
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("dead, although")
