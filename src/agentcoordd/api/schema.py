"""The published schema of the socket API, one document a method, made from the messages.

`python -m agentcoordd.api.schema` writes it into schema/api/v1 of a checkout; a test compares.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentcoordd.api import deeds, leases, messages, outbox

DIRECTORY = Path("schema/api/v1")

METHODS: Mapping[str, tuple[type, type | tuple[type, ...]]] = {
    "hello": (messages.Hello, messages.Welcome),
    "cli.run": (messages.Command, messages.Exited),
    "subscribe": (messages.Subscribe, messages.Subscribed),
    "lease.hold": (leases.HoldParams, leases.HoldResult),
    "lease.list": (leases.ListParams, leases.ListResult),
    "lease.drop": (leases.DropParams, leases.DropResult),
    "outbox.list": (outbox.OutboxListParams, outbox.OutboxListResult),
    "outbox.retry": (outbox.OutboxRetryParams, outbox.OutboxRetryResult),
    "outbox.drop": (outbox.OutboxDropParams, outbox.OutboxDropResult),
    **deeds.PUBLISHED,
    "daemon.status": (messages.Nothing, messages.Status),
    "daemon.stop": (messages.Stop, messages.Stopping),
}
"""Params and result of each method, or the several results it may have."""

NOTIFICATIONS: Mapping[str, type] = {
    "accepted": messages.About,
    "working": messages.About,
    "output": messages.Output,
    "plain": messages.Plain,
    "read": messages.Read,
    "event": messages.Event,
    "gap": messages.Gap,
    "go": messages.About,
    "content": messages.Content,
    "cancel": messages.About,
}
"""Params of each notification; the last three are the caller's."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def documents() -> dict[str, bytes]:
    """Make all documents, by the names of their files."""
    made: dict[str, bytes] = {}
    for name, (params, result) in METHODS.items():
        results = result if isinstance(result, tuple) else (result,)
        (asked, *told), parts = msgspec.json.schema_components((params, *results), ref_template="#/$defs/{name}")
        answered = told[0] if len(told) == 1 else {"anyOf": told}
        made[f"{name}.schema.json"] = _document(
            f"{name}: params and result",
            {"type": "object", "properties": {"params": asked, "result": answered}, "$defs": parts},
        )
    told, parts = msgspec.json.schema_components(list(NOTIFICATIONS.values()), ref_template="#/$defs/{name}")
    properties = dict(zip(NOTIFICATIONS, told, strict=True))
    made["notifications.schema.json"] = _document(
        "The params of notifications, by their methods", {"type": "object", "properties": properties, "$defs": parts}
    )
    frames = (messages.Incoming, messages.Answer, messages.Failure, messages.Notification)
    framed, parts = msgspec.json.schema_components(frames, ref_template="#/$defs/{name}")
    made["frames.schema.json"] = _document("One line over the socket", {"anyOf": list(framed), "$defs": parts})
    return made


def _document(title: str, schema: Mapping[str, Any]) -> bytes:
    whole = {"$schema": _DIALECT, "title": title, **schema}
    return msgspec.json.format(msgspec.json.encode(whole, order="deterministic"), indent=2) + b"\n"


def main() -> int:
    """Write the documents below the working directory."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name, content in documents().items():
        (DIRECTORY / name).write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
