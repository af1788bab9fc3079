"""Whether a daemon levels off: memory, descriptors and files over half an hour of a busy machine.

A daemon on a local root and on a server of its own keeps lanes, half on each; subscribers hear all it tells; and
a writer beats for agents, one write each 50 ms, by turns through the daemon, past it into the files, and past it on the
server. Only records that are there already are written, so whatever grows is the daemon's. Every few seconds all sizes
are read off; printed are their means and slopes in each half of the time. A slope that is near nothing in the second
half is what was hoped for. Exits 1 when a lane is not kept at the end, or a subscriber was dropped.
Usage: python bench/soak.py [--seconds S] [--lanes N] [--subscribers N] [--every SECONDS]
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import mean
from time import monotonic
from typing import cast

import httpx

from measure import BIN, clean_environment, scratch
from server import serve

REPO = "example/soak"
AGENTS = 100
TTL = 60
LOOK = 5.0
PORT = 18_733
_LINE = 64 * 1024 * 1024


@dataclass
class Series:
    """One size over time: (seconds, size)."""

    points: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def halves(self, seconds: float) -> list[list[tuple[float, float]]]:
        """Split it in the middle of the time."""
        first = [point for point in self.points if point[0] < seconds / 2]
        return [first, self.points[len(first) :]]


def slope(points: list[tuple[float, float]]) -> float:
    """Give the growth a minute, as a straight line through the points has it."""
    if len(points) < 2:
        return 0.0
    at, of = mean(x for x, _ in points), mean(y for _, y in points)
    spread = sum((x - at) ** 2 for x, _ in points)
    return 60 * sum((x - at) * (y - of) for x, y in points) / spread if spread else 0.0


class Caller:
    """One connection to the daemon."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._number = reader, writer, 0
        self.heard = 0

    async def ask(self, method: str, **params: object) -> dict[str, object]:
        """Ask and wait for the answer. Exits when it is refused."""
        self._number += 1
        frame = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self._writer.write(json.dumps(frame).encode() + b"\n")
        await self._writer.drain()
        while True:
            answer = json.loads(await self._reader.readline())
            if answer.get("id") == self._number:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]

    async def listen(self) -> None:
        """Count what is told, until the daemon hangs up."""
        while await self._reader.readline():
            self.heard += 1


@asynccontextmanager
async def caller(path: Path) -> AsyncGenerator[Caller]:
    """Open a connection for a block."""
    reader, writer = await asyncio.open_unix_connection(path, limit=_LINE)
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def spelled(instant: datetime) -> str:
    """Write an instant as records do."""
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


class Writer:
    """Beats for the agents that nobody keeps, one at a time, each way in its turn."""

    def __init__(self, daemon: Caller, root: Path, url: str, token: str) -> None:
        self._daemon, self._root, self._url = daemon, root, url
        self._client = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False)
        self._versions: dict[str, str] = {}
        self.written = 0

    async def write(self) -> None:
        """Write once."""
        way, agent = self.written % 3, f"agent-{self.written % AGENTS}"
        if way == 0:
            local = {"kind": "local", "root": str(self._root)}
            await self._daemon.ask("heartbeat.beat", backend=local, agent_id=agent, phase=f"p{self.written}")
        elif way == 1:
            place = self._root / f"heartbeats/{agent}.json"
            beside = place.with_name(f".{agent}.{os.getpid()}.tmp")
            beside.write_bytes(json.dumps(self._beat(agent)).encode())
            beside.replace(place)
        else:
            await self._put(agent)
        self.written += 1

    def _beat(self, agent: str) -> dict[str, object]:
        now = datetime.now(UTC)
        beat: dict[str, object] = {"schema_version": 1, "agent_id": agent, "status": "in_progress"}
        beat |= {"updated_at": spelled(now), "expires_at": spelled(now + timedelta(seconds=900))}
        return beat | {"phase": f"p{self.written}"}

    async def _put(self, agent: str) -> None:
        path = f"/v1/state/heartbeats%2F{agent}.json"
        known = self._versions.get(agent)
        headers = {"If-None-Match": "*"} if known is None else {"If-Match": known}
        answer = await self._client.put(path, json={"data": self._beat(agent)}, headers=headers)
        answer.raise_for_status()
        self._versions[agent] = str(answer.json()["version"])

    async def close(self) -> None:
        """Close the connection to the server."""
        await self._client.aclose()


