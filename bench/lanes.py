"""What keeping many leases costs: processor time, memory, and whether any of them lapses.

A keeper in a process of its own keeps N lanes, each a heartbeat and a claim, on a local state root for a while. The
parent reads the records meanwhile as any other program would, and counts those that are not live. Counted from the
moment that all lanes are held. Exits 1 when a lane lapsed.
Usage: python bench/lanes.py [--lanes N] [--ttl SECONDS] [--processes N] [--seconds SECONDS]
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio

from agentcoord.operations.claims import claim
from agentcoord.operations.context import Context
from agentcoord.protocol.claims import Wanted
from agentcoord.protocol.keeping import LEASE_EXPIRED, LEASE_LOST, Lane
from agentcoord.protocol.liveness import liveness
from agentcoord.stores.local import LocalStore
from agentcoordd.backends import LocalBackend, OpenBackends
from agentcoordd.clock import SystemClock
from agentcoordd.database import open_database
from agentcoordd.processes import SystemProcesses
from agentcoordd.services.keeper import Hold, Keeper
from measure import scratch

REPO = "example/lanes"
LOOK = 5.0  # seconds between two looks at all records
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Counting:
    """A feed that counts what it hears."""

    def __init__(self) -> None:
        self.topics: Counter[str] = Counter()

    def publish(self, topic: str, data: dict[str, Any]) -> None:
        """Count an event."""
        self.topics[topic] += 1


def resident() -> int:
    """Bytes of this process that are in memory now."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def keep(root: Path, database: Path, options: argparse.Namespace) -> dict[str, object]:
    """Hold all lanes, keep them for the time that was asked for, and say what it took."""
    feed, backend = Counting(), LocalBackend(str(root))
    backends = OpenBackends({}, serves=lambda _: True, token_of=lambda _: None)
    watched: Sequence[int] = options.watch
    figures: dict[str, object] = {}
    async with open_database(str(database)) as roster, backends, anyio.create_task_group() as tasks:
        keeper = Keeper(backends, roster, feed, SystemClock(), SystemProcesses())
        await tasks.start(keeper.run)
        for number in range(options.lanes):
            lane = Lane(f"agent-{number}", options.ttl, ("heartbeat", "claim"), REPO, str(number))
            await keeper.hold(Hold(lane=lane, backend=backend, pid=watched[number % len(watched)]))
        sys.stdout.write("held\n")
        sys.stdout.flush()
        renewals, processor, began = keeper.renewals, time.process_time(), time.monotonic()
        await anyio.sleep(options.seconds)
        took = time.monotonic() - began
        figures = {
            "lanes": sum(view.state == "kept" for view in keeper.list()),
            "seconds": took,
            "processor": (time.process_time() - processor) / took,
            "resident": resident(),
            "renewals": keeper.renewals - renewals,
            "lapsed": feed.topics[LEASE_EXPIRED] + feed.topics[LEASE_LOST],
        }
        tasks.cancel_scope.cancel()
    return figures


def claim_all(root: Path, options: argparse.Namespace) -> None:
    """Have every agent claim its work item."""
    context = Context(store=LocalStore(root), now=lambda: datetime.now(UTC), random=os.urandom)

    async def claims() -> None:
        for number in range(options.lanes):
            wanted = Wanted(repo=REPO, target=str(number), agent_id=f"agent-{number}", ttl=options.ttl)
            await claim(context, wanted)

    asyncio.run(claims())


def not_live(root: Path, lanes: int) -> int:
    """Count the heartbeats that a reader would not call live now."""
    count = 0
    for number in range(lanes):
        beat: Mapping[str, Any] = json.loads((root / "heartbeats" / f"agent-{number}.json").read_bytes())
        count += liveness(beat, datetime.now(UTC)) != "live"
    return count


def measure(options: argparse.Namespace) -> bool:
    """Run the keeper beside a reader, print what was found, and tell whether all lanes lived."""
    with scratch("lanes") as directory:
        root = directory / "state"
        root.mkdir()
        claim_all(root, options)
        agents = [subprocess.Popen(["sleep", "1d"]) for _ in range(options.processes)]
        argv = [sys.executable, __file__, "--keep", str(root), str(directory / "daemon.db")]
        argv += ["--lanes", str(options.lanes), "--ttl", str(options.ttl), "--seconds", str(options.seconds)]
        argv += ["--watch", *(str(agent.pid) for agent in agents)]
        seen = 0
        try:
            with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as keeper:
                assert_held(keeper)
                while keeper.poll() is None:
                    seen = max(seen, not_live(root, options.lanes))
                    try:
                        keeper.wait(LOOK)
                    except subprocess.TimeoutExpired:
                        continue
                figures = json.loads(keeper.stdout.read() if keeper.stdout else "")
        finally:
            for agent in agents:
                agent.kill()
                agent.wait()
    print(f"{figures['lanes']} lanes of {options.ttl} s kept for {figures['seconds']:.0f} s")
    print(f"processor  {figures['processor']:.1%} of one core")
    print(f"memory     {figures['resident'] / 2**20:.0f} MiB resident")
    print(f"renewals   {figures['renewals']}, {figures['renewals'] / figures['seconds']:.1f} a second")
    print(f"lapsed     {figures['lapsed']} told, {seen} seen by a reader")
    return not figures["lapsed"] and not seen and figures["lanes"] == options.lanes


def assert_held(keeper: "subprocess.Popen[str]") -> None:
    """Wait until the keeper holds all lanes."""
    if keeper.stdout is None or keeper.stdout.readline() != "held\n":
        sys.exit("the keeper did not hold all lanes")


def main() -> int:
    """Measure, or be the keeper that is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=1000)
    parser.add_argument("--ttl", type=int, default=60)
    parser.add_argument("--processes", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--keep", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--watch", nargs="+", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.keep:
        print(json.dumps(asyncio.run(keep(options.keep[0], options.keep[1], options))))
        return 0
    return 0 if measure(options) else 1


if __name__ == "__main__":
    sys.exit(main())
