"""What `status --json` over a large state root costs, beside reading and decoding the same files.

Usage: python bench/status_scan.py [--rounds N] [--state-root DIR], or with the sizes of make_state.py
"""

import argparse
import subprocess
import sys
from pathlib import Path

from measure import BIN, ROOT, clean_environment, interleave, print_table, scratch

DEFAULTS = {"claims": 10_000, "heartbeats": 10_000, "batches": 500, "events": 20_000}


def make_state(root: Path, sizes: dict[str, int]) -> None:
    """Make the state in a process of its own, so that this one stays small (see Run.peak)."""
    chosen = [word for family, count in sizes.items() for word in (f"--{family}", str(count))]
    subprocess.run([sys.executable, ROOT / "bench/make_state.py", "--root", root, *chosen], check=True)


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description="Measure a full status beside a bare scan.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--state-root", type=Path, help="use this state instead of making one")
    for family, count in DEFAULTS.items():
        parser.add_argument(f"--{family}", type=int, default=count)
    given = parser.parse_args()
    with scratch("status") as home:
        root: Path = given.state_root or home / "state"
        if given.state_root is None:
            make_state(root, {family: getattr(given, family) for family in DEFAULTS})
        programs = {
            "bare scan": (sys.executable, str(ROOT / "bench/bare_scan.py"), str(root)),
            "agent-coord status": (str(Path(BIN, "agent-coord")), "status", "--json", "--state-root", str(root)),
        }
        figures = interleave(programs, rounds=max(5, given.rounds), environment=clean_environment(home))
        print_table(figures, floor="bare scan")


if __name__ == "__main__":
    main()
