"""Keeps leases alive as long as the agents behind them really live.

Each lane is a task that renews in time and is told when its process ends. What a renewal may do is decided in
`agentcoord.protocol.keeping` from what the store says at that moment, so that news is never overwritten; this is
only about when. One more task looks at the clocks once a second: it tells of leases that were not renewed in time,
and has every lane looked at anew, against the store and before anything else, when the machine slept or its clock
was set.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from random import random
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct
from msgspec.structs import replace

from agentcoord.errors import CoordError, StoreError, UsageError
from agentcoord.operations.keeping import Outcome, Renewed, require_lane
from agentcoord.protocol.agents import choose, refusal
from agentcoord.protocol.documents import canonical
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.keeping import (
    LEASE_DROPPED,
    LEASE_EXPIRED,
    LEASE_EXPIRING,
    LEASE_HELD,
    LEASE_LOST,
    PROCESS_EXITED,
    Lane,
    Lost,
    age,
    interval,
    patience,
    retry,
    together,
)
from agentcoord.protocol.liveness import DEAD_AFTER_TTLS
from agentcoordd.backends import Backend, Backends, shown
from agentcoordd.clock import Clock, Jumps
from agentcoordd.database import Entry
from agentcoordd.lanes import Feed, Kept, LaneView, Notify, Roster, State, beaten_among
from agentcoordd.processes import Processes, Watched
from agentcoordd.turns import Turns

HOLD_SECONDS = 8.0
"""How long whoever wants a lease kept waits for its first renewal, with all that has to be waited for before."""

_TICK = 1.0
_CONCURRENCY = 8
_LANES = 10_000
_ENDED = 100
_NOTED = 2
"""Ticks between two notes on the roster that the daemon is at work."""

_NEVER = datetime(1, 1, 1, tzinfo=UTC)

log = logging.getLogger(__name__)


class Hold(Struct, frozen=True):
    """What a caller wants kept: as long as `pid` lives, or the agent above `from_pid`, or until it is dropped."""

    lane: Lane
    backend: Backend
    pid: int | None = None
    from_pid: int | None = None


class Keeper:
    """The lanes of this machine. `run` has to be running for anything else to work."""

    def __init__(
        self,
        backends: Backends,
        roster: Roster,
        feed: Feed,
        clock: Clock,
        processes: Processes,
        *,
        notify: Notify | None = None,
        concurrency: int = _CONCURRENCY,
        chance: Callable[[], float] = random,
        tick: float = _TICK,
    ) -> None:
        self._backends = backends
        self._roster = roster
        self._feed = feed
        self._clock, self._processes = clock, processes
        self._notify = notify
        self._turns = Turns(backends, clock, at_a_time=concurrency)
        self._chance, self._tick = chance, tick
        self._lanes: dict[str, Kept] = {}
        self._ended: dict[str, Kept] = {}
        self._followed: dict[Watched, anyio.CancelScope] = {}
        self._joining = anyio.Lock()
        self._tasks: TaskGroup | None = None
        self.renewals, self._deaf = 0, False

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep what is on the roster and what is held from now on; cancelling it leaves every lease as it is.

        Raises StoreError when the roster cannot be read.
        """
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                await self._resume()
                await self._mark_alive()
                task_status.started()
                await self._look()
            finally:
                self._tasks = None

    async def hold(self, wanted: Hold) -> LaneView:
        """Renew a lease now, and keep it from then on. The same lane held again is taken over as it is now wanted.

        Raises UsageError for an invalid request or a process that is not there, StoreError when the lease is not the
        agent's or nobody can tell.
        """
        require_lane(wanted.lane)
        self._backends.require(wanted.backend)
        entry = self._entry(wanted)
        if entry.id not in self._lanes and len(self._lanes) >= _LANES:
            raise StoreError(f"{_LANES} lanes are kept already; drop some with agent-coord lease drop")
        kept, outcome, began = await self._first(entry)
        if not isinstance(outcome, Renewed):
            raise StoreError(f"nothing to keep: {outcome.why}")
        # Whoever names no instance means the one that holds the lease now, and no later one.
        adopted = replace(entry.lane, instance=entry.lane.instance or outcome.instance)
        kept.entry = replace(entry, lane=adopted, batch_id=outcome.batch_id)
        self._went_on(kept, outcome, began)
        async with self._joining:
            with anyio.CancelScope(shield=True):  # on the roster and kept, or neither
                await self._roster.put(kept.entry)
            self._replace(kept)
        self._publish(LEASE_HELD, kept)
        return kept.view(self._clock)

    def list(self) -> Sequence[LaneView]:
        """Show all lanes, and the last hundred that ended."""
        return [kept.view(self._clock) for _, kept in sorted({**self._ended, **self._lanes}.items())]

    def beaten(self, backend: Backend, agent_id: str) -> datetime | None:
        """Tell of when the heartbeat is that was last renewed for an agent; None where none was."""
        return beaten_among(self._lanes.values(), backend, agent_id)

    async def drop(self, lane: str) -> bool:
        """Stop keeping a lane; its records stay as they are. Tells whether it was kept. Raises StoreError."""
        self._ended.pop(lane, None)
        kept = self._lanes.pop(lane, None)
        if kept is None:
            return False
        kept.scope.cancel()
        self._unfollow(kept)
        with anyio.CancelScope(shield=True):
            await self._roster.remove(lane)
        self._publish(LEASE_DROPPED, kept, why="dropped")
        return True

    # Joining

    def _entry(self, wanted: Hold) -> Entry:
        lane, backend = wanted.lane, wanted.backend
        facts = [shown(backend), backend.__struct_config__.tag, lane.agent_id, lane.repo, lane.target]
        name = sha256(canonical(facts)).hexdigest()[:12]
        process, program, chosen = self._watchable(wanted)
        before = self._lanes[name].entry.lane if name in self._lanes else None
        same = before is not None and lane.instance in (None, before.instance)
        if before is not None and same and "claim" in before.kinds and "claim" not in lane.kinds:
            # A heartbeat that is to be kept does not end the keeping of the claim.
            lane = replace(before, ttl=lane.ttl, kinds=("heartbeat", "claim"))
        return Entry(id=name, lane=lane, backend=backend, process=process, program=program, chosen=chosen)

    def _watchable(self, wanted: Hold) -> tuple[Watched | None, str | None, str]:
        if wanted.pid is None and wanted.from_pid is None:
            return None, None, "no process is watched: kept until it is dropped"
        if wanted.pid is not None:
            pid, program, chosen = wanted.pid, None, "named by the caller"
        else:
            ancestors = self._processes.ancestors(wanted.from_pid or 0)
            found = choose(ancestors)
            if found is None:
                raise UsageError(refusal(ancestors))
            pid, program, chosen = found.pid, found.program, found.why
        process = self._processes.find(pid)
        if process is None:
            raise UsageError(f"no process {pid} is running")
        return process, program or self._processes.name(pid), chosen

    async def _first(self, entry: Entry) -> tuple[Kept, Outcome, float]:
        """Renew a lease for the first time, while its caller waits, who does so for ten seconds. Raises StoreError."""
        with anyio.move_on_after(HOLD_SECONDS):
            await self._after_burial(entry)
            kept, began = Kept(entry, self._clock), self._clock.boot()
            return kept, await self._turns.renew(entry, patience(kept.ttl)), began
        raise StoreError(f"not kept: no answer of {shown(entry.backend)} within {HOLD_SECONDS:g} s")

    async def _after_burial(self, entry: Entry) -> None:
        """Let the burial of the process before this one be over: it must not come after the first sign of life."""
        before = self._lanes.get(entry.id)
        if before is not None and before.gone:
            with anyio.move_on_after(patience(entry.lane.ttl)):
                await before.over.wait()

    async def _resume(self) -> None:
        """Take up the roster: each lane is looked at against the store at once, and buried if its process is gone."""
        alive_at = await self._roster.alive_at()
        for entry in await self._roster.lanes():
            try:
                self._backends.require(entry.backend)
            except UsageError as error:  # it was served when the lane was held; the roster keeps it until it is again
                log.warning("lane %s of %s is not kept: %s", entry.id, entry.lane.agent_id, error)
                continue
            kept = Kept(entry, self._clock)
            if entry.process is not None and not self._processes.lives(entry.process):
                kept.gone = True
                # Up to the next note that was due, what the heartbeat says is ours.
                kept.known_until = _NEVER if alive_at is None else alive_at + timedelta(seconds=_NOTED * self._tick)
            self._start(kept)

    def _replace(self, kept: Kept) -> None:
        before = self._lanes.get(kept.entry.id)
        if before is not None:
            before.scope.cancel()
        self._start(kept)
        if before is not None:
            self._unfollow(before)
            if before.running and before.entry.lane.instance != kept.entry.lane.instance:
                before.state = "lost"
                self._publish(LEASE_LOST, before, why="held anew by another instance")

    def _start(self, kept: Kept) -> None:
        if self._tasks is None:
            raise StoreError("leases are not being kept: the daemon is about to stop")
        self._ended.pop(kept.entry.id, None)
        self._lanes[kept.entry.id] = kept
        self._tasks.start_soon(self._keep, kept)
        process = kept.entry.process
        if process is not None and not kept.gone and process not in self._followed:
            scope = self._followed[process] = anyio.CancelScope()
            self._tasks.start_soon(self._follow, process, scope)

    # Keeping

    async def _keep(self, kept: Kept) -> None:
        try:
            with kept.scope:
                while kept.running and not kept.gone:
                    await self._clock.wait(kept.wake, kept.due - self._clock.boot())
                    if kept.wake.is_set():
                        kept.wake = anyio.Event()
                    if not kept.gone and self._clock.boot() >= kept.due:
                        await self._attempt(kept)
                if kept.gone:
                    await self._bury(kept)
        finally:
            kept.over.set()

    async def _attempt(self, kept: Kept) -> None:
        began = self._clock.boot()
        outcome: Outcome | None = None
        with anyio.CancelScope() as kept.attempt:
            try:
                outcome = await self._turns.renew(kept.entry, patience(kept.ttl))
            except CoordError as error:
                self._failed(kept, str(error))
        kept.attempt = None
        if kept.gone or outcome is None:
            return
        if isinstance(outcome, Renewed):
            self._went_on(kept, outcome, began)
            await self._flush(kept)
        elif isinstance(outcome, Lost):
            kept.later(LEASE_LOST, f"lease of {kept.entry.lane.agent_id} lost: {outcome.why}")
            await self._end(kept, "lost", LEASE_LOST, outcome.why)
        else:
            await self._end(kept, "finished", LEASE_DROPPED, outcome.why)

    def _went_on(self, kept: Kept, renewed: Renewed, began: float) -> None:
        self.renewals += 1
        recovered = kept.age != "kept"
        kept.state, kept.age, kept.failures, kept.error = "kept", "kept", 0, None
        kept.ttl, kept.batch_id = renewed.ttl, renewed.batch_id or kept.batch_id
        kept.renewed, kept.renewed_at, kept.beaten = began, self._clock.now(), renewed.beaten
        kept.due = together(began + interval(kept.ttl, self._chance()), kept.ttl)
        if recovered:
            self._publish(LEASE_HELD, kept, why="renewed again")

    def _failed(self, kept: Kept, why: str) -> None:
        kept.failures += 1
        kept.error = why
        now = self._clock.boot()
        kept.due = now + retry(kept.ttl, kept.failures, kept.renewed + kept.ttl - now, self._chance())
        level = logging.WARNING if kept.failures == 1 else logging.DEBUG  # an outage is told once for each lane
        log.log(level, "lease of %s not renewed, try %d: %s", kept.entry.lane.agent_id, kept.failures, why)

    async def _end(self, kept: Kept, state: State, topic: str, why: str) -> None:
        kept.state, kept.error = state, why
        self._publish(topic, kept, why=why)
        await self._flush(kept)
        await self._forget(kept)

    async def _forget(self, kept: Kept) -> None:
        """Take a lane that ended off the roster; the last of them stay to be seen."""
        lane = kept.entry.id
        if self._lanes.get(lane) is not kept:  # held anew in the meantime: the roster's entry is not this one's
            return
        del self._lanes[lane]
        self._ended[lane] = kept
        while len(self._ended) > _ENDED:
            del self._ended[next(iter(self._ended))]
        self._unfollow(kept)
        try:
            await self._roster.remove(lane)
        except StoreError as error:  # a restart looks at it once more, and ends it again
            log.warning("lane %s stays on the roster: %s", lane, error)

    # The end of a process

    async def _follow(self, process: Watched, scope: anyio.CancelScope) -> None:
        with scope:
            await self._processes.exited(process)
            self._left(process)
        if self._followed.get(process) is scope:
            del self._followed[process]

    def _unfollow(self, ended: Kept) -> None:
        process = ended.entry.process
        if process is None or any(kept.entry.process == process for kept in self._lanes.values()):
            return
        if (scope := self._followed.pop(process, None)) is not None:
            scope.cancel()

    def _left(self, process: Watched) -> None:
        for kept in self._lanes.values():
            if kept.entry.process == process and kept.running:
                kept.left_by_process(self._clock.now())

    async def _bury(self, kept: Kept) -> None:
        """Say at once, to every reader of the store, that the agent is dead; try for as long as that is news."""
        kept.state = "dead"
        lane, process = kept.entry.lane, kept.entry.process
        message = f"process {process.pid if process else '?'} of {lane.agent_id} exited"
        kept.later(PROCESS_EXITED, message)
        self._publish(PROCESS_EXITED, kept, why=message)
        while not self._lives_elsewhere(kept):
            try:
                await self._turns.bury(kept.entry, patience(kept.ttl), kept.known_until)
            except CoordError as error:
                self._failed(kept, str(error))
                if self._clock.boot() - kept.renewed > DEAD_AFTER_TTLS * kept.ttl:
                    break
                kept.wake = anyio.Event()
                await self._clock.wait(kept.wake, kept.due - self._clock.boot())
            else:
                kept.error = None
                break
        await self._flush(kept)
        await self._forget(kept)

    def _lives_elsewhere(self, dead: Kept) -> bool:
        """Whether the same agent is kept alive in another lane: its one heartbeat then is not to end."""
        return any(
            kept is not dead
            and kept.running
            and not kept.gone
            and (kept.entry.backend, kept.entry.lane.agent_id) == (dead.entry.backend, dead.entry.lane.agent_id)
            for kept in self._lanes.values()
        )

    # Time

    async def _look(self) -> None:
        jumps, never, ticks = Jumps(self._clock), anyio.Event(), 0
        while True:
            await self._clock.wait(never, self._tick)
            if (happened := jumps.look(self._tick)) is not None:
                self._doubt(happened)
            self._announce()
            if ticks % _NOTED == 0:
                await self._mark_alive()
            ticks += 1

    def _doubt(self, happened: str) -> None:
        """Look at everything anew: first at the processes here, then, before it is renewed, at each lease there."""
        log.warning("%s: %d lanes are validated", happened, len(self._lanes))
        for process in tuple(self._followed):
            if not self._processes.lives(process):
                self._left(process)
        for kept in self._lanes.values():
            if kept.running:
                kept.hurry(self._clock.boot())

    def _announce(self) -> None:
        now = self._clock.boot()
        for kept in self._lanes.values():
            reached = age(now - kept.renewed, kept.ttl)
            if not kept.running or reached in ("kept", kept.age):
                continue
            kept.state, kept.age = "expiring", reached
            topic = LEASE_EXPIRING if reached == "expiring" else LEASE_EXPIRED
            since = f"not renewed for {now - kept.renewed:.0f} of {kept.ttl} s"
            kept.later(topic, f"lease of {kept.entry.lane.agent_id} {since}, at {stamp(self._clock.now())}")
            self._publish(topic, kept, why=kept.error or since)

    async def _mark_alive(self) -> None:
        try:
            await self._roster.mark_alive(self._clock.now())
            self._deaf = False
        except StoreError as error:
            log.log(logging.DEBUG if self._deaf else logging.WARNING, "the roster takes no notes: %s", error)
            self._deaf = True  # told once, until it takes them again

    # What is told

    async def _flush(self, kept: Kept) -> None:
        """Write to the batch's trail what has not been; what the backend does not take waits for the next time."""
        while kept.untold and kept.batch_id is not None:
            type_, message = kept.untold[0]
            try:
                await self._turns.tell(kept.entry, patience(kept.ttl), kept.batch_id, type_, message)
            except CoordError as error:
                log.warning("%s not recorded in %s: %s", type_, kept.batch_id, error)
                return
            kept.untold = kept.untold[1:]

    def _publish(self, topic: str, kept: Kept, *, why: str | None = None) -> None:
        entry = kept.entry
        data: dict[str, Any] = {
            "lane": entry.id,
            "agent_id": entry.lane.agent_id,
            "repo": entry.lane.repo,
            "target": entry.lane.target,
            "backend": shown(entry.backend),
            "pid": entry.process.pid if entry.process else None,
            "program": entry.program,
            "batch_id": kept.batch_id,
            "state": kept.state,
            "why": why,
            "at": stamp(self._clock.now()),
        }
        log.info("%s %s lane=%s%s", topic, entry.lane.agent_id, entry.id, f": {why}" if why else "")
        self._feed.publish(topic, data)
        if self._notify is not None and topic not in (LEASE_HELD, LEASE_DROPPED):
            self._notify.post(topic, data)
