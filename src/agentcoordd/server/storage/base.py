"""What the server asks of a database: conditional writes, pages, the order of changes, and who may call.

Records travel as the JSON text they are stored as; nobody parses them on the way out (spec: http §4 to §7).
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Literal, Protocol

from msgspec import Struct

from agentcoord.errors import CoordError
from agentcoord.protocol.scopes import Coverage

Kind = Literal["create", "update", "delete"]


class StorageDown(CoordError):
    """The database did not answer, or not in a way that tells what is stored. Nobody may take it for a yes or a no."""


class Machine(Struct, frozen=True):
    """Who a token belongs to, and what it may see and change."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class Grant(Struct, frozen=True):
    """A machine as tokens are managed. Scopes are JSON text as stored; times are the database's, UTC."""

    machine: str
    read_prefixes: str
    write_prefixes: str
    created_at: str
    revoked_at: str | None = None


class Row(Struct, frozen=True):
    """One record: its JSON text, its version, and the machine that wrote it, if known."""

    data: str
    version: int
    updated_by: str | None


class Write(Struct, frozen=True):
    """One conditional change. `data` is compact JSON, None for a deletion; `version` is what must be stored now."""

    kind: Kind
    path: str
    machine: str
    data: str | None = None
    version: int = 0


CHANGES_BYTES = 4 * 1024 * 1024
"""How many bytes of records one look at the feed gives, and the last of them beyond that."""

Verdict = int | None
"""The version that a write left behind (for a deletion: the one it removed); None when its condition did not hold."""


class Page(Struct, frozen=True):
    """Records below a prefix in byte order of their paths, as the JSON objects of a listing.

    They come in pieces, with commas within each but not between them. `cursor` is the path of the last of them if there
    are more.
    """

    entries: tuple[bytes, ...]
    cursor: str | None


class Change(Struct, frozen=True):
    """One step of the feed. `data` is the record's JSON text if this is still its newest version."""

    seq: int
    path: str
    version: int
    deleted: bool
    updated_by: str
    at: str
    data: str | None


class Feed(Struct, frozen=True):
    """Where the feed stands: its name, the newest change, and the newest one that is already forgotten."""

    name: str
    head: int
    forgotten: int


class Storage(Protocol):
    """A database of state. Every method raises StorageDown when the outcome is not certain."""

    async def machine(self, token_hash: str) -> Machine | None:
        """Find whose token has this SHA-256, unless it was revoked."""
        ...

    async def read(self, path: str) -> Row | None:
        """Read one record; None when there is none."""
        ...

    async def page(self, prefix: str, coverage: Coverage, *, after: str | None, limit: int | None) -> Page:
        """List what may be seen below a prefix, strictly after a path; all of it in one snapshot without a limit."""
        ...

    async def write(self, write: Write) -> Verdict:
        """Make one conditional change, durably. Writers of one moment may share a transaction, never a verdict."""
        ...

    async def feed(self) -> Feed:
        """Tell where the feed stands."""
        ...

    async def changes(self, since: int, prefix: str, coverage: Coverage, *, limit: int) -> tuple[Sequence[Change], int]:
        """List changes after a number, in order and without a gap, and the number to go on from.

        At most `limit`, and no more than make up CHANGES_BYTES.
        """
        ...

    async def changed(self, after: int, *, seconds: float) -> None:
        """Wait until there may be a change after a number, at most so long."""
        ...

    async def check(self) -> None:
        """Ask the database whether it answers."""
        ...

    async def grant(
        self, machine: str, token_hash: str, *, reads: Sequence[str], writes: Sequence[str], rotate: bool
    ) -> bool:
        """Store a machine's token; with `rotate` in place of the one it had. False when the machine has one already."""
        ...

    async def revoke(self, machine: str) -> bool:
        """End a machine's token at once. False when there is no such machine, or it was revoked before."""
        ...

    async def grants(self) -> Sequence[Grant]:
        """List all machines, by name."""
        ...


class OpenStorage(Protocol):
    """Opens a database for as long as a context lasts, brought to the newest schema."""

    def __call__(self, url: str, *, keep: int) -> AbstractAsyncContextManager[Storage]:
        """Open; `keep` is how many changes the feed remembers at least. Raises StorageDown, UsageError."""
        ...


def stamp(now: datetime) -> str:
    """Write an instant as rows carry it: UTC, milliseconds (spec: http §7)."""
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
