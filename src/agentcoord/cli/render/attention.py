"""Requests for attention: a line for what was done, two for a request to read, or the records."""

from agentcoord.cli.output import Output
from agentcoord.cli.render.replica import facts_of_label, say_label
from agentcoord.operations.attention import Asked, Listed
from agentcoord.protocol.documents import Document, encode_pretty
from agentcoord.protocol.replica import Label


def render_change(result: Asked, output: Output, *, json: bool) -> None:
    """Say how the request stands now."""
    record = result.record
    if json:
        output.add(encode_pretty({"record": record}))
    else:
        generation = int(record["source_generation"])
        output.say(f"attention {record['id']} {record['status']} at generation {generation}")


def render_attention(result: Asked, output: Output, *, json: bool) -> None:
    """Show one request."""
    if json:
        output.add(encode_pretty({"record": result.record}))
    else:
        _show(result.record, output)


def facts_of_list(result: Listed) -> Document:
    """Give what programs are told of the requests there are."""
    return {"records": result.records, "limit": result.limit, "truncated": result.truncated}


def render_list(result: Listed, output: Output, *, json: bool, label: Label | None = None) -> None:
    """Show requests in the order they were given in."""
    if json:
        output.add(encode_pretty(facts_of_list(result) | facts_of_label(label)))
        return
    for record in result.records:
        _show(record, output)
    say_label(label, output)


def _show(record: Document, output: Output) -> None:
    output.say(f"{record['priority_class']} {record['id']} [{record['status']}]")
    output.say(f"  {record['question']}")
