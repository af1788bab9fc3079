"""The compiled-in contract: versions, defaults, vocabulary and exit codes (spec: cli §13)."""

from agentcoord.errors import Exit
from agentcoord.protocol.documents import Document
from agentcoord.protocol.liveness import DEAD_AFTER_TTLS
from agentcoord.protocol.records import (
    ARCHIVE_DAYS,
    ARCHIVE_SCHEMA_VERSION,
    CLAIM_TTL,
    HEARTBEAT_TTL,
    HOT_DAYS,
    LANE_CLOSED_SCHEMA_VERSION,
    SCHEMA_VERSION,
    SYNTHETIC_HOT_DAYS,
)
from agentcoord.protocol.statuses import ALIASES, SATISFYING, TERMINAL, WORKING
from agentcoord.settings.selection import DEFAULT_REF
from agentcoord.version import VERSION


def versions() -> Document:
    """Give the versions a consumer checks before it relies on anything else."""
    return {
        "version": VERSION,
        "schema_version": SCHEMA_VERSION,
        "lane_closed_schema_version": LANE_CLOSED_SCHEMA_VERSION,
        "archive_schema_version": ARCHIVE_SCHEMA_VERSION,
        "default_backend": None,
        "default_ref": DEFAULT_REF,
    }


def configuration(coordination: Document) -> Document:
    """Give the runtime defaults with the coordination settings in force; nothing is probed. Seconds and days."""
    return versions() | {
        "default_claim_ttl_seconds": CLAIM_TTL,
        "default_heartbeat_ttl_seconds": HEARTBEAT_TTL,
        "heartbeat_dead_after_ttl_multiplier": DEAD_AFTER_TTLS,
        "retention_policy": {
            "hot_days": HOT_DAYS,
            "archive_days": ARCHIVE_DAYS,
            "synthetic_hot_days": SYNTHETIC_HOT_DAYS,
        },
        "dependency_terminal_statuses": list(SATISFYING),
        "heartbeat_status_vocabulary": {
            "working": list(WORKING),
            "terminal": list(TERMINAL),
            "aliases": dict(ALIASES),
        },
        "exit_codes": {
            "usage": int(Exit.USAGE),
            "stack_usage": int(Exit.STACK_USAGE),
            "operational": int(Exit.UNKNOWN),
            "claim_refused": int(Exit.REFUSED),
        },
        "coordination": coordination,
    }
