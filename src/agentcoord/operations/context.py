"""What an operation is given by whoever calls it."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct, field

from agentcoord.errors import Defect, StoreError, Unreadable
from agentcoord.protocol.documents import Document, is_document
from agentcoord.protocol.identity import NOBODY, Identity
from agentcoord.protocol.replica import Label
from agentcoord.stores.base import Store, Stored

if TYPE_CHECKING:
    from agentcoord.protocol.outbox import Late

_T = TypeVar("_T")


class Snapshot(Struct, frozen=True):
    """Records as they were known at a moment, and what is to be said of an answer from them."""

    store: Store
    label: Label


class Aside(Protocol):
    """Does work on files where others do not have to wait for it, and gives what it returns or raises."""

    async def __call__(self, function: Callable[[], _T], /) -> _T:
        """Wait for the function's end; who stops waiting does not stop the function."""
        ...


class Outbox(Protocol):
    """Where a record may wait until its backend answers."""

    async def holds(self, lane: str) -> bool:
        """Tell whether something of a lane waits already, behind which whatever comes later has to stay."""
        ...

    async def put(self, late: "Late") -> None:
        """Have a record wait; when this returns, it outlasts this process and the machine's. Raises StoreError."""
        ...


async def here(function: Callable[[], _T], /) -> _T:
    """Do it where it stands: right where nobody else would wait, as in a process or a thread with one thing to do."""
    return function()


class Context(Struct, frozen=True):
    """A store, a clock, chance and the writer's identity; notices are collected, not printed.

    `now` answers in UTC, `random` gives that many bytes. `again` tells that the same was begun before, in a daemon that
    was lost, with the same answers of both: names that are made of them may then be taken, and by nobody else.
    """

    store: Store
    now: Callable[[], datetime]
    random: Callable[[int], bytes]
    identity: Identity = NOBODY
    notices: list[str] = field(default_factory=list[str])
    asked: list[Document] = field(default_factory=list[Document])
    """Requests for attention that were written, as they now stand, for whoever tells others of them."""
    again: bool = False
    aside: Aside = here
    """For work on files other than the store's."""
    outbox: Outbox | None = None
    """Where an event or a heartbeat goes that the store gives no clear answer about; None: that is an error."""


async def read_object(store: Store, path: str, kind: str) -> tuple[Document, Stored] | None:
    """Read a record that must be an object. Raises StoreError naming its path when it is not."""
    stored = await store.read(path)
    if stored is None:
        return None
    return require_object(stored, kind), stored


def require_object(stored: Stored, kind: str) -> Document:
    """Give a record's object. Raises StoreError naming its path when it is anything else."""
    if not is_document(stored.document):
        raise Unreadable(
            f"state record is not {kind} object: {stored.path}", path=stored.path, defect=Defect.NOT_AN_OBJECT
        )
    return stored.document


def readable(entry: Stored | Unreadable) -> Stored:
    """Give an entry of a listing. Raises the defect of one that cannot be read."""
    if isinstance(entry, Stored):
        return entry
    raise entry


def objects(entries: Iterable[Stored | Unreadable], kind: str) -> Iterator[tuple[str, Document]]:
    """Walk a listing whose records must all be objects: path and record. Raises StoreError at the first that is not."""
    for entry in entries:
        stored = readable(entry)
        document = stored.document
        yield stored.path, document if is_document(document) else require_object(stored, kind)


def contention(what: str, error: StoreError) -> StoreError:
    """Say which write lost a race, and to what."""
    return StoreError(f"{what}; {error}")
