"""The fields of each record, in the order they are written and shown (spec: records §4-§8).

No reader minds the order of keys. But a version is a digest of bytes, so the same record has the same
one whichever implementation wrote it only if all keep to one order.
"""

SCHEMA_VERSION = 1
LANE_CLOSED_SCHEMA_VERSION = 2
ARCHIVE_SCHEMA_VERSION = 1
ATTENTION_SCHEMA_VERSION = 1

CLAIM_TTL = 14400
"""Seconds a lease lasts unless the caller says otherwise."""
HEARTBEAT_TTL = 900
"""Seconds a heartbeat stays live unless the caller says otherwise."""
HOT_DAYS = 7
ARCHIVE_DAYS = 30
SYNTHETIC_HOT_DAYS = 1

ATTENTION_SCAN = 1000
"""How many attention records are looked at: nobody deletes them, so they only grow."""

METADATA = (
    "thread_handle",
    "chat_handle",
    "host",
    "pr_url",
    "dashboard_url",
    "operator",
    "phase",
    "generation",
    "instance_id",
)
SYNTHETIC = ("synthetic", "synthetic_kind")
IDENTITY = ("machine_id", "session_id", "session_source")
HANDOFF = ("release_mode", "handoff_to", "handoff_note")
TERMINAL_FACTS = ("terminal", "pr_state", "evidence_url", "workspace", "closed_by")
TYPED_SIGNALS = ("reason", "from_route", "to_route", "evidence", "severity", "category", "kind")

_WHO = ("thread_handle", "chat_handle", "host", *IDENTITY, "pr_url", "dashboard_url", "operator", "phase")

CLAIM_SHOWN = ("batch_id", *_WHO, "generation", "instance_id", *HANDOFF, *TERMINAL_FACTS, *SYNTHETIC)
CLAIM_RENEWED = ("batch_id", "branch", *_WHO, "generation", "instance_id", *HANDOFF, *TERMINAL_FACTS, *SYNTHETIC)
"""What a renewal carries over from the stored claim."""
HEARTBEAT_SHOWN = ("batch_id", "branch", *_WHO, "generation", "instance_id", "status_raw", *SYNTHETIC)
HEARTBEAT_KEPT = ("repo", "target", "batch_id", "branch", *_WHO, "generation", "instance_id", *SYNTHETIC)
"""What a beat for the same work carries over from the stored heartbeat."""
BATCH_SHOWN = (
    "repo",
    "objective",
    "instructions",
    "launch_prompt",
    "operator",
    "dashboard_url",
    "status",
    "updated_at",
    "registered_at",
    "completed_at",
    *SYNTHETIC,
)
LANE_SHOWN = (
    "thread_handle",
    "chat_handle",
    "host",
    "pr_url",
    "dashboard_url",
    "operator",
    "phase",
    "branch",
    "terminal",
    "closed_at",
    "closed_by",
    "pr_state",
    "evidence_url",
)
EVENT_SHOWN = (
    "event_id",
    "lane",
    "agent_id",
    "repo",
    "target",
    "branch",
    "status",
    "status_raw",
    "message",
    *_WHO,
    "previous_phase",
    "generation",
    "instance_id",
    *HANDOFF,
    *TERMINAL_FACTS,
    *TYPED_SIGNALS,
    *SYNTHETIC,
)
ARCHIVE_SHOWN = (
    "record_family",
    "source_path",
    "source_paths",
    "reason",
    "synthetic",
    "archived_at",
    "delete_after",
)
