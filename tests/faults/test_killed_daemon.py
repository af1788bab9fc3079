"""SIGKILL at random points under load: what was said to be done is done, nothing is half done, nobody is worse off.

`AGENT_COORD_KILLS=200` for more of it than every run of the suite needs, `AGENT_COORD_KILLS_SEED` for other points.
"""

import itertools
import json
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from agentcoord.files import is_temporary
from tests.command import PATIENCE
from tests.daemon.running import Caller, Daemon, run, until, words
from tests.daemon.stage import sleeping
from tests.faults.commands import Machine, hold

KILLS = int(os.environ.get("AGENT_COORD_KILLS", "10"))
SEED = int(os.environ.get("AGENT_COORD_KILLS_SEED", "5"))
LANES = 500


class Load:
    """Everybody who wants something of the daemon, and what was told to each of them."""

    def __init__(self, machine: Machine, pid: int) -> None:
        self.machine, self.pid = machine, pid
        self.env = {"HOME": str(machine.home)}
        self.over = threading.Event()
        self.recorded: dict[str, str] = {}
        """Messages of events by their ids, as the daemon itself said."""
        self.said: list[str] = []
        """Messages of events that a command said to be recorded, whoever had done it."""
        self.claimed: dict[str, str] = {}
        self.kept: set[str] = set()
        self.dropped: set[str] = set()
        self.numbers = itertools.count()
        self.faults: list[str] = []
        self.threads = [threading.Thread(target=self._until_over, args=(work,)) for work in self._works()]

    def _works(self) -> list[Callable[[], None]]:
        speakers = [lambda name=name: self._speak(name) for name in ("one", "two")]
        return [*speakers, self._keep, lambda: self._command("ana"), lambda: self._command("ben")]

    def _until_over(self, work: Callable[[], None]) -> None:
        while not self.over.is_set():
            try:
                work()
            except (OSError, ValueError, AssertionError) as error:  # the daemon was killed in the middle
                if isinstance(error, AssertionError) and "connection ended" not in str(error):
                    self.faults.append(str(error))
                    return
                self.over.wait(0.01)

    def _speak(self, name: str) -> None:
        """Have one connection record events until it breaks."""
        caller = Caller(self.machine.daemon.socket)
        try:
            for number in itertools.count():
                if self.over.is_set():
                    return
                message, seed = f"{name} {number} {os.urandom(4).hex()}", os.urandom(32).hex()
                said = ("record-event", "--batch-id", "spring", "--type", "note", "--message", message, "--json")
                ran = run(caller, words(*said, env=self.env, seed=seed))
                if ran.exit == 0:
                    self.recorded[json.loads(ran.stdout)["record"]["event_id"]] = message
                elif ran.exit is not None:
                    self.faults.append(ran.stderr)
        finally:
            caller.close()

    def _keep(self) -> None:
        """Have leases kept, and one in three of them no longer."""
        caller = Caller(self.machine.daemon.socket)
        try:
            while not self.over.is_set() and len(self.kept) < LANES:
                agent = f"kept-{os.urandom(4).hex()}"
                answer = hold(caller, self.machine.root, agent, pid=self.pid, ttl=3600, claim=False)
                lane = answer["result"]["lane"]
                self.kept.add(lane)
                if next(self.numbers) % 3 == 0:
                    self.kept.discard(lane)
                    if caller.ask("lease.drop", {"lane": lane})["result"]["dropped"]:
                        self.dropped.add(lane)
            self.over.wait()
        finally:
            caller.close()

    def _command(self, agent: str) -> None:
        """Run commands as an agent does: with a daemon that is killed they are to end as without one."""
        for number in itertools.count():
            if self.over.is_set():
                return
            item = ("--agent-id", agent, "--repo", "acme/widgets", "--target", f"{agent}-{number}")
            message = f"{agent} {number}"
            event = ("record-event", "--batch-id", "summer", "--type", "note", "--message", message)
            for argv in (("claim", *item), event):
                ran = self.machine(*argv)
                if ran.exit != 0:
                    self.faults.append(f"{argv}: {ran}")
                    return
            self.claimed[f"{agent}-{number}"] = agent
            self.said.append(message)

    @property
    def done(self) -> list[int]:
        """How much everybody was told to be done."""
        return [len(self.recorded), len(self.kept), len(self.said)]

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def records(machine: Machine, family: str) -> dict[str, dict[str, Any]]:
    """Read every record of a family, none of which may be half written."""
    found: dict[str, dict[str, Any]] = {}
    for path in (machine.root / family).rglob("*"):
        if path.is_file() and path.suffix != ".lock" and not is_temporary(path.name):
            data = path.read_bytes()
            assert data.endswith(b"}\n"), path
            found[str(path.relative_to(machine.root / family))] = json.loads(data)
    return found


def test_what_was_said_to_be_done_is_done_and_nothing_is_half_done(daemon: Daemon, machine: Machine) -> None:
    points = random.Random(SEED)
    with sleeping() as agent:
        load = Load(machine, agent.pid)
        process = daemon.start()
        for thread in load.threads:
            thread.start()
        try:
            for _ in range(KILLS):
                before = load.done
                until(lambda before=before: load.done[0] > before[0] or bool(load.faults))
                time.sleep(points.uniform(0, 0.2))
                process.kill()
                process.wait(PATIENCE)
                process = daemon.start()
        finally:
            load.end()
        assert load.faults == []
        assert all(load.done), "every part of the load was worked on"
        events = records(machine, "events")
        for event, message in load.recorded.items():
            assert events[f"spring/{event}.json"]["message"] == message
        # Once each: who lost the daemon on the way ran the command again.
        assert sorted(e["message"] for e in events.values() if e["batch_id"] == "summer" and e["type"] == "note") == (
            sorted(load.said)
        )
        claims = records(machine, "claims")
        assert {claims[f"acme/widgets/{target}.json"]["agent_id"] for target in load.claimed} <= {"ana", "ben"}
        for target, holder in load.claimed.items():
            assert claims[f"acme/widgets/{target}.json"]["agent_id"] == holder
        records(machine, "heartbeats")
        lanes = {lane["lane"]: lane["state"] for lane in machine.lanes()}
        assert {lane for lane in load.kept if lanes.get(lane) != "kept"} == set(), "the roster is complete"
        assert load.dropped & lanes.keys() == set()
        print(f"{KILLS} kills: {load.done} done, {len(load.dropped)} dropped, {len(load.claimed)} claimed")  # noqa: T201
    process.terminate()
    assert process.wait(PATIENCE) == 0
