"""Everything that is wrong with the files of a state root, where a listing ends at the first fault.

Only names, kinds, ages, owners and permissions are looked at; no record is read and nothing is changed.
"""

import os
import stat
from collections.abc import Callable, Iterator

from msgspec import Struct, field

from agentcoord.errors import StoreError
from agentcoord.files import is_temporary, printable, shell_line
from agentcoord.protocol.paths import FAMILIES, may_be_dotted
from agentcoord.stores.tree import Tree, may_change

SHOWN_UNWRITABLE = 100
"""How many directories and locks that cannot be written are named; of the rest, the number."""

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Place(Struct, frozen=True):
    """The root or a directory above it. `closable`: taking it from others is ours to do, and breaks no sharing."""

    path: str
    closable: bool = False


class Survey(Struct, frozen=True):
    """What was seen below a root. Paths are relative to it, those of places absolute.

    `misplaced` is what stands in the place of a family, `faults` is what is wrong further down,
    `unwritable` is what a writer would fail at. `open_root` and `open_above` are the root and directories
    above it that others may change, `foreign_root` and `foreign_above` those that are somebody else's.
    """

    names: tuple[str, ...] = ()
    misplaced: tuple[StoreError, ...] = ()
    faults: tuple[StoreError, ...] = ()
    unwritable: tuple[StoreError, ...] = ()
    leftovers: tuple[str, ...] = ()
    open_root: Place | None = None
    open_above: tuple[Place, ...] = ()
    foreign_root: Place | None = None
    foreign_above: tuple[Place, ...] = ()


class _Seen(Struct):
    """What one walk has come across."""

    names: list[str] = field(default_factory=list[str])
    faults: list[StoreError] = field(default_factory=list[StoreError])
    unwritable: list[StoreError] = field(default_factory=list[StoreError])
    leftovers: list[str] = field(default_factory=list[str])


def survey(tree: Tree, *, before: float, may_write: Callable[[str], bool] | None = None) -> Survey:
    """Look at every family. A temporary file last written `before` then, in seconds since 1970, is a leftover.

    `may_write` tells whether a path can be written to; the system is asked where it is not given.
    """
    seen, misplaced = _Seen(), list[StoreError]()
    root = tree.root
    for family in FAMILIES if _is_directory(root) else ():  # of what is no root, one error is enough
        try:
            present = tree.has_directory(family)
        except StoreError as error:
            misplaced.append(error)
        else:
            if present:
                _walk(tree, family, before, may_write or _may_write, seen)
    opened, foreign = exposed(root, os.geteuid())
    here = _real(root)
    return Survey(
        names=tuple(sorted(seen.names)),
        misplaced=tuple(misplaced),
        faults=tuple(seen.faults),
        unwritable=_some_of(seen.unwritable),
        leftovers=tuple(seen.leftovers),
        open_root=next((place for place in opened if place.path == here), None),
        open_above=tuple(place for place in opened if place.path != here),
        foreign_root=next((place for place in foreign if place.path == here), None),
        foreign_above=tuple(place for place in foreign if place.path != here),
    )


def _some_of(faults: list[StoreError]) -> tuple[StoreError, ...]:
    """Name so many of them and count the rest: on a tree of somebody else's there is one for each directory."""
    if len(faults) <= SHOWN_UNWRITABLE:
        return tuple(faults)
    more = (
        f"{len(faults) - SHOWN_UNWRITABLE} more directories or locks are not writable; mend these first and look again"
    )
    return (*faults[:SHOWN_UNWRITABLE], StoreError(more, finding="layout.more"))


def _walk(tree: Tree, family: str, before: float, may_write: Callable[[str], bool], seen: _Seen) -> None:
    pending = [family]
    while pending:
        directory = pending.pop()
        try:
            with os.scandir(f"{tree.base}{directory}/.") as entries:
                if not may_write(tree.base + directory):
                    seen.unwritable.append(_unwritable(tree, directory, "directory", stat.S_IRWXU))
                for entry in entries:
                    path = f"{directory}/{entry.name}"
                    hidden = entry.name.startswith(".")
                    if not entry.is_file(follow_symlinks=False):
                        if _descends(tree, path, entry, seen.faults):
                            pending.append(path)
                    elif not hidden and entry.name.endswith(".json"):
                        seen.names.append(path)
                    elif not hidden and entry.name.endswith(".json.lock"):
                        if not may_write(entry.path):
                            seen.unwritable.append(_unwritable(tree, path, "lock", stat.S_IRUSR | stat.S_IWUSR))
                    elif hidden and is_temporary(entry.name) and _is_older(entry, before):
                        seen.leftovers.append(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            seen.faults.append(tree.unlistable(directory, error))


def _descends(tree: Tree, path: str, entry: os.DirEntry[str], faults: list[StoreError]) -> bool:
    if entry.name.startswith(".") and not may_be_dotted(path):
        return False
    try:
        return tree.is_directory(path, entry)
    except StoreError as error:
        faults.append(error)
        return False


def _is_older(entry: os.DirEntry[str], before: float) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_mtime < before
    except OSError:  # its writer was alive after all
        return False


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK) or not os.path.lexists(path)


def _unwritable(tree: Tree, path: str, what: str, needed: int) -> StoreError:
    mend = None
    found = _stat(tree.base + path)
    if found is not None and may_change(found) and found.st_mode & needed != needed:
        mend = shell_line("chmod", "u+rwx" if what == "directory" else "u+rw", tree.base + path)
    return StoreError(f"state {what} is not writable: {printable(path)}", finding="layout.unwritable", mend=mend)


def exposed(root: str, uid: int) -> tuple[list[Place], list[Place]]:
    """Of a root and the directories above it, nearest first: those that others may change, and those of others.

    Root's count as nobody's. Above the root, one where only owners may rename, like /tmp, is as good as closed.
    """
    here, opened, foreign = _real(root), list[Place](), list[Place]()
    for path, found in _places(here):
        place = Place(path, closable=found.st_uid == uid and not found.st_mode & (stat.S_ISGID | stat.S_ISVTX))
        if found.st_mode & _OTHERS_MAY_WRITE and (path == here or not found.st_mode & stat.S_ISVTX):
            opened.append(place)
        if found.st_uid not in (0, uid):
            foreign.append(place)
    return opened, foreign


def _real(root: str) -> str | None:
    try:
        return os.path.realpath(root)
    except (OSError, ValueError):
        return None


def _places(place: str | None) -> Iterator[tuple[str, os.stat_result]]:
    """Give a real path and all above it, as far as they are directories."""
    while place is not None:
        found = _stat(place)
        if found is not None and stat.S_ISDIR(found.st_mode):
            yield place, found
        if place == "/":
            return
        place = os.path.dirname(place)


def _is_directory(path: str) -> bool:
    found = _stat(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None
