"""Envelopes as they are remembered once the mirror has their rows: all that counts of them beside others, and no text.

So what there is to say of the whole archive can be said while only new envelopes are read (spec: cli §10.5).
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from zlib import crc32

from msgspec import Struct

from agentcoord.protocol.envelopes import Envelope, Identity, Kept
from agentcoord.protocol.instants import Exact
from agentcoord.protocol.paths import event_path
from agentcoord.protocol.trail import EventRecord


class Remembered(Struct, frozen=True, array_like=True, gc=False):
    """What counts of an envelope that nothing is wrong with."""

    records: list[tuple[str, str, bool, bytes]]
    """Of each record: batch and event id, whether it is marked as simulation, and the digest of its content."""

    own: bool
    """Whether it stands for the events it holds, at their paths, among others: these are not spelled out then."""

    sources: list[str]
    """The paths of the other events that it stands for."""

    archived_at: Exact
    expires: Exact
    delete_after: str
    synthetic: bool


def remember(envelope: Envelope) -> Remembered | None:
    """Remember an envelope; None for one that has to be read again, since there is or may be a warning in it."""
    if envelope.defect is not None or envelope.archived_at is None or envelope.expires is None:
        return None
    records: list[tuple[str, str, bool, bytes]] = []
    for kept in envelope.records:
        identity = kept.identity
        if not isinstance(identity, tuple):  # known by its whole content alone, which is not for remembering
            return None
        records.append((*identity, kept.event.synthetic is True, kept.digest))
    paths = _paths(records)
    own = paths <= set(envelope.sources)
    return Remembered(
        records=records,
        own=own,
        sources=[source for source in envelope.sources if not own or source not in paths],
        archived_at=envelope.archived_at,
        expires=envelope.expires,
        delete_after=envelope.delete_after,
        synthetic=envelope.synthetic,
    )


def recall(path: str, remembered: Remembered) -> Envelope:
    """Give an envelope as it was remembered: its records have no rows, and count beside others as they did."""
    return Envelope(
        path=path,
        records=tuple(
            Kept(EventRecord(synthetic=synthetic), (batch_id, event_id), remembered=digest)
            for batch_id, event_id, synthetic, digest in remembered.records
        ),
        sources=(*remembered.sources, *(_paths(remembered.records) if remembered.own else ())),
        defect=None,
        archived_at=remembered.archived_at,
        expires=remembered.expires,
        delete_after=remembered.delete_after,
        synthetic=remembered.synthetic,
    )


def _paths(records: Iterable[tuple[str, str, bool, bytes]]) -> set[str]:
    return {event_path(batch_id, event_id) for batch_id, event_id, _, _ in records}


class Hints:
    """Tells of most events that they are in no remembered envelope, in a few steps and four bytes for each that is."""

    def __init__(self, spelled: bytes = b"") -> None:
        """Take what `spell_hints` gave. Raises ValueError for what that never gives."""
        self._sums = array("I")
        self._sums.frombytes(spelled)

    def __len__(self) -> int:
        return len(self._sums)

    def __contains__(self, identity: Identity) -> bool:
        """Tell whether an event may be in one: true of each that is, and of a few others."""
        if not isinstance(identity, tuple):
            return False
        wanted = _sum(*identity)
        place = bisect_left(self._sums, wanted)
        return place < len(self._sums) and self._sums[place] == wanted


def spell_hints(envelopes: Iterable[Remembered]) -> bytes:
    """Spell what `Hints` needs to know of envelopes."""
    sums = {_sum(batch_id, event_id) for each in envelopes for batch_id, event_id, _, _ in each.records}
    return array("I", sorted(sums)).tobytes()


def _sum(batch_id: str, event_id: str) -> int:
    return crc32(f"{batch_id}/{event_id}".encode())


def is_hint(spelled: bytes) -> bool:
    """Tell whether `Hints` can take some bytes."""
    return len(spelled) % array("I").itemsize == 0
