"""The one path of every command: read the words, choose the backend, do it, say what came of it.

Nothing here prints, exits or looks around: what there is comes in as an Invocation, and what came of
it goes out as an Output, so that whoever asked need not be this process.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from agentcoord.cli import usage
from agentcoord.cli.commands import BY_COMMAND, GROUPS, named
from agentcoord.cli.help import command_help, main_help
from agentcoord.cli.options import Words, asks_for_stack, read_words, require_utf8
from agentcoord.cli.output import Invocation, Output, one_line
from agentcoord.cli.performing import PERFORMERS, explain_configuration, flags_of
from agentcoord.cli.replica import asks_for_age, recalled, require_replica
from agentcoord.errors import ConfigError, CoordError, StackUsageError, StoreError, UsageError
from agentcoord.files import discreet
from agentcoord.operations.context import Aside
from agentcoord.settings.selection import Selection, SelectionError
from agentcoord.settings.value import Settings, load_as_far, without_user_file
from agentcoord.stores.opening import open_root, require_address, settle, takes_waiting
from agentcoord.wire import ANSWER_BYTES

_T = TypeVar("_T")
_WITH_JOBS = ("run", "watch")
"""Commands whose threads wait for the backend, since their process is there for signals, a child's end or keys."""
_HELP = ("help", "-h", "--help")
_INSTALL_ROOT = __file__.rsplit("/", 4)[0]
"""Where this code was put: a checkout that carries its own state serves reads when nothing is selected."""

COMPLETE = "__complete"
"""What completion code in a shell calls; not a command for people."""


def run_alone(invocation: Invocation) -> Output:
    """Run one command in a process that has no event loop, and start one only if there is something to wait for.

    Never raises, as `run`.
    """
    output = Output()
    with _answering(output):
        task = _begin(invocation, output)
        if task is not None and task.waits:
            from agentcoord.cli.waiting import NoLoop, wait_for  # an event loop is more to load than most commands do

            try:
                wait_for(task.steps)
            except NoLoop as error:
                if invocation.outbox is None or task.chosen is None:
                    raise
                cut_off, chosen = replace(invocation, cut_off=error), task.chosen
                settle(PERFORMERS[chosen.words.command](chosen.words, chosen.settings, cut_off, output))
        elif task is not None:
            settle(task.steps())
    return output


async def run(invocation: Invocation) -> Output:
    """Run one command. Never raises for anything that the caller, the state or the system did."""
    output = Output()
    with _answering(output):
        task = _begin(invocation, output)
        if task is not None:
            await task.steps()
    return output


class Vast(Exception):
    """An answer is more than can be kept for somebody else."""


class Chosen(Struct, frozen=True):
    """What a command is going to do, and with what: its words, and the settings that name its backend."""

    words: Words
    settings: Settings


Agree = Callable[[Chosen | None], Awaitable[None]]
"""Asked before anything is done, with what was chosen; None when the words were already enough for the answer."""


async def run_for(invocation: Invocation, aside: Aside, agree: Agree) -> Output:
    """Run one command for somebody else, in an event loop that has others to serve.

    Files are read and written `aside`; a remote backend is waited for in the loop. Raises what `agree` raises, and
    Vast for an answer of more than ANSWER_BYTES.
    """
    output = Output()
    task = None
    invocation = replace(invocation, aside=aside)
    with _answering(output):
        task = await aside(partial(_begin, invocation, output))
    await agree(None if task is None else task.chosen)
    with _answering(output):
        if task is None:
            pass
        elif task.waits:
            if task.recalls is None or not await aside(partial(task.recalls, output)):
                await task.steps()
        else:
            await aside(partial(_settle_whole, task.steps, output))
    if not isinstance(output.answer, (list, tuple)):
        output.answer = await aside(partial(_whole, output.answer))
    return output


def _settle_whole(steps: Callable[[], Coroutine[Any, Any, None]], output: Output) -> None:
    settle(steps())
    output.answer = _whole(output.answer)


def _whole(answer: Iterable[bytes]) -> list[bytes]:
    """Make all of an answer, which may be made only as it is read. Raises Vast."""
    chunks: list[bytes] = []
    length = 0
    for chunk in answer:
        chunks.append(chunk)
        length += len(chunk)
        if length > ANSWER_BYTES:
            raise Vast(f"the answer is larger than {ANSWER_BYTES >> 20} MiB")
    return chunks


