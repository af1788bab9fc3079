"""Words for what is seen of records everywhere: whether somebody is there, since when, and what a field says.

A row may hold any JSON; what is shown of it is cleaned.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import cast

from agentcoord.cli.render.ages import age, seconds_until
from agentcoord.cli.render.page import DIM, GREEN, RED, YELLOW, Cell, cell, cleaned
from agentcoord.operations.projection import Row
from agentcoord.protocol.batches import UNKNOWN
from agentcoord.protocol.statuses import CLOSED, SATISFYING, TERMINAL

NEVER_HEARD = "never heard"
MARKS = {"live": ("●", GREEN), "stale": ("◐", YELLOW), "dead": ("○", RED)}
_WORDS = {"no-heartbeat": NEVER_HEARD}

LOST, DOUBTFUL, WELL, OVER = range(4)
"""Ranks, most in need of attention first."""
OVER_STATUSES = frozenset({*TERMINAL, *SATISFYING, *CLOSED})


def mark(word: object, *, over: bool = False) -> Cell:
    """Say a liveness with its mark; of work that is over nobody needs to be alive."""
    word = _WORDS.get(word, word) if isinstance(word, str) else word
    sign, style = MARKS.get(word, ("?", "")) if isinstance(word, str) else ("?", "")
    return cell(word, DIM if over else style, before=f"{sign} ")


def ranked(liveness: object) -> int:
    """Rank a liveness by how much it needs somebody."""
    return {"live": WELL, "dead": LOST}.get(liveness, DOUBTFUL) if isinstance(liveness, str) else DOUBTFUL


def named(value: object) -> str:
    """Give a value as the name it should be."""
    return value if isinstance(value, str) else cleaned(value)


def when(value: object, now: datetime, *, before: str = "", style: str = DIM) -> Cell:
    """Say when something is: its age, or what stands there instead of an instant."""
    aged = age(value, now)
    return cell(value, style, before=before) if aged is None else Cell(before + aged, style)


def latest(value: object, now: datetime) -> float:
    """Give a number that sorts later instants first, and what is none last."""
    ahead = seconds_until(value, now)
    return float("inf") if ahead is None else -ahead


def said(row: Row, key: str, before: str = "", style: str = DIM) -> Cell:
    """Show an optional field, or nothing when the record does not say."""
    value = row.get(key)
    return Cell("") if value is None or value in ("", UNKNOWN, "-") else cell(value, style, before=before)


def simulated(row: Row) -> Cell:
    """Mark what is no real work."""
    return Cell("synthetic", DIM) if row.get("synthetic") is True else Cell("")


def listed(value: object) -> list[object]:
    """Take a value as the list it should be; one that is none stands for itself."""
    if isinstance(value, list | tuple):
        return list(cast("Sequence[object]", value))
    return [] if value is None else [value]


def joined(values: object) -> str:
    """Give the values of a list as one text."""
    return cleaned(", ".join(cleaned(value) for value in listed(values)))


def is_one(value: object, known: Iterable[str]) -> bool:
    """Tell whether a value is one of the known words."""
    return isinstance(value, str) and value in known


def count_of(number: int, one: str, many: str = "") -> str:
    """Say how many there are."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def item(row: Row, style: str = "") -> Cell:
    """Name the work item of a row, as far as it has one."""
    parts = [cleaned(value) for key in ("repo", "target") if (value := row.get(key)) is not None]
    return Cell("#".join(parts), style)


def lanes_of(row: Row) -> list[Row]:
    """Give the lanes of a batch's row."""
    return [cast("Row", lane) for lane in listed(row.get("lanes")) if isinstance(lane, dict)]


def is_over(lane: Row) -> bool:
    """Tell whether a lane is finished, so that nobody needs to be alive in it."""
    return lane.get("terminal") is not None or is_one(lane.get("status"), OVER_STATUSES)
