"""Keeping the mirror: the whole trail, merged into one file that outlives the backend (spec: cli §10.8).

Where the store can tell unread which records it had before, only what is new since the last sync is read.
"""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from agentcoord.errors import Busy, StoreError
from agentcoord.files import LOCK_WAIT, Change, cause_of, changing, opened_file, printable
from agentcoord.operations.context import Context
from agentcoord.operations.mirrored import Mirrored, read_mirrored, write_mirrored
from agentcoord.operations.skimming import FEW, ForgottenError, Skimming
from agentcoord.operations.trail import TrailRequest, read_lines
from agentcoord.protocol.documents import Document
from agentcoord.protocol.mirror import insert, line_of, merge
from agentcoord.protocol.trail import event_of, row_of
from agentcoord.stores.base import Marking

MIRROR = "log.tsv"

LARGEST = 2 << 30
"""Bytes of a mirror that is still read: no place in memory is left for more, and nobody's trail is as long."""

_TOO_LARGE = f"larger than {LARGEST >> 30} GiB"
_FEW = 1000
"""Lines up to which each one's place is looked for; more are merged with all that is there."""


class Synced(Struct, frozen=True):
    """How many events were new to the mirror, and where it is."""

    added: int
    path: str


class Lacking(Struct, frozen=True):
    """How many of some events have no line in the mirror, and where that is; `fault`: why it cannot be read."""

    count: int
    path: str
    fault: str | None = None


async def sync_mirror(
    context: Context,
    request: TrailRequest,
    root: str,
    *,
    afresh: bool = False,
    wait: float = LOCK_WAIT,
    umask: int | None = None,
    few: int = FEW,
) -> Synced:
    """Merge the whole trail into the mirror below `root`, an absolute path; the state itself is only read.

    `afresh` has every record read, also those that the mirror is known to have, as they are read where there are only
    `few`. A new mirror has the modes that `umask` leaves, or this process's own. Raises StoreError for a trail that is
    not known to be complete, and when the mirror cannot be written: Busy when somebody else has been syncing for `wait`
    seconds.
    """
    above = root.rstrip("/") or "/"
    path = f"{root.rstrip('/')}/{MIRROR}"
    store, now, said = context.store, context.now(), len(context.notices)
    known = None
    if isinstance(store, Marking) and not afresh:
        known = read_mirrored(above)
        known = known if known is not None and known.is_good(store.root, now) else None
    while True:
        skimming = None
        if isinstance(store, Marking):
            skimming = Skimming(store, known, now, include_synthetic=request.include_synthetic, few=few)
        try:
            lines = await read_lines(context, request, line_of, skimming)
            change = partial(_change, path, above, lines, known, skimming, wait=wait, umask=umask)
            added = await context.aside(change)
        except ForgottenError:
            added = None
        if added is not None:
            return Synced(added, path)
        # What was skipped need not be in this mirror, or cannot be compared.
        known = None
        del context.notices[said:]


def _change(
    path: str,
    above: str,
    lines: list[str],
    known: Mirrored | None,
    skimming: Skimming | None,
    *,
    wait: float,
    umask: int | None,
) -> int | None:
    """Bring lines into the mirror and count the new ones; None when the mirror is not the one that is known."""
    try:
        with changing(path, wait=wait, umask=umask) as change:
            stamp = change.stamp()
            if known is not None and stamp != known.stamp:
                return None
            tidy = known is not None and known.tidy
            too_large = bool(stamp) and stamp[2] > LARGEST
            if too_large and (lines or not tidy):
                raise StoreError(
                    f"log mirror unwritable: {printable(path)}: it is {_TOO_LARGE}; move it away and keep it: "
                    "the next sync begins another"
                )
            added = _merge(change, lines, tidy=tidy)
            if skimming is not None:
                tidy = bool(added) or tidy
                made = skimming.made(_none_of_them if too_large else _Lookup(change, tidy=tidy))
                made.stamp, made.tidy = change.stamp(), tidy
                if made != known and made.count:
                    # Without it the next sync only reads more; names that are not UTF-8 cannot be kept.
                    with suppress(OSError, UnicodeEncodeError):
                        write_mirrored(above, made, umask=umask)
            return added
    except OSError as error:
        raise _unwritable(path, error) from error
    except Busy as error:
        raise Busy(f"log mirror unwritable: {error}") from error


def _merge(change: Change, lines: list[str], *, tidy: bool) -> int:
    if tidy and not lines:
        return 0
    found = change.content()
    if tidy and len(lines) <= _FEW:
        inserted = insert(found, lines)
        if inserted.data is not None:
            change.replace(inserted.data)
        return inserted.added
    # What is no UTF-8 in it is carried along as it is: a line is never lost.
    result = merge(found.decode(errors="surrogateescape"), lines)
    if result.text is not None:
        change.replace(result.text.encode(errors="surrogateescape"))
    return result.added


def _none_of_them(_: Sequence[str]) -> bool:
    return False


class _Lookup:
    """Tells whether lines are in the mirror as it is now; that is read once, when it is first asked."""

    def __init__(self, change: Change, *, tidy: bool) -> None:
        self._change, self._tidy = change, tidy
        self._content: bytes | None = None
        self._lines: set[str] | None = None

    def __call__(self, lines: Sequence[str]) -> bool:
        """Tell whether all of them are. Raises OSError."""
        if self._content is None:
            self._content = self._change.content()
        if self._tidy:
            return not insert(self._content, lines).added
        if self._lines is None:
            self._lines = set(self._content.decode(errors="surrogateescape").split("\n"))
        return self._lines.issuperset(lines)


def find_lacking(events: Sequence[Document], root: str) -> Lacking:
    """Find out what the mirror below `root` would not remember of events; simulation is not asked of it."""
    path = f"{root.rstrip('/')}/{MIRROR}"
    wanted = {line_of(row_of(event_of(event))) for event in events if event.get("synthetic") is not True}
    try:
        with opened_file(path) as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                return Lacking(len(wanted), path, f"is {_TOO_LARGE}")
            for line in file:
                wanted.discard(line.rstrip(b"\n").decode(errors="surrogateescape"))
    except FileNotFoundError:
        return Lacking(len(wanted), path, "is not there")
    except OSError as error:
        return Lacking(len(wanted), path, f"cannot be read ({cause_of(error)})")
    return Lacking(len(wanted), path)


def _unwritable(path: str, error: OSError) -> StoreError:
    if isinstance(error.filename, str) and error.filename.endswith(".lock"):
        path += ".lock"
    why = {errno.ELOOP: "it is a symlink", errno.EINVAL: "it is not a regular file"}
    return StoreError(f"log mirror unwritable: {printable(path)}: {why.get(error.errno or 0) or cause_of(error)}")
