"""Where records live, and which spellings may become part of a path (spec: records §1)."""

import re

from agentcoord.errors import UsageError

FAMILIES = ("claims", "heartbeats", "batches", "events", "attention", "archive")
"""Top-level directories of a state root."""
ARCHIVABLE = ("claims", "heartbeats", "batches", "events")
"""Families that retention may move into the archive."""

RECORD_DEPTHS = {"claims": 4, "heartbeats": 2, "batches": 2, "events": 3, "attention": 5}
"""Segments of a record's path in each family, without the archive's own."""

_REPO_AT = {"claims": (1, 2), "attention": (2, 3)}
"""Where owner and repository stand in a path of the families that are kept by repository."""

ACTIVE_PATH_BYTES = 512
ARCHIVE_PATH_BYTES = 520
ACTIVE_RECORD_BYTES = 256 * 1024
ARCHIVE_RECORD_BYTES = 1024 * 1024
_REPO = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_SEGMENT = re.compile(r"[A-Za-z0-9_:-]+(?:\.[A-Za-z0-9_:-]+)*")


def is_repo(value: object) -> bool:
    """Tell whether a value is OWNER/REPO."""
    return isinstance(value, str) and _REPO.fullmatch(value) is not None


def is_segment(value: object) -> bool:
    """Tell whether a value may stand as one path segment (agent, target, batch, event, lane owner)."""
    return isinstance(value, str) and _SEGMENT.fullmatch(value) is not None


def require_repo(value: str, what: str) -> str:
    """Return a repository name. Raises UsageError naming `what` it was given as."""
    if not is_repo(value):
        raise UsageError(f"invalid {what}: {value}")
    return value


def require_segment(value: str, what: str) -> str:
    """Return a path segment. Raises UsageError naming `what` it was given as."""
    if not is_segment(value):
        raise UsageError(f"invalid {what}: {value}")
    return value


def require_safe(path: str) -> None:
    """Refuse a path that could leave the state root or name one record in two ways.

    A `.` segment is refused as well: `./x` and `x` would be one file under two names.
    """
    if not path or ".." in path or "\0" in path or any(part in ("", ".") for part in path.split("/")):
        raise UsageError(f"unsafe state path: {path!r}" if not path or "\0" in path else f"unsafe state path: {path}")


def is_record(path: str) -> bool:
    """Tell whether a path, with or without `archive/` before it, is one where a record belongs.

    By its shape alone: `claims/o/api.json` may be a repository, `claims/o/r/7.json` is a claim.
    """
    parts = path.removeprefix("archive/").split("/")
    return path.endswith(".json") and len(parts) == RECORD_DEPTHS.get(parts[0])


def may_be_dotted(path: str) -> bool:
    """Tell whether a directory may have a dot name: owners and repositories such as `.github` may."""
    parts = path.removeprefix("archive/").split("/")
    return len(parts) - 1 in _REPO_AT.get(parts[0], ()) and is_repo(f"o/{parts[-1]}")


def is_listed(prefix: str, path: str) -> bool:
    """Tell whether a path below a prefix is one that listings show: a `.json` name that no dot name hides."""
    *above, name = path[len(prefix) + 1 :].split("/")
    if name.startswith(".") or not name.endswith(".json"):
        return False
    return all(
        may_be_dotted("/".join((prefix, *above[:depth]))) for depth, part in enumerate(above, 1) if part.startswith(".")
    )


def over_cap(path: str, size: int) -> str | None:
    """Say why a shared backend would not keep a record of `size` serialized bytes at a path; None if it would.

    Local files have no such caps; what is to move between backends has to keep them (spec: records §1).
    """
    archived = path.startswith("archive/")
    inner = path.removeprefix("archive/")
    if len(inner.encode()) > ACTIVE_PATH_BYTES or len(path.encode()) > ARCHIVE_PATH_BYTES:
        longest = ARCHIVE_PATH_BYTES if archived else ACTIVE_PATH_BYTES
        return f"record path is longer than {longest} bytes: {path}"
    largest = ARCHIVE_RECORD_BYTES if archived else ACTIVE_RECORD_BYTES
    return f"record is larger than {largest} bytes: {path}" if size > largest else None


def claim_path(repo: str, target: str) -> str:
    """Name the claim record of a work item's exact spelling."""
    return f"claims/{repo}/{target}.json"


def heartbeat_path(agent_id: str) -> str:
    """Name the heartbeat record of an agent."""
    return f"heartbeats/{agent_id}.json"


def batch_path(batch_id: str) -> str:
    """Name the manifest record of a batch."""
    return f"batches/{batch_id}.json"


def events_prefix(batch_id: str) -> str:
    """Name the directory of a batch's trail."""
    return f"events/{batch_id}"


def event_path(batch_id: str, event_id: str) -> str:
    """Name one event record."""
    return f"events/{batch_id}/{event_id}.json"


def batch_lane(batch_id: str) -> str:
    """Name what the events of a batch keep their order in while they wait for a backend."""
    return f"batch {batch_id}"


def agent_lane(agent_id: str) -> str:
    """Name what the heartbeats of an agent keep their order in while they wait for a backend."""
    return f"agent {agent_id}"


def attention_prefix(workspace: str, repo: str) -> str:
    """Name the directory of what a workspace asks about a repository."""
    return f"attention/{workspace}/{repo}"


def attention_path(workspace: str, repo: str, attention_id: str) -> str:
    """Name one request for attention."""
    return f"{attention_prefix(workspace, repo)}/{attention_id}.json"


def stem(path: str) -> str:
    """Read a record's own name from its path."""
    return path.rpartition("/")[2].removesuffix(".json")


def claim_key(path: str) -> tuple[str, str]:
    """Read (repo, target) from a claim path."""
    parts = path.split("/")
    return "/".join(parts[1:-1]), parts[-1].removesuffix(".json")


def event_batch(path: str) -> str:
    """Read the batch id from an event path."""
    parts = path.split("/")
    return parts[1] if len(parts) > 1 else ""
