"""The one path of every command: read the words, choose the backend, do it, say what came of it.

Nothing here prints, exits or looks around: what there is comes in as an Invocation, and what came of
it goes out as an Output, so that whoever asked need not be this process.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from agentcoord.cli import usage
from agentcoord.cli.commands import BY_COMMAND
from agentcoord.cli.help import command_help, main_help
from agentcoord.cli.options import Words, asks_for_stack, read_words, require_utf8
from agentcoord.cli.output import Invocation, Output, one_line
from agentcoord.errors import ConfigError, CoordError, StackUsageError, StoreError, UsageError
from agentcoord.operations.context import Context
from agentcoord.protocol.batches import UNKNOWN
from agentcoord.settings.selection import Flags, Selection, SelectionError
from agentcoord.settings.value import Settings, load, without_user_file
from agentcoord.stores.opening import absolute, open_local, open_root, open_store

if TYPE_CHECKING:
    from agentcoord.operations.closeout import Closed

_T = TypeVar("_T")
_HELP = ("help", "-h", "--help")
_INSTALL_ROOT = __file__.rsplit("/", 4)[0]
"""Where this code was put: a checkout that carries its own state serves reads when nothing is selected."""

COMPLETE = "__complete"
"""What completion code in a shell calls; not a command for people."""


def settle(steps: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never waits for anything, without an event loop.

    In-process commands on local files are such: starting a loop would cost more than the command.
    """
    try:
        steps.send(None)
    except StopIteration as done:
        return done.value
    steps.close()
    raise RuntimeError("a command on local files waited for something")


async def run(invocation: Invocation) -> Output:
    """Run one command. Never raises for anything that the caller, the state or the system did."""
    output = Output()
    try:
        await _run(invocation, output)
    except CoordError as error:
        said = error.selection.said if isinstance(error, SelectionError) else ()
        output.stderr += [*said, str(error)]
        output.exit = error.exit
    output.stderr = [one_line(line) for line in output.stderr]
    return output


async def _run(invocation: Invocation, output: Output) -> None:
    argv = list(invocation.argv)
    if not argv or argv[0] in _HELP:
        output.page(main_help())
        return
    command, rest = _command_of(argv)
    if command == COMPLETE:
        from agentcoord.cli.completion import complete

        output.add(complete(rest, invocation))
    elif command == "demo":
        await _demo(rest, invocation, output)
    elif command == "doctor" and asks_for_stack(rest):
        await _stack(rest, invocation, output)
    else:
        words = read_words(command, rest)
        if words.help:
            output.page(command_help(command))
            return
        usage.require_coherent(words)
        try:
            settings = _settings(words, invocation)
        except ConfigError as error:
            if command != "doctor":
                raise
            await _explain_configuration(words, error, invocation, output)
            return
        if settings.selection is not None and command != "config":
            output.stderr += settings.selection.said
            _hint_at_relative_root(settings.selection, invocation, output)
        await _PERFORMERS.get(command, _absent)(words, settings, invocation, output)


def _hint_at_relative_root(selection: Selection, invocation: Invocation, output: Output) -> None:
    """Tell a person whose agents would miss each other from different directories."""
    root = selection.root
    if invocation.terminal.notices and root is not None and not root.startswith("/"):
        output.stderr.append(
            f"notice: the state root {root} is relative: agents in other directories use another one; give it absolute"
        )


def _command_of(argv: list[str]) -> tuple[str, list[str]]:
    name, rest = argv[0], argv[1:]
    if name == "config" and rest[:1] in (["show"], ["set"]):
        return ("config set" if rest[0] == "set" else "config"), rest[1:]
    if name == COMPLETE or (name in BY_COMMAND and name != "config set"):
        return name, rest
    require_utf8([name])
    raise UsageError(f"unknown command: {name}")


def _flags(words: Words) -> Flags:
    return Flags(
        state_root=words.text("state_root"),
        api_url=words.text("api_url"),
        backend=words.text("backend"),
        ref=words.text("ref"),
        ignore_user_config=words.flag("ignore_user_config"),
    )


def _settings(words: Words, invocation: Invocation, *, stack: bool = False) -> Settings:
    return load(
        invocation.env,
        command=words.command,
        flags=_flags(words),
        argv_selectors=words.selectors,
        stack_json=stack,
        sync=words.flag("sync"),
        install_root=_INSTALL_ROOT,
    )


