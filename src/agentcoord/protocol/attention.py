"""Requests for a person's attention: what a record must say, and whose word about it counts.

A source numbers its generations: an older one may not speak over a newer one, and what is settled is
asked again by a newer one only. Nothing here drops or adds a field that the caller did not give, so
the record that is stored is the one that was asked for (spec: cli §11, records §11).
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from msgspec import Struct

from agentcoord.errors import StoreError, UsageError
from agentcoord.protocol.documents import Document, decode, is_document
from agentcoord.protocol.instants import Exact, exact, is_rfc3339, stamp
from agentcoord.protocol.paths import attention_path, is_repo, require_segment
from agentcoord.protocol.records import ATTENTION_SCHEMA_VERSION
from agentcoord.protocol.uris import is_uri

INPUT_BYTES = 256 * 1024
"""How large a record may be when it is handed in."""

PRIORITIES = ("urgent-risk", "unblocks-work", "current-head-merge", "product-architecture")
"""Priority classes, most urgent first."""

LARGEST_GENERATION = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly."""

_REQUIRED = (
    "schema_version",
    "workspace",
    "id",
    "repository",
    "target",
    "status",
    "kind",
    "question",
    "choices",
    "priority_class",
    "priority_reason",
    "safe_resume",
    "source",
    "source_generation",
    "created_at",
    "refreshed_at",
)
_ALLOWED = frozenset((*_REQUIRED, "resolved_at"))
_KEY = ("workspace", "id", "repository")
_LONGEST_KEY = 160
_TEXTS = (("target", 2000), ("kind", 100), ("question", 4000), ("priority_reason", 4000), ("safe_resume", 4000))
_MOST_CHOICES, _LONGEST_CHOICE = 10, 2000

_SOURCE_REQUIRED = ("provider", "host_id", "task_id", "last_seen_at", "capabilities")
_SOURCE_ALLOWED = frozenset((*_SOURCE_REQUIRED, "open_uri"))
_SOURCE_TEXTS = (("provider", 100), ("host_id", 255), ("task_id", 255))
_CAPABILITIES = ("native_open", "prompt_forwarding")
_CAPABLE = ("available", "unavailable", "unknown")
_LONGEST_URI = 2000

_LONGEST_INSTANT = 64
_SECONDS = slice(17, 19)
"""Where the seconds stand in an RFC 3339 timestamp."""


class Key(Struct, frozen=True):
    """What tells one request from all others."""

    workspace: str
    repository: str
    id: str

    @property
    def path(self) -> str:
        """Name the record."""
        return attention_path(self.workspace, self.repository, self.id)


# What a record must say --------------------------------------------------------------------------


def read_attention(data: bytes) -> Document:
    """Read a record that is handed in, which must be an open one. Raises UsageError for the first fault."""
    if not data.strip():
        raise UsageError("attention record JSON must not be empty")
    if len(data) > INPUT_BYTES:
        raise UsageError(f"attention record exceeds {INPUT_BYTES} bytes")
    try:
        data.decode()
    except UnicodeDecodeError:
        raise UsageError("attention record JSON must be valid UTF-8") from None
    try:
        value = decode(data)
    except ValueError as error:
        raise UsageError(f"attention record JSON invalid: {error}") from None
    record = dict(require_attention(value, opening=True))
    record["source_generation"] = int(record["source_generation"])  # 3.0 is an integer to JSON, not to its readers
    return record


def require_attention(value: object, *, opening: bool = False) -> Document:
    """Check a record and return it; `opening`: only an open one will do. Raises UsageError for the first fault."""
    if not is_document(value):
        raise UsageError("attention record must be a JSON object")
    _require_fields(value, _REQUIRED, _ALLOWED, "attention record")
    version = value["schema_version"]
    if isinstance(version, bool) or version != ATTENTION_SCHEMA_VERSION:
        raise UsageError(f"attention schema_version must be {ATTENTION_SCHEMA_VERSION}")
    require_key({name: value[name] for name in _KEY})
    for name, longest in _TEXTS:
        if not _is_text(value[name], longest):
            raise UsageError(f"attention {name} must be a non-empty string of at most {longest} characters")
    _require_choices(value["choices"])
    if value["priority_class"] not in PRIORITIES:
        raise UsageError(f"attention priority_class must be {', '.join(PRIORITIES)}")
    if value["status"] not in ("open", "resolved"):
        raise UsageError("attention status must be open or resolved")
    if opening and value["status"] != "open":
        raise UsageError("attention-upsert requires status open")
    if not _is_generation(value["source_generation"]):
        raise UsageError(f"attention source_generation {_GENERATION_RANGE}")
    _require_source(value["source"])
    _require_instants(value)
    return value


