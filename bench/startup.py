"""How long a command takes to do nothing, beside an interpreter that does nothing; and what it imports.

Usage: python bench/startup.py [--rounds N] [--top N]
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from measure import BIN, clean_environment, interleave, print_table, scratch

COMMAND = ("-m", "agentcoord", "version")
IMPORT_LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|\s+(\S+)")


def imports_of(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, int]:
    """Each module that an interpreter imports, with its own microseconds."""
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return {found[3]: int(found[1]) for found in IMPORT_LINE.finditer(ran.stderr)}


def print_imports(environment: Mapping[str, str], top: int) -> None:
    """Print what the command imports beyond the bare interpreter, the dearest first."""
    bare = imports_of(("-c", "pass"), environment)
    own = imports_of(COMMAND, environment)
    added = {name: cost for name, cost in own.items() if name not in bare}
    print(f"\nagent-coord version imports {len(own)} modules, {len(added)} more than the bare interpreter")
    for name, cost in sorted(added.items(), key=lambda row: -row[1])[:top]:
        print(f"{cost:8} µs  {name}")


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description="Measure the start-up of agent-coord.")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--top", type=int, default=20, help="how many imports to show")
    given = parser.parse_args()
    with scratch("startup") as home:
        environment = clean_environment(home)
        programs = {
            "python -c pass": (sys.executable, "-c", "pass"),
            "agent-coord version": (str(Path(BIN, "agent-coord")), "version"),
            "python -m agentcoord version": (sys.executable, *COMMAND),
        }
        figures = interleave(programs, rounds=max(20, given.rounds), environment=environment)
        print_table(figures, floor="python -c pass")
        print_imports(environment, given.top)


if __name__ == "__main__":
    main()
