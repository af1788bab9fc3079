"""Batches and their lanes: what a manifest must say, and how a stored one is read.

Registration is strict, reading is lenient: a hand-edited or legacy manifest still shows what it can
(spec: cli §7, §8.1; records §7).
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from msgspec import Struct

from agentcoord.errors import UsageError
from agentcoord.protocol.documents import Document, encode, is_document
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.paths import is_segment, require_repo, require_segment
from agentcoord.protocol.records import SCHEMA_VERSION, SYNTHETIC

UNKNOWN = "UNKNOWN"


class Lane(Struct, frozen=True):
    """One lane of a manifest as it can be read. A lane that is no object is malformed."""

    name: str
    owner: str
    targets: tuple[str, ...]
    depends_on: tuple[str, ...]
    document: Document
    malformed: bool = False


def spelled(value: object) -> str:
    """Write a scalar from a manifest as the text it stands for."""
    return value if isinstance(value, str) else encode(value).decode()


def _several(value: object) -> tuple[str, ...]:
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    return tuple(text for item in items if item is not None and (text := spelled(item)))


def lane_of(value: object) -> Lane:
    """Read one lane entry, with UNKNOWN for what it does not say."""
    if not is_document(value):
        return Lane(name=UNKNOWN, owner=UNKNOWN, targets=(), depends_on=(), document={}, malformed=True)
    targets = value.get("targets")
    return Lane(
        name=spelled(value.get("name") or value.get("id") or UNKNOWN),
        owner=spelled(value.get("owner") or value.get("agent_id") or UNKNOWN),
        targets=_several(value.get("target") if targets is None else targets),
        depends_on=_several(value.get("depends_on")),
        document=value,
    )


def lanes_of(batch: Mapping[str, Any]) -> list[Lane]:
    """Read the lanes of a stored manifest; none if `lanes` is not an array."""
    lanes = batch.get("lanes")
    return [lane_of(lane) for lane in cast("list[object]", lanes)] if isinstance(lanes, list) else []


def require_manifest(value: object, batch_id_option: str | None) -> Document:
    """Check a manifest for registration and return it. Raises UsageError for the first fault."""
    if not is_document(value):
        raise UsageError("batch manifest must be a JSON object")
    stated = value.get("batch_id")
    named = None if stated in (None, "", False) else spelled(stated)
    if named is not None and batch_id_option and named != batch_id_option:
        raise UsageError("--batch-id does not match batch manifest batch_id")
    batch_id = named or batch_id_option
    if not batch_id:
        raise UsageError("batch manifest missing batch_id")
    require_segment(batch_id, "batch-id")
    if value.get("repo") is not None:
        require_repo(spelled(value["repo"]), "batch repo")
    lanes = value.get("lanes")
    if not isinstance(lanes, list):
        raise UsageError("batch manifest lanes must be an array")
    if not lanes:
        raise UsageError("batch manifest lanes must not be empty")
    seen: set[str] = set()
    for number, lane in enumerate(cast("list[object]", lanes), 1):
        name = _require_lane(lane, number)
        if name in seen:
            raise UsageError(f"batch lane {name} is duplicated")
        seen.add(name)
    return value | {"batch_id": batch_id}


def _require_lane(value: object, number: int) -> str:
    if not is_document(value):
        raise UsageError(f"batch lane {number} must be a JSON object")
    name = value["name"] if "name" in value else value.get("id")
    if name is None or name == "":
        raise UsageError(f"batch lane {number} missing name")
    if not isinstance(name, str):
        raise UsageError(f"batch lane {number} name must be a string")
    if ":" in name:
        raise UsageError(f"batch lane {name} cannot contain ':'")
    owner = value.get("agent_id") if value.get("owner") is None else value["owner"]
    if owner is None or owner == "":
        raise UsageError(f"batch lane {name} missing owner")
    if not isinstance(owner, str):
        raise UsageError(f"batch lane {name} owner must be a string")
    require_segment(owner, "lane owner")
    lane = lane_of(value)
    if not lane.targets:
        raise UsageError(f"batch lane {name} missing targets")
    for target in lane.targets:
        require_segment(target, "lane target")
    refs = value.get("depends_on")
    for stated in cast("list[object]", refs) if isinstance(refs, list) else [] if refs is None else [refs]:
        ref = "" if stated is None else spelled(stated)
        if split_ref(ref) is None:
            raise UsageError(f"batch lane {name} has invalid dependency ref: {ref}")
    return name


def split_ref(ref: str) -> tuple[str, str] | None:
    """Split `<batch>:<lane>` at the last colon; None when it names no lane."""
    batch_id, colon, lane = ref.rpartition(":")
    return (batch_id, lane) if colon and lane and is_segment(batch_id) else None


def build_batch(
    manifest: Document, stored: Mapping[str, Any] | None, synthetic: Document, launch_prompt: str | None, now: datetime
) -> Document:
    """Build the record that registration writes: the manifest verbatim plus its stamps.

    Whatever an earlier registration or a closeout had put there is replaced, except the time of the
    first registration and the simulation marks, which shorten how long the batch is kept.
    """
    stored = stored or {}
    document = dict(manifest)
    if launch_prompt is not None:
        document["launch_prompt"] = launch_prompt
    registered = manifest.get("registered_at") or stored.get("registered_at") or stamp(now)
    document |= {
        "schema_version": SCHEMA_VERSION,
        "batch_id": manifest["batch_id"],
        "registered_at": registered,
        "updated_at": stamp(now),
    }
    document |= synthetic
    for field in SYNTHETIC:
        if document.get(field) is None and stored.get(field) is not None:
            document[field] = stored[field]
    return document
