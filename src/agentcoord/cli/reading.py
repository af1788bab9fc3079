"""Files that a command line names: they are read by whoever called, wherever the command itself is run."""

import errno

from agentcoord.cli.output import Invocation
from agentcoord.errors import StoreError, UsageError
from agentcoord.stores.opening import absolute


async def content(
    path: str, what: str, invocation: Invocation, *, stdin: bool = False, most: int | None = None
) -> bytes:
    """Read a file that the caller named, with the caller's own rights.

    Raises UsageError for one that is not given at all since it is far larger than `most` bytes, StoreError.
    """
    try:
        if stdin and path == "-":
            return await invocation.stdin()
        return await invocation.read_file(absolute(path, invocation.cwd))
    except OSError as error:
        if most is not None and error.errno == errno.EFBIG:
            raise UsageError(f"{what} exceeds {most} bytes") from error
        raise StoreError(f"{what} unreadable: {path}: {error.strerror or error}") from error
    except ValueError as error:  # a path with a NUL in it
        raise StoreError(f"{what} unreadable: {path!r}: {error}") from error
