"""The promise every store keeps: a tree of JSON documents with compare-and-swap."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from agentcoord.errors import TooMany, Unreadable
from agentcoord.marks import Marks
from agentcoord.protocol.documents import decode

Version = str
Decode = Callable[[bytes], object]


class Stored(Struct, frozen=True):
    """What was read at a path. `document` is any JSON value: a record may be broken."""

    path: str
    document: object
    source: bytes | Version
    """The bytes that were read, or the version itself where the backend names it."""

    @property
    def version(self) -> Version:
        """The version to name when writing or deleting; hashed only when somebody asks."""
        if isinstance(self.source, str):
            return self.source
        from hashlib import sha256  # only here: most commands that read much never ask

        return sha256(self.source).hexdigest()


def _wanted() -> None:
    """Nobody else is asked: whoever writes here wants it done."""


class Behalf(Struct, frozen=True):
    """For whom a store is changed, where that is another process.

    `umask` is that process's, for new files; None: this one's own counts. `require_wanted` is called right before each
    change, and raises StoreError when nobody waits for it any more: then it is not made.
    """

    umask: int | None = None
    require_wanted: Callable[[], None] = _wanted


OWN = Behalf()
"""What a process does for itself."""


class Listing(Struct, frozen=True):
    """The records below a prefix, sorted by path.

    `entries` may be lazy: it is walked once, and a record that cannot be read stands in it as the
    error, so that one bad file costs one row. `filtered` is True when a scoped token hid records.
    """

    entries: Iterable[Stored | Unreadable]
    filtered: bool = False


def require_few(prefix: str, count: int, at_most: int | None) -> None:
    """Refuse to look at more records than a caller allows; None allows any number. Raises TooMany."""
    if at_most is not None and count > at_most:
        raise TooMany(f"state prefix {prefix} exceeds scan maximum {at_most}")


class Store(Protocol):
    """Records by path. What is read comes with a version that is another one once the record has changed."""

    async def read(self, path: str) -> Stored | None:
        """Read one record; None when nothing is there.

        Raises Unreadable for this record's own defects, StoreError when the backend is in doubt.
        """
        ...

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        """Store a record if its path still holds the given version; None stands for no record there.

        `note` is what a store with a history keeps beside the change. Raises Conflict when it holds
        something else, so that the caller has to look and decide anew, StoreError when nothing is certain.
        """
        ...

    async def delete(self, path: str, *, version: Version, note: str) -> None:
        """Remove exactly what was read. Raises Conflict if it changed or is gone."""
        ...

    async def check(self, *, writable: bool) -> None:
        """Ask whether the backend answers and is laid out as it should be. Raises StoreError naming the culprit."""
        ...

    async def list(self, prefix: str, *, decode: Decode = decode, at_most: int | None = None) -> Listing:
        """List the records below a directory prefix. Raises StoreError.

        With `at_most`, more records than that are an error before any of them is decoded. `decode` reads
        each record's bytes, raising ValueError for one it cannot; a caller who shows little of many
        records need not have all of them made.
        """
        ...


class Texts(Protocol):
    """What rows were made into, kept for whoever shows the same rows again."""

    def text(self, section: str, start: int, rows: Sequence[Any], make: Callable[[Sequence[Any]], bytes]) -> bytes:
        """Give what `make` gives for a section's rows from number `start` on; the same rows are the same text.

        They are the same if each is the same object, so rows that were shown must not be changed.
        """
        ...

    def end(self, section: str, start: int) -> None:
        """Hear that a section has no rows from that number on."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A store whose listings give the same object again for as long as a record is the same."""

    @property
    def texts(self) -> Texts | None:
        """What such objects were made into; None where it is not so after all."""
        ...


@runtime_checkable
class Marking(Protocol):
    """A store that can tell, without reading a record, whether it is the one that was read before.

    Whoever replaces a record, as every writer of one does, or makes it anew gives it another mark. One that is changed
    in its place, by hand, may keep it.
    """

    @property
    def root(self) -> str:
        """Where the records are."""
        ...

    def marks(self, prefix: str, known: Marks) -> Marks:
        """Give the marks of the records below a directory prefix, in no order. Raises StoreError as `list` does.

        `known` is what this gave before; what is certain to be the same is taken from there.
        """
        ...

    def records(self, names: Sequence[str], *, decode: Decode = decode) -> Listing:
        """List some of these records, in the order given; one that is gone by now is not in it."""
        ...
