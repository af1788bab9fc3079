"""Keeping the mirror: the whole trail, merged into one file that outlives the backend (spec: cli §10.8)."""

import errno

from msgspec import Struct

from agentcoord.errors import StoreError
from agentcoord.files import cause_of, change_durably, printable
from agentcoord.operations.context import Context
from agentcoord.operations.trail import TrailRequest, read_lines
from agentcoord.protocol.mirror import line_of, merge

MIRROR = "log.tsv"


class Synced(Struct, frozen=True):
    """How many events were new to the mirror, and where it is."""

    added: int
    path: str


async def sync_mirror(context: Context, request: TrailRequest, root: str) -> Synced:
    """Merge the whole trail into the mirror below `root`, an absolute path; the state itself is only read.

    Raises StoreError for a trail that is not known to be complete, and when the mirror cannot be written.
    """
    lines = await read_lines(context, request, line_of)
    path, added = f"{root.rstrip('/')}/{MIRROR}", 0

    def merged(found: bytes) -> bytes | None:
        nonlocal added
        # What is no UTF-8 in it is carried along as it is: a line is never lost.
        result = merge(found.decode(errors="surrogateescape"), lines)
        added = result.added
        return None if result.text is None else result.text.encode(errors="surrogateescape")

    try:
        change_durably(path, merged)
    except OSError as error:
        raise _unwritable(path, error) from error
    except StoreError as error:
        raise StoreError(f"log mirror unwritable: {error}") from error
    return Synced(added, path)


def _unwritable(path: str, error: OSError) -> StoreError:
    why = {errno.ELOOP: "it or its lock is a symlink", errno.EINVAL: "it is not a regular file"}
    return StoreError(f"log mirror unwritable: {printable(path)}: {why.get(error.errno or 0) or cause_of(error)}")
