"""`agentcoordd`: says that there is no daemon in this release yet, so that nobody waits for one."""

import sys

from agentcoord.errors import Exit
from agentcoord.version import VERSION


def main() -> int:
    """Answer `--version`; refuse everything else in one line."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"agentcoordd {VERSION}\n")
        return Exit.OK
    sys.stderr.write("agentcoordd: the daemon is not part of this release yet; agent-coord works without it\n")
    return Exit.UNKNOWN


if __name__ == "__main__":
    sys.exit(main())