def require_key(named: Mapping[str, object]) -> None:
    """Check those parts of a key that are given, by their field names. Raises UsageError."""
    present = [(name, named[name]) for name in _KEY if name in named]
    for name, value in present:
        if not isinstance(value, str):
            raise UsageError(f"attention {name} must be a string")
    parts = [(name, cast("str", value)) for name, value in present]
    for name, value in parts:
        if len(value) > _LONGEST_KEY:
            raise UsageError(f"attention {name} must be at most {_LONGEST_KEY} characters")
    for name, value in parts:
        if name != "repository":
            require_segment(value, f"attention {name}")
        elif not is_repo(value) or ".." in value or "." in value.split("/"):
            raise UsageError(f"invalid attention repo: {value}")


_GENERATION_RANGE = f"must be an integer between 0 and {LARGEST_GENERATION}"


def require_generation(value: int) -> None:
    """Check a generation given as an option. Raises UsageError."""
    if not _is_generation(value):
        raise UsageError(f"--source-generation {_GENERATION_RANGE}")


def _require_fields(value: Document, required: tuple[str, ...], allowed: frozenset[str], what: str) -> None:
    for name in required:
        if name not in value:
            raise UsageError(f"{what} missing {name}")
    for name in value:
        if name not in allowed:
            raise UsageError(f"{what} contains unknown field {name}")


def _is_text(value: object, longest: int) -> bool:
    return isinstance(value, str) and 0 < len(value) <= longest