def look(daemon: int, server: int, home: Path, root: Path) -> dict[str, float]:
    """Read all sizes off: bytes, and numbers of descriptors and threads."""
    sizes: dict[str, float] = {}
    for name, pid in (("daemon", daemon), ("server", server)):
        facts = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        lines = dict(line.split(":", 1) for line in facts.splitlines())
        sizes[f"{name} memory"] = int(lines["VmRSS"].split()[0]) * 1024
        sizes[f"{name} descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
        sizes[f"{name} threads"] = int(lines["Threads"])
    for place in sorted([*home.rglob("*.db*"), *home.rglob("*.log"), root / "log.tsv", root / ".cache/log.tsv.json"]):
        with suppress(FileNotFoundError):
            sizes[str(place.relative_to(home))] = place.stat().st_size
    return sizes


async def soak(options: argparse.Namespace, home: Path) -> bool:
    """Run all of it, print what was seen, and tell whether it went well."""
    root = home / "root"
    root.mkdir()
    agent = await asyncio.create_subprocess_exec("sleep", "1d")
    server, token = serve(f"sqlite:///{home}/server.db", PORT, home)
    url = f"http://127.0.0.1:{PORT}"
    environment = clean_environment(home) | {"AGENT_COORD_RUNTIME_DIR": str(home / "run")}
    settings = home / ".config/agentcoordd/config.json"
    settings.parent.mkdir(parents=True, mode=0o700)
    settings.write_text(json.dumps({"serve_roots": [str(root)]}))
    settings.chmod(0o600)
    environment |= {"AGENT_COORD_API_URL": url, "AGENT_COORD_API_TOKEN": token}
    daemon = await asyncio.create_subprocess_exec(BIN / "agentcoordd", "run", "--log-file", env=environment)
    try:
        return await _soak(options, home, root, url, token, daemon, server.pid, agent.pid)
    finally:
        agent.kill()
        server.send_signal(signal.SIGTERM)
        if daemon.returncode is None:
            daemon.terminate()
        await asyncio.gather(agent.wait(), daemon.wait(), asyncio.to_thread(server.wait, 30))


async def _soak(
    options: argparse.Namespace,
    home: Path,
    root: Path,
    url: str,
    token: str,
    daemon: asyncio.subprocess.Process,
    server: int,
    agent: int,
) -> bool:
    path = home / "run/daemon.sock"
    while not path.exists():
        if daemon.returncode is not None:
            sys.exit("the daemon did not start")
        await asyncio.sleep(0.05)
    backends = ({"kind": "local", "root": str(root)}, {"kind": "http", "url": url})
    series: dict[str, Series] = {}
    async with caller(path) as main, asyncio.TaskGroup() as tasks:
        for number in range(options.lanes):
            name, item = f"lane-{number}", {"repo": REPO, "target": str(number)}
            backend = backends[number % 2]
            await main.ask("claim.acquire", backend=backend, agent_id=name, **item, ttl=14_400)
            await main.ask(
                "lease.hold", backend=backend, agent_id=name, **item, kinds=["heartbeat", "claim"], ttl=TTL, pid=agent
            )
        for number in range(AGENTS):
            await main.ask("heartbeat.beat", backend=backends[0], agent_id=f"agent-{number}")
        listeners: list[Caller] = []
        listening: list[asyncio.Task[None]] = []
        ready, ended = asyncio.Event(), asyncio.Event()

        async def subscribe() -> None:
            async with caller(path) as one:
                await one.ask("subscribe")
                listeners.append(one)
                if len(listeners) == options.subscribers:
                    ready.set()
                hearing = asyncio.create_task(one.listen())
                listening.append(hearing)
                await ended.wait()
                hearing.cancel()

        for _ in range(options.subscribers):
            tasks.create_task(subscribe())
        await ready.wait()
        writer = Writer(main, root, url, token)
        began, looked = monotonic(), -LOOK
        while (now := monotonic() - began) < options.seconds:
            await writer.write()
            if now - looked >= LOOK:
                looked = now
                for name, size in look(daemon.pid, server, home, root).items():
                    series.setdefault(name, Series()).points.append((now, size))
            await asyncio.sleep(max(0.0, writer.written * options.every - (monotonic() - began)))
        lanes = cast("list[dict[str, object]]", (await main.ask("lease.list"))["lanes"])
        dropped = sum(hearing.done() for hearing in listening)
        heard = [one.heard for one in listeners]
        await writer.close()
        ended.set()
    kept = sum(lane["state"] == "kept" for lane in lanes)
    print(f"{options.seconds:.0f} s, {writer.written} writes, {kept} of {options.lanes} lanes kept")
    print(f"{len(heard)} subscribers heard {min(heard)} to {max(heard)} frames, {dropped} were dropped")
    _print(series, options.seconds)
    return kept == options.lanes and not dropped


def _print(series: dict[str, Series], seconds: float) -> None:
    width = max(map(len, series))
    print(f"{'':{width}}  {'first half':>28}  {'second half':>28}")
    for name, each in series.items():
        cells: list[str] = []
        scale, unit = (1, "") if "descriptors" in name or "threads" in name else (1024, " KiB")
        for points in each.halves(seconds):
            level = mean(size for _, size in points) if points else 0.0
            cells.append(f"{level / scale:,.0f}{unit} {slope(points) / scale:+,.2f} a minute")
        print(f"{name:{width}}  {cells[0]:>28}  {cells[1]:>28}")


def main() -> int:
    """Soak, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--lanes", type=int, default=200)
    parser.add_argument("--subscribers", type=int, default=20)
    parser.add_argument("--every", type=float, default=0.05)
    options = parser.parse_args()
    with scratch("soak") as home:
        return 0 if asyncio.run(soak(options, home)) else 1


if __name__ == "__main__":
    sys.exit(main())
