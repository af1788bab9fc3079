"""Which paths the fleet's server keeps records at, and what a token's scopes let it see of them.

A path that is a record of some family is exact; everything shorter that could lie above one is a
directory. Nothing else has a meaning on a server (spec: http §3, §4; records §1).
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import cast

from msgspec import Struct

from agentcoord.protocol.documents import decode
from agentcoord.protocol.paths import ACTIVE_PATH_BYTES, ARCHIVE_PATH_BYTES

EVERYTHING = ""
"""The scope that covers all state."""

_SEGMENT = r"[A-Za-z0-9_:-]+(?:\.[A-Za-z0-9_:-]+)*"
_NAME = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9_.-]+"
_OWNED = rf"{_NAME}/{_NAME}"
_COMPONENT = 160
"""Characters that workspace, repository and id of an attention record may each have."""

_RECORD = re.compile(
    rf"(?:archive/)?(?:claims/{_OWNED}/{_SEGMENT}|heartbeats/{_SEGMENT}|batches/{_SEGMENT}"
    rf"|events/{_SEGMENT}/{_SEGMENT})\.json"
)
_ATTENTION = re.compile(rf"attention/({_SEGMENT})/({_OWNED})/({_SEGMENT})\.json")
_PREFIX = re.compile(
    rf"archive|(?:archive/)?(?:claims(?:/{_NAME}(?:/{_NAME})?)?|heartbeats|batches|events(?:/{_SEGMENT})?)"
)
_ATTENTION_PREFIX = re.compile(rf"attention(?:/({_SEGMENT})(?:/({_NAME}(?:/{_NAME})?))?)?")


class Filter(Struct, frozen=True):
    """Part of a listed prefix that a token may see: one directory's records, or exactly one record."""

    scope: str
    exact: bool


class Coverage(Struct, frozen=True):
    """What of a listed prefix a token may see: all of it, or what its filters admit (none: nothing)."""

    whole: bool
    filters: tuple[Filter, ...] = ()

    @property
    def forbidden(self) -> bool:
        """Tell whether nothing may be seen."""
        return not self.whole and not self.filters

    def admits(self, path: str) -> bool:
        """Tell whether a record below the prefix may be seen."""
        return self.whole or any(
            path == part.scope if part.exact else path.startswith(part.scope + "/") for part in self.filters
        )


def is_record_path(path: str) -> bool:
    """Tell whether a path is one at which a server keeps a record."""
    if ".." in path or not path.isascii():
        return False
    if path.startswith("archive/"):
        return len(path) <= ARCHIVE_PATH_BYTES and _RECORD.fullmatch(path) is not None
    if len(path) > ACTIVE_PATH_BYTES:
        return False
    if (found := _ATTENTION.fullmatch(path)) is not None:
        return all(len(part) <= _COMPONENT for part in found.groups())
    return _RECORD.fullmatch(path) is not None


def is_directory_prefix(prefix: str) -> bool:
    """Tell whether records may lie below a prefix, so that it can be listed.

    `claims/o/api.json` is such a directory, a repository's; the record of a target has one part more.
    """
    if ".." in prefix or len(prefix) > ACTIVE_PATH_BYTES or not prefix.isascii():
        return False
    if (found := _ATTENTION_PREFIX.fullmatch(prefix)) is None:
        return _PREFIX.fullmatch(prefix) is not None
    workspace, repository = found.groups()
    # An owner alone leaves room for a slash and the shortest name.
    longest = _COMPONENT if repository and "/" in repository else _COMPONENT - 2
    return len(workspace or "") <= _COMPONENT and len(repository or "") <= longest


def is_scope(scope: object) -> bool:
    """Tell whether a value may stand in a token's list of scopes."""
    return isinstance(scope, str) and (scope == EVERYTHING or is_directory_prefix(scope) or is_record_path(scope))


@lru_cache(maxsize=1024)  # asked with every request, of a few machines
def read_scopes(stored: str | bytes) -> tuple[str, ...]:
    """Read a stored list of scopes. One that is not whole and valid grants nothing at all (spec: http §2)."""
    try:
        read = decode(stored.encode() if isinstance(stored, str) else stored)
    except ValueError:
        return ()
    scopes = cast("list[object]", read) if isinstance(read, list) else []
    valid = [scope for scope in scopes if isinstance(scope, str) and is_scope(scope)]
    return tuple(valid) if len(valid) == len(scopes) else ()


def covers(scopes: Iterable[str], path: str) -> bool:
    """Tell whether any scope covers one record."""
    return any(
        scope in (EVERYTHING, path) or (not is_record_path(scope) and path.startswith(scope + "/")) for scope in scopes
    )


def coverage(scopes: Sequence[str], prefix: str) -> Coverage:
    """Judge what a token may see of a listed prefix, or with "" of all state."""
    above = prefix and prefix + "/"
    filters: list[Filter] = []
    for scope in scopes:
        exact = is_record_path(scope)
        if scope == EVERYTHING or (not exact and (prefix == scope or prefix.startswith(scope + "/"))):
            return Coverage(whole=True)
        if scope.startswith(above):
            filters.append(Filter(scope=scope, exact=exact))
    return Coverage(whole=False, filters=tuple(filters))


def meet(some: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Give scopes that cover what both lists cover, and nothing else."""
    both = [scope for scope in some if _covers_scope(others, scope)]
    both += [scope for scope in others if _covers_scope(some, scope)]
    return tuple(dict.fromkeys(both))


def _covers_scope(scopes: Sequence[str], scope: str) -> bool:
    return covers(scopes, scope) if is_record_path(scope) else coverage(scopes, scope).whole


def may_delete(scopes: Sequence[str], path: str) -> bool:
    """Tell whether a token may delete a record: an active one only together with its archived copy."""
    if path.startswith("archive/"):
        return covers(scopes, path)
    return covers(scopes, path) and covers(scopes, f"archive/{path}")
