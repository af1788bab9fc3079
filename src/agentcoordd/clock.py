"""Time as the daemon sees it: how long ago, by a clock that counts through suspend, and what the wall says.

Deadlines use the first, records carry the second. The event loop's own timers stand still in a suspend, so whoever
waits looks at the clock again; see `Jumps`.
"""

from datetime import UTC, datetime
from typing import Protocol

import anyio

from agentcoord import clock

_SUSPENDED = 5.0  # seconds more than were asked for, which no busy machine explains
_STEPPED = 2.0  # seconds that the wall clock moves against the other by being set, not by drifting


class Clock(Protocol):
    """Tells the time, and waits."""

    def boot(self) -> float:
        """Seconds since some fixed instant, those of suspends included."""
        ...

    def now(self) -> datetime:
        """The wall clock, in UTC."""
        ...

    async def wait(self, event: anyio.Event, seconds: float) -> None:
        """Wait for an event, for so many seconds at most."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def boot(self) -> float:
        """Seconds of a clock that counts through suspend, where the system has one."""
        return clock.boot()

    def now(self) -> datetime:
        """The wall clock, in UTC."""
        return datetime.now(UTC)

    async def wait(self, event: anyio.Event, seconds: float) -> None:
        """Wait for an event; a suspend makes it longer by as much, as the loop's timers stand still in it."""
        with anyio.move_on_after(max(seconds, 0.0)):
            await event.wait()


class Jumps:
    """Notices that the machine slept, or that its wall clock was set, between one look and the next."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._boot = clock.boot()
        self._wall = clock.now()

    def look(self, expected: float) -> str | None:
        """Say what happened since the last look, which was to be `expected` seconds ago; None when nothing did."""
        boot, wall = self._clock.boot(), self._clock.now()
        passed = boot - self._boot
        stepped = (wall - self._wall).total_seconds() - passed
        self._boot, self._wall = boot, wall
        if passed > expected + _SUSPENDED:
            return f"{passed - expected:.0f} s went by unseen"
        if abs(stepped) > _STEPPED:
            return f"the wall clock was set by {stepped:+.0f} s"
        return None
