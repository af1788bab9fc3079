"""Everything that is wrong with the files of a state root, where a listing ends at the first fault.

Only names, kinds, ages and permissions are looked at; no record is read and nothing is changed.
"""

import os
import re
import stat
from collections.abc import Sequence

from msgspec import Struct

from agentcoord.errors import StoreError
from agentcoord.protocol.paths import FAMILIES, may_be_dotted
from agentcoord.stores.tree import Tree

_TEMPORARY = re.compile(r"\..+\.tmp-[0-9]+-[0-9a-f]+", re.DOTALL)
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Survey(Struct, frozen=True):
    """What was seen below a root. Paths are relative to it, those of directories absolute.

    `misplaced` is what stands in the place of a family, `faults` is what is wrong further down.
    `open_root` and `open_above` are the root and directories above it that others may change.
    """

    names: tuple[str, ...] = ()
    misplaced: tuple[StoreError, ...] = ()
    faults: tuple[StoreError, ...] = ()
    leftovers: tuple[str, ...] = ()
    open_root: str | None = None
    open_above: tuple[str, ...] = ()


def survey(tree: Tree, *, before: float) -> Survey:
    """Look at every family. A temporary file last written `before` then, in seconds since 1970, is a leftover."""
    names: list[str] = []
    misplaced: list[StoreError] = []
    faults: list[StoreError] = []
    leftovers: list[str] = []
    for family in FAMILIES:
        try:
            present = tree.has_directory(family)
        except StoreError as error:
            misplaced.append(error)
        else:
            if present:
                _walk(tree, family, before, names, faults, leftovers)
    open_root, open_above = open_directories(tree.root)
    return Survey(tuple(sorted(names)), tuple(misplaced), tuple(faults), tuple(leftovers), open_root, open_above)


def _walk(
    tree: Tree, family: str, before: float, names: list[str], faults: list[StoreError], leftovers: list[str]
) -> None:
    pending = [family]
    while pending:
        directory = pending.pop()
        try:
            with os.scandir(f"{tree.base}{directory}/.") as entries:
                for entry in entries:
                    path = f"{directory}/{entry.name}"
                    hidden = entry.name.startswith(".")
                    if not entry.is_file(follow_symlinks=False):
                        if _descends(tree, path, entry, faults):
                            pending.append(path)
                    elif not hidden and entry.name.endswith(".json"):
                        names.append(path)
                    elif hidden and _TEMPORARY.fullmatch(entry.name) and _is_older(entry, before):
                        leftovers.append(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            faults.append(tree.unlistable(directory, error))


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


def open_directories(root: str) -> tuple[str | None, tuple[str, ...]]:
    """Tell whether others may change a root, and which directories above it, nearest first.

    One where only owners may rename, like /tmp, counts as closed above the root but not as the root.
    """
    try:
        place = os.path.realpath(root)
    except (OSError, ValueError):
        return None, ()
    open_root = place if (mode := _mode(place)) is not None and mode & _OTHERS_MAY_WRITE else None
    return open_root, tuple(_open_above(place))


def _open_above(place: str) -> Sequence[str]:
    found: list[str] = []
    while place != "/":
        place = os.path.dirname(place)
        mode = _mode(place)
        if mode is not None and mode & _OTHERS_MAY_WRITE and not mode & stat.S_ISVTX:
            found.append(place)
    return found


def _mode(place: str) -> int | None:
    try:
        found = os.stat(place).st_mode
    except OSError:
        return None
    return found if stat.S_ISDIR(found) else None
