"""A page for a person's terminal: text made safe to show, laid out in columns, never wider than the screen.

Whatever is shown was written by somebody else, so every text is cleaned on its way in: nothing but
what this module itself adds can move the cursor, change colours or reverse the direction of writing.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

from msgspec import Struct

from agentcoord.cli.output import Terminal

BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"
"""Styles, as the numbers a terminal knows them by."""

LONGEST = 400
"""Characters shown of one value; the whole of it is in the JSON."""
NARROWEST = 20
"""Columns a page takes at least: below that, no layout is worth its name."""

_GAP = 2
_ROOMY = 22
"""Columns the last column of a table gets at least, where the page has so many."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_SELECTORS = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))  # they widen a symbol on some terminals only


class Cell(Struct, frozen=True, gc=False):
    """A cleaned text and its style."""

    text: str
    style: str = ""


def cell(value: object, style: str = "", *, before: str = "", after: str = "") -> Cell:
    """Make a cell of a recorded value of any type; `before` and `after` are our own words around it."""
    return Cell(f"{before}{cleaned(value)}{after}", style)


def cleaned(value: object) -> str:
    """Write a value of any type as one line of printable text, at most LONGEST characters.

    Line breaks and other space become one blank; control characters and those without a meaning, a
    replacement character; invisible ones, such as those that turn the direction of writing, vanish.
    """
    text = value if isinstance(value, str) else _spelled(value)
    if len(text) > LONGEST:
        text = text[: LONGEST - 1] + "…"
    if not text.isprintable():
        text = "".join(map(_printable, text))
    elif not text.isascii():
        text = "".join([letter for letter in text if not _selects(letter)])
    return text if "  " not in text and text[:1] != " " != text[-1:] else " ".join(text.split())


def _spelled(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return str(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or too deep a nest
        return _REPLACEMENT


def _printable(letter: str) -> str:
    if letter.isprintable():
        return "" if _selects(letter) else letter
    if letter.isspace():
        return " "
    return "" if unicodedata.category(letter) == "Cf" else _REPLACEMENT


def _selects(letter: str) -> bool:
    return any(ord(letter) in block for block in _SELECTORS)


def width(text: str) -> int:
    """Count the columns that a cleaned text takes on a terminal."""
    return len(text) if text.isascii() else _summed(text)


@lru_cache(maxsize=1024)  # marks and words of our own come back in every row
def _summed(text: str) -> int:
    return sum(map(_columns, text))


def _columns(letter: str) -> int:
    if letter < "\x7f":
        return 1
    if unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1


class Page:
    """Lines as they come to stand: text flows from where it begins to the right edge and goes on below."""

    def __init__(self, terminal: Terminal) -> None:
        self._width = max(terminal.columns, NARROWEST)
        self._colour = terminal.colour
        self._lines: list[str] = []
        self._line = ""
        self._filled = 0  # columns that the line takes already
        self._at = 0  # column the next text begins in

    def bytes(self) -> bytes:
        """Give the page as it is printed."""
        return "".join(f"{line}\n" for line in self._lines).encode()

    def blank(self) -> None:
        """Leave a line free, except at the top."""
        if self._lines:
            self._lines.append("")

    def text(self, cells: Iterable[Cell], *, indent: int = 0, gap: int = _GAP) -> None:
        """Add cells that follow each other, as one paragraph; what goes on below begins at `indent`."""
        for part in cells:
            self._flow(part, indent, gap)
        self._break(0)

    def columns(self, rows: Iterable[Sequence[Cell]], fixed: int, *, indent: int = 0) -> list[int]:
        """Find where each column of a table begins: `fixed` ones, and the last, in which all other cells flow.

        On a narrow screen fewer columns have a place of their own; their cells join the last one.
        """
        longest, roomy = self._width // 3, max(_ROOMY, self._width * 3 // 10)
        widths = [0] * fixed
        for row in rows:
            for index in range(fixed):
                text = row[index].text
                if len(text) > widths[index] or not text.isascii():
                    widths[index] = max(widths[index], width(text))
        starts = [indent]
        for natural in widths:
            start = starts[-1] + (min(natural, longest) + _GAP if natural else 0)
            if self._width - start < roomy:
                break
            starts.append(start)
        return starts

    def row(self, starts: Sequence[int], cells: Sequence[Cell]) -> None:
        """Add a row of a table whose columns begin at `starts`. Empty cells take no place in the last one."""
        last = len(starts) - 1
        below = starts[last] if last else starts[0] + _GAP
        for index, part in enumerate(cells):
            if index <= last:
                # A text that reaches into the next column keeps its line to itself.
                if self._filled and self._filled + _GAP > starts[index]:
                    self._break(starts[index])
                self._at = starts[index]
            self._flow(part, starts[index] if index < last else below)
        self._break(0)

    def _flow(self, part: Cell, indent: int, gap: int = _GAP) -> None:
        text, style = part.text.strip(), part.style  # our own words may stand beside a value that cleaning left empty
        if not text:
            return
        wide = width(text)
        if self._filled and self._at <= self._filled:
            self._at = self._filled + gap
        if self._filled and self._at + wide > self._width and indent + wide <= self._width:
            self._break(indent)
        if self._at + wide <= self._width:
            self._put(text, wide, style)
            return
        for word in text.split(" "):
            self._word(word, style, indent)

    def _word(self, word: str, style: str, indent: int) -> None:
        wide = width(word)
        if self._filled and self._at <= self._filled:
            self._at = self._filled + 1
        if self._filled and self._at + wide > self._width:
            self._break(indent)
        while self._at + wide > self._width:
            head = _fitting(word, self._width - self._at)
            self._put(head, width(head), style)
            self._break(indent)
            word = word[len(head) :]
            wide = width(word)
        self._put(word, wide, style)

    def _put(self, text: str, wide: int, style: str) -> None:
        if not text:
            return
        shown = f"\033[{style}m{text}\033[0m" if style and self._colour else text
        self._line += " " * (self._at - self._filled) + shown
        self._filled = self._at = self._at + wide

    def _break(self, indent: int) -> None:
        if self._line:
            self._lines.append(self._line)
        self._line, self._filled, self._at = "", 0, indent


def _fitting(word: str, room: int) -> str:
    """Take from the start of a word what fits, and at least one letter."""
    taken = 0
    for index, letter in enumerate(word):
        taken += _columns(letter)
        if taken > room and index:
            return word[:index]
    return word
