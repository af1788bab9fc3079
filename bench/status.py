"""What `status --json` over a large state root costs through the daemon, in a process of its own, and at the least.

The floor reads and decodes the same files and does nothing else. The daemon is asked when nothing has changed, and
again while another process rewrites heartbeats, in their place and by a rename in turns. Then a query of one work item,
as a command and as `status.target` on a socket, when nothing else is asked and while others ask for everything without
a pause; and how long `hello` takes meanwhile, which is how long something held the daemon's loop.

The reference implementation takes some 11 times the floor; a twelfth of that is the gate for the daemon. Alone, a
command may take twice the floor, and the query of a work item three times its idle time.
Usage: python bench/status.py [--rounds N] [--askers N] [--state-root DIR], or with the sizes of make_state.py
"""

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from client import running
from measure import BIN, ROOT, clean_environment, interleave, print_table, run, scratch
from status_scan import DEFAULTS, make_state

COMMAND = str(BIN / "agent-coord")
DAEMON_GATE, ALONE_GATE, QUERY_GATE = 0.9, 2.0, 3.0
FLOOR, ALONE, DAEMON, WRITTEN = "read and decode", "in-process", "daemon", "daemon, written to"
WRITE_SECONDS = 0.05
WRITTEN_TO = 40
QUERIES = 60  # a round, of each kind on the socket
COMMANDS = 6
_LIVENESS = b'"liveness"'  # changes by the clock
PAUSE = 0.003  # seconds between two queries on a socket: as many as a few agents would ask


def _rewrite(root: Path, ended: Any) -> None:
    """Change heartbeats until told to end, each by a rename and then in its place, and leave none broken."""
    paths = sorted(islice((root / "heartbeats").glob("*.json"), WRITTEN_TO))
    for number in count():
        path = paths[number % len(paths)]
        # As long each time, so that a reader never finds half a record.
        data = json.dumps(json.loads(path.read_bytes()) | {"phase": f"step {number:06}"}, indent=2).encode()
        if number // len(paths) % 2:
            with path.open("r+b") as file:
                file.write(data)
        else:
            path.with_suffix(".new").write_bytes(data)
            path.with_suffix(".new").replace(path)
        if ended.wait(WRITE_SECONDS):
            return


def _ask(argv: Sequence[str], environment: Mapping[str, str], ended: Any) -> None:
    while not ended.is_set():
        run(argv, environment)


@contextmanager
def beside(work: Callable[..., None], *words: object, times: int = 1) -> Generator[None]:
    """Have processes of their own do something for a block, until they are told to end."""
    fork = get_context("fork")
    ended = fork.Event()
    workers = [fork.Process(target=work, args=(*words, ended)) for _ in range(times)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        ended.set()
        for worker in workers:
            worker.join()


def seconds_of(path: Path, method: str, params: Mapping[str, object], times: int) -> list[float]:
    """Ask on one connection, with pauses, and time each answer."""
    frame = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n"
    taken: list[float] = []
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(path))
        with connection.makefile("rb") as lines:
            for _ in range(times):
                time.sleep(PAUSE)
                began = perf_counter()
                connection.sendall(frame)
                if b'"error"' in (line := lines.readline())[:200] or not line:
                    sys.exit(f"{method} failed: {line.decode()}")
                taken.append(perf_counter() - began)
    return taken


