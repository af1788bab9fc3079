"""`agent-coord run`: a command under a lease, which is kept while the command runs and given back when it is gone.

Two things go on at once. The main thread waits for signals and for the command; jobs in threads of their own talk to
the backend, where any step may hang, so that neither a signal nor the end of a lease ever waits for the backend.
"""

import gc
import os
import re
import signal
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from agentcoord.cli.children import NOT_EXECUTABLE, NOT_FOUND, PAUSING, Child, Ended, Paused
from agentcoord.cli.holding import LAST_ATTEMPT, TICK, Backend, Lease
from agentcoord.cli.output import Invocation, Output
from agentcoord.cli.render.claims import render_claim
from agentcoord.cli.requests import RunRequest
from agentcoord.cli.signalling import Signals
from agentcoord.cli.telling import tell
from agentcoord.clock import boot
from agentcoord.errors import CoordError, Exit, StoreError
from agentcoord.operations.claims import Refused
from agentcoord.operations.context import Context
from agentcoord.operations.keeping import Renewed, give_back, mark_dead, take
from agentcoord.protocol.claims import Wanted
from agentcoord.protocol.keeping import Finished, Lane, Lost
from agentcoord.settings import environment
from agentcoord.settings.value import Settings
from agentcoord.stores.opening import absolute

_PATIENCE = 20.0
"""Seconds that the last word to the backend may take; after that the lease runs out by itself."""

_IN_VAIN = 3.0
"""Seconds for it after a lease was lost, since there is hardly anything left to say."""

_URGED = 2.0
"""Seconds for it once a signal asks for the end."""


def run_under_lease(
    request: RunRequest,
    command: Sequence[str],
    settings: Settings,
    invocation: Invocation,
    output: Output,
    *,
    json: bool,
) -> None:
    """Take the lease, run the command while it is kept, and say how it ended."""
    gc.enable()  # off for commands that live for a moment; this one may live for days
    wanted = _named(request, invocation)
    tell(output)
    with Signals() as signals:
        backend = Backend(settings, invocation, output, signals)
        taken = _acquire(backend, wanted, output)
        if isinstance(taken, Refused):
            render_claim(taken, output, json=json)
        elif taken is not None:
            _run(Lease(backend, wanted, *taken), request, command, output)


def _named(request: RunRequest, invocation: Invocation) -> Wanted:
    """Complete what is asked for by an instance, without which two runs of one agent could not be told apart."""
    wanted = request.wanted
    metadata = {"instance_id": invocation.random(8).hex()} | wanted.metadata
    agent_id = request.agent_id
    if agent_id is None:
        node = re.sub(r"[^A-Za-z0-9_-]+", "-", invocation.node).strip("-") or "host"
        agent_id = f"run-{node[:32]}-{invocation.random(4).hex()}"
    return replace(wanted, agent_id=agent_id, metadata=metadata)


def _acquire(backend: Backend, wanted: Wanted, output: Output) -> tuple[Lane, Renewed] | Refused | None:
    """Take the lease; None when a signal came first, which `output` then says. Raises CoordError."""
    job = backend.begin(partial(take, wanted=wanted))
    done = backend.within(job, float("inf"), urged=LAST_ATTEMPT)
    if backend.asked is None:
        return job.answer()
    output.exit = 128 + backend.asked
    if not done:
        output.stderr.append(
            f"interrupted while claiming, nothing was run; if {wanted.repo}#{wanted.target} is claimed by "
            f"{wanted.agent_id} now: {_release_command(wanted)}"
        )
        return None
    taken = job.answer()
    if not isinstance(taken, Refused):
        _finish(Lease(backend, wanted, *taken), output)
    return None


def _run(lease: Lease, request: RunRequest, command: Sequence[str], output: Output) -> None:
    try:
        child = Child(command, _environment(lease))
    except (OSError, ValueError) as error:  # a NUL among the words is a ValueError
        said = error.strerror if isinstance(error, OSError) else str(error)
        output.exit = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        output.stderr.append(f"cannot run {command[0]}: {said}; the lease is given back")
        _finish(lease, output)
        return
    try:
        ended = _supervise(lease, child)
    except BaseException:  # a fault of ours must not leave it running under a lease that nobody keeps
        _stop(lease, child, request.grace)
        raise
    if ended is None:
        ended = _stop(lease, child, request.grace)
        output.exit = Exit.REFUSED
        output.stderr.append(f"{lease.lost}; {os.path.basename(command[0])} was stopped")
        _finish(lease, output, quiet=True)
        return
    output.exit = ended.status
    if request.on_exit != "keep":
        done = request.on_exit == "done" and ended.status == 0
        _finish(lease, output, terminal="done" if done else None, lane=request.lane)
    if ended.signal == signal.SIGINT and child.has_terminal:
        # Without us, Ctrl-C would have met all that runs in the foreground, such as the script that called us. A shell
        # then asks how we ended: only one who died of it, too, makes it give up the script.
        tell(output)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.killpg(0, signal.SIGINT)


