"""The vocabulary of work statuses and how spellings fold onto it (spec: records §6)."""

from types import MappingProxyType

from msgspec import Struct

WORKING = (
    "in_progress",
    "blocked",
    "blocked_user_input",
    "waiting_on_checks_or_review",
    "external_gate_failing",
    "no_pr_evidence",
    "failed",
)
TERMINAL = (
    "done",
    "merged",
    "ready",
    "ready_gates_clean",
    "ready_no_merge_authority",
    "abandoned",
    "superseded",
)
CANONICAL = WORKING + TERMINAL
ALIASES = MappingProxyType(
    {
        "complete": "done",
        "completed": "done",
        "ready_to_merge": "ready",
        "ready_handoff": "ready",
        "ready_for_coordinator": "ready",
        "in_process": "in_progress",
        "claimed": "in_progress",
        "implementing": "in_progress",
        "validating": "in_progress",
        "pushing": "in_progress",
    }
)
SATISFYING = ("done", "merged", "ready", "ready_gates_clean", "ready_no_merge_authority", "complete", "completed")
"""Lane states that a dependent lane may build on, the stored legacy spellings included."""
CLOSED = ("done", "abandoned", "superseded")
"""States a lane can be closed in for good."""


class Status(Struct, frozen=True):
    """A status as it is stored, with the caller's own spelling where the two differ."""

    value: str
    raw: str | None
    known: bool


def normalize(spelling: str) -> Status:
    """Fold a spelling onto the vocabulary; an unknown one is kept verbatim beside a raw copy."""
    folded = spelling.strip().lower().replace("-", "_")
    value = folded if folded in CANONICAL else ALIASES.get(folded)
    if value is None:
        return Status(value=spelling, raw=spelling, known=False)
    return Status(value=value, raw=None if value == spelling else spelling, known=True)


def unknown_warning(status: Status) -> str:
    """Say that a status was kept although consumers may not know it."""
    return (
        f'warning: status "{status.value}" is not in the canonical status vocabulary; preserving it verbatim '
        f"with a status_raw copy. Canonical statuses: {', '.join(CANONICAL)}."
    )