def answer_of(path: Path, method: str) -> dict[str, Any]:
    """Ask once, and give the result."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method}).encode() + b"\n")
        with connection.makefile("rb") as lines:
            return json.loads(lines.readline())["result"]


def shown(taken: Sequence[float]) -> str:
    """Say a median and what one in twenty exceeds, in milliseconds."""
    return f"{1000 * median(taken):8.2f} ms  {1000 * quantiles(taken, n=20)[-1]:8.2f} ms"


def main() -> int:
    """Read the command line, measure, print, and say whether the gates are kept."""
    parser = argparse.ArgumentParser(description="Measure a full status through the daemon.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--askers", type=int, default=1, help="processes that ask for everything")
    parser.add_argument("--state-root", type=Path, help="use this state instead of making one; it is written to")
    for family, size in DEFAULTS.items():
        parser.add_argument(f"--{family}", type=int, default=size)
    given = parser.parse_args()
    rounds = max(5, given.rounds)
    with scratch("status") as home:
        root: Path = given.state_root.resolve() if given.state_root else home / "state"
        if given.state_root is None:
            make_state(root, {family: getattr(given, family) for family in DEFAULTS})
        environment = clean_environment(home) | {
            "AGENT_COORD_RUNTIME_DIR": str(home / "run"),
            "AGENT_COORD_STATE_ROOT": str(root),
            "AGENT_COORD_DAEMON": "require",
        }
        door = home / "run/daemon.sock"
        broad = (COMMAND, "status", "--json")
        programs: dict[str, tuple[str, ...]] = {
            FLOOR: (sys.executable, str(ROOT / "bench/bare_scan.py"), str(root)),
            ALONE: broad,
            DAEMON: broad,
        }
        alone = {ALONE: {"AGENT_COORD_DAEMON": "off"}}
        with running([str(BIN / "agentcoordd"), "run", "--log-file"], door, environment):
            # In another process, so that this one stays small (see Run.peak); twice, so that all is settled.
            with get_context("fork").Pool(1) as pool:
                for _ in range(2):
                    pool.apply(_require_same, (broad, environment))
            figures = interleave(programs, rounds=rounds, environment=environment, changes=alone)
            print_table(figures, floor=FLOOR)
            print()
            with beside(_rewrite, root):
                written = interleave({FLOOR: programs[FLOOR], WRITTEN: broad}, rounds=rounds, environment=environment)
            print_table(written, floor=FLOOR)
            claims = (path for path in (root / "claims").rglob("*.json") if path.is_file())
            claim = json.loads(next(claims).read_bytes())
            item = {"repo": claim["repo"], "target": claim["target"]}
            query = (COMMAND, "status", "--repo", item["repo"], "--target", item["target"], "--json")
            asked = {"backend": {"kind": "local", "root": str(root)}, **item}

            def measure(*taken: list[float]) -> None:
                taken[0].extend(run(query, environment).seconds for _ in range(COMMANDS))
                taken[1].extend(seconds_of(door, "status.target", asked, QUERIES))
                taken[2].extend(seconds_of(door, "hello", {}, QUERIES))

            idle, busy = ([list[float]() for _ in range(3)] for _ in range(2))
            for _ in range(rounds):
                measure(*idle)
                with beside(_ask, broad, environment, times=given.askers):
                    measure(*busy)
            held = answer_of(door, "daemon.status")
    print(f"\n{'':22}{'idle':>11}  {'1 in 20':>11}  {'busy':>11}  {'1 in 20':>11}  ratio")
    ratios = [median(two) / median(one) for one, two in zip(idle, busy, strict=True)]
    for name, one, two, ratio in zip(
        ("work item, command", "work item, socket", "hello"), idle, busy, ratios, strict=True
    ):
        print(f"{name:22}{shown(one)}  {shown(two)}  {ratio:.2f}")
    print(
        f"\nkept: {held['records']['used']} records in {held['records_memory']['used'] / 2**20:.0f} MiB by estimate; "
        f"the daemon has {held['memory'] / 2**20:.0f} MiB"
    )
    floor = figures[FLOOR].seconds
    return _verdict(
        {
            f"daemon at most {DAEMON_GATE} x the floor": figures[DAEMON].seconds / floor <= DAEMON_GATE,
            f"in-process at most {ALONE_GATE} x the floor": figures[ALONE].seconds / floor <= ALONE_GATE,
            f"work item at most {QUERY_GATE} x its idle time": ratios[0] <= QUERY_GATE,
        }
    )


def _verdict(gates: Mapping[str, bool]) -> int:
    for gate, kept in gates.items():
        print(f"gate: {gate}: {'kept' if kept else 'missed'}")
    return 0 if all(gates.values()) else 1


def _said(argv: Sequence[str], environment: Mapping[str, str]) -> bytes:
    return subprocess.run(argv, env=environment, check=True, capture_output=True).stdout


def _require_same(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """End the script if the daemon answers otherwise than a command alone: its time would mean nothing."""
    alone, through = (
        [line for line in _said(argv, {**environment, "AGENT_COORD_DAEMON": how}).splitlines() if _LIVENESS not in line]
        for how in ("off", "require")
    )
    if alone != through:
        sys.exit("the daemon's status is not that of a command alone")


if __name__ == "__main__":
    sys.exit(main())
