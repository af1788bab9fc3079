"""The doctor of a fleet's backend: what a token lets this machine see, and whom it is taken for (spec: cli §14.1)."""

from typing import Protocol, cast

from msgspec import Struct, field

from agentcoord.errors import Defect, Rejected, StoreError, TooMany, Unreadable
from agentcoord.operations.context import objects, require_object
from agentcoord.operations.doctor.checks import Resources
from agentcoord.protocol.documents import Document
from agentcoord.protocol.paths import FAMILIES, is_record
from agentcoord.protocol.records import ATTENTION_SCAN
from agentcoord.stores.base import Store

DEFAULT_PREFIX = "claims"
"""What the plain doctor asks to see when nothing else is named."""

_UNSUPPORTED = ("events", "attention", "archive")
_RECOVERY = (
    "worker/bin/provision-token <machine-name> {local}--database <database-name> --rotate <original-scope-flags>"
)


class Bearer(Protocol):
    """Whom a backend takes the bearer of a token for."""

    @property
    def machine(self) -> str:
        """Give the machine's name."""
        ...

    @property
    def read_prefixes(self) -> tuple[str, ...]:
        """List what it may see."""
        ...

    @property
    def write_prefixes(self) -> tuple[str, ...]:
        """List what it may change."""
        ...


class FleetStore(Store, Protocol):
    """A store that a fleet shares: it knows tokens and their scopes."""

    async def check(self, *, writable: bool, prefix: str | None = DEFAULT_PREFIX) -> None:
        """Ask whether the backend answers, and lets this token see a prefix. Raises StoreError."""
        ...

    async def whoami(self) -> Bearer | None:
        """Ask whom the backend takes us for; None when it cannot say. Raises StoreError."""
        ...


class Evidence(Struct):
    """What a deep look at a fleet's backend found."""

    resources: Resources = field(default_factory=Resources)
    identity: Document | None = None

    @property
    def machine(self) -> str | None:
        """Name the machine that the token belongs to."""
        return None if self.identity is None else self.identity["machine"]


async def check_fleet(store: FleetStore, url: str | None, *, deep: bool, prefix: str | None) -> None:
    """Check that the backend answers and lets this token see the prefix; a deep look sees for itself.

    Raises StoreError; for a token that is not known, with the way to another one.
    """
    asked = None if deep else prefix or DEFAULT_PREFIX
    try:
        await store.check(writable=True, prefix=asked)
    except Rejected as error:
        raise _recoverable(error, asked or "health", url) from error


async def look_at_fleet(store: FleetStore, url: str | None, prefix: str | None) -> Evidence:
    """Read and parse what the token may see of every family, or of the prefix, and ask whom it belongs to.

    Raises StoreError at the first record that cannot be parsed or is no object, and for a token that is not known.
    """
    found = Evidence()
    for one in FAMILIES if prefix is None else (prefix,):
        try:
            state, note = await _look(store, one)
        except Rejected as error:
            raise _recoverable(error, one, url) from error
        found.resources.results[one] = state
        if note is not None:
            found.resources.notes[one] = note
    who = await store.whoami()
    if who is not None:
        found.identity = {
            "machine": who.machine,
            "read_prefixes": list(who.read_prefixes),
            "write_prefixes": list(who.write_prefixes),
        }
    return found


async def examine_fleet(store: Store, url: str | None, *, deep: bool, prefix: str | None) -> Evidence | None:
    """Examine a fleet's backend; None when it was not looked at deeply. Raises StoreError."""
    fleet = cast("FleetStore", store)  # whoever selected the backend knows which kind of store it opened
    await check_fleet(fleet, url, deep=deep, prefix=prefix)
    return await look_at_fleet(fleet, url, prefix) if deep else None


async def _look(store: FleetStore, prefix: str) -> tuple[str, str | None]:
    """Look at all there is below a prefix: how it went, and what is to be said of it."""
    family = prefix.partition("/")[0]
    try:
        if is_record(prefix):
            stored = await store.read(prefix)
            if stored is None:
                return "missing", f"{prefix} does not exist"
            require_object(stored, "an")
            return "ok", None
        listing = await store.list(prefix, at_most=ATTENTION_SCAN if family == "attention" else None)
        for _ in objects(listing.entries, "an"):
            pass  # walking is reading: the first record that is no object ends it
    except Unreadable as error:
        if error.defect is Defect.FORBIDDEN:
            return "forbidden", f"{prefix} not readable by scoped token"
        raise
    except Rejected as error:
        if error.unsupported and family in _UNSUPPORTED:
            return "unsupported", f"{family.removesuffix('s')} state not supported by backend"
        raise
    except TooMany:
        return "incomplete", f"attention scan stopped at {ATTENTION_SCAN} records; full validation is incomplete"
    return ("filtered", f"{prefix} filtered by scoped token") if listing.filtered else ("ok", None)


def _recoverable(error: Rejected, resource: str, url: str | None) -> StoreError:
    if error.status != 401:
        return error
    from agentcoord.stores.httpaddress import base_of  # only here: hardly any doctor meets an unknown token

    here = url is not None and base_of(url).loopback
    command = _RECOVERY.format(local="--local " if here else "")
    return StoreError(
        f"{error}; the token is not known, so {resource} cannot be checked. Replace it with {command} (on a server of "
        "ours: agentcoordd token rotate MACHINE), put the new one into AGENT_COORD_API_TOKEN, restart what uses it, "
        "and follow the rotation runbook of the backend"
    )


def mismatch(environment: Document | None) -> StoreError | None:
    """Say that the machine named here is not the one that the token belongs to; None when that is not so."""
    if environment is None or environment["machine_match"] != "mismatch":
        return None
    return StoreError(
        f"machine identity mismatch: AGENT_COORD_MACHINE_ID={environment['machine_id']} does not match the "
        f"authenticated backend token machine {environment['token_machine']}; install that machine's token, or correct "
        "the machine id"
    )
