"""The verdict on a batch's trail, lane by lane."""

from agentcoord.cli.output import Output
from agentcoord.errors import Exit
from agentcoord.operations.audit import Audited
from agentcoord.protocol.documents import Document, encode_pretty

_EXITS = {"complete": Exit.OK, "incomplete": Exit.USAGE, "unknown": Exit.UNKNOWN}


def facts_of_audit(result: Audited) -> Document:
    """Give what programs are told of a verdict."""
    shown: Document = {"batch_id": result.batch_id, "verdict": result.verdict}
    if result.reason is not None:
        shown["reason"] = result.reason
    shown["lanes"] = [
        {
            "name": lane.name,
            "owner": lane.owner,
            "targets": list(lane.targets),
            "event_count": lane.event_count,
            "missing": list(lane.missing),
            "complete": lane.complete,
            "malformed": lane.malformed,
        }
        for lane in result.lanes
    ]
    return shown


def render_audit(result: Audited, output: Output, *, json: bool) -> None:
    """Print the verdict; its exit status lets a closeout gate on it (spec: cli §9.1)."""
    output.exit = _EXITS[result.verdict]
    if json:
        output.add(encode_pretty(facts_of_audit(result)))
        return
    output.say(f"batch-audit {result.batch_id} {result.verdict}")
    if result.reason is not None:
        output.say(f"- {result.reason}")
    for lane in result.lanes:
        state = "complete" if lane.complete else f"incomplete missing {', '.join(lane.missing)}"
        output.say(f"- lane {lane.name} owner {lane.owner} {state}")
