"""What a durable write through the local store costs beside the plain pattern it is made of.

Both replace one record by the same document, in alternating rounds of one run, so that whatever else
the disk is doing falls on both. Usage: python bench/durable_write.py [--rounds N] [--directory PATH]
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time

from agentcoord.protocol.documents import encode_pretty
from agentcoord.stores.local import LocalStore

CLAIM: dict[str, object] = {
    "schema_version": 1,
    "repo": "acme/widgets",
    "target": "319",
    "agent_id": "worker-a",
    "batch_id": "spring",
    "branch": "fix/319",
    "status": "active",
    "claimed_at": "2026-03-01T12:00:00Z",
    "updated_at": "2026-03-01T12:00:00Z",
    "expires_at": "2026-03-01T16:00:00Z",
}
PATH = "claims/acme/widgets/319.json"


WRITES = 50
"""Writes in one round."""


def plain(directory: str, name: str, document: object) -> None:
    """Write, fsync, rename, fsync the directory: no lock, no check, no care for failures."""
    data = encode_pretty(document)
    temporary = os.path.join(directory, f".{name}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    os.write(fd, data)
    os.fsync(fd)
    os.close(fd)
    os.rename(temporary, os.path.join(directory, name))
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.fsync(fd)
    os.close(fd)


def plain_round(directory: str) -> list[float]:
    """Return the microseconds of each plain write of a round."""
    times: list[float] = []
    for number in range(WRITES):
        start = time.perf_counter_ns()
        plain(directory, "319.json", CLAIM | {"generation": number})
        times.append((time.perf_counter_ns() - start) / 1000)
    return times


async def store_round(store: LocalStore) -> list[float]:
    """Return the microseconds of each compare-and-swap of a round, one after the other."""
    stored = await store.read(PATH)
    version = stored.version if stored else None
    times: list[float] = []
    for number in range(WRITES):
        start = time.perf_counter_ns()
        version = await store.write(PATH, CLAIM | {"generation": number}, version=version, note="bench")
        times.append((time.perf_counter_ns() - start) / 1000)
    return times


async def measure(root: str, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Return the times of plain writes, of the store's, and of plain writes again: the noise of the run."""
    store = LocalStore(os.path.join(root, "store"))
    directory = os.path.join(root, "plain", os.path.dirname(PATH))
    os.makedirs(directory)
    await store.write(PATH, CLAIM, version=None, note="bench")
    before: list[float] = []
    through: list[float] = []
    after: list[float] = []
    for _ in range(rounds):
        before += plain_round(directory)
        through += await store_round(store)
        after += plain_round(directory)
    return before, through, after


def main() -> None:
    """Print the medians and their ratio."""
    parser = argparse.ArgumentParser(description="durable LocalStore write beside the plain file pattern")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--directory", default=None, help="where to write; must be on a real disk")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as root:
        before, store, after = (statistics.median(series) for series in asyncio.run(measure(root, arguments.rounds)))
    print(f"plain {before:.0f} us, store {store:.0f} us, plain again {after:.0f} us (medians)")
    print(f"ratio {store / statistics.mean((before, after)):.3f}  (noise: plain/plain {after / before:.3f})")


if __name__ == "__main__":
    main()
