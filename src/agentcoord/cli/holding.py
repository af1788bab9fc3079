"""The lease below a command: what is known of it, and the jobs that find out more and keep it.

Jobs run in threads of their own and talk to the backend, where any step may hang; whoever uses a lease never waits for
one, unless it says for how long.
"""

import signal
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from agentcoord.cli.output import Invocation, Output
from agentcoord.cli.signalling import ENDING, Job, Signals
from agentcoord.clock import boot
from agentcoord.errors import CoordError
from agentcoord.operations.context import Context
from agentcoord.operations.keeping import Outcome, Renewed, look, renew
from agentcoord.protocol.claims import Wanted
from agentcoord.protocol.keeping import Finished, Lane, Lost, interval, look_interval, retry
from agentcoord.settings.value import Settings
from agentcoord.stores.opening import open_store, settle, takes_waiting

_T = TypeVar("_T")

TICK = 5.0
"""Seconds slept at most: no sleep counts the time that the machine was suspended, and the clock does."""

LAST_ATTEMPT = 10.0
"""Seconds to find out, after a suspend beyond the end of the lease, whether it is still ours."""


class Backend:
    """The selected backend, asked in threads: each job opens it for itself."""

    def __init__(self, settings: Settings, invocation: Invocation, output: Output, signals: Signals) -> None:
        self.settings, self.invocation, self.signals = settings, invocation, signals
        self._notices = output.stderr
        self.asked: signal.Signals | None = None
        """The signal by which the end was asked for."""

    def begin(self, work: Callable[[Context], Coroutine[Any, Any, _T]]) -> Job[_T]:
        """Begin an operation."""
        return Job(partial(self.perform, work), self.signals)

    def chance(self) -> float:
        """Draw a number from 0 up to 1."""
        return int.from_bytes(self.invocation.random(4), "big") / 2**32

    def within(self, job: Job[Any], seconds: float, *, urged: float) -> bool:
        """Wait for a job, and tell whether it is done; once the end is asked for, for the shorter of the two times."""
        ends = boot() + seconds
        while not job.done and boot() < ends:
            for number in self.signals.wait(min(TICK, ends - boot())):
                if number in ENDING:
                    self.asked = number
                    ends = min(ends, boot() + urged)
        return job.done

    def perform(self, work: Callable[[Context], Coroutine[Any, Any, _T]]) -> _T:
        """Do an operation here and now, in the thread of a job. Raises CoordError."""
        from agentcoord.cli.waiting import wait_for

        answers: list[_T] = []
        selection, invocation = self.settings.selected, self.invocation

        async def steps() -> None:
            async with open_store(selection, invocation.cwd, invocation.env) as store:
                context = Context(
                    store=store,
                    now=invocation.now,
                    random=invocation.random,
                    identity=self.settings.identity,
                    notices=self._notices,
                )
                answers.append(await work(context))

        if takes_waiting(selection):
            wait_for(steps)
        else:
            settle(steps())
        return answers[0]


class Lease:
    """The lease as far as is known, and the job that is finding out more."""

    def __init__(self, backend: Backend, wanted: Wanted, lane: Lane, renewed: Renewed) -> None:
        self.backend, self.wanted, self.lane = backend, wanted, lane
        self.fence = renewed.fence
        self.ends = float("inf")
        self.lost = ""
        """Why it is not ours any more, in words; empty while it is."""
        self._ttl = lane.ttl
        self._job: Job[Outcome | None] | None = None
        self._began = self._began_wall = 0.0
        self._seen = boot()
        self._failures = 0
        self._fault: CoordError | None = None
        self._renews = self._next = 0.0
        self._mark()
        self._learn(renewed)

    @property
    def item(self) -> str:
        """Name the work item."""
        return f"{self.wanted.repo}#{self.wanted.target}"

    def sleep(self) -> float:
        """Give the seconds until something is to be done about it."""
        nearest = self._ends_at if self._job else min(self._next, self._ends_at)
        return max(0.0, min(TICK, nearest - boot()))

    def settle(self, seconds: float) -> None:
        """Let the job that runs come to its end, so that it writes nothing after what is written now."""
        if self._job is not None:
            self.backend.within(self._job, seconds, urged=1.0)

    def step(self) -> None:
        """Learn what came of a job, begin the next one if it is time, and see whether the lease is over."""
        if self._job is not None and self._job.done:
            job, self._job = self._job, None
            self._digest(job)
        now = boot()
        if self.lost:
            return
        if now - self._seen > 2 * TICK:
            # We stood still, as with the machine: what is known is old, and what failed before says nothing now.
            self._failures, self._renews, self._next = 0, now, now
            self._mark()
        self._seen = now
        if now >= self.ends and (self._failures or self._job is not None) and now >= self._ends_at:
            why = f": {self._fault}" if self._fault else ": the backend does not answer"
            self.lost = f"the lease on {self.item} ran out{why}"
        elif self._job is None and now >= self._next:
            self._mark()
            work = renew if now >= self._renews else look
            self._job = self.backend.begin(partial(work, lane=self.lane))

    @property
    def _ends_at(self) -> float:
        """When to give up: at the end of the lease, or after a suspend beyond it, when one more attempt is over."""
        return self._began + LAST_ATTEMPT if self._job and self._began >= self.ends else self.ends

    def _mark(self) -> None:
        self._began, self._began_wall = boot(), self.backend.invocation.now().timestamp()

    def _digest(self, job: Job[Outcome | None]) -> None:
        try:
            answer = job.answer()
        except CoordError as fault:
            self._failures, self._fault = self._failures + 1, fault
            now = boot()
            self._next = now + retry(self._ttl, self._failures, self.ends - now, self.backend.chance())
            self._renews = self._next
            return
        self._failures, self._fault = 0, None
        match answer:
            case Renewed():
                self._learn(answer)
            case Lost(held=True):  # the item is ours, and so is part of what keeps the agent alive
                self.lane = replace(self.lane, shared=True)
                self._renews = self._next = boot()
            case Finished(held=True):  # the agent wants nothing kept, so there is no end to be met; the command goes on
                self.ends = float("inf")
                self._after_a_while()
            case Lost() | Finished():
                self.lost = f"FENCE_LOST: {answer.why}"
            case None:
                self._look_again()

    def _learn(self, renewed: Renewed) -> None:
        self._ttl = renewed.ttl
        self.ends = float("inf")
        if renewed.until is not None:
            # By both ends of the job: should the wall clock have been set meanwhile, the earlier of the two is safe.
            until, wall = renewed.until.timestamp(), self.backend.invocation.now().timestamp()
            self.ends = min(self._began + until - self._began_wall, boot() + until - wall)
        self._after_a_while()

    def _after_a_while(self) -> None:
        self._renews = self._began + interval(self._ttl, self.backend.chance())
        self._look_again()

    def _look_again(self) -> None:
        looks = look_interval(self.backend.chance(), shared=self.lane.shared)
        self._next = min(self._renews, boot() + looks)
