"""The process around one command: what it was given, what it answers, how it ends."""

import os
import sys

# Nothing else is imported up here: until `main` handles signals, an interrupt would show a traceback.

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentcoord.client import Broken, Walled

_UNKNOWN = 2
_SPOOLED = ("heartbeat", "record-event")


def main(argv: list[str] | None = None) -> int:
    """Run the command line of this process, or the given one, and give its exit status."""
    _handle_signals()
    _keep_standard_descriptors()
    if argv is None:
        _require_utf8()
        # The answer is out and nothing is left to clean up: to take a large state apart object by object first
        # would be work for nobody, a tenth of the time of a full status.
        os._exit(_guarded(sys.argv[1:]))
    return _guarded(argv)


def _guarded(argv: list[str]) -> int:
    try:
        return _run(argv)
    except Exception as error:  # a fault of ours: still one line, and never the status of a wrong invocation
        if _ended:  # what Python made of a signal's exit where it allows none through, as in making a class
            return 128 + _ended[0]
        from agentcoord.files import discreet
        from agentcoord.process import write

        said = discreet(_fault(error))
        write(2, f"{said if said.isprintable() else ascii(said)[1:-1]}\n".encode("utf-8", "replace"))
        return _UNKNOWN


def _run(argv: list[str]) -> int:
    from agentcoord.client import forwarded

    ended = forwarded(argv)
    return ended if isinstance(ended, int) else _run_here(argv, ended)


def _run_here(argv: list[str], tried: "Broken | Walled | None") -> int:
    """Run a command in this process: as a new one, as one that a daemon was lost with or that may not ask any."""
    import gc

    gc.disable()  # one command makes no cycles worth looking for, and a large state many objects to look through
    from datetime import UTC, datetime

    from agentcoord import process
    from agentcoord.cli.output import Invocation, Terminal
    from agentcoord.cli.run import run_alone
    from agentcoord.client import Broken, Walled
    from agentcoord.files import printable

    def now() -> datetime:
        return begun or datetime.now(UTC)

    async def read_file(path: str) -> bytes:
        return inputs[path] if path in inputs else process.read_file(path)

    async def read_stdin() -> bytes:
        return inputs["-"] if "-" in inputs else process.read_stdin()

    if isinstance(tried, Broken):
        from agentcoord.cli.chance import stream

        begun, inputs, chance = datetime.fromisoformat(tried.now), tried.inputs, stream(tried.seed)
    else:
        begun, inputs, chance = None, {}, os.urandom
    outbox = None
    if isinstance(tried, Walled) and argv[0] in _SPOOLED:
        from agentcoord.spool import spool_at  # a sandbox is not the usual place

        outbox = spool_at(tried.place)
    env = dict(os.environ)
    output = run_alone(
        Invocation(
            argv=tuple(argv),
            env=env,
            cwd=process.working_directory(),
            now=now,
            random=chance,
            read_file=read_file,
            stdin=read_stdin,
            program=process.program(),
            node=os.uname().nodename,
            terminal=Terminal(*process.terminal(env)),
            again=isinstance(tried, Broken),
            outbox=outbox,
            own=True,
        )
    )
    lines = "".join(f"{line}\n" for line in output.stderr)
    return process.say(printable(lines).encode(), output.answer, output.exit)


def _handle_signals() -> None:
    """End on a signal through the stack, so that what was begun is cleaned up and no traceback is shown."""
    signal = __import__("_signal")  # the built-in core of `signal`: an interrupt while importing that would be shown

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # a caller's wish, as from nohup
            signal.signal(number, _end)
    sys.unraisablehook = _unraisable


_ended: list[int] = []


def _end(signum: int, frame: object) -> None:
    _ended.append(signum)
    import warnings

    warnings.simplefilter("ignore")  # such as of a coroutine that was made and will not be run
    raise SystemExit(128 + signum)


def _unraisable(fault: "sys.UnraisableHookArgs") -> None:
    """Leave at once where Python would swallow a signal's exit, as in the callbacks of an import."""
    if isinstance(fault.exc_value, SystemExit) and isinstance(fault.exc_value.code, int):
        os._exit(fault.exc_value.code)
    sys.__unraisablehook__(fault)


def _fault(error: Exception) -> str:
    place, trace = "?", error.__traceback__
    while trace is not None:
        place = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"internal error at {place}, please report it: {type(error).__name__}: {error}; what was done is unknown"


def _keep_standard_descriptors() -> None:
    """Fill closed descriptors 0 to 2: a record opened in their place would be written into.

    Reading a stdin that was closed fails, rather than giving an empty text nobody sent.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR if descriptor else os.O_WRONLY)


def _require_utf8() -> None:
    """Start again in UTF-8 mode under a locale of another encoding: state is UTF-8 everywhere."""
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
