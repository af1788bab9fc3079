"""Sends what waits, as soon as its backend answers: each record once, and those of a lane in order.

There is a loop for each server. Nothing is forgotten before the server has it, so a daemon that is killed at any step
sends once more what it may have sent, and finds it there. What a server refuses for good is set aside with its reason
and holds up nobody; a record that fails by itself, while others arrive, waits by itself.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from random import random

import anyio
from anyio import CancelScope
from anyio.abc import TaskStatus

from agentcoord.errors import CoordError, StoreError, UsageError
from agentcoord.operations.outbox import deliver
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.outbox import (
    LEAST_PAUSE,
    LONGEST_PAUSE,
    MOST_BYTES,
    MOST_ENTRIES,
    Late,
    LateBeat,
    LateEvent,
    Order,
    is_refusal,
    is_throttled,
    merged,
    pause_after,
)
from agentcoord.stores.base import Store
from agentcoordd.backends import Backend, Backends, HttpBackend, shown
from agentcoordd.clock import Clock
from agentcoordd.outbox import EntryView, KeptEntry, KeptOutbox, encoded
from agentcoordd.places import Loops, OutboxView

log = logging.getLogger(__name__)

_IDLE = 3600.0
_LONGEST_ERROR = 300
_OUTAGE = 2
"""Failures in a row that are the backend's, and not of the one record that was to be sent."""


def _never(backend: Backend, agent_id: str) -> datetime | None:
    return None


class _Entry:
    """One record of the outbox, without its content. `due` is of the clock that counts through suspend."""

    def __init__(self, kept: KeptEntry) -> None:
        self.number, self.url, self.queued_at = kept.number, kept.url, kept.queued_at
        self.attempts, self.error, self.aside = kept.attempts, kept.error, kept.aside
        self.due = 0.0
        self.hold(kept.late, kept.size)

    def hold(self, late: Late, size: int) -> None:
        """Take what it is from its content."""
        self.kind, self.lane, self.path, self.size = _kind(late), late.lane, late.path, size


def _kind(late: Late) -> str:
    return "event" if isinstance(late, LateEvent) else "heartbeat"


