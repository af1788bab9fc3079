"""What each command does, once its words are read and its backend is chosen: ask, do, render (spec: cli §3 to §9).

What only one command needs is imported by it: loading all would cost more than most commands do.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from agentcoord.cli import usage
from agentcoord.cli.commands import GROUPS
from agentcoord.cli.hints import hint_at_machine, hint_at_root
from agentcoord.cli.options import Words
from agentcoord.cli.output import Invocation, Output
from agentcoord.cli.replica import label_of, open_answering
from agentcoord.errors import ConfigError, StoreError
from agentcoord.operations.context import Context, here
from agentcoord.protocol.documents import Document
from agentcoord.settings.environment import implicit_root
from agentcoord.settings.selection import Flags
from agentcoord.settings.value import Settings
from agentcoord.stores.base import Remembering
from agentcoord.stores.opening import absolute, takes_waiting

if TYPE_CHECKING:
    from agentcoord.cli.keeping import Keeping


def flags_of(words: Words) -> Flags:
    """Pick the selecting options that were given."""
    return Flags(
        state_root=words.text("state_root"),
        api_url=words.text("api_url"),
        backend=words.text("backend"),
        ref=words.text("ref"),
        ignore_user_config=words.flag("ignore_user_config"),
    )


@asynccontextmanager
async def _context(
    settings: Settings, invocation: Invocation, output: Output, *, may_wait: bool = False
) -> AsyncGenerator[Context]:
    """Open the selected store for an operation, whose notices go where this command's lines go.

    With `may_wait`, what it writes may be queued where the backend does not answer.
    """
    selected = settings.selected
    outbox = invocation.outbox(selected) if may_wait and invocation.outbox is not None else None
    async with open_answering(selected, invocation) as store:
        yield Context(
            store=store,
            now=invocation.now,
            random=invocation.random,
            identity=settings.identity,
            notices=output.stderr,
            asked=output.asked,
            again=invocation.again,
            aside=invocation.aside if invocation.snapshot is None and takes_waiting(selected) else here,
            outbox=outbox,
        )


async def _claim(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.claims import hints_of_claim, render_claim
    from agentcoord.operations.claims import Claimed, claim

    usage.require_options(words)
    request, keeping = request_of(words), _keeping(words, settings, invocation)
    async with _context(settings, invocation, output) as context:
        if keeping is not None:
            request = await keeping.claiming(context, request)
        result = await claim(context, request)
        if keeping is not None and isinstance(result, Claimed):
            await keeping.beating(context, result.record)
    more: Document = {}
    if keeping is not None and isinstance(result, Claimed):
        more = keeping.hold(result.record, result.fence)
    render_claim(result, output, json=words.flag("json"), more=more)
    if keeping is not None:
        keeping.say(output, json=words.flag("json"))
    if invocation.terminal.notices and isinstance(result, Claimed):
        output.stderr += hints_of_claim(result)


def _keeping(words: Words, settings: Settings, invocation: Invocation) -> "Keeping | None":
    """Prepare to have the daemon keep what is about to be written, if that was asked for."""
    if not words.flag("keep"):
        return None
    from agentcoord.cli.keeping import Keeping

    return Keeping(words, settings, invocation)


async def _release(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.claims import render_release
    from agentcoord.operations.claims import release

    usage.require_options(words)
    request = request_of(words)
    async with _context(settings, invocation, output) as context:
        result = await release(context, request)
    render_release(result, request, output, json=words.flag("json"))
    if result.closed is not None:
        hint_at_machine(result.closed, invocation, output)


async def _verify(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.standing import render_standing
    from agentcoord.operations.standing import verify

    usage.require_options(words)
    request = request_of(words)
    async with _context(settings, invocation, output) as context:
        standing = await verify(context, request)
    render_standing(standing, request, output, json=words.flag("json"))


async def _run(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.running import run_under_lease

    usage.require_options(words)
    request = request_of(words)
    if not invocation.own:
        raise StoreError("run starts a program, and so does its work in the caller's own process only")
    run_under_lease(request, words.tail, settings, invocation, output, json=words.flag("json"))


async def _heartbeat(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.records import render_heartbeat
    from agentcoord.operations.heartbeats import heartbeat

    usage.require_options(words)
    request, keeping = request_of(words), _keeping(words, settings, invocation)
    async with _context(settings, invocation, output, may_wait=keeping is None) as context:
        result = await heartbeat(context, request)
    more = {} if keeping is None else keeping.hold(result.record, None)
    render_heartbeat(result, output, json=words.flag("json"), more=more)
    if keeping is not None:
        keeping.say(output, json=words.flag("json"))


async def _register_batch(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.reading import content
    from agentcoord.cli.render.records import render_batch
    from agentcoord.operations.batches import BatchRequest, register_batch

    usage.require_options(words)
    asked = request_of(words)
    manifest = await content(asked.file, "batch manifest", invocation)
    prompt = None
    if asked.launch_prompt is not None:
        prompt = await content(asked.launch_prompt, "launch prompt", invocation, stdin=True)
    request = BatchRequest(manifest=manifest, batch_id=asked.batch_id, launch_prompt=prompt, synthetic=asked.synthetic)
    async with _context(settings, invocation, output) as context:
        result = await register_batch(context, request)
    render_batch(result, output, json=words.flag("json"))


async def _record_event(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.records import render_closing, render_event
    from agentcoord.cli.requests import ClosingRequest
    from agentcoord.operations.closeout import record_closing
    from agentcoord.operations.events import record_event

    usage.require_options(words)
    request = request_of(words)
    async with _context(settings, invocation, output, may_wait=not isinstance(request, ClosingRequest)) as context:
        if isinstance(request, ClosingRequest):
            closed = await record_closing(context, request.batch_id, request.payload)
            render_closing(closed, request.payload, output, json=words.flag("json"))
            hint_at_machine(closed, invocation, output)
        else:
            render_event(await record_event(context, request), output, json=words.flag("json"))


async def _status(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.replica import say_label
    from agentcoord.cli.render.status import status_json, status_text
    from agentcoord.operations.status import status

    texts = None
    async with _context(settings, invocation, output) as context:
        seen = await status(context, request_of(words))
        if seen.scope["kind"] == "all" and isinstance(context.store, Remembering):
            texts = context.store.texts
    hint_at_root(settings, invocation, output)
    label = label_of(words, invocation)
    if words.flag("json"):
        output.answer = status_json(seen, texts, label)
        return
    if invocation.terminal.person and not words.flag("plain"):
        from agentcoord.cli.render.board import board

        output.add(board(seen, invocation.now(), invocation.terminal))
    else:
        output.add(status_text(seen))
    say_label(label, output)


async def _log(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.trail import render_sync, render_trail
    from agentcoord.operations.mirror import sync_mirror
    from agentcoord.operations.trail import read_trail, require_query

    json = words.flag("json")
    request = request_of(words)
    require_query(request, json=json)
    if request.sync:
        root = absolute(_mirror_root(settings, invocation), invocation.cwd)
        async with _context(settings, invocation, output) as context:
            synced = await sync_mirror(context, request, root, umask=invocation.behalf.umask)
        render_sync(synced, output, json=json)
        return
    async with _context(settings, invocation, output) as context:
        trail = await read_trail(context, request)
    hint_at_root(settings, invocation, output)
    render_trail(trail, output, json=json, label=label_of(words, invocation))


def _mirror_root(settings: Settings, invocation: Invocation) -> str:
    """Find where the mirror is: with the records, or else where this machine would keep some. Raises StoreError."""
    selected = settings.selected
    root = selected.root if selected.kind == "local" else None
    root = root or settings.status_root or implicit_root(invocation.env)
    if root is None:
        raise StoreError(
            "cannot determine local state root; set XDG_STATE_HOME or HOME to an absolute path, or pass --state-root"
        )
    return root


async def _resume(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.resume import render_resume
    from agentcoord.cli.resuming import gather

    request = request_of(words)
    async with _context(settings, invocation, output) as context:
        result = await gather(context, request, invocation)
    render_resume(result, output, invocation.now(), invocation.terminal, json=words.flag("json"))


async def _watch(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.watching import watch

    watch(words, settings, invocation, output)


async def _batch_audit(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.audit import render_audit
    from agentcoord.operations.audit import audit

    usage.require_options(words)
    async with _context(settings, invocation, output) as context:
        result = await audit(context, request_of(words).batch_id)
    hint_at_root(settings, invocation, output)
    render_audit(result, output, json=words.flag("json"), label=label_of(words, invocation))


async def _attention(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.attending import attend
    from agentcoord.cli.reading import content
    from agentcoord.protocol.attention import INPUT_BYTES, read_attention

    usage.require_options(words)
    request = request_of(words)
    if words.command == "attention-upsert":
        path = request.record_json
        data = await content(path, "attention record", invocation, stdin=True, most=INPUT_BYTES)
        request = read_attention(data)
    async with _context(settings, invocation, output) as context:
        await attend(context, words, request, output, invocation.terminal, label_of(words, invocation))
    if words.command in ("attention", "attention-list"):
        hint_at_root(settings, invocation, output)


async def _gc(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.retention import render_retention
    from agentcoord.cli.retaining import collect

    request, sync_first, notices = request_of(words), words.flag("sync_first"), invocation.terminal.notices
    async with _context(settings, invocation, output) as context:
        result, synced = await collect(
            context,
            request,
            lambda: absolute(_mirror_root(settings, invocation), invocation.cwd),
            output,
            sync_first=sync_first,
            notices=notices,
            umask=invocation.behalf.umask,
        )
    hint_at_root(settings, invocation, output)
    render_retention(result, output, json=words.flag("json"), synced=synced)


async def _version(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.render.configuration import render_version

    render_version(output, json=words.flag("json"))


async def _config(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.render.configuration import render_configuration

    if words.flag("ignore_user_config"):
        output.stderr += settings.selected.warnings
    render_configuration(settings.coordination(), output, json=words.flag("json"))


async def _config_set(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.saving import save

    await save(request_of(words), settings, invocation, output)


async def _doctor(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.examination import examination

    json = words.flag("json")
    await examination(request_of(words), settings, invocation, output, json=json, flags=flags_of(words))


async def explain_configuration(
    words: Words, settings: Settings, fault: ConfigError, invocation: Invocation, output: Output
) -> None:
    """Report on a configuration that cannot be loaded, if an explanation was asked for. Raises `fault` if not."""
    json = words.flag("json")
    if not words.flag("explain") and (json or not invocation.terminal.person):
        raise fault
    from agentcoord.cli.app import request_of
    from agentcoord.cli.explanation import explanation

    await explanation(request_of(words), settings, fault, invocation, output, json=json, flags=flags_of(words))


async def _bootstrap(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.bootstrap import bootstrap

    done = bootstrap(request_of(words), invocation.env, invocation.cwd, invocation.program)
    output.say(f"installed agent-coord -> {done.path}")
    if done.legacy is not None:
        output.say(f"removed legacy agent_coord -> {done.legacy}")
    output.say("profile update skipped" if done.profile is None else f"profile updated: {done.profile}")


async def _completion(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.completion import script

    output.page(script(words.positionals[0]))


async def _daemon(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.daemon import perform

    perform(words, invocation, output)


async def _lease(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.leases import drop, render_lanes

    json = words.flag("json")
    if words.command == "lease list":
        render_lanes(invocation, output, json=json)
    else:
        drop(words.positionals[0], invocation, output, json=json)


async def _lease_hold(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.leases import hold

    usage.require_options(words)
    async with _context(settings, invocation, output) as context:
        await hold(context, words, settings, invocation, output)


async def _outbox(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.outbox import perform

    perform(words, invocation, output)


PERFORMERS: dict[str, Callable[[Words, Settings, Invocation, Output], Coroutine[Any, Any, None]]] = {
    "claim": _claim,
    "release": _release,
    "run": _run,
    "verify": _verify,
    "heartbeat": _heartbeat,
    "register-batch": _register_batch,
    "record-event": _record_event,
    "status": _status,
    "log": _log,
    "resume": _resume,
    "batch-audit": _batch_audit,
    "watch": _watch,
    "attention": _attention,
    "attention-upsert": _attention,
    "attention-resolve": _attention,
    "attention-get": _attention,
    "attention-list": _attention,
    "gc": _gc,
    "version": _version,
    "config": _config,
    "config set": _config_set,
    "doctor": _doctor,
    "bootstrap": _bootstrap,
    "completion": _completion,
    **{f"daemon {word}": _daemon for word in GROUPS["daemon"]},
    "lease list": _lease,
    "lease hold": _lease_hold,
    "lease drop": _lease,
    **{f"outbox {word}": _outbox for word in GROUPS["outbox"]},
}
