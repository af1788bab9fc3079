"""Which machine and session a write comes from, and how that merges with what is stored (spec: records §3)."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from agentcoord.protocol.documents import Document, given, stated
from agentcoord.protocol.records import IDENTITY


class Identity(Struct, frozen=True):
    """What the environment says of the writer. Attribution only, never a secret."""

    machine_id: str | None = None
    session_id: str | None = None
    session_source: str | None = None

    def fields(self) -> Document:
        """Give the fields an event carries: only what the environment provides."""
        return given({name: getattr(self, name) for name in IDENTITY})


NOBODY = Identity()


def merge(stored: Mapping[str, Any], identity: Identity) -> Document:
    """Give the tuple to store: a machine is never paired with another machine's session, nor the reverse."""
    kept = stated(stored, IDENTITY)
    if identity.machine_id is not None and identity.session_id is not None:
        kept = {}
    elif identity.machine_id is not None and kept.get("machine_id") != identity.machine_id:
        kept.pop("session_id", None)
        kept.pop("session_source", None)
    elif identity.session_id is not None and kept.get("session_id") != identity.session_id:
        kept.pop("machine_id", None)
    merged = kept | identity.fields()
    return {name: merged[name] for name in IDENTITY if name in merged}


def attribute(document: Document, stored: Mapping[str, Any], identity: Identity) -> None:
    """Put the merged tuple into a record about to be written, clearing what no longer belongs."""
    merged = merge(stored, identity)
    for name in IDENTITY:
        if name in merged:
            document[name] = merged[name]
        else:
            document.pop(name, None)
