"""Probes: what is asked of a backend to know whether it can be trusted (spec: cli §14.1)."""

from collections.abc import Sequence

from msgspec import Struct, field

from agentcoord.errors import StackUsageError, UsageError
from agentcoord.operations.context import objects, require_object
from agentcoord.protocol.paths import FAMILIES, RECORD_DEPTHS, is_record, require_safe
from agentcoord.stores.base import Store


class Resources(Struct):
    """What was found, by what was looked at: `ok`, or why not; notes say it in words."""

    results: dict[str, str] = field(default_factory=dict[str, str])
    notes: dict[str, str] = field(default_factory=dict[str, str])


def require_prefix(prefix: str) -> None:
    """Check a prefix to be probed. Raises UsageError."""
    require_safe(prefix)


def require_stack_prefix(prefix: str) -> None:
    """Check a prefix by the stricter rules of the stack report. Raises StackUsageError."""
    try:
        require_safe(prefix)
    except UsageError as error:
        raise StackUsageError(str(error)) from None
    parts = prefix.split("/")
    if parts[0] not in FAMILIES:
        raise StackUsageError(f"unknown doctor prefix family: {parts[0]}")
    inner = parts[1:] if parts[0] == "archive" else parts
    # Above a record there are directories only, so whatever is shorter may be one.
    if inner and len(inner) >= RECORD_DEPTHS.get(inner[0], 0) and not is_record(prefix):
        raise StackUsageError(f"invalid doctor prefix shape: {prefix}")


async def check_backend(store: Store, *, writable: bool) -> None:
    """Check that the backend answers and its layout is sound. Raises StoreError naming the culprit."""
    await store.check(writable=writable)


async def check_records(store: Store, prefixes: Sequence[str]) -> Resources:
    """Read and parse every record below the prefixes, or the one record a prefix names.

    Raises StoreError at the first record that cannot be parsed or is no object.
    """
    found = Resources()
    for prefix in prefixes:
        if is_record(prefix):
            stored = await store.read(prefix)
            if stored is None:
                found.results[prefix] = "missing"
                found.notes[prefix] = f"{prefix} does not exist"
                continue
            require_object(stored, "an")
        else:
            listing = await store.list(prefix)
            for _ in objects(listing.entries, "an"):
                pass  # walking is reading: the first record that is no object ends it
        found.results[prefix] = "ok"
    return found
