"""What a trail of a large state costs, the mirror of all of it, and retention, each beside what cannot be spared.

To read the trail is to read and decode its files, to bring a mirror up to date is to read their names, be the events
live or, as in a second history, nearly all of them archived. Retention is measured on a state of its own, beside
reading and decoding that; the same plan took the earlier implementation, written in Ruby, 1.97 s in-process on hardware
on which the bare scan took 0.20 s, so four times as quick is 2.5 bare scans.
Usage: python bench/trail.py [--rounds N] [--events N]
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from measure import BIN, ROOT, clean_environment, interleave, print_table, scratch

EVENTS = 100_000
ARCHIVED = 90
"""Percent of the events of one history that are archived."""
ITEM = "example/infra#135"

COORD = str(BIN / "agent-coord")
START = (sys.executable, "-c", "pass")
EVENT = '{"event_id": "\'$n\'", "batch_id": "batch-0001", "type": "note", "at": "2026-01-01T00:00:00Z"}'

ENVELOPE = (
    '{"record_family": "compacted_events", "source_paths": ["\'$n\'"], "records": [' + EVENT + "], "
    '"archived_at": "2026-01-01T00:00:00Z", "delete_after": "2036-01-01T00:00:00Z"}'
)


def bare(script: str, *roots: Path) -> tuple[str, ...]:
    """Give the command of a floor."""
    return (sys.executable, str(ROOT / "bench" / script), *map(str, roots))


def after(preparation: str, *argv: str) -> tuple[str, ...]:
    """Give a command that a shell prepares before it becomes it; what that takes is counted with it."""
    return ("/bin/sh", "-c", f"{preparation}; exec {shlex.join(argv)}")


def readings(root: Path) -> dict[str, tuple[str, ...]]:
    """Name what reads the trail."""
    log = (COORD, "log", "--state-root", str(root))
    return {
        "bare scan": bare("bare_scan.py", root / "events"),
        "log of one item": (*log, ITEM),
        "log of all, tsv": (*log, "--format", "tsv"),
        "first sync": after(f"rm -rf {shlex.quote(f'{root}/log.tsv')} {shlex.quote(f'{root}/.cache')}", *log, "--sync"),
    }


def syncs(root: Path) -> dict[str, tuple[str, ...]]:
    """Name what brings a mirror up to date that is so nearly."""
    sync = (COORD, "log", "--state-root", str(root), "--sync")
    place = shlex.quote(f"{root}/events/batch-0001")
    return {
        "bare names": bare("bare_names.py", root / "events"),
        "sync of nothing": sync,
        "sync of one event": after(f"n=new-$(date +%s%N); echo '{EVENT}' > {place}/$n.json", *sync),
    }


def archived_syncs(root: Path) -> dict[str, tuple[str, ...]]:
    """Name what brings a mirror up to date where nearly all events are archived."""
    sync = (COORD, "log", "--state-root", str(root), "--sync")
    archive = shlex.quote(f"{root}/archive/events/batch-0001")
    put = f"n=new-$(date +%s%N); echo '{ENVELOPE}' > {archive}/$n.json"
    return (
        {"bare names": bare("bare_names.py", root / "events", root / "archive/events")}
        | {name: command for name, command in syncs(root).items() if name != "bare names"}
        | {"sync of one envelope": after(put, *sync)}
    )


def retention(root: Path) -> dict[str, tuple[str, ...]]:
    """Name what plans retention."""
    gc = (COORD, "gc", "--dry-run", "--state-root", str(root))
    return {"bare scan": bare("bare_scan.py", root), "gc --dry-run": gc, "python -c pass": START}


def make(root: Path, sizes: Mapping[str, int]) -> None:
    """Make a state, in a process of its own, so that this one stays small (see Run.peak)."""
    words = [word for family, size in sizes.items() for word in (f"--{family}", str(size))]
    subprocess.run([sys.executable, ROOT / "bench/make_state.py", "--root", root, *words], check=True)


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description="Measure a trail, its mirror and retention beside their floors.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=EVENTS)
    given = parser.parse_args()
    with scratch("trail") as home:
        trail, archived, board = home / "trail", home / "archived", home / "board"
        history = {"claims": 1000, "heartbeats": 0, "batches": 100, "events": given.events}
        make(trail, history)
        make(archived, history)
        most = str(given.events * ARCHIVED // 100)
        subprocess.run([sys.executable, ROOT / "bench/archive_events.py", archived, "--events", most], check=True)
        make(board, {"claims": 10_000, "heartbeats": 10_000, "batches": 500, "events": 5000})
        environment = clean_environment(home) | {"AGENT_COORD_DAEMON": "off"}
        for programs in (readings(trail), syncs(trail), archived_syncs(archived), retention(board)):
            print_table(interleave(programs, rounds=given.rounds, environment=environment), floor=next(iter(programs)))


if __name__ == "__main__":
    main()
