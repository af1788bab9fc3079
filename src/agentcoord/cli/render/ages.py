"""Instants as a person says them: how long ago, or how long from now."""

from datetime import datetime

from agentcoord.protocol.instants import parse

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86_400, 365 * 86_400
_EXACT_HOURS = 10
"""Below so many hours the minutes still matter."""


def span(seconds: float) -> str:
    """Say how long something takes, without its sign: `12 s`, `4 m`, `2 h 10 m`, `3 d`."""
    whole = int(abs(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} m"
    if whole < _DAY:
        hours, minutes = whole // _HOUR, whole % _HOUR // _MINUTE
        return f"{hours} h {minutes} m" if minutes and hours < _EXACT_HOURS else f"{hours} h"
    return f"{whole // _DAY} d" if whole < 2 * _YEAR else f"{whole // _YEAR} y"


def seconds_until(value: object, now: datetime) -> float | None:
    """Count the seconds from `now` to a recorded instant, negative once it is past; None if it is none."""
    instant = parse(value)
    return None if instant is None else (instant - now).total_seconds()


def age(value: object, now: datetime) -> str | None:
    """Say when a recorded instant is, seen from `now`: `4 m ago`, `in 2 h 10 m`; None if it is none."""
    ahead = seconds_until(value, now)
    if ahead is None:
        return None
    if abs(ahead) < 1:
        return "now"
    return f"in {span(ahead)}" if ahead > 0 else f"{span(ahead)} ago"
