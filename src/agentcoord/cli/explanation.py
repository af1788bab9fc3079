"""`doctor --explain`: the report that goes on after the first fault, from the settings to what is printed."""

import os
from contextlib import AsyncExitStack
from datetime import timedelta

from agentcoord.cli.examination import backend_of, file_system_of
from agentcoord.cli.inspection import inspect
from agentcoord.cli.output import Invocation, Output
from agentcoord.cli.render.doctor import render_report
from agentcoord.cli.requests import DoctorRequest
from agentcoord.errors import ConfigError, CoordError, Exit
from agentcoord.operations.doctor.explaining import Ground, explain
from agentcoord.operations.doctor.findings import (
    LEFTOVER_MINUTES,
    Finding,
    of_no_machine,
    of_relative_root,
    of_split_brain,
    of_tilde_root,
)
from agentcoord.operations.doctor.report import plain_report
from agentcoord.protocol.paths import is_segment
from agentcoord.settings.environment import STATE_ROOT, STATUS_STATE_ROOT
from agentcoord.settings.provenance import provenance
from agentcoord.settings.securefile import read_private
from agentcoord.settings.selection import Flags, SelectionError, shown_address, split_brain_refusal
from agentcoord.settings.value import Settings, fleet_file
from agentcoord.stores.base import Store
from agentcoord.stores.filesystem import require_room
from agentcoord.stores.opening import absolute, open_local, open_store


async def explanation(
    request: DoctorRequest,
    settings: Settings,
    fault: ConfigError | None,
    invocation: Invocation,
    output: Output,
    *,
    json: bool,
    flags: Flags,
) -> None:
    """Report all that can be found out, then end as the plain doctor does; `fault` is why nothing was selected."""
    selection = settings.selected
    faults: list[CoordError] = [] if fault is None else [fault]
    store = ground = None
    async with AsyncExitStack() as opened:
        if fault is None or selection.root is not None:  # a root that needs no user file can be looked at without one
            store, ground, refused = await _opened(settings, invocation, opened, create=fault is None)
            faults += [] if refused is None else [refused]
        report, first = await explain(
            plain_report(
                backend_of(selection, invocation.cwd, shown=shown_address),
                settings.identity,
                deep=request.deep,
                prefix=request.prefix,
                split_brain_file=selection.split_brain_file,
            ),
            store,
            ground,
            faults,
            settings=provenance(
                invocation.env,
                settings.saved_keys,
                flags,
                settings,
                cwd=invocation.cwd,
                fleet_file=None if flags.ignore_user_config else fleet_file(invocation.env, dict(settings.consumers)),
            ),
            prefix=request.prefix,
            hints=_hints(settings, invocation),
            daemon=inspect(invocation.env),
        )
    render_report(report, output, json=json)
    if first is not None:
        said = first.selection.said if isinstance(first, SelectionError) else ()
        output.stderr += [*said, str(first)]
        output.exit = first.exit
    elif selection.split_brain_file is not None:
        output.stderr.append(split_brain_refusal(selection.split_brain_file))
        output.exit = Exit.UNKNOWN


async def _opened(
    settings: Settings, invocation: Invocation, opened: AsyncExitStack, *, create: bool
) -> tuple[Store | None, Ground | None, CoordError | None]:
    """Open the backend, and a local root to be looked at as files; or say why not."""
    selection = settings.selected
    try:
        store = await opened.enter_async_context(open_store(selection, invocation.cwd, invocation.env))
        local = open_local(selection, invocation.cwd)
    except CoordError as error:
        return None, None, error
    if local is None:
        return store, None, None
    if selection.implicit and not create and not local.exists():
        return None, None, None  # what the plain doctor would have made is not missing
    before = (invocation.now() - timedelta(minutes=LEFTOVER_MINUTES)).timestamp()
    ground = Ground(
        root=local.root,
        survey=lambda: local.survey(before=before),
        file_system=lambda: file_system_of(selection, invocation),
        room=lambda: require_room(local.root, invocation.random),
        aside=local.aside,
    )
    try:
        if selection.implicit and create:
            local.create_root()
    except CoordError as error:
        return None, ground, error
    return store, ground, None


def _hints(settings: Settings, invocation: Invocation) -> list[Finding]:
    selection, cwd = settings.selected, invocation.cwd
    hints: list[Finding] = []
    # What a user file that was not loaded may say is not to be called missing.
    if settings.identity.machine_id is None and settings.user_file_use != "not_loaded":
        hints.append(of_no_machine(None if settings.user_file is None else _machine_name(invocation.node)))
    root = selection.root
    if root is not None and not root.startswith("/") and cwd:
        if root.startswith("~"):
            hints.append(of_tilde_root(root, absolute(root, cwd)))
        else:
            named = STATUS_STATE_ROOT if selection.status_root else STATE_ROOT
            variable = named if selection.backend_source == "process_env" else None
            hints.append(of_relative_root(root, absolute(root, cwd), variable))
    if (file := selection.split_brain_file) is not None:
        hints.append(of_split_brain(split_brain_refusal(file), file, private=_is_private(file)))
    return hints


def _machine_name(node: str) -> str | None:
    """Take the name of this machine for its id; None if it cannot be one, or is every machine's."""
    everywhere = node.split(".", maxsplit=1)[0] == "localhost"
    return node if is_segment(node) and not everywhere and not node.startswith("-") else None


def _is_private(file: str) -> bool:
    """Tell whether a file is as safe to load as a user file has to be."""
    try:
        return read_private(file, explicit=True, uid=os.geteuid(), lock=False) is not None
    except ConfigError:
        return False
