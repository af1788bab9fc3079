"""The process around one command: what it was given, what it answers, how it ends."""

import os
import sys
from collections.abc import Sequence
from types import FrameType

from agentcoord.errors import Exit


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line of this process, or the given one, and give its exit status."""
    _keep_standard_descriptors()
    if argv is None:
        _require_utf8()
        argv = sys.argv[1:]
    import signal

    signal.signal(signal.SIGTERM, _end)
    try:
        return _run(argv)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def _run(argv: Sequence[str]) -> int:
    from datetime import UTC, datetime

    from agentcoord.cli.output import Invocation, Terminal
    from agentcoord.cli.run import run, settle

    def now() -> datetime:
        return datetime.now(UTC)

    env = dict(os.environ)
    output = settle(
        run(
            Invocation(
                argv=tuple(argv),
                env=env,
                cwd=_cwd(env),
                now=now,
                random=os.urandom,
                read_file=_read_file,
                stdin=_read_stdin,
                program=os.path.abspath(sys.argv[0]),
                terminal=_terminal(Terminal, env),
            )
        )
    )
    if output.stderr:
        lines = "".join(f"{line}\n" for line in output.stderr)
        _write(2, lines.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode())
    fault = _write(1, output.stdout)
    if fault is not None:
        _write(2, f"cannot write the answer to stdout: {fault}; what the command did stands\n".encode())
        return output.exit or Exit.UNKNOWN
    return output.exit


def _end(signum: int, frame: FrameType | None) -> None:
    """Leave through the stack, so that what was begun is cleaned up."""
    raise SystemExit(128 + signum)


def _keep_standard_descriptors() -> None:
    """Fill closed descriptors 0 to 2: a record opened in their place would be written into."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _require_utf8() -> None:
    """Start again in UTF-8 mode under a locale of another encoding: state is UTF-8 everywhere."""
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _cwd(env: dict[str, str]) -> str:
    try:
        return os.getcwd()
    except OSError:  # removed under our feet: absolute paths still work
        return env.get("PWD") or "/"


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _read_stdin() -> bytes:
    with open(0, "rb", closefd=False) as file:
        return file.read()


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
            rest = rest[os.write(descriptor, rest) :]
    except BrokenPipeError:
        return None
    except OSError as error:
        return error.strerror or str(error)
    return None


if __name__ == "__main__":
    sys.exit(main())
