"""Heartbeats, batches and events: the line a script reads, or the record written."""

from agentcoord.cli.output import Output
from agentcoord.operations.batches import Registered
from agentcoord.operations.closeout import Closed
from agentcoord.operations.events import Recorded
from agentcoord.operations.heartbeats import Beaten
from agentcoord.protocol.documents import Document, encode_pretty

_QUEUED = "queued "


def _record(record: Document, line: str, output: Output, *, json: bool, more: Document | None = None) -> None:
    if json:
        output.add(encode_pretty({"record": record} | (more or {})))
    else:
        output.say(line)


def _waiting(*, queued: bool) -> Document:
    return {"queued": True} if queued else {}


def render_heartbeat(result: Beaten, output: Output, *, json: bool, more: Document | None = None) -> None:
    """Say when the agent was last heard of. `more` joins the JSON."""
    record = result.record
    line = f"{_QUEUED if result.queued else ''}heartbeat {record['agent_id']} {record['updated_at']}"
    _record(record, line, output, json=json, more=_waiting(queued=result.queued) | (more or {}))


def render_batch(result: Registered, output: Output, *, json: bool) -> None:
    """Say which batch is registered."""
    _record(result.record, f"registered batch {result.record['batch_id']}", output, json=json)


def render_event(result: Recorded, output: Output, *, json: bool) -> None:
    """Say under which id the event is kept."""
    record = result.record
    line = f"{_QUEUED if result.queued else 'recorded '}event {record['batch_id']} {record['event_id']}"
    _record(record, line, output, json=json, more=_waiting(queued=result.queued))


def facts_of_closing(result: Closed) -> Document:
    """Give what programs are told of a lane that is closed."""
    return {"record": result.event, "changed": result.changed}


def render_closing(result: Closed, payload: Document, output: Output, *, json: bool) -> None:
    """Say what closing a lane changed."""
    event, item = result.event, f"{payload['repo']}#{payload['target']}"
    if json:
        output.add(encode_pretty(facts_of_closing(result)))
    elif result.event_created:
        output.say(f"recorded event {event['batch_id']} {event['event_id']}")
    elif result.batch_changed:
        output.say(f"reconciled terminal closeout for {item}")
    else:
        output.say(f"lane already closed for {item}")
