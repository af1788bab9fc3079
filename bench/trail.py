"""What a trail of a large state costs, and the mirror of all of it, beside reading and decoding the same files.

Usage: python bench/trail.py [--rounds N] [--events N]
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from measure import BIN, ROOT, clean_environment, interleave, print_table, scratch

EVENTS = 100_000
ITEM = "example/infra#135"


def programs_on(root: Path) -> dict[str, tuple[str, ...]]:
    """Name what is measured; a shell prepares the mirror and then becomes the program."""
    coord = (str(BIN / "agent-coord"), "log", "--state-root", str(root))
    mirror, sync = shlex.quote(f"{root}/log.tsv"), shlex.join((*coord, "--sync"))
    return {
        "bare scan": (sys.executable, str(ROOT / "bench/bare_scan.py"), str(root / "events")),
        "log of one item": (*coord, ITEM),
        "log of all, tsv": (*coord, "--format", "tsv"),
        "first sync": ("/bin/sh", "-c", f"rm -f {mirror}; exec {sync}"),
        "sync of one event": ("/bin/sh", "-c", f"[ ! -f {mirror} ] || sed -i '$d' {mirror}; exec {sync}"),
    }


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description="Measure a trail and its mirror beside a bare scan.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=EVENTS)
    given = parser.parse_args()
    with scratch("trail") as home:
        root = home / "state"
        # In a process of its own, so that this one stays small (see Run.peak).
        sizes = ("--claims", "1000", "--heartbeats", "0", "--batches", "100", "--events", str(given.events))
        subprocess.run([sys.executable, ROOT / "bench/make_state.py", "--root", root, *sizes], check=True)
        figures = interleave(programs_on(root), rounds=given.rounds, environment=clean_environment(home))
        print_table(figures, floor="bare scan")


if __name__ == "__main__":
    main()