def _is_generation(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer() and 0 <= value <= LARGEST_GENERATION
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_GENERATION


def _require_choices(value: object) -> None:
    choices = cast("list[object]", value) if isinstance(value, list) else []
    if not 1 <= len(choices) <= _MOST_CHOICES or not all(_is_text(choice, _LONGEST_CHOICE) for choice in choices):
        raise UsageError(
            f"attention choices must contain 1 to {_MOST_CHOICES} non-empty strings "
            f"of at most {_LONGEST_CHOICE} characters"
        )


def _require_source(value: object) -> None:
    if not is_document(value):
        raise UsageError("attention source must be a JSON object")
    _require_fields(value, _SOURCE_REQUIRED, _SOURCE_ALLOWED, "attention source")
    for name, _ in _SOURCE_TEXTS:
        if not isinstance(value[name], str) or not value[name]:
            raise UsageError(f"attention source {name} must be non-empty")
    for name, longest in _SOURCE_TEXTS:
        if len(value[name]) > longest:
            raise UsageError(f"attention source {name} must be at most {longest} characters")
    _require_instant(value["last_seen_at"], "source last_seen_at")
    if "open_uri" in value and not _is_uri(value["open_uri"]):
        raise UsageError("attention source open_uri must be an absolute URI")
    capabilities = value["capabilities"]
    if not is_document(capabilities) or capabilities.keys() != set(_CAPABILITIES):
        raise UsageError(f"attention capabilities must contain only {' and '.join(_CAPABILITIES)}")
    for name in _CAPABILITIES:
        if capabilities[name] not in _CAPABLE:
            raise UsageError(f"attention {name} must be available, unavailable, or unknown")


def _is_uri(value: object) -> bool:
    return _is_text(value, _LONGEST_URI) and is_uri(value)


def _require_instants(value: Document) -> None:
    for name in ("created_at", "refreshed_at", "resolved_at"):
        if name in value:
            _require_instant(value[name], name)
    if _instant(value, "refreshed_at") < _instant(value, "created_at"):
        raise UsageError("attention refreshed_at must not precede created_at")
    resolved = "resolved_at" in value
    if value["status"] == "resolved" and not resolved:
        raise UsageError("resolved attention requires resolved_at")
    if value["status"] == "resolved" and _instant(value, "resolved_at") < _instant(value, "created_at"):
        raise UsageError("attention resolved_at must not precede created_at")
    if value["status"] == "open" and resolved:
        raise UsageError("open attention must not contain resolved_at")


def _require_instant(value: object, name: str) -> None:
    # A leap second has no place of its own among the instants, and would be ordered as the one after it.
    if not is_rfc3339(value) or len(text := cast("str", value)) > _LONGEST_INSTANT or text[_SECONDS] == "60":
        raise UsageError(f"attention {name} must be an RFC 3339 timestamp of at most {_LONGEST_INSTANT} characters")


def _instant(record: Mapping[str, Any], name: str) -> Exact:
    return cast("Exact", exact(record[name]))  # checked when the record was


def require_stored(path: str, value: object) -> Document:
    """Check what was read at a path, which must be the record that belongs there. Raises StoreError naming it."""
    try:
        record = require_attention(value)
    except UsageError as error:
        raise StoreError(f"invalid stored attention record at {path}: {error}") from error
    if attention_path(record["workspace"], record["repository"], record["id"]) != path:
        raise StoreError(f"stored attention identity does not match path {path}")
    return record


# Whose word counts -------------------------------------------------------------------------------


def decide_upsert(wanted: Document, stored: Document | None) -> Document:
    """Give the record to store: the wanted one, with the time of the first request.

    Raises StoreError when what is stored is news to the source that wants it.
    """
    if stored is None:
        return wanted
    generation, newest = int(wanted["source_generation"]), int(stored["source_generation"])
    _require_current(generation, newest)
    if stored["status"] == "resolved" and generation == newest:
        raise StoreError(f"reopening attention must advance beyond resolved generation {newest}")
    if _instant(wanted, "refreshed_at") < _instant(stored, "refreshed_at"):
        raise StoreError(f"attention refresh is older than the stored refresh at generation {newest}")
    return wanted | {"created_at": stored["created_at"]}


def decide_resolve(stored: Document, generation: int, now: datetime) -> Document | None:
    """Give the settled record to store; None when it is settled already. Raises StoreError for an older source."""
    newest = int(stored["source_generation"])
    _require_current(generation, newest)
    if stored["status"] == "resolved" and generation == newest:
        return None
    at = _no_earlier(stored, now)
    return stored | {
        "status": "resolved",
        "source_generation": generation,
        "refreshed_at": at,
        "resolved_at": stored.get("resolved_at", at),
    }


def _require_current(generation: int, newest: int) -> None:
    if generation < newest:
        raise StoreError(f"source generation {generation} is older than stored generation {newest}")


def _no_earlier(stored: Document, now: datetime) -> str:
    """Spell the later of now and all that the record tells of; what is stored keeps its spelling.

    A source's clock may be ahead of ours and finer than ours can spell, and time must not go backwards.
    """
    told = [name for name in ("resolved_at", "refreshed_at", "created_at") if name in stored]
    latest: str = stored[max(told, key=lambda name: _instant(stored, name))]
    spelled = _finely(now)
    return latest if cast("Exact", exact(latest)) >= cast("Exact", exact(spelled)) else spelled


def _finely(now: datetime) -> str:
    """Write an instant with its fraction of a second, where it has one."""
    fraction = f"{now.astimezone(UTC).microsecond:06}".rstrip("0")
    return f"{stamp(now)[:-1]}.{fraction}Z" if fraction else stamp(now)


# What comes first --------------------------------------------------------------------------------


def urgency(record: Mapping[str, Any]) -> tuple[int, Exact, str]:
    """Order checked records: the most urgent class first, then the longest waiting, then by id."""
    return PRIORITIES.index(record["priority_class"]), _instant(record, "created_at"), record["id"]
