"""A kept lease from the agent's first command to the next agent's: real programs, a real daemon, a real end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agentcoord.protocol.liveness import liveness
from tests.command import PATIENCE
from tests.daemon.running import until

ITEM = ("--repo", "acme/shop", "--target", "7")


class Machine:
    """One user on one machine: a home, a state root and at most one daemon."""

    def __init__(self, home: Path) -> None:
        self.home, self.root = home, home / "state"
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LC_ALL": "C.UTF-8",
            "AGENT_COORD_STATE_ROOT": str(self.root),
            "AGENT_COORD_RUNTIME_DIR": str(home / "run"),
            "AGENT_COORD_MACHINE_ID": "m1",
        }

    def __call__(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "agentcoord", *words]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, check=False, timeout=PATIENCE)

    def json(self, *words: str) -> Any:
        ran = self(*words, "--json")
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    def daemon(self) -> int:
        """Give the daemon's process."""
        return int(self.json("daemon", "status")["daemon"]["pid"])

    def lanes(self) -> list[dict[str, Any]]:
        return self.json("lease", "list")["lanes"]

    def heartbeat(self, agent: str) -> dict[str, Any]:
        return json.loads((self.root / "heartbeats" / f"{agent}.json").read_bytes())

    @contextmanager
    def agent(self, *words: str, name: str = "claude") -> Generator["subprocess.Popen[str]"]:
        """Run a program that is an agent by its name: it says `done` after one command of ours, and goes on."""
        program = self.home / name
        program.write_text(
            f"#!{sys.executable}\nimport subprocess, sys\n"
            "shell = ['sh', '-c', '\"$@\"; true', 'sh']\n"
            "subprocess.run([*shell, sys.executable, '-m', 'agentcoord', *sys.argv[1:]])\n"
            "print('done', flush=True)\nsys.stdin.read()\n"
        )
        program.chmod(0o755)
        pipe = subprocess.PIPE
        process = subprocess.Popen([str(program), *words], env=self.env, stdin=pipe, stdout=pipe, text=True)
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "done\n")
            self.said = "".join(lines)
            yield process
        finally:
            process.kill()
            process.communicate(timeout=PATIENCE)


@pytest.fixture
def machine() -> Generator[Machine]:
    home = Path(tempfile.mkdtemp(prefix="agent-coord-test-", dir=Path.home()))
    machine = Machine(home)
    try:
        yield machine
    finally:
        machine("daemon", "stop")
        shutil.rmtree(home)


def _keep(agent: str, *more: str) -> Sequence[str]:
    return ("claim", "--agent-id", agent, *ITEM, "--keep", *more)


def test_when_the_agent_is_killed_the_next_one_takes_over(machine: Machine) -> None:
    with machine.agent(*_keep("ana")) as agent:
        assert f"watching process {agent.pid} (claude)" in machine.said
        [lane] = machine.lanes()
        assert (lane["pid"], lane["program"], lane["state"]) == (agent.pid, "claude", "kept")
        assert machine("claim", "--agent-id", "ben", *ITEM).returncode == 3
        beats = machine.heartbeat("ana")
        agent.send_signal(signal.SIGSTOP)  # stopped is not dead
        assert liveness(beats, datetime.now(UTC)) == "live"
        agent.send_signal(signal.SIGKILL)
        until(lambda: liveness(machine.heartbeat("ana"), datetime.now(UTC)) == "dead")
        taken = machine("claim", "--agent-id", "ben", *ITEM)
        assert (taken.returncode, taken.stdout[:30]) == (0, "claimed acme/shop#7 by ben unt")
        until(lambda: machine.lanes()[0]["state"] == "dead")


def test_an_agent_outlives_its_launcher_and_its_commands(machine: Machine) -> None:
    with machine.agent(*_keep("ana")) as agent:
        launcher = subprocess.Popen(["sh", "-c", "exit 0"])
        launcher.wait(PATIENCE)
        assert agent.poll() is None
        [lane] = machine.lanes()
        assert lane["state"] == "kept"


def test_a_daemon_that_was_killed_goes_on_where_it_was(machine: Machine) -> None:
    with machine.agent(*_keep("ana")) as agent:
        first = machine.daemon()
        os.kill(first, signal.SIGKILL)
        until(lambda: machine("daemon", "status").returncode == 3)
        assert machine("daemon", "start").returncode == 0
        assert machine.daemon() != first
        [lane] = machine.lanes()
        assert (lane["agent_id"], lane["pid"], lane["state"]) == ("ana", agent.pid, "kept")
        agent.kill()
        until(lambda: liveness(machine.heartbeat("ana"), datetime.now(UTC)) == "dead")


def test_what_died_while_no_daemon_ran_is_found_dead(machine: Machine) -> None:
    with machine.agent(*_keep("ana")) as agent:
        os.kill(machine.daemon(), signal.SIGKILL)
        agent.kill()
        agent.wait(PATIENCE)
    until(lambda: machine("daemon", "status").returncode == 3)
    assert machine("daemon", "start").returncode == 0
    until(lambda: liveness(machine.heartbeat("ana"), datetime.now(UTC)) == "dead")


def test_a_lease_that_was_taken_is_lost_and_not_renewed(machine: Machine) -> None:
    with machine.agent(*_keep("ana", "--ttl", "6")):
        assert machine("release", "--agent-id", "ana", *ITEM).returncode == 0
        assert machine("claim", "--agent-id", "ben", *ITEM).returncode == 0
        until(lambda: machine.lanes()[0]["state"] in ("lost", "finished"))
        assert machine.json("status", *ITEM)["claims"][0]["agent_id"] == "ben"


def test_fifty_first_commands_start_one_daemon(machine: Machine) -> None:
    with machine.agent("version") as agent:
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "agentcoord", *words, "--keep", "--watch-pid", str(agent.pid)],
                env=machine.env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for words in (
                ("claim", "--agent-id", f"a{number}", "--repo", "acme/shop", "--target", str(number))
                for number in range(50)
            )
        ]
        for process in started:
            out, err = process.communicate(timeout=2 * PATIENCE)
            assert process.returncode == 0, (out, err)
        assert len(machine.lanes()) == 50
        assert len({lane["pid"] for lane in machine.lanes()}) == 1
        log = (machine.home / ".local/state/agentcoordd/daemon.log").read_text("utf-8")
        assert log.count("listening on") == 1
    with suppress(ProcessLookupError):
        os.kill(agent.pid, 0)
        raise AssertionError("the agent is still there")
