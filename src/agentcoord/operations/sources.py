"""One listing that a trail is made of: what can be read of it, and what there is to say of the rest (spec: cli §10.4).

Most failures only cost a warning, and make what is shown incomplete.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct, field

from agentcoord.errors import Defect, Rejected, StoreError, Unreadable
from agentcoord.operations.context import Context
from agentcoord.protocol.envelopes import incomplete
from agentcoord.protocol.trail import InvalidText
from agentcoord.stores.base import Decode, Listing, Stored

ARCHIVE = "archive/events"


class Report(Struct):
    """What was read in full, and what there is to say."""

    incomplete: list[str] = field(default_factory=list[str])
    """The prefixes that were not read in full, in the order of reading."""

    notices: list[str] = field(default_factory=list[str])
    """What there is to say of the gaps and of the archive, for when all went well."""

    def lacks(self, prefix: str) -> None:
        """Take note that something below a prefix was not read."""
        if prefix not in self.incomplete:
            self.incomplete.append(prefix)


class Source:
    """One listing that a trail is made of, with what there is to say about its gaps."""

    def __init__(
        self,
        context: Context,
        report: Report,
        prefix: str,
        name: str,
        decode: Decode,
        *,
        degrades: bool = False,
        consequence: str = "this trail may be incomplete",
    ) -> None:
        self.prefix = prefix
        self.short = False
        self.notices: list[str] = []
        self._context, self._report, self._name, self._decode = context, report, name, decode
        self._degrades, self._consequence = degrades, consequence
        self._listing = Listing(())

    async def open(self, skim: Callable[[Decode], Listing] | None = None) -> None:
        """Ask for the listing, or for the part of it that `skim` gives.

        Raises StoreError where a failure is not one that only costs a warning.
        """
        try:
            if skim is not None:
                self._listing = skim(self._decode)
            else:
                self._listing = await self._context.store.list(self.prefix, decode=self._decode)
        except StoreError as error:
            self._fail(error)
        else:
            if self._listing.filtered:
                self._lack("filtered by scoped token")

    def _fail(self, error: StoreError) -> None:
        if isinstance(error, Unreadable) and error.defect is Defect.FORBIDDEN:
            self._lack("not readable by scoped token")
        elif isinstance(error, Rejected) and error.unsupported:
            if self.prefix == ARCHIVE:
                # What cannot list archived events never stored any: the trail is complete.
                self.notices.append(
                    "warning: archived events not supported by backend; nothing can have been archived there"
                )
            else:
                self._lack("not supported by backend")
        elif self._degrades:
            self._lack(f"unreadable ({error})")
        else:
            raise error

    def _lack(self, reason: str) -> None:
        self.say(f"warning: {self._name} {reason}; {self._consequence}")

    def warn(self, what: str) -> None:
        """Say that a record is missing from the trail."""
        self.say(incomplete(what))

    def say(self, warning: str) -> None:
        """Say what is missing."""
        self.short = True
        self.notices.append(warning)

    def entries(self) -> Iterator[Stored]:
        """Walk the records that can be read. Raises StoreError for text that is not UTF-8, and as `open` does."""
        try:
            for entry in self._listing.entries:
                if isinstance(entry, Unreadable):
                    self._lack(f"unreadable ({_reason(entry)}) at {entry.path}")
                elif isinstance(entry.document, InvalidText):
                    raise _InvalidTextError(f"state unreadable: invalid UTF-8 in persisted log record at {entry.path}")
                else:
                    yield entry
        except _InvalidTextError:
            raise
        except StoreError as error:
            self._fail(error)

    def settle(self) -> None:
        """Add what there is to say to the trail."""
        if self.short:
            self._report.lacks(self.prefix)
        self._report.notices += self.notices


class _InvalidTextError(StoreError):
    """A record whose text cannot be shown as it is; unlike a broken one, it is never passed over."""


def _reason(error: Unreadable) -> str:
    """Say what is wrong with a record without naming it twice."""
    return str(error).removeprefix("state unreadable: ").removesuffix(f" at {error.path}")
