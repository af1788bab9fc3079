"""What a target names: one work item has several spellings, each of which may hold its own lease.

Folding is for reading only. Claim keys stay literal, since a lane holds a lease of its own
(spec: records §9).
"""

from msgspec import Struct

_NUMBERED = ("issue", "pr")
_NAMED = "adhoc"
DECORATIONS = (*_NUMBERED, _NAMED)


class WorkItem(Struct, frozen=True):
    """The item a target names, and the lane within it; lane None is the item itself."""

    base: str
    lane: str | None = None

    def spelled(self, decoration: str = "") -> str:
        """Write the item in its canonical form, with a decoration in front if given."""
        plain = self.base if self.lane is None else f"{self.base}:{self.lane}"
        return f"{decoration}:{plain}" if decoration else plain


def undecorated(target: str) -> list[str]:
    """Split a target at its colons, without a prefix that only decorates, case kept."""
    parts = target.strip().split(":")
    first = parts[0].lower()
    if len(parts) == 1 or first not in DECORATIONS:
        return parts
    second = parts[1]
    digits = second.isascii() and second.isdigit()
    if second and (digits if first in _NUMBERED else not digits):
        return parts[1:]
    return [f"{parts[0]}:{second}", *parts[2:]]


def identify(target: str) -> WorkItem:
    """Name the work item of a target, letter case folded."""
    parts = [part.lower() for part in undecorated(target)]
    return WorkItem(base=parts[0], lane=":".join(parts[1:]) if len(parts) > 1 else None)


def folded(target: str) -> str:
    """Drop a decorating prefix and keep the case: how lanes and audits compare targets."""
    return ":".join(undecorated(target))


def spellings(target: str) -> list[str]:
    """List the spellings of a target's own work item: as typed first, then the canonical aliases."""
    item = identify(target)
    candidates = [target, item.spelled(), *(item.spelled(decoration) for decoration in DECORATIONS)]
    return [name for name in dict.fromkeys(candidates) if identify(name) == item]
