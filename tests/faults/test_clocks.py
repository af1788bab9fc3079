"""A daemon whose clocks are moved: the machine slept, its wall clock was set, somebody else was quicker meanwhile."""

import signal
import sys
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agentcoord.protocol.liveness import liveness
from tests.daemon.running import Caller, Daemon, until
from tests.daemon.stage import sleeping
from tests.faults.commands import ALONE, ITEM, Machine

MOVED = """\
import sys
place = sys.argv.pop(1)
from datetime import timedelta
import agentcoordd.clock as clock
def moved():
    with open(place) as file:
        return [float(word) for word in file.read().split()]
boot, now = clock.SystemClock.boot, clock.SystemClock.now
clock.SystemClock.boot = lambda self: boot(self) + moved()[0]
clock.SystemClock.now = lambda self: now(self) + timedelta(seconds=moved()[1])
from agentcoordd.__main__ import main
sys.exit(main())
"""
"""The daemon, with clocks that are those of the machine and what a file adds to them."""

HOUR = 3600


class Clocks:
    """What is added to the clocks of the daemon: to the one that counts through suspend, and to the wall's."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.wall = 0
        self.move(0, 0)

    def move(self, boot: int, wall: int) -> None:
        """Move both, in one go."""
        self.wall = wall
        following = self.place.with_suffix(".new")
        following.write_text(f"{boot} {wall}")
        following.replace(self.place)

    def now(self) -> datetime:
        """The wall clock as the daemon sees it."""
        return datetime.now(UTC) + timedelta(seconds=self.wall)


@pytest.fixture
def clocks(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks(daemon.directory / "clocks")
    command = [sys.executable, "-c", MOVED, str(clocks.place), "run"]
    monkeypatch.setattr("tests.daemon.running.COMMAND", command)
    return clocks


@pytest.fixture
def agent() -> Generator[int]:
    with sleeping() as process:
        yield process.pid


class Told:
    """A subscriber, who has heard so far what is in `topics`."""

    def __init__(self, daemon: Daemon) -> None:
        self.caller: Caller = daemon.call()
        assert self.caller.ask("subscribe")["result"]
        self.topics: list[str] = []

    def next(self, topic: str) -> dict[str, Any]:
        """Read on to an event of a topic."""
        while event := self.caller.next()["params"]:
            self.topics.append(event["topic"])
            if event["topic"] == topic:
                return event["data"]
        raise AssertionError(topic)


def taken(machine: Machine, agent: str, *, ttl: int, pid: int, target: str = "7") -> None:
    """Claim an item, and have it kept."""
    item = ("--repo", "acme/widgets", "--target", target)
    assert machine("claim", "--agent-id", agent, *item, "--ttl", str(4 * ttl), env=ALONE).exit == 0
    machine.hold(agent, pid=pid, ttl=ttl, target=target)


def renewed(machine: Machine, agent: str, since: dict[str, Any]) -> None:
    until(lambda: machine.beat(agent)["updated_at"] > since["updated_at"])


def test_after_a_suspend_what_is_still_held_goes_on_and_what_is_not_is_lost(
    daemon: Daemon, machine: Machine, clocks: Clocks, agent: int
) -> None:
    daemon.start()
    taken(machine, "ana", ttl=900, pid=agent)
    taken(machine, "ben", ttl=900, pid=agent, target="8")
    told = Told(daemon)
    ana, ben = machine.beat("ana"), machine.beat("ben")
    # While the machine sleeps, ben's item goes to another; ben's heartbeat stays as it was.
    assert machine("release", "--agent-id", "ben", *ITEM[:3], "8", env=ALONE).exit == 0
    assert machine("claim", "--agent-id", "cyd", *ITEM[:3], "8", env=ALONE).exit == 0
    theirs = machine.claim("8")
    clocks.move(HOUR, HOUR)
    lost = told.next("lease.lost")
    assert (lost["agent_id"], lost["target"], lost["state"]) == ("ben", "8", "lost")
    renewed(machine, "ana", ana)
    until(lambda: liveness(machine.beat("ana"), clocks.now()) == "live")
    until(lambda: machine.lane("ana")["state"] == "kept")
    assert machine.lane("ben")["state"] == "lost"
    assert (machine.claim("8"), machine.beat("ben")) == (theirs, ben), "not renewed by so much as a second"
    assert "s went by unseen: 2 lanes are validated" in daemon.said()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_wall_clock_that_is_set_ends_no_lease_and_fakes_none(
    daemon: Daemon, machine: Machine, clocks: Clocks, agent: int, step: int
) -> None:
    daemon.start()
    taken(machine, "ana", ttl=3, pid=agent)
    told, before = Told(daemon), machine.beat("ana")
    acquired = machine.claim()["claimed_at"]
    clocks.move(0, step)
    until(lambda: f"the wall clock was set by {step:+} s: 1 lanes are validated" in daemon.said())
    if step > 0:
        renewed(machine, "ana", before)
    seen = daemon.status()["uptime"]
    until(lambda: daemon.status()["uptime"] > seen + 4.5)  # the lease would have ended by then
    lane, beat = machine.lane("ana"), machine.beat("ana")
    assert (lane["state"], lane["error"]) == ("kept", None)
    assert beat["updated_at"] >= before["updated_at"], "times only go forward"
    assert liveness(beat, clocks.now()) == "live"
    assert (machine.claim()["claimed_at"], machine.claim()["agent_id"]) == (acquired, "ana")
    clocks.move(0, 0)
    until(lambda: f"the wall clock was set by {-step:+} s" in daemon.said())
    machine.hold("last", pid=agent, ttl=60, claim=False)
    told.next("lease.held")
    assert [topic for topic in told.topics if topic != "changed"] == ["lease.held"], "nobody was told of an end"


def test_who_was_displaced_while_the_daemon_hung_is_lost_and_told(daemon: Daemon, machine: Machine, agent: int) -> None:
    process = daemon.start()
    taken(machine, "ana", ttl=3, pid=agent)
    told = Told(daemon)
    process.send_signal(signal.SIGSTOP)
    assert machine("claim", "--agent-id", "ben", *ITEM, env=ALONE).exit == 3
    assert machine("heartbeat", "--agent-id", "ana", "--ttl", "1", env=ALONE).exit == 0  # its last, so dead soon
    until(lambda: machine("claim", "--agent-id", "ben", *ITEM, env=ALONE).exit == 0)
    theirs, beat = machine.claim(), machine.beat("ana")
    process.send_signal(signal.SIGCONT)
    lost = told.next("lease.lost")
    assert (lost["agent_id"], lost["target"], lost["pid"]) == ("ana", "7", agent)
    assert "ben" in lost["why"]
    lane = machine.lane("ana")
    assert (lane["state"], lane["next_renewal"]) == ("lost", None)
    assert (machine.claim(), machine.beat("ana")) == (theirs, beat)
    # And the daemon that comes next does not take it up again.
    process.terminate()
    process.wait()
    daemon.start()
    assert machine.lanes() == []