def _environment(lease: Lease) -> Mapping[str, str]:
    """Give the command our environment, with the lease, and the backend where only our options name it."""
    settings, invocation, wanted = lease.backend.settings, lease.backend.invocation, lease.wanted
    env = dict(invocation.env)
    told = {
        environment.FENCE: lease.fence,
        environment.AGENT_ID: wanted.agent_id,
        environment.INSTANCE_ID: lease.lane.instance,
        environment.REPO: wanted.repo,
        environment.TARGET: wanted.target,
        environment.BATCH_ID: wanted.batch_id,
    }
    identity = settings.identity
    if identity.machine_id is not None:
        told[environment.MACHINE_ID] = identity.machine_id
    selected = settings.selected
    if selected.backend_source == "cli":
        root = None if selected.root is None else absolute(selected.root, invocation.cwd)
        told |= {environment.STATE_ROOT: root, environment.API_URL: selected.url, environment.BACKEND: selected.repo}
        if selected.repo is not None:
            told[environment.REF] = selected.ref
    for name, value in told.items():
        if value is None:
            env.pop(name, None)  # such as that of a run around this one
        else:
            env[name] = value
    return env


def _supervise(lease: Lease, child: Child) -> Ended | None:
    """Keep the lease while the command runs; None: it runs still, and the lease is lost."""
    while True:
        for number in lease.backend.signals.wait(lease.sleep()):
            _pass_on(child, number)
        state = child.look()
        if isinstance(state, Ended):
            return state
        if isinstance(state, Paused) and state.signal in PAUSING:
            child.stay_with(state.signal)
        lease.step()
        if lease.lost:
            return None


def _pass_on(child: Child, number: signal.Signals) -> None:
    if number == signal.SIGCONT:
        child.go_on()
    elif number != signal.SIGCHLD:
        # To the program alone what only one that expects it survives, to all of its group what a terminal sends to all.
        child.send(number, alone=number in (signal.SIGUSR1, signal.SIGUSR2))


def _stop(lease: Lease, child: Child, grace: float) -> Ended:
    """Stop the command and all of its group: TERM, and KILL when the grace is over."""
    child.send(signal.SIGTERM)
    child.send(signal.SIGCONT)  # or who is stopped would not hear of it
    kills = boot() + grace
    killed = False
    while True:
        ended = child.look()
        if isinstance(ended, Ended) and not child.leaves_something():
            return ended
        left = kills - boot()
        if left <= 0:
            if killed:  # not even that helps against a device that does not answer
                return ended if isinstance(ended, Ended) else Ended(128 + signal.SIGKILL, signal.SIGKILL)
            child.send(signal.SIGKILL)
            kills, killed = boot() + TICK, True
        # The end of the command wakes us, that of what it started does not.
        for number in lease.backend.signals.wait(min(max(left, 0.02), 0.05 if isinstance(ended, Ended) else TICK)):
            _pass_on(child, number)


def _finish(
    lease: Lease, output: Output, *, terminal: str | None = None, lane: str | None = None, quiet: bool = False
) -> None:
    """Give the lease back and end the heartbeat; if that fails, say what to do."""
    lease.settle(LAST_ATTEMPT if not quiet else 1.0)
    job = lease.backend.begin(partial(_last_word, kept=lease.lane, terminal=terminal, lane=lane))
    fault: object = "the backend did not answer in time"
    if lease.backend.within(job, _PATIENCE if not quiet else _IN_VAIN, urged=_URGED):
        try:
            over = job.answer()
        except CoordError as error:
            fault = error
        else:
            if isinstance(over, Lost) and not quiet:
                output.exit = Exit.REFUSED
                output.stderr.append(f"FENCE_LOST: {over.why}; the command had ended")
            return
    if not quiet:
        command = _release_command(lease.wanted, terminal=terminal, lane=lane)
        output.stderr.append(f"the lease on {lease.item} was not given back: {fault}; do it yourself: {command}")


async def _last_word(context: Context, kept: Lane, *, terminal: str | None, lane: str | None) -> Lost | Finished | None:
    over: Lost | Finished | None = None
    fault: CoordError | None = None
    try:
        over = await give_back(context, kept, terminal=terminal, lane=lane)
    except CoordError as error:
        fault = error
    try:
        await mark_dead(context, kept)
    except StoreError as error:
        fault = fault or error
    if fault is not None:
        raise fault
    return over


def _release_command(wanted: Wanted, *, terminal: str | None = None, lane: str | None = None) -> str:
    words = ["agent-coord", "release", "--agent-id", wanted.agent_id, "--repo", wanted.repo, "--target", wanted.target]
    words += ["--terminal", terminal] if terminal else []
    words += ["--lane", lane] if lane else []
    return " ".join(words)
