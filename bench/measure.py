"""Measure programs side by side: in turns within one run, so that whatever else the machine does falls on all.

Absolute times belong to one machine and one moment; what travels is the ratio of medians.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent

# Linux counts the peak in KiB, macOS in bytes.
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Run:
    """One process from its start to its end."""

    seconds: float
    peak: int
    """Resident bytes at their most. Linux counts what the starter held too, so a measuring script stays small."""
    exit: int


@dataclass(frozen=True)
class Figures:
    """What the rounds of one program came to."""

    seconds: float
    fastest: float
    slowest: float
    peak: int


def clean_environment(home: Path) -> dict[str, str]:
    """Nothing of the caller's configuration: a home of its own, and the search path of the system."""
    return {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "PATH": f"{BIN}:{os.defpath}",
        "TMPDIR": str(home),
    }


def run(argv: Sequence[str], environment: Mapping[str, str]) -> Run:
    """Run one program to its end with its output thrown away, and say what it took."""
    nowhere = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    began = perf_counter()
    pid = os.posix_spawn(argv[0], list(argv), environment, file_actions=nowhere)
    _, status, usage = os.wait4(pid, 0)
    seconds = perf_counter() - began
    return Run(seconds, usage.ru_maxrss * _PEAK_UNIT, os.waitstatus_to_exitcode(status))


def interleave(
    programs: Mapping[str, Sequence[str]],
    *,
    rounds: int,
    environment: Mapping[str, str],
    changes: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Figures]:
    """Run each program once a round, in turns that start with another one each time.

    `changes` are what the environment of one program, by its name, has besides. A first round only warms the
    caches. Ends the script when a program fails: its time would mean nothing.
    """
    taken: dict[str, list[Run]] = {name: [] for name in programs}
    names = list(programs)
    own = {name: {**environment, **(changes or {}).get(name, {})} for name in names}
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            ran = run(programs[name], own[name])
            if ran.exit != 0:
                sys.exit(f"{name} exited with {ran.exit}: {' '.join(programs[name])}")
            if number > 0:
                taken[name].append(ran)
    return {name: _figures(runs) for name, runs in taken.items()}


def _figures(runs: Sequence[Run]) -> Figures:
    seconds = [each.seconds for each in runs]
    return Figures(median(seconds), min(seconds), max(seconds), max(each.peak for each in runs))


def print_table(figures: Mapping[str, Figures], *, floor: str) -> None:
    """Print a row a program, each beside the floor."""
    width = max(map(len, figures))
    print(f"{'':{width}}  {'median':>10}  {'fastest':>10}  {'slowest':>10}  {'peak':>9}  ratio to {floor}")
    for name, row in figures.items():
        times = "  ".join(f"{1000 * seconds:7.1f} ms" for seconds in (row.seconds, row.fastest, row.slowest))
        ratio = row.seconds / figures[floor].seconds
        print(f"{name:{width}}  {times}  {row.peak / 2**20:5.0f} MiB  {ratio:.2f}")


@contextmanager
def scratch(name: str) -> Generator[Path]:
    """A directory that is gone afterwards, on the disk of the checkout: /tmp may be memory."""
    parent = ROOT / "build" / "bench"
    parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
    try:
        yield made
    finally:
        shutil.rmtree(made)