class Outbox(Loops[OutboxView]):
    """What waits for the servers at `urls`, and its way there. `chance` keeps attempts from coming all at once.

    `renewed` tells of when the heartbeat is that was last renewed for an agent, by whoever keeps leases here.
    """

    def __init__(
        self,
        backends: Backends,
        kept: KeptOutbox,
        urls: Iterable[str],
        clock: Clock,
        *,
        chance: Callable[[], float] = random,
        renewed: Callable[[Backend, str], datetime | None] = _never,
    ) -> None:
        self._kept, self._clock = kept, clock
        self._entries: dict[int, _Entry] = {}
        self._bytes = 0
        self._adding = anyio.Lock()
        self._deliveries = {
            url: _Delivery(self, HttpBackend(url), backends, kept, clock, chance, renewed) for url in sorted(urls)
        }
        super().__init__(self._deliveries.values())

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Send until cancelled. Raises StoreError where what waits cannot be read."""
        for kept in await self._kept.entries():
            self._hold(kept)
        await super().run(task_status=task_status)

    # What is asked of it -----------------------------------------------------------------------------

    def holds(self, url: str, lane: str) -> bool:
        """Tell whether something of a lane waits for a server, or anything for one that answers nobody.

        To ask that one once more would only have the command wait as well.
        """
        delivery = self._deliveries.get(url)
        return delivery is not None and (delivery.order.holds(lane) or delivery.in_outage)

    def takes(self, url: str) -> bool:
        """Tell whether anything may wait for a server here."""
        return url in self._deliveries

    async def put(self, url: str, late: Late, *, origin: str | None = None, refused: str | None = None) -> None:
        """Keep a record until the server has it. Raises StoreError where there is no room or no disk for it.

        `origin` names where it comes from, once; `refused` sets it aside at once, for that reason.
        """
        delivery, text = self._deliveries[url], encoded(late)
        with CancelScope(shield=True):  # what is kept is known here too, whoever gave up waiting
            async with self._adding:
                if refused is None and await self._absorbed(delivery, late):
                    return
                size = len(text.encode())
                self._require_room(size)
                now = self._clock.now()
                number = await self._kept.add(url, text, now, origin=origin, refused=refused)
                if number is not None:
                    self._hold(KeptEntry(number, url, late, size, now, 0, refused, refused is not None))
        if refused is None:
            delivery.added()
        else:
            log.warning("set aside %s for %s: %s", late.path, shown(delivery.backend), refused)

    def answered(self, backend: Backend) -> None:
        """Hear that a backend answered somebody, so that what waits for it is tried again."""
        if isinstance(backend, HttpBackend) and (delivery := self._deliveries.get(backend.url)) is not None:
            delivery.answered()

    def entries(self) -> list[EntryView]:
        """Show all that waits or was set aside, the oldest first."""
        return [self._view(entry) for entry in self._entries.values()]

    @property
    def used(self) -> tuple[int, int]:
        """Count the records, and their bytes."""
        return len(self._entries), self._bytes

    def set_aside(self) -> int:
        """Count what was set aside."""
        return sum(entry.aside for entry in self._entries.values())

    async def retry(self, numbers: Sequence[int] | None) -> list[EntryView]:
        """Have records tried again now, in their old places; None: all that were set aside. Raises UsageError."""
        entries = self._found(numbers) if numbers is not None else [e for e in self._entries.values() if e.aside]
        with CancelScope(shield=True):
            await self._kept.revive([entry.number for entry in entries])
            for entry in entries:
                entry.due, entry.attempts, entry.aside = 0.0, 0, False
                if entry.number in self._entries and (delivery := self._deliveries.get(entry.url)) is not None:
                    delivery.order.remove(entry.lane, entry.number)
                    delivery.order.add(entry.lane, entry.number)
                    delivery.go()
        return [self._view(entry) for entry in entries]

    async def drop(self, numbers: Sequence[int]) -> list[EntryView]:
        """Forget records, and show what they were. Raises UsageError.

        One that is being sent just then may arrive all the same.
        """
        entries = self._found(numbers)
        with CancelScope(shield=True):
            await self._kept.remove(*(entry.number for entry in entries))
            for entry in entries:
                self.forget(entry.number)
        return [self._view(entry) for entry in entries]

    # For its deliveries ------------------------------------------------------------------------------

    def entry(self, number: int) -> _Entry | None:
        """Find an entry; None for one that is gone."""
        return self._entries.get(number)

    def forget(self, number: int) -> None:
        """Let go of an entry that is kept no more."""
        entry = self._entries.pop(number, None)
        if entry is not None:
            self._bytes -= entry.size
            if (delivery := self._deliveries.get(entry.url)) is not None:
                delivery.order.remove(entry.lane, number)

    def change(self, entry: _Entry, late: Late, text: str) -> None:
        """Note that an entry has another content, in its old place."""
        order, size = self._deliveries[entry.url].order, len(text.encode())
        order.remove(entry.lane, entry.number)
        self._bytes += size - entry.size
        entry.hold(late, size)
        order.add(entry.lane, entry.number)

    # Itself ------------------------------------------------------------------------------------------

    def _hold(self, kept: KeptEntry) -> None:
        self._entries[kept.number] = _Entry(kept)
        self._bytes += kept.size
        if not kept.aside and (delivery := self._deliveries.get(kept.url)) is not None:
            delivery.order.add(kept.late.lane, kept.number)

    async def _absorbed(self, delivery: "_Delivery", late: Late) -> bool:
        """Let a heartbeat take the place of one before it that says the same, so that a long outage fills nothing."""
        last = delivery.order.last(late.lane) if isinstance(late, LateBeat) else None
        older = None if last is None else await self._kept.late(last)
        entry = None if last is None else self._entries.get(last)
        both = None if entry is None or older is None or delivery.sending == last else merged(older, late)
        if entry is None or both is None:
            return False
        # A delivery that begins from here on reads what is written now: the database does one thing after the other.
        text = encoded(both)
        await self._kept.replace(entry.number, text)
        if self._entries.get(entry.number) is entry:
            self.change(entry, both, text)
        return True

    def _require_room(self, size: int) -> None:
        if len(self._entries) >= MOST_ENTRIES or self._bytes + size > MOST_BYTES:
            raise StoreError(
                f"the outbox is full: it holds {len(self._entries)} of {MOST_ENTRIES} records and {self._bytes} of "
                f"{MOST_BYTES} bytes; agent-coord outbox list shows them"
            )

    def _found(self, numbers: Sequence[int]) -> list[_Entry]:
        missing = [number for number in numbers if number not in self._entries]
        if missing:
            raise UsageError(f"the outbox has no entry {missing[0]}: agent-coord outbox list shows what it has")
        return [self._entries[number] for number in dict.fromkeys(numbers)]

    def _view(self, entry: _Entry) -> EntryView:
        served = entry.url in self._deliveries
        return EntryView(
            id=entry.number,
            kind=entry.kind,
            path=entry.path,
            backend=shown(HttpBackend(entry.url)),
            queued_at=stamp(entry.queued_at),
            age=max(0, int((self._clock.now() - entry.queued_at).total_seconds())),
            attempts=entry.attempts,
            error=entry.error if served else "the daemon does not serve this backend any more",
            state="set_aside" if entry.aside else "waiting",
        )


class _Delivery:
    """The way to one server. Moments are of the clock that counts through suspend."""

    def __init__(
        self,
        outbox: Outbox,
        backend: HttpBackend,
        backends: Backends,
        kept: KeptOutbox,
        clock: Clock,
        chance: Callable[[], float],
        renewed: Callable[[Backend, str], datetime | None],
    ) -> None:
        self._renewed = renewed
        self.backend, self.order = backend, Order()
        self.sending: int | None = None
        self._outbox, self._backends, self._kept, self._clock, self._chance = outbox, backends, kept, clock, chance
        self._wake = anyio.Event()
        self._tried = self._resting = 0.0
        self._failures = self._hurried = 0
        self._throttled, self._error = False, ""
        self._told: list[_Entry] = []
        """What has arrived, and is not forgotten yet."""
        self._fault = ""

    def view(self) -> OutboxView:
        """Show it as it stands."""
        return OutboxView(backend=shown(self.backend), failures=self._failures, error=self._error or None)

    @property
    def in_outage(self) -> bool:
        """Whether several attempts in a row came to nothing, and there is more to send."""
        return self._failures >= _OUTAGE and bool(self.order)

    async def keep(self) -> None:
        """Send what is ready, and wait for more."""
        while True:
            self._wake = anyio.Event()
            entry = self._next()
            if entry is None:
                await self._forget()
                await self._clock.wait(self._wake, self._pause())
            else:
                await self._send(entry)

    def added(self) -> None:
        """Hear that there is more to send."""
        if self._failures:
            self._hurry()
        self._wake.set()

    def answered(self) -> None:
        """Hear that the server answered somebody."""
        if self._failures and self.order and self.sending is None:
            self._hurry()
            self._wake.set()

    def go(self) -> None:
        """Hear that a person wants no more waiting."""
        self._resting, self._hurried = 0.0, 0
        self._wake.set()

    def _hurry(self) -> None:
        """End a pause that may be over by now, and each time in vain less readily."""
        if self._throttled:
            return
        least = min(LEAST_PAUSE * 2.0 ** min(self._hurried, 16), LONGEST_PAUSE)
        moment = max(self._clock.boot(), self._tried + least)
        if self._resting > moment:
            self._resting, self._hurried = moment, self._hurried + 1
        for entry in self._heads():
            entry.due = min(entry.due, moment)

    def _heads(self) -> list[_Entry]:
        found = (self._outbox.entry(number) for number in self.order.heads())
        return [entry for entry in found if entry is not None]

    def _next(self) -> _Entry | None:
        now = self._clock.boot()
        if now < self._resting:
            return None

        def ready(number: int) -> bool:
            entry = self._outbox.entry(number)
            return entry is not None and entry.due <= now

        number = self.order.take(ready)
        return None if number is None else self._outbox.entry(number)

    def _pause(self) -> float:
        due = min((entry.due for entry in self._heads()), default=None)
        longest = LONGEST_PAUSE if self._told else _IDLE
        return longest if due is None else min(max(due, self._resting) - self._clock.boot(), longest)

    async def _send(self, entry: _Entry) -> None:
        number = self.sending = entry.number
        self._tried = self._clock.boot()

        async def note(late: LateBeat) -> None:
            await self._change(entry, late)

        async def deed(store: Store) -> LateEvent | None:
            renewed = self._renewed(self.backend, late.beat.agent_id) if isinstance(late, LateBeat) else None
            return None if late is None else await deliver(store, late, note, renewed)

        try:
            late = await self._kept.late(number)
            follows = await self._backends.perform(self.backend, deed)
            await self._arrived(entry, follows)
        except CoordError as error:
            await self._failed(entry, error)
        except Exception as error:  # a fault with one record must not end the daemon
            log.exception("internal error while sending %s", entry.path)
            await self._failed(entry, StoreError(f"internal error: {error!r}"))
        finally:
            self.sending = None

    async def _change(self, entry: _Entry, late: Late) -> None:
        text = encoded(late)
        with CancelScope(shield=True):
            await self._kept.replace(entry.number, text)
            if self._outbox.entry(entry.number) is entry:
                self._outbox.change(entry, late, text)

    async def _arrived(self, entry: _Entry, follows: LateEvent | None) -> None:
        if follows is not None:
            entry.attempts, entry.error = 0, None
            await self._change(entry, follows)
        else:
            self._told.append(entry)
            self.order.remove(entry.lane, entry.number)
            await self._forget()
        if self._failures >= _OUTAGE:
            log.info("%s takes what waited for it", shown(self.backend))
            for head in self._heads():
                head.due = 0.0
        self._failures = self._hurried = 0
        self._throttled, self._error, self._resting = False, "", 0.0

    async def _forget(self) -> None:
        """Let go of what has arrived. A disk that does not take that holds up nobody: it is sent once more at worst."""
        with CancelScope(shield=True):
            while self._told:
                number = self._told[-1].number
                try:
                    await self._kept.remove(number)
                except StoreError as fault:
                    if self._fault != str(fault):  # told once, until it goes well again
                        self._fault = str(fault)
                        log.warning("%s", fault)
                    return
                self._outbox.forget(number)
                self._told.pop()
        self._fault = ""

    async def _failed(self, entry: _Entry, error: CoordError) -> None:
        if self._outbox.entry(entry.number) is not entry:  # dropped meanwhile
            return
        entry.attempts, entry.error = entry.attempts + 1, str(error)[:_LONGEST_ERROR]
        now = self._clock.boot()
        if is_refusal(error):
            entry.aside = True
            self.order.remove(entry.lane, entry.number)
            self._failures, self._throttled, self._resting = 0, False, 0.0  # it did answer
            log.warning("set aside %s for %s: %s", entry.path, shown(self.backend), error)
        else:
            self._failures += 1
            self._throttled, self._error = is_throttled(error), entry.error
            entry.due = now + pause_after(entry.attempts - 1, error, self._chance())
            if self._failures >= _OUTAGE or getattr(error, "retry_after", None) is not None:
                self._resting = now + pause_after(self._failures - 1, error, self._chance())
            if self._failures == _OUTAGE:
                log.warning("%s does not take what waits for it: %s", shown(self.backend), error)
        try:
            await self._kept.mark(entry.number, entry.attempts, entry.error, aside=entry.aside)
        except StoreError as fault:
            log.warning("%s", fault)
