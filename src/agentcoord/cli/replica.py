"""Answers from the daemon's replica: whether one will do, and whether an answer is to say how old it is."""

from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext

from agentcoord.cli.options import Words
from agentcoord.cli.output import Invocation, Recall
from agentcoord.errors import StoreError
from agentcoord.operations.context import Snapshot
from agentcoord.protocol.replica import Label
from agentcoord.settings.selection import Selection
from agentcoord.stores.base import Store
from agentcoord.stores.opening import open_store


def asks_for_age(words: Words) -> bool:
    """Tell whether the caller named the age that an answer may have, and so is told which one it has."""
    return words.flag("offline") or words.number("max_age") is not None


def require_replica(words: Words, selection: Selection, recall: Recall | None) -> None:
    """Refuse to ask no backend where nothing is known without. A local root is its own backend. Raises StoreError."""
    if not words.flag("offline") or selection.kind == "local":
        return
    if selection.kind == "github":
        raise StoreError("--offline: of the GitHub backend there is no replica; leave --offline out")
    if recall is None:
        raise StoreError(
            "--offline needs the daemon's replica, and no daemon answered for this backend: agent-coord daemon start "
            "starts it; it answers for its own backend, with its own token only"
        )


def recalled(words: Words, selection: Selection, recall: Recall | None, stack: ExitStack) -> Snapshot | None:
    """Open what this command is to be answered from; None when the backend has to be asked.

    Raises StoreError when it must not be, and nothing is known.
    """
    if recall is None or selection.kind != "http" or not asks_for_age(words):
        return None
    most = words.number("max_age")
    try:
        snapshot = stack.enter_context(recall(selection))
    except StoreError as error:
        if most is not None:
            return None
        raise StoreError(f"--offline: {error}") from error
    return snapshot if most is None or snapshot.label.age <= most else None


def open_answering(selection: Selection, invocation: Invocation) -> AbstractAsyncContextManager[Store]:
    """Open what a command is answered from: the backend, unless a snapshot of it takes its place. Raises CoordError."""
    if invocation.snapshot is not None:
        return nullcontext(invocation.snapshot.store)
    return open_store(
        selection,
        invocation.cwd,
        invocation.env,
        invocation.behalf,
        roots=invocation.roots,
        cut_off=invocation.cut_off,
    )


def label_of(words: Words, invocation: Invocation) -> Label | None:
    """Say where an answer comes from and how old it is, if that was asked for."""
    if not asks_for_age(words):
        return None
    if invocation.snapshot is not None:
        return invocation.snapshot.label
    return Label("backend", invocation.now())
