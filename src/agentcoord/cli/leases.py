"""`lease`: what the daemon keeps alive, and having it keep more or less."""

import os
from typing import cast

from agentcoord.cli.app import request_of
from agentcoord.cli.options import Words
from agentcoord.cli.output import Invocation, Output
from agentcoord.cli.requests import KeepRequest
from agentcoord.daemonlink import Env, ask
from agentcoord.errors import StoreError, UsageError
from agentcoord.operations.context import Context, read_object
from agentcoord.protocol.claims import fence, holder_of
from agentcoord.protocol.documents import Document, encode_pretty, is_document, text
from agentcoord.protocol.keeping import SHORTEST_TTL
from agentcoord.protocol.paths import claim_path, require_repo, require_segment
from agentcoord.settings.selection import Selection
from agentcoord.settings.value import Settings
from agentcoord.stores.opening import absolute


def backend_of(selection: Selection, cwd: str) -> Document:
    """Name the selected backend to the daemon. Raises StoreError for one that it keeps nothing on."""
    if selection.kind == "local":
        return {"kind": "local", "root": absolute(selection.root or "", cwd)}
    if selection.kind == "http":
        return {"kind": "http", "url": selection.url}
    raise StoreError("the daemon keeps nothing on the legacy GitHub backend; nothing was written")


def require_keepable(asked: KeepRequest) -> None:
    """Refuse what the daemon would not keep, while nothing is written yet. Raises UsageError."""
    if asked.ttl <= 0:
        raise UsageError("--ttl must be positive")
    if asked.ttl < SHORTEST_TTL:
        raise UsageError(f"--ttl must be at least {SHORTEST_TTL} for a lease that is kept")
    if asked.watch_pid is None:
        return
    try:
        os.kill(asked.watch_pid, 0)
    except PermissionError:  # somebody else's, but there
        return
    except (ProcessLookupError, OverflowError):
        raise UsageError(f"--watch-pid {asked.watch_pid}: no such process is running; nothing was written") from None


def ask_to_hold(env: Env, backend: Document, asked: KeepRequest, kinds: tuple[str, ...], token: str | None) -> Document:
    """Have the daemon, started if need be, keep a lease; `token` is the fence of the claim. Raises StoreError."""
    watched = asked.watch_pid
    return ask(
        env,
        "lease.hold",
        {
            "backend": backend,
            "agent_id": asked.agent_id,
            "repo": asked.repo,
            "target": asked.target,
            "kinds": kinds,
            "ttl": asked.ttl,
            "pid": watched,
            "from_pid": os.getpid() if watched is None else None,
            "instance": asked.instance,
            "fence": token,
        },
        start=True,
    )


async def hold(context: Context, words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    """Have a heartbeat kept, and with it the claim that stands. Raises UsageError for a claim that does not."""
    asked: KeepRequest = request_of(words)
    require_segment(asked.agent_id, "agent-id")
    require_keepable(asked)
    backend = backend_of(settings.selected, invocation.cwd)
    kinds, token = ("heartbeat",), None
    if asked.repo is not None and asked.target is not None:
        kinds, token = ("heartbeat", "claim"), await _fence_of(context, asked)
    held = ask_to_hold(invocation.env, backend, asked, kinds, token)
    if words.flag("json"):
        output.add(encode_pretty({"lease": held}))
    else:
        output.say(kept(held))


async def _fence_of(context: Context, asked: KeepRequest) -> str:
    repo, target = asked.repo or "", asked.target or ""
    require_repo(repo, "target repo")
    require_segment(target, "target")
    found = await read_object(context.store, claim_path(repo, target), "a claim")
    if found is None or holder_of(found[0]) != asked.agent_id:
        raise UsageError(f"{asked.agent_id} does not hold {repo}#{target}: claim it first, best with --keep")
    return fence(found[0])


def kept(lease: Document) -> str:
    """Say in one line what is kept, and which process stands for the agent and why."""
    pid, program = lease.get("pid"), text(lease, "program")
    if pid is None:
        watched = "no process is watched"
    else:
        watched = f"watching process {pid}" + (f" ({program})" if program else "")
    why, renewal = text(lease, "chosen"), text(lease, "next_renewal")
    line = f"kept as lane {lease.get('lane')}: {watched}" + (f", {why}" if why else "")
    return line + (f"; next renewal {renewal}" if renewal else "")


def lanes_of(env: Env) -> list[Document]:
    """Ask what the daemon keeps. Raises StoreError, NoDaemon where there is none."""
    lanes = ask(env, "lease.list", {}).get("lanes")
    return [lane for lane in cast("list[object]", lanes) if is_document(lane)] if isinstance(lanes, list) else []


def render_lanes(invocation: Invocation, output: Output, *, json: bool) -> None:
    """List what is kept. Raises StoreError."""
    lanes = lanes_of(invocation.env)
    if json:
        output.add(encode_pretty({"lanes": lanes}))
        return
    for lane in lanes:
        output.say(line_of(lane))
    if not lanes:
        output.say("nothing is kept")


def line_of(lane: Document) -> str:
    """Show one lane with its evidence."""
    item = f" {lane['repo']}#{lane.get('target')}" if lane.get("repo") else ""
    pid, program = lane.get("pid"), text(lane, "program")
    process = "no process" if pid is None else f"process {pid}" + (f" ({program})" if program else "")
    parts = [f"{lane.get('lane')} {lane.get('agent_id')}{item} {lane.get('state')}", process]
    for name, shown in (("chosen", "{}"), ("next_renewal", "next renewal {}"), ("error", "last error: {}")):
        if (value := text(lane, name)) is not None:
            parts.append(shown.format(value))
    return "; ".join(parts)


def drop(lane: str, invocation: Invocation, output: Output, *, json: bool) -> None:
    """Have a lane kept no more; its records stay as they are. Raises UsageError for one that is not kept."""
    answer = ask(invocation.env, "lease.drop", {"lane": lane})
    if not answer.get("dropped"):
        raise UsageError(f"no lane {lane} is kept; agent-coord lease list names those that are")
    if json:
        output.add(encode_pretty(answer))
    else:
        output.say(f"dropped lane {lane}: it is renewed no more, and runs out by itself")
