"""Archive envelopes as they are written: one record, or what is retained of a lane's events.

A reader of a trail takes what it can get out of an envelope that is broken; that is decided elsewhere
(spec: contracts, archive envelope v1).
"""

from typing import Annotated, Any, cast

from msgspec import Meta, Struct

from agentcoord.protocol.contracts.vocabulary import One, Text, conform, require_instants

_SEGMENT = r"[A-Za-z0-9_.:-]+"
_PLACE = (
    r"^(?!.*\.\.)(?:"
    rf"claims/{_SEGMENT}/{_SEGMENT}/{_SEGMENT}|heartbeats/{_SEGMENT}|batches/{_SEGMENT}|events/{_SEGMENT}/{_SEGMENT}"
    r")\.json\Z"
)
Place = Annotated[str, Meta(pattern=_PLACE)]
"""Where an archivable record was; of the four families only, and within the store."""


class _Envelope(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    schema_version: One
    reason: Text
    synthetic: bool
    archived_at: str
    delete_after: str

    def __post_init__(self) -> None:
        require_instants(self, "archived_at", "delete_after")


class ArchivedRecord(_Envelope, frozen=True, tag_field="record_family", tag="archived_record", kw_only=True):
    """One record as it was."""

    source_path: Place
    data: dict[str, Any]


class CompactedEvents(_Envelope, frozen=True, tag_field="record_family", tag="compacted_events", kw_only=True):
    """What is retained of the events at the given paths; there are usually fewer, and in an order of their own."""

    source_paths: Annotated[tuple[Place, ...], Meta(min_length=1)]
    records: Annotated[tuple[dict[str, Any], ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.source_paths)) != len(self.source_paths):
            raise ValueError("`source_paths` must be unique")


Envelope = ArchivedRecord | CompactedEvents
_EITHER = cast("type[Envelope]", Envelope)  # to a type checker a union is no type; to msgspec it is


def require_envelope(value: object) -> Envelope:
    """Check an envelope. Raises UsageError."""
    return conform(value, _EITHER, "archive envelope")
