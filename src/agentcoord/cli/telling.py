"""Saying at once what a command would say at its end, for those that stay."""

import os

from agentcoord.cli.output import Output, one_line
from agentcoord.files import discreet, printable


def tell(output: Output) -> None:
    """Write the lines for stderr now: the end may be days away, and what comes in between is somebody else's."""
    lines = "".join(f"{discreet(one_line(line))}\n" for line in output.stderr)
    output.stderr = []
    try:
        os.write(2, printable(lines).encode())
    except OSError:  # nobody reads it
        pass
