"""The five commands about attention, once their words are read and a store is open."""

from typing import Any

from agentcoord.cli.options import Words
from agentcoord.cli.output import Output, Terminal
from agentcoord.cli.render.attention import render_attention, render_change, render_list
from agentcoord.operations.attention import (
    get_attention,
    list_attention,
    read_queue,
    resolve_attention,
    upsert_attention,
)
from agentcoord.operations.context import Context
from agentcoord.protocol.replica import Label


async def attend(
    context: Context, words: Words, request: Any, output: Output, terminal: Terminal, label: Label | None = None
) -> None:
    """Do one of them. `request` is what its words stand for; of an upsert, the record. Raises CoordError."""
    json = words.flag("json")
    match words.command:
        case "attention":
            from agentcoord.cli.render.queue import render_queue

            render_queue(await read_queue(context, request), output, context.now(), terminal, json=json)
        case "attention-list":
            render_list(await list_attention(context, request), output, json=json, label=label)
        case "attention-get":
            render_attention(await get_attention(context, request), output, json=json)
        case "attention-resolve":
            render_change(await resolve_attention(context, request.key, request.generation), output, json=json)
        case _:
            render_change(await upsert_attention(context, request), output, json=json)
