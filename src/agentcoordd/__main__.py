"""`agentcoordd`: the processes that run for long, and the tokens of the machines that call them."""

import os
import sys
from collections.abc import Callable, Sequence

from agentcoord.cli.output import one_line
from agentcoord.errors import CoordError, Exit, StoreError, UsageError
from agentcoord.files import discreet
from agentcoord.version import VERSION

_HELP = """\
Usage: agentcoordd <command> [options]

Commands:
  server   Serve state over HTTP from a database
  token    Add, rotate, revoke or list the tokens of machines
  run      The daemon of this user on this machine

Each says more when asked for --help.
"""


def main() -> int:
    """Run one command and give its exit status; every fault is one line on stderr."""
    argv = sys.argv[1:]
    try:
        return _run(argv)
    except CoordError as error:
        for line in error.lines:
            sys.stderr.write(f"{discreet(one_line(line))}\n")
        return error.exit
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def _run(argv: Sequence[str]) -> int:
    if argv[:1] in ([], ["help"], ["-h"], ["--help"]):
        sys.stdout.write(_HELP)
        return Exit.OK
    command, rest = argv[0], argv[1:]
    match command:
        case "--version" | "version":
            sys.stdout.write(f"agentcoordd {VERSION}\n")
            return Exit.OK
        case "server" | "token":
            return _server_command(command)(rest)
        case "run":
            return _daemon(rest)
        case _:
            raise UsageError(f"unknown command: {command}; see agentcoordd --help")


def _daemon(rest: Sequence[str]) -> int:
    from agentcoordd import daemon  # the server has no use for it, nor it for the server

    if "--help" in rest or "-h" in rest:
        sys.stdout.write(daemon.HELP)
        return Exit.OK
    return daemon.run(daemon.read_options(rest), dict(os.environ))


def _server_command(name: str) -> Callable[[Sequence[str]], int]:
    try:
        from agentcoordd.server import commands
    except ImportError as error:
        raise StoreError(
            f"agentcoordd {name} needs {error.name}, which the extra brings: pip install 'agent-coord[server]'"
        ) from error
    return {"server": commands.server, "token": commands.token}[name]


if __name__ == "__main__":
    sys.exit(main())
