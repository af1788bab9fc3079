"""Commands of the user whose daemon a test has: real processes, which forward what they can and start nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.command import PATIENCE, Answer, assert_presentable
from tests.daemon.running import Caller, Daemon

ITEM = ("--repo", "acme/widgets", "--target", "7")
REQUIRED = {"AGENT_COORD_DAEMON": "require"}
ALONE = {"AGENT_COORD_DAEMON": "off"}
COMMAND = (sys.executable, "-m", "agentcoord")
EXEC = 'exec "$@"'


class Machine:
    """One user on one machine, as the shell of an agent sees it."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.home = daemon.home
        self.root = daemon.root
        self.env = daemon.env | {"AGENT_COORD_STATE_ROOT": str(daemon.root)}

    def start(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        command: Sequence[str] = COMMAND,
    ) -> "subprocess.Popen[bytes]":
        """Start a command, by way of a program that changes its surroundings."""
        return subprocess.Popen(
            [*before, *command, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env | dict(env or {}),
            cwd=self.home,
        )

    def __call__(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        command: Sequence[str] = COMMAND,
    ) -> Answer:
        """Run a command to its end."""
        return finished(self.start(*words, env=env, before=before, command=command))

    def lanes(self) -> list[dict[str, Any]]:
        """What the daemon keeps, and the last that it kept."""
        caller = self.daemon.call()
        lanes = caller.ask("lease.list")["result"]["lanes"]
        caller.close()
        return lanes

    def lane(self, agent: str) -> dict[str, Any]:
        [lane] = [lane for lane in self.lanes() if lane["agent_id"] == agent]
        return lane

    def hold(self, agent: str, *, pid: int | None, ttl: int, target: str = "7", claim: bool = True) -> str:
        """Have the daemon keep a lease, as `--keep` does, and give the lane."""
        caller = self.daemon.call()
        answer = hold(caller, self.root, agent, pid=pid, ttl=ttl, target=target, claim=claim)
        caller.close()
        return answer["result"]["lane"]

    def record(self, path: str) -> dict[str, Any]:
        return json.loads((self.root / path).read_bytes())

    def beat(self, agent: str) -> dict[str, Any]:
        return self.record(f"heartbeats/{agent}.json")

    def claim(self, target: str = "7") -> dict[str, Any]:
        return self.record(f"claims/acme/widgets/{target}.json")


def finished(process: "subprocess.Popen[bytes]") -> Answer:
    """Wait for the end of a command, and check that it ended as one should."""
    out, err = process.communicate(timeout=PATIENCE)
    answer = Answer(process.returncode, out.decode(), err.decode())
    assert_presentable(answer.err)
    return answer


def hold(
    caller: Caller, root: Path, agent: str, *, pid: int | None, ttl: int, target: str = "7", claim: bool = True
) -> dict[str, Any]:
    """Ask over an open connection for a lease to be kept."""
    params: dict[str, object] = {
        "backend": {"kind": "local", "root": str(root)},
        "agent_id": agent,
        "kinds": ["heartbeat", "claim"] if claim else ["heartbeat"],
        "ttl": ttl,
        "pid": pid,
    }
    if claim:
        params |= {"repo": "acme/widgets", "target": target}
    return caller.ask("lease.hold", params)


def modes(root: Path) -> dict[str, str]:
    """Give the permissions of all that is below a directory, and its own."""
    places = [root, *sorted(root.rglob("*"))]
    return {os.path.relpath(place, root): oct(place.stat().st_mode & 0o7777) for place in places}
