"""`outbox`: what waits for a server, and what a person has done with it."""

from typing import cast

from agentcoord.cli.options import Words
from agentcoord.cli.output import Invocation, Output
from agentcoord.daemonlink import Declined, ask
from agentcoord.errors import UsageError
from agentcoord.protocol.documents import Document, encode_pretty, is_document, text

_DONE = {"retry": "retried", "drop": "dropped"}


def perform(words: Words, invocation: Invocation, output: Output) -> None:
    """Do what one of the words asks for. Raises StoreError, NoDaemon where there is none, UsageError for no such id."""
    json, word = words.flag("json"), words.command.removeprefix("outbox ")
    if word == "list":
        _list(ask(invocation.env, "outbox.list", {}), output, json=json)
        return
    ids = [int(number) for number in words.positionals]
    asked: Document = {"all": True} if words.flag("all") else {"ids": ids}
    try:
        answer = ask(invocation.env, f"outbox.{word}", asked)
    except Declined as error:
        if error.wrong:
            raise UsageError(error.reason) from error
        raise
    if json:
        output.add(encode_pretty(answer))
        return
    entries = _entries(answer, _DONE[word])
    for entry in entries:
        output.say(f"{_DONE[word]} {entry.get('id')} {entry.get('kind')} {entry.get('path')}")
    if not entries:
        output.say("nothing was set aside")


def _entries(answer: Document, name: str) -> list[Document]:
    found = answer.get(name)
    return [entry for entry in cast("list[object]", found) if is_document(entry)] if isinstance(found, list) else []


def _list(answer: Document, output: Output, *, json: bool) -> None:
    if json:
        output.add(encode_pretty(answer))
        return
    entries = _entries(answer, "entries")
    for entry in entries:
        output.say(line_of(entry))
    total = answer.get("total")
    if isinstance(total, int) and total > len(entries):
        output.say(f"and {total - len(entries)} more")
    if not entries:
        output.say("nothing waits")


def line_of(entry: Document) -> str:
    """Show one entry: which it is, how it stands, what it is and for whom, how old, and what came of it so far."""
    state, error = str(entry.get("state")).replace("_", " "), text(entry, "error")
    parts = [
        f"{entry.get('id')} {state} {entry.get('kind')} {entry.get('path')}",
        f"for {entry.get('backend')}",
        f"queued {entry.get('queued_at')}, {entry.get('age')} s ago",
        f"attempts {entry.get('attempts')}",
    ]
    if error is not None:
        parts.append(f"last error: {error}")
    return "; ".join(parts)