def _context(settings: Settings, invocation: Invocation, output: Output) -> Context:
    """Open the selected store for an operation, whose notices go where this command's lines go."""
    return Context(
        store=open_store(settings.selected, invocation.cwd),
        now=invocation.now,
        random=invocation.random,
        identity=settings.identity,
        notices=output.stderr,
    )


# What each command does ----------------------------------------------------------------------------


async def _claim(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.claims import hints_of_claim, render_claim
    from agentcoord.operations.claims import Claimed, claim

    usage.require_options(words)
    context = _context(settings, invocation, output)
    result = await claim(context, request_of(words))
    render_claim(result, output, json=words.flag("json"))
    if invocation.terminal.notices and isinstance(result, Claimed):
        output.stderr += hints_of_claim(result)


async def _release(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.claims import render_release
    from agentcoord.operations.claims import release

    usage.require_options(words)
    request = request_of(words)
    result = await release(_context(settings, invocation, output), request)
    render_release(result, request, output, json=words.flag("json"))
    if result.closed is not None:
        _hint_at_machine(result.closed, invocation, output)


def _hint_at_machine(closed: "Closed", invocation: Invocation, output: Output) -> None:
    """Tell a person, while it can still be mended for the next lane, why an audit will not count this closeout."""
    if invocation.terminal.notices and closed.event_created and closed.event["closed_by"]["machine"] == UNKNOWN:
        output.stderr.append(
            "notice: closed by an unknown machine, which batch-audit does not accept as a closeout; "
            "set AGENT_COORD_MACHINE_ID or pass --host before closing the next lane"
        )


async def _heartbeat(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.records import render_heartbeat
    from agentcoord.operations.heartbeats import heartbeat

    usage.require_options(words)
    result = await heartbeat(_context(settings, invocation, output), request_of(words))
    render_heartbeat(result, output, json=words.flag("json"))


async def _register_batch(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.records import render_batch
    from agentcoord.operations.batches import BatchRequest, register_batch

    usage.require_options(words)
    asked = request_of(words)
    manifest = _content(asked.file, "batch manifest", invocation)
    prompt = None
    if asked.launch_prompt is not None:
        prompt = _content(asked.launch_prompt, "launch prompt", invocation, stdin=True)
    request = BatchRequest(manifest=manifest, batch_id=asked.batch_id, launch_prompt=prompt, synthetic=asked.synthetic)
    result = await register_batch(_context(settings, invocation, output), request)
    render_batch(result, output, json=words.flag("json"))


def _content(path: str, what: str, invocation: Invocation, *, stdin: bool = False) -> bytes:
    """Read a file that the caller named, with the caller's own rights."""
    try:
        return invocation.stdin() if stdin and path == "-" else invocation.read_file(absolute(path, invocation.cwd))
    except OSError as error:
        raise StoreError(f"{what} unreadable: {path}: {error.strerror or error}") from error
    except ValueError as error:  # a path with a NUL in it
        raise StoreError(f"{what} unreadable: {path!r}: {error}") from error


async def _record_event(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.records import render_closing, render_event
    from agentcoord.cli.requests import ClosingRequest
    from agentcoord.operations.closeout import record_closing
    from agentcoord.operations.events import record_event

    usage.require_options(words)
    request, context = request_of(words), _context(settings, invocation, output)
    if isinstance(request, ClosingRequest):
        closed = await record_closing(context, request.batch_id, request.payload)
        render_closing(closed, request.payload, output, json=words.flag("json"))
        _hint_at_machine(closed, invocation, output)
    else:
        render_event(await record_event(context, request), output, json=words.flag("json"))


async def _status(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.status import status_json, status_text
    from agentcoord.operations.status import status

    context = _context(settings, invocation, output)
    seen = await status(context, request_of(words))
    _hint_at_root(settings, invocation, output)
    if words.flag("json"):
        output.answer = status_json(seen)
    elif invocation.terminal.person and not words.flag("plain"):
        from agentcoord.cli.render.board import board

        output.add(board(seen, invocation.now(), invocation.terminal))
    else:
        output.add(status_text(seen))


def _hint_at_root(settings: Settings, invocation: Invocation, output: Output) -> None:
    """Tell a person that nothing was found because nothing is there: a misspelt root looks like an empty one."""
    if not invocation.terminal.notices:
        return
    local = open_local(settings.selected, invocation.cwd)
    if local is not None and not local.exists():
        output.stderr.append(f"notice: the state root does not exist: {local.root}")


async def _batch_audit(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.render.audit import render_audit
    from agentcoord.operations.audit import audit

    usage.require_options(words)
    context = _context(settings, invocation, output)
    result = await audit(context, request_of(words).batch_id)
    _hint_at_root(settings, invocation, output)
    render_audit(result, output, json=words.flag("json"))


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

    save(request_of(words), settings, invocation, output)


async def _doctor(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    from agentcoord.cli.app import request_of
    from agentcoord.cli.examination import examination

    json = words.flag("json")
    await examination(request_of(words), settings, invocation, output, json=json, flags=_flags(words))


async def _explain_configuration(words: Words, fault: ConfigError, invocation: Invocation, output: Output) -> None:
    """Report on a configuration that cannot be loaded, if an explanation was asked for. Raises `fault` if not."""
    json = words.flag("json")
    if not words.flag("explain") and (json or not invocation.terminal.person):
        raise fault
    from msgspec.structs import replace

    from agentcoord.cli.app import request_of
    from agentcoord.cli.explanation import explanation
    from agentcoord.settings.securefile import MISSING

    flags = _flags(words)
    try:  # what `config show` would say, which asks for less than a doctor
        settings = load(invocation.env, command="config", flags=flags, argv_selectors=words.selectors)
    except CoordError:
        settings = without_user_file(invocation.env, flags, selecting=invocation.env)
        if flags.ignore_user_config:
            settings = replace(settings, user_file_use="bypassed")
        elif fault.finding == MISSING:
            settings = replace(settings, user_file_use="absent")
    await explanation(request_of(words), settings, fault, invocation, output, json=json, flags=flags)


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


async def _absent(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    raise StoreError(f"agent-coord {words.command} is not part of this release; nothing was read or written")


_PERFORMERS: dict[str, Callable[[Words, Settings, Invocation, Output], Awaitable[None]]] = {
    "claim": _claim,
    "release": _release,
    "heartbeat": _heartbeat,
    "register-batch": _register_batch,
    "record-event": _record_event,
    "status": _status,
    "batch-audit": _batch_audit,
    "version": _version,
    "config": _config,
    "config set": _config_set,
    "doctor": _doctor,
    "bootstrap": _bootstrap,
    "completion": _completion,
}


# The two that take another way in ------------------------------------------------------------------


async def _demo(rest: list[str], invocation: Invocation, output: Output) -> None:
    """Play the walkthrough on a store that is gone afterwards; no setting of any kind is read."""
    require_utf8(rest)
    stream = rest[: rest.index("--")] if "--" in rest else rest
    if "-h" in stream or "--help" in stream:
        output.page(command_help("demo"))
        return
    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    import tempfile

    from agentcoord.operations.demo import walk

    try:
        with tempfile.TemporaryDirectory(prefix="agent-coord-demo-", dir=invocation.env.get("TMPDIR") or None) as root:
            lines = await walk(open_root(root), invocation.random)
    except OSError as error:
        raise StoreError(
            f"demo setup failed: {error.strerror or error}: {error.filename or 'temporary directory'}"
        ) from error
    for line in lines:
        output.say(line)


async def _stack(rest: list[str], invocation: Invocation, output: Output) -> None:
    """Make the component report; every usage error has an exit status of its own, and nothing else is said."""
    from agentcoord.cli.examination import require_stack, stack_report

    words = Words(command="doctor")
    try:
        words = read_words("doctor", rest)
        if words.help:
            output.page(command_help("doctor"))
            return
        usage.require_coherent(words)
        require_stack(words)
        settings, fault = _settings(words, invocation, stack=True), None
    except UsageError as error:
        raise StackUsageError(str(error)) from error
    except CoordError as error:
        settings, fault = without_user_file(invocation.env, _flags(words)), error
    await stack_report(words, settings, fault, invocation, output)
