"""The lease below a command: what is known of it, and the jobs that find out more and keep it.

Jobs run in threads of their own and talk to the backend, where any step may hang; whoever uses a lease never waits for
one, unless it says for how long.
"""

import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from agentcoord.cli.output import Invocation, Output
from agentcoord.cli.signalling import ENDING, Job, Signals
from agentcoord.errors import CoordError
from agentcoord.operations.context import Context
from agentcoord.operations.custody import Custody, Kept, Lost, look, renew
from agentcoord.protocol.custody import SHARED_LOOK, beat_ttl, explain, look_pause, pause, retry
from agentcoord.settings.value import Settings
from agentcoord.stores.opening import open_store, takes_waiting

_T = TypeVar("_T")
_Renewed = Kept | Lost | None

TICK = 5.0
"""Seconds slept at most: no sleep counts the time that the machine was suspended, and the clock does."""

LAST_ATTEMPT = 10.0
"""Seconds to find out, after a suspend beyond the end of the lease, whether it is still ours."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Give seconds that nobody sets, and that go on while the machine is suspended, where the system has such."""
    return time.clock_gettime(_CLOCK)


class Backend:
    """The selected backend, asked in threads: each job opens it for itself."""

    def __init__(self, settings: Settings, invocation: Invocation, output: Output, signals: Signals) -> None:
        self.settings, self.invocation, self.signals = settings, invocation, signals
        self._notices = output.stderr
        self.asked: signal.Signals | None = None
        """The signal by which the end was asked for."""

    def begin(self, work: Callable[[Context], Coroutine[Any, Any, _T]]) -> Job[_T]:
        """Begin an operation."""
        return Job(partial(self._perform, work), self.signals)

    def chance(self) -> float:
        """Draw a number from 0 up to 1."""
        return int.from_bytes(self.invocation.random(4), "big") / 2**32

    def within(self, job: Job[Any], seconds: float, *, urged: float) -> bool:
        """Wait for a job, and tell whether it is done; once the end is asked for, for the shorter of the two times."""
        ends = clock() + seconds
        while not job.done and clock() < ends:
            for number in self.signals.wait(min(TICK, ends - clock())):
                if number in ENDING:
                    self.asked = number
                    ends = min(ends, clock() + urged)
        return job.done

    def _perform(self, work: Callable[[Context], Coroutine[Any, Any, _T]]) -> _T:
        from agentcoord.cli.run import settle
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

    def __init__(self, backend: Backend, custody: Custody, kept: Kept) -> None:
        self.backend, self.custody = backend, custody
        self.ends = float("inf")
        self.lost = ""
        """Why it is not ours any more, in words; empty while it is."""
        self._ttl = beat_ttl(custody.wanted.ttl)
        self._job: Job[_Renewed] | None = None
        self._began = self._began_wall = 0.0
        self._seen = clock()
        self._failures = 0
        self._fault: CoordError | None = None
        self._renews = self._next = 0.0
        self._mark()
        self._learn(kept)

    @property
    def item(self) -> str:
        """Name the work item."""
        return f"{self.custody.wanted.repo}#{self.custody.wanted.target}"

    def sleep(self) -> float:
        """Give the seconds until something is to be done about it."""
        nearest = self._ends_at if self._job else min(self._next, self._ends_at)
        return max(0.0, min(TICK, nearest - clock()))

    def settle(self, seconds: float) -> None:
        """Let the job that runs come to its end, so that it writes nothing after what is written now."""
        if self._job is not None:
            self.backend.within(self._job, seconds, urged=1.0)

    def step(self) -> None:
        """Learn what came of a job, begin the next one if it is time, and see whether the lease is over."""
        if self._job is not None and self._job.done:
            job, self._job = self._job, None
            self._digest(job)
        now = clock()
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
            self._job = self.backend.begin(partial(work, custody=self.custody))

    @property
    def _ends_at(self) -> float:
        """When to give up: at the end of the lease, or after a suspend beyond it, when one more attempt is over."""
        return self._began + LAST_ATTEMPT if self._job and self._began >= self.ends else self.ends

    def _mark(self) -> None:
        self._began, self._began_wall = clock(), self.backend.invocation.now().timestamp()

    def _digest(self, job: Job[_Renewed]) -> None:
        try:
            answer = job.answer()
        except CoordError as fault:
            self._failures, self._fault = self._failures + 1, fault
            now = clock()
            self._next = now + retry(self._failures, self.ends - now, self.backend.chance())
            self._renews = self._next
            return
        self._failures, self._fault = 0, None
        if isinstance(answer, Lost):
            self.lost = explain(answer.standing, self.custody.wanted.repo, self.custody.wanted.target)
        elif answer is not None:
            self._learn(answer)
        else:
            self._look_again()

    def _learn(self, kept: Kept) -> None:
        self.ends = float("inf")
        if kept.until is not None:
            # By both ends of the job: should the wall clock have been set meanwhile, the earlier of the two is safe.
            until, wall = kept.until.timestamp(), self.backend.invocation.now().timestamp()
            self.ends = min(self._began + until - self._began_wall, clock() + until - wall)
        self._renews = self._began + pause(self._ttl, self.backend.chance())
        self._look_again()

    def _look_again(self) -> None:
        looks = SHARED_LOOK if self.custody.shared else look_pause(self.backend.chance())
        self._next = min(self._renews, clock() + looks)
