"""What rows were made into, kept by the rows themselves: who shows the same objects again shows the same text.

Equal is not the same: a number may equal a flag that is spelled otherwise.
"""

import threading
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any


class KeptTexts:
    """The texts of rows, by section and number of the first."""

    def __init__(self) -> None:
        self.bytes = 0
        self._kept: dict[str, dict[int, tuple[Sequence[Any], bytes]]] = {}
        self._lock = threading.Lock()

    def text(self, section: str, start: int, rows: Sequence[Any], make: Callable[[Sequence[Any]], bytes]) -> bytes:
        """Give what was made of the same rows before, or make it."""
        kept = self._kept.get(section, {}).get(start)
        if kept is not None and len(kept[0]) == len(rows) and all(map(is_, kept[0], rows)):
            return kept[1]
        made = make(rows)
        with self._lock:
            of_section = self._kept.setdefault(section, {})
            before = of_section.get(start)
            of_section[start] = rows, made
            self.bytes += len(made) - (0 if before is None else len(before[1]))
        return made

    def end(self, section: str, start: int) -> None:
        """Forget what is beyond the end of a section."""
        with self._lock:
            of_section = self._kept.get(section, {})
            for number in [number for number in of_section if number >= start]:
                self.bytes -= len(of_section.pop(number)[1])
