"""Reading a trail without what the mirror has of it: live events, archive envelopes, and claims that could be read."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import msgspec
from msgspec import Raw

from agentcoord.marks import OF_DIRECTORY, MarksInDirectory
from agentcoord.operations.mirrored import Compared, Known, Mirrored, count_known
from agentcoord.operations.sources import ARCHIVE
from agentcoord.protocol.envelopes import Envelope, Identity, Tally
from agentcoord.protocol.mirror import line_of
from agentcoord.protocol.paths import event_path
from agentcoord.protocol.remembered import Hints, Remembered, recall, remember, spell_hints
from agentcoord.protocol.trail import EventRecord, row_of
from agentcoord.stores.base import Decode, Listing, Marking

FEW = 500
"""Records that are read each time, whatever is known of them."""


class ForgottenError(Exception):
    """What is remembered of the envelopes cannot be read: the trail has to be read without what is known."""


class Skimming:
    """One reading of a trail that skips what the mirror has, and takes note of what it will have."""

    def __init__(
        self, store: Marking, known: Mirrored | None, now: datetime, *, include_synthetic: bool, few: int = FEW
    ) -> None:
        self._store, self._include_synthetic = store, include_synthetic
        if known is None or known.count <= few:
            known = Mirrored(store.root, int(now.timestamp()) if known is None else known.read_at)
        self._known = known
        self._made = Mirrored(store.root, known.read_at, with_simulated=include_synthetic or known.with_simulated)
        self._marks: dict[str, MarksInDirectory] = {}
        self._changed = False
        """Whether an envelope, or an event that was known, is another one or gone, or has to be read."""
        self._noted: list[str] = []
        self._recalled: list[Envelope] | None = None
        self._read: dict[str, list[str]] = {}
        """The envelopes that were read, by path, each with the lines that were not made of it."""
        self._remembered: dict[str, Remembered] = {}
        """Of all envelopes, if they were compared anew; then `_tally` is what they came to."""
        self._tally: Tally | None = None
        self.count = 0
        """How many events of the trail are skipped."""

    def events(self, decode: Decode) -> Listing:
        """List the events that have to be read. Raises StoreError."""
        known, made = self._known, self._made
        unread = self._skim("events", known.events, made.events, self._wanted)
        self._changed |= count_known(made.events) != count_known(known.events)
        made.simulated = {path for path in known.simulated if _holds(made.events, path)}
        self.count = count_known(made.events) - (0 if self._include_synthetic else len(made.simulated))
        return self._store.records(unread, decode=decode)

    def envelopes(self, decode: Decode) -> Listing:
        """List the envelopes that have to be read. Raises StoreError."""
        known, made = self._known, self._made
        unread = self._skim(ARCHIVE, known.archived, made.archived, self._wanted)
        self._changed |= bool(unread) or count_known(made.archived) != count_known(known.archived)
        made.simulated |= {path for path in known.simulated if _holds(made.archived, path)}
        return self._store.records(unread, decode=decode)

    def claims(self, decode: Decode) -> Listing:
        """List the claims that have to be read. Raises StoreError."""
        unread = self._skim("claims", self._known.claims, self._made.claims, set())
        return self._store.records(unread, decode=decode)

    @property
    def _wanted(self) -> set[str]:
        return self._known.simulated if self._include_synthetic and not self._known.with_simulated else set()

    def _skim(self, prefix: str, known: Known, skipped: Known, wanted: set[str]) -> list[str]:
        """Name what is below a prefix and not known, or wanted in any case; the rest is skipped."""
        found = self._store.marks(prefix, known)
        self._marks.update(found)
        unread: list[str] = []
        for above, marks in found.items():
            before = known.get(above, {})
            if before == marks and not wanted:
                skipped[above] = before
                continue
            skipped[above] = here = {OF_DIRECTORY: marks[OF_DIRECTORY]}
            for name, mark in marks.items():
                if name == OF_DIRECTORY:
                    continue
                if before.get(name) == mark and above + name not in wanted:
                    here[name] = mark
                else:
                    unread.append(above + name)
        unread.sort()
        return unread

    @property
    def tally(self) -> Tally | None:
        """What all envelopes come to, if no new event is in one of them; None: they have to be compared anew."""
        compared = self._known.compared
        return compared.tally if not self._changed and compared.with_simulated == self._include_synthetic else None

    @property
    def hints(self) -> Hints:
        """What tells of most events that they are in none of the envelopes that are skipped."""
        return Hints(self._known.compared.hints)

    def recalled(self) -> list[Envelope]:
        """Give the envelopes that are skipped. Raises ForgottenError."""
        if self._recalled is None:
            try:
                remembered = msgspec.json.decode(self._known.compared.remembered, type=dict[str, Remembered])
                paths = [above + name for above, marks in self._made.archived.items() for name in marks if name]
                self._remembered = {path: remembered[path] for path in paths}
            except (msgspec.MsgspecError, KeyError, UnicodeDecodeError, RecursionError) as error:
                raise ForgottenError from error
            self._recalled = [recall(path, each) for path, each in self._remembered.items()]
        return self._recalled

    def skips(self, identity: Identity) -> str | None:
        """Give the path of an event with this identity that is skipped; None when there is none."""
        path = event_path(*identity) if isinstance(identity, tuple) else ""
        return path if _holds(self._made.events, path) else None

    def shows(self, path: str) -> bool:
        """Tell whether a skipped event is one of the trail's."""
        return self._include_synthetic or path not in self._made.simulated

    def note_event(self, path: str, event: EventRecord) -> bool:
        """Take note of an event that was read. One whose path does not name it is read each time: then False."""
        # As many parts as a record's path has: then none of the two names has several.
        if (
            event.content is not None
            or path != f"events/{event.batch_id}/{event.event_id}.json"
            or path.count("/") != 2
        ):
            return False
        self._noted.append(path)
        if event.synthetic is True:
            self._note_simulated(path)
        return True

    def note_claim(self, path: str) -> None:
        """Take note of a claim that could be read."""
        self._note(self._made.claims, path)

    def note_envelopes(
        self, envelopes: Iterable[Envelope], hidden: Iterable[tuple[str, EventRecord]], tally: Tally | None
    ) -> None:
        """Take note of the envelopes that were read, and of what all came to: None if that will not hold.

        `hidden` are the events in them that add no row beside another copy, with the paths of their envelopes.
        """
        for envelope in envelopes:
            if (remembered := remember(envelope)) is not None:
                self._read[envelope.path] = []
                self._remembered[envelope.path] = remembered
            else:
                tally = None  # whether it is still there is not seen until it is read
        for path, event in hidden:
            if path in self._read:
                self._read[path].append(line_of(row_of(event)))
        self._tally = tally

    def made(self, has_lines: Callable[[Sequence[str]], bool]) -> Mirrored:
        """Give what is known now that the rows of all that was read are in the mirror.

        `has_lines` tells whether some lines are in it.
        """
        made, remembered = self._made, self._remembered
        for path in self._noted:
            self._note(made.events, path)
        if self._recalled is None:
            made.compared = self._known.compared
            return made
        for path, lines in self._read.items():
            if lines and not has_lines(lines):
                del remembered[path]  # once the other copy is gone, they are new
                self._tally = None
                continue
            self._note(made.archived, path)
            if any(simulated for _, _, simulated, _ in remembered[path].records):
                self._note_simulated(path)
        made.compared = Compared(
            remembered=Raw(msgspec.json.encode(dict(sorted(remembered.items())))),
            records=sum(len(each.records) for each in remembered.values()),
            hints=spell_hints(remembered.values()),
            tally=self._tally,
            with_simulated=self._include_synthetic,
        )
        return made

    def _note(self, made: Known, path: str) -> None:
        above, name = _split(path)
        made[above][name] = self._marks[above][name]

    def _note_simulated(self, path: str) -> None:
        self._made.simulated.add(path)
        self._made.with_simulated = self._include_synthetic


def _split(path: str) -> tuple[str, str]:
    end = path.rfind("/") + 1
    return path[:end], path[end:]


def _holds(known: Known, path: str) -> bool:
    above, name = _split(path)
    return name in known.get(above, {})
