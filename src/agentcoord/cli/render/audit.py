"""The verdict on a batch's trail, lane by lane."""

from agentcoord.cli.output import Output
from agentcoord.cli.render.replica import facts_of_label, say_label
from agentcoord.errors import Exit
from agentcoord.operations.audit import Audited
from agentcoord.protocol.documents import Document, encode_pretty
from agentcoord.protocol.replica import Label

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


def render_audit(result: Audited, output: Output, *, json: bool, label: Label | None = None) -> None:
    """Print the verdict; its exit status lets a closeout gate on it (spec: cli §9.1)."""
    output.exit = _EXITS[result.verdict]
    if json:
        output.add(encode_pretty(facts_of_audit(result) | facts_of_label(label)))
        return
    output.say(f"batch-audit {result.batch_id} {result.verdict}")
    if result.reason is not None:
        output.say(f"- {result.reason}")
    for lane in result.lanes:
        state = "complete" if lane.complete else f"incomplete missing {', '.join(lane.missing)}"
        output.say(f"- lane {lane.name} owner {lane.owner} {state}")
    say_label(label, output)