@contextmanager
def _answering(output: Output) -> Generator[None]:
    """Turn what is raised on purpose into what a person reads and the shell sees."""
    try:
        yield
    except CoordError as error:
        said = error.selection.said if isinstance(error, SelectionError) else ()
        output.stderr += [*said, str(error)]
        output.exit = error.exit
    output.stderr = [discreet(one_line(line)) for line in output.stderr]


class _Task(Struct, frozen=True):
    """What is left to do once the words are read and the backend is chosen, and whether that is waited for."""

    steps: Callable[[], Coroutine[Any, Any, None]]
    waits: bool = False
    chosen: Chosen | None = None
    recalls: Callable[[Output], bool] | None = None
    """Does it without the backend that would be waited for, unless what is known of that is too old."""


def _begin(invocation: Invocation, output: Output) -> _Task | None:
    """Read the words and choose the backend; None when there is nothing more to do. Raises CoordError."""
    argv = list(invocation.argv)
    if not argv or argv[0] in _HELP:
        output.page(main_help())
        return None
    command, rest = _command_of(argv)
    if command == COMPLETE:
        from agentcoord.cli.completion import complete

        output.add(complete(rest, invocation))
        return None
    if command == "demo":
        return _Task(partial(_demo, rest, invocation, output))
    if command == "doctor" and asks_for_stack(rest):
        return _stack(rest, invocation, output)
    words = read_words(command, rest)
    if words.help:
        output.page(command_help(command))
        return None
    usage.require_coherent(words)
    settings, fault = _settings(words, invocation)
    if fault is not None:
        if command != "doctor":
            raise fault
        return _Task(partial(explain_configuration, words, settings, fault, invocation, output))
    waits = False
    if settings.selection is not None and command != "config":
        output.stderr += settings.selection.said
        _hint_at_relative_root(settings.selection, invocation, output)
        require_address(settings.selection)
        waits = command not in _WITH_JOBS and takes_waiting(settings.selection)
    recalls = None
    if settings.selection is not None and asks_for_age(words):
        require_replica(words, settings.selection, invocation.recall)
        recalls = partial(_recall, words, settings, invocation)
    steps = partial(PERFORMERS[command], words, settings, invocation, output)
    return _Task(steps, waits, Chosen(words, settings), recalls)


def _recall(words: Words, settings: Settings, invocation: Invocation, output: Output) -> bool:
    with ExitStack() as stack:
        snapshot = recalled(words, settings.selected, invocation.recall, stack)
        if snapshot is None:
            return False
        invocation = replace(invocation, snapshot=snapshot)
        _settle_whole(partial(PERFORMERS[words.command], words, settings, invocation, output), output)
        return True


def _hint_at_relative_root(selection: Selection, invocation: Invocation, output: Output) -> None:
    """Tell a person whose agents would miss each other from different directories."""
    root = selection.root
    if invocation.terminal.notices and root is not None and not root.startswith("/"):
        output.stderr.append(
            f"notice: the state root {root} is relative: agents in other directories use another one; give it absolute"
        )


def _command_of(argv: list[str]) -> tuple[str, list[str]]:
    name, rest = argv[0], argv[1:]
    if rest and rest[0] in GROUPS.get(name, ()):
        return named(name, rest[0]), rest[1:]
    if name == COMPLETE or (name in BY_COMMAND and " " not in name):
        return name, rest
    require_utf8([name])
    raise UsageError(f"unknown command: {name}")


def _settings(words: Words, invocation: Invocation, *, stack: bool = False) -> tuple[Settings, ConfigError | None]:
    return load_as_far(
        invocation.env,
        command=words.command,
        flags=flags_of(words),
        argv_selectors=words.selectors,
        stack_json=stack,
        sync=words.flag("sync"),
        install_root=_INSTALL_ROOT,
    )


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


def _stack(rest: list[str], invocation: Invocation, output: Output) -> _Task | None:
    """Prepare the component report; every usage error has an exit status of its own, and nothing else is said."""
    from agentcoord.cli.examination import require_stack, stack_report

    words = Words(command="doctor")
    try:
        words = read_words("doctor", rest)
        if words.help:
            output.page(command_help("doctor"))
            return None
        usage.require_coherent(words)
        require_stack(words)
        settings, fault = _settings(words, invocation, stack=True)
    except UsageError as error:
        raise StackUsageError(str(error)) from error
    if fault is not None:
        settings = without_user_file(invocation.env, flags_of(words))
    waits = fault is None and takes_waiting(settings.selected)
    return _Task(partial(stack_report, words, settings, fault, invocation, output), waits=waits)
