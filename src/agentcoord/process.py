"""What a command's process is given and where it says what it has to say: directory, terminal, inputs, outputs.

The thin client and a command that runs alone take these from here, so that neither can differ from the other.
Imports nothing that an interpreter has not loaded anyway.
"""

import os
import sys

TYPE_CHECKING = False  # what `typing` says of itself: importing it would cost as much as the command
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

INPUT_BYTES = 8 * 1024 * 1024
"""The most that a file or stdin may hold: more than any record."""

_UNKNOWN = 2


def working_directory() -> str:
    """Give where we are; empty when that was removed under our feet: absolute paths still work."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def program() -> str:
    """Give the path of the command that was called."""
    return os.path.join(working_directory(), sys.argv[0])


def terminal(env: "Mapping[str, str]") -> tuple[bool, int, bool, bool]:
    """Tell whether a person reads stdout, how many columns wide, whether in colour, and whether one reads stderr."""
    notices = os.isatty(2)
    if not os.isatty(1):
        return False, 80, False, notices
    columns = os.get_terminal_size(1).columns or 80
    plain = bool(env.get("NO_COLOR")) or env.get("TERM", "dumb") == "dumb"
    return True, columns, not plain, notices


def umask() -> int:
    """Give this process's umask, which can only be had by setting one: the strictest, for as long as that takes."""
    mask = os.umask(0o777)
    os.umask(mask)
    return mask


def read_file(path: str, most: int = INPUT_BYTES) -> bytes:
    """Read a file whole. Raises OSError, EFBIG for what no record could hold, such as a device that never ends."""
    with open(path, "rb") as file:
        return _bounded(file.read(most + 1), most)


def read_stdin(most: int = INPUT_BYTES) -> bytes:
    """Read stdin to its end. Raises OSError as `read_file`."""
    with open(0, "rb", closefd=False) as file:
        return _bounded(file.read(most + 1), most)


def _bounded(data: bytes, most: int) -> bytes:
    if len(data) > most:
        import errno

        raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB")
    return data


def say(stderr: bytes, answer: "Iterable[bytes | bytearray]", status: int) -> int:
    """Write what a command said, stderr first, and give the exit status that this leaves it with."""
    if stderr:
        write(2, stderr)
    fault = None
    for chunk in answer:
        fault = fault or write(1, chunk)
    if fault is not None:
        write(2, f"cannot write the answer to stdout: {fault}; what the command did stands\n".encode())
        return status or _UNKNOWN
    return status


def write(descriptor: int, data: bytes | bytearray) -> str | None:
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
