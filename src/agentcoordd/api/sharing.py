"""Reading once for many: who asks the same while a reading is under way is told of the next one.

The one under way may have seen the state before they asked, and what they know of by then is not in it.
"""

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import anyio

_Read = TypeVar("_Read")


class _Reading(Generic[_Read]):
    """One reading for all that asked before it began."""

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.read: list[_Read] = []
        self.error: Exception | None = None


class Readings(Generic[_Read]):
    """Readings by what they are of: at most one is under way and one to come."""

    def __init__(self) -> None:
        self._coming: dict[Hashable, _Reading[_Read]] = {}
        self._reading: dict[Hashable, anyio.Lock] = {}

    async def share(self, key: Hashable, read: Callable[[], Awaitable[_Read]]) -> _Read:
        """Give what a reading gives that began after this was asked. Raises what it raises.

        Whoever comes first reads for the others; when that one is cancelled, another does it.
        """
        while (coming := self._coming.get(key)) is not None:
            await coming.over.wait()
            if coming.error is not None:
                raise coming.error
            if coming.read:
                return coming.read[0]
        own = self._coming[key] = _Reading[_Read]()
        lock = self._reading.setdefault(key, anyio.Lock())
        try:
            async with lock:
                del self._coming[key]
                own.read.append(await read())
                return own.read[0]
        except Exception as error:
            own.error = error
            raise
        finally:
            if self._coming.get(key) is own:
                del self._coming[key]
            if not lock.locked() and key not in self._coming:
                self._reading.pop(key, None)
            own.over.set()
