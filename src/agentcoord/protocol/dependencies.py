"""What a lane waits for: a dependency is met when the other lane's state lets work build on it."""

from collections.abc import Iterable, Mapping

from agentcoord.protocol.statuses import SATISFYING


def lane_key(batch_id: str, lane: str) -> str:
    """Name a lane across batches, as dependency refs spell it."""
    return f"{batch_id}:{lane}"


def blocked_on(refs: Iterable[str], states: Mapping[str, str]) -> list[str]:
    """List the refs that are not met; a lane nobody knows is not met."""
    return [ref for ref in refs if states.get(ref) not in SATISFYING]


def lane_state(terminal: object, beat_status: object, declared: object) -> str:
    """Choose a lane's state: closed for good, else as its owner's heartbeat says, else as declared."""
    for value in (terminal, beat_status, declared):
        if value:
            return str(value)
    return "unknown"
