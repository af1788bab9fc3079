"""The process around one command: what it was given, what it answers, how it ends."""

import os
import sys

# Nothing else is imported up here: until `main` handles signals, an interrupt would show a traceback.

_UNKNOWN = 2
_INPUT_BYTES = 8 * 1024 * 1024


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

        _write(2, f"{discreet(_fault(error))}\n".encode("utf-8", "replace"))
        return _UNKNOWN


def _run(argv: list[str]) -> int:
    import gc

    gc.disable()  # one command makes no cycles worth looking for, and a large state many objects to look through
    from datetime import UTC, datetime

    from agentcoord.cli.output import Invocation, Terminal
    from agentcoord.cli.run import run_alone
    from agentcoord.files import printable

    def now() -> datetime:
        return datetime.now(UTC)

    env = dict(os.environ)
    output = run_alone(
        Invocation(
            argv=tuple(argv),
            env=env,
            cwd=_cwd(),
            now=now,
            random=os.urandom,
            read_file=_read_file,
            stdin=_read_stdin,
            program=os.path.join(_cwd(), sys.argv[0]),
            node=os.uname().nodename,
            terminal=_terminal(Terminal, env),
        )
    )
    if output.stderr:
        lines = "".join(f"{line}\n" for line in output.stderr)
        _write(2, printable(lines).encode())
    fault = None
    for chunk in output.answer:
        fault = fault or _write(1, chunk)
    if fault is not None:
        _write(2, f"cannot write the answer to stdout: {fault}; what the command did stands\n".encode())
        return output.exit or _UNKNOWN
    return output.exit


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


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # removed under our feet: absolute paths still work
        return ""


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return _bounded(file.read(_INPUT_BYTES + 1))


def _read_stdin() -> bytes:
    with open(0, "rb", closefd=False) as file:
        return _bounded(file.read(_INPUT_BYTES + 1))


def _bounded(data: bytes) -> bytes:
    """Refuse what no record could hold, such as a device that never ends."""
    if len(data) > _INPUT_BYTES:
        import errno

        raise OSError(errno.EFBIG, f"larger than {_INPUT_BYTES >> 20} MiB")
    return data


def _terminal(kind: type, env: dict[str, str]):
    person = os.isatty(1)
    if not person:
        return kind(notices=os.isatty(2))
    columns = os.get_terminal_size(1).columns or 80
    plain = bool(env.get("NO_COLOR")) or env.get("TERM", "dumb") == "dumb"
    return kind(person=True, columns=columns, colour=not plain, notices=os.isatty(2))


def _write(descriptor: int, data: bytes) -> str | None:
    """Write everything; gives why the answer is incomplete, None also for a reader that went away."""
    rest = memoryview(data)
    try:
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:  # a pipe that its other end made non-blocking, and full
                _wait_for_room(descriptor)
    except BrokenPipeError:
        return None
    except OSError as error:
        return error.strerror or str(error)
    return None


def _wait_for_room(descriptor: int) -> None:
    import select

    select.select([], [descriptor], [])


if __name__ == "__main__":
    sys.exit(main())
