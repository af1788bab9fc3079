"""What a person sees on a terminal: the part of its language that our live view speaks, turned into lines of text."""

import codecs
import re
import unicodedata
from collections.abc import Callable

_STEP = re.compile(
    r"\x1b\[(?P<private>\??)(?P<numbers>[0-9;]*)(?P<name>[A-Za-z])|(?P<other>\x1b[^\[])|(?P<text>[^\x1b]+)"
)


class Emulator:
    """A terminal of a size. Wide letters take two columns; what goes beyond the right edge is lost and noted."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.height = columns, lines
        self._cells: dict[tuple[int, int], str] = {}
        self._row = self._column = 0
        self.alternate = False
        self.cursor = True
        self.overflowed = False
        self.styles = set[str]()
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def print(self, data: bytes) -> None:
        """Show bytes, of which the end of a letter may come later as well."""
        self.feed(self._decoder.decode(data))

    def feed(self, data: str) -> None:
        """Show what a program printed, of which the end of a sequence may come later."""
        data = self._rest + data
        cut = len(data)
        if (at := data.rfind("\x1b", -32)) >= 0 and _STEP.match(data, at) is None:
            cut = at
        self._rest = data[cut:]
        for found in _STEP.finditer(data[:cut]):
            if (text := found["text"]) is not None:
                self._print(text)
            elif found["name"]:
                self._do(found["name"], found["private"] == "?", found["numbers"])
            else:
                raise AssertionError(f"a sequence that this terminal does not know: {found.group()!r}")

    def lines(self) -> list[str]:
        """Give what is on the screen, without blanks at the ends."""
        made: list[str] = []
        for row in range(self.height):
            line = "".join(self._cells.get((row, column), " ") for column in range(self.columns))
            made.append(line.rstrip())
        return made

    def _print(self, text: str) -> None:
        for letter in text:
            if letter == "\r":
                self._column = 0
            elif letter == "\n":
                self._row += 1
            elif letter.isprintable():
                wide = 2 if unicodedata.east_asian_width(letter) in "WF" else 1
                if unicodedata.category(letter) in ("Mn", "Me"):
                    continue
                if self._column + wide > self.columns or self._row >= self.height:
                    self.overflowed |= self.alternate  # elsewhere a line goes on below
                    continue
                self._cells[self._row, self._column] = letter
                if wide == 2:
                    self._cells[self._row, self._column + 1] = ""
                self._column += wide
            else:
                raise AssertionError(f"a control character got through: {letter!r}")

    def _do(self, name: str, private: bool, numbers: str) -> None:
        given = [int(number or 0) for number in numbers.split(";")]
        match name, private:
            case "H", False:
                self._row = max(given[0], 1) - 1
                self._column = max(([*given, 1])[1], 1) - 1
            case "K", False:
                self._erase(lambda row, column: row == self._row and column >= self._column)
            case "J", False:
                whole = given[0] == 2
                self._erase(lambda row, column: whole or (row, column) >= (self._row, self._column))
            case "m", False:
                self.styles.add(numbers)
            case "h" | "l", True:
                on = name == "h"
                if given == [1049]:
                    self.alternate = on
                    self._cells.clear()
                elif given == [25]:
                    self.cursor = on
                else:
                    assert given == [7], numbers
            case _:
                raise AssertionError(f"a sequence that this terminal does not know: {numbers}{name}")

    def _erase(self, gone: Callable[[int, int], bool]) -> None:
        for place in [place for place in self._cells if gone(*place)]:
            del self._cells[place]
