"""The doctor's two reports: from the selected backend to what is printed (spec: cli §14)."""

import sys
from collections.abc import Callable
from contextlib import AsyncExitStack

from agentcoord.cli.options import Words
from agentcoord.cli.output import Invocation, Output
from agentcoord.cli.render.doctor import render_report, render_stack
from agentcoord.cli.requests import DoctorRequest
from agentcoord.errors import CoordError, Exit, StackUsageError
from agentcoord.files import printable
from agentcoord.operations.doctor.checks import require_prefix, require_stack_prefix
from agentcoord.operations.doctor.fleet import mismatch
from agentcoord.operations.doctor.report import Backend, examine
from agentcoord.operations.doctor.stack import examine_stack
from agentcoord.protocol.paths import is_repo
from agentcoord.settings.selection import Flags, Selection, redact, split_brain_refusal
from agentcoord.settings.value import Settings
from agentcoord.stores.filesystem import FileSystem, look
from agentcoord.stores.opening import absolute, open_local, open_store, settle


def backend_of(selection: Selection, cwd: str, *, shown: Callable[[str], str] = redact) -> Backend:
    """Name a selected backend for a report, the URL as far as it is `shown`."""
    root = None
    if selection.kind == "local" and selection.root is not None:
        root = printable(absolute(selection.root, cwd) if cwd else selection.root)
    return Backend(
        kind=selection.kind,
        repo=selection.repo if selection.kind == "github" else None,
        url=shown(selection.url) if selection.kind == "http" and selection.url is not None else None,
        root=root,
    )


def file_system_of(selection: Selection, invocation: Invocation) -> FileSystem | None:
    """Find out where a local state root lies; None for other backends and where nobody can tell."""
    local = open_local(selection, invocation.cwd)
    if local is None:
        return None

    def read_file(path: str) -> bytes:
        # A doctor runs in the process of whoever asks, where reading is not waited for.
        return settle(invocation.read_file(path))

    return look(local.root, read_file, invocation.random, mac=sys.platform == "darwin")


async def examination(
    request: DoctorRequest, settings: Settings, invocation: Invocation, output: Output, *, json: bool, flags: Flags
) -> None:
    """Examine the selected backend and report; a split brain is reported in full and then fails.

    A person at a terminal is told what stands behind the report, unasked.
    """
    if request.prefix is not None:
        require_prefix(request.prefix)
    if request.explain or (invocation.terminal.person and not json):
        from agentcoord.cli.explanation import explanation  # most doctors are asked by programs

        await explanation(request, settings, None, invocation, output, json=json, flags=flags)
        return
    selection = settings.selected
    async with open_store(selection, invocation.cwd, invocation.env) as store:
        if selection.implicit and (local := open_local(selection, invocation.cwd)) is not None:
            local.create_root()
        report = await examine(
            store,
            backend_of(selection, invocation.cwd),
            settings.identity,
            deep=request.deep,
            prefix=request.prefix,
            split_brain_file=selection.split_brain_file,
            file_system=lambda: file_system_of(selection, invocation),
        )
    render_report(report, output, json=json)
    if (wrong := mismatch(report.environment)) is not None:
        output.stderr.append(str(wrong))
        output.exit = wrong.exit
    if selection.split_brain_file is not None:
        output.stderr.append(split_brain_refusal(selection.split_brain_file))
        output.exit = Exit.UNKNOWN


def require_stack(words: Words) -> None:
    """Check the options of a stack report. Raises StackUsageError."""
    backend, prefix = words.text("backend"), words.text("doctor_prefix")
    if backend is not None and not is_repo(backend):
        raise StackUsageError(f"invalid backend repo: {backend}")
    if prefix is not None:
        require_stack_prefix(prefix)


async def stack_report(
    words: Words, settings: Settings, fault: CoordError | None, invocation: Invocation, output: Output
) -> None:
    """Report on the component; `fault` is why its configuration could not be trusted."""
    selection = settings.selected
    async with AsyncExitStack() as opened:
        store = None
        if fault is None:
            try:
                store = await opened.enter_async_context(open_store(selection, invocation.cwd, invocation.env))
            except CoordError as error:
                fault = error
        report = await examine_stack(
            store,
            fault,
            backend_of(selection, invocation.cwd),
            settings.identity,
            deep=words.flag("deep"),
            prefix=words.text("doctor_prefix"),
        )
    render_stack(report, output)
