"""What a request costs the daemon, and how many it answers in a second: `hello`, and the status of one work item.

Processor time is that of the daemon's process, from the system's own count; the load comes from another process with
1, 16 and 64 connections, each of which asks again as soon as it is answered. `status.target` is answered from the
daemon's index, which looks at every file that the answer rests on; `rewritten` is the same while another process writes
the holder's heartbeat four times a second; `cli.run` is the command line, which reads settings and records anew each
time. `floor` is no daemon but an asyncio protocol that has the bytes of that status ready: what the event loop, the
socket and the load itself cost. The gate is for `hello` and `status.target`.
(Not called `socket`: a script's directory stands before the standard library.)

Usage: python bench/daemon_socket.py [--seconds N] [--rounds N]
"""

import argparse
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

from measure import BIN, clean_environment

CONNECTIONS = (1, 16, 64)
TICKS = os.sysconf("SC_CLK_TCK")
GO = b'{"jsonrpc":"2.0","method":"go","params":{"id":1}}\n'
ACCEPTED = b'"accepted"'


@dataclass(frozen=True)
class Load:
    """What one load came to."""

    per_second: float
    microseconds: float
    """Processor time of the daemon, a request."""


FLOOR = """\
import asyncio, sys
answer = open(sys.argv[2], "rb").read()
class Floor(asyncio.Protocol):
    def connection_made(self, transport): self.transport = transport
    def data_received(self, data):
        for _ in range(data.count(b"\\n")): self.transport.write(answer)
async def serve():
    async with await asyncio.get_running_loop().create_unix_server(Floor, sys.argv[1]) as server:
        await server.serve_forever()
asyncio.run(serve())
"""
REWRITE_SECONDS = 0.25


@contextmanager
def floor(path: str, answer: bytes) -> Generator[int]:
    """Have a bare protocol give one answer to everything; gives its process id."""
    Path(f"{path}.answer").write_bytes(answer)
    process = subprocess.Popen([sys.executable, "-c", FLOOR, path, f"{path}.answer"])
    try:
        while not os.path.exists(path):
            sleep(0.01)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def rewrite(path: str, ended: Any) -> None:
    """Replace a file now and then, as its writers do, with other content each time."""
    record, number = json.loads(Path(path).read_bytes()), 0
    while not ended.wait(REWRITE_SECONDS):
        number += 1
        Path(f"{path}.new").write_text(json.dumps(record | {"phase": f"p{number}"}))
        os.replace(f"{path}.new", path)


@contextmanager
def rewriting(path: Path) -> Generator[None]:
    """Have another process rewrite a file for a block."""
    fork = get_context("fork")
    ended = fork.Event()
    writer = fork.Process(target=rewrite, args=(str(path), ended))
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def once(path: str, request: bytes) -> bytes:
    """Ask once, and give the line that is answered."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(path)
        caller.sendall(request)
        with caller.makefile("rb") as lines:
            return lines.readline()


def ask(path: str, request: bytes, connections: int, seconds: float) -> int:
    """Ask on so many connections for so long, and count the answers."""
    poll = select.epoll()
    callers: dict[int, socket.socket] = {}
    partial: dict[int, bytes] = {}
    for _ in range(connections):
        caller = socket.socket(socket.AF_UNIX)
        caller.connect(path)
        callers[caller.fileno()] = caller
        partial[caller.fileno()] = b""
        poll.register(caller, select.EPOLLIN)
        caller.sendall(request)
    answers, end = 0, perf_counter() + seconds
    while perf_counter() < end:
        for number, _ in poll.poll(1):
            *lines, partial[number] = (partial[number] + callers[number].recv(1 << 18)).split(b"\n")
            for line in lines:
                if line.startswith(b'{"id"'):
                    if b'"error"' in line[:2000]:
                        raise RuntimeError(line.decode())
                    answers += 1
                    callers[number].sendall(request)
                elif ACCEPTED in line[:60]:
                    callers[number].sendall(GO)
    for caller in callers.values():
        caller.close()
    return answers


def processor_seconds(pid: int) -> float:
    """Give what a process has used so far, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure(pid: int, path: str, request: bytes, connections: int, seconds: float) -> Load:
    """Load the daemon from another process."""
    before = processor_seconds(pid)
    with get_context("fork").Pool(1) as pool:
        answers = pool.apply(ask, (path, request, connections, seconds))
    used = processor_seconds(pid) - before
    return Load(answers / seconds, used / answers * 1e6)


def main() -> int:
    """Measure, print, and say whether the gate is kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="acd-"))
    environment = clean_environment(directory) | {"AGENT_COORD_RUNTIME_DIR": str(directory / "run")}
    path = str(directory / "run/daemon.sock")
    daemon = subprocess.Popen([BIN / "agentcoordd", "run"], env=environment, stderr=subprocess.DEVNULL)
    try:
        while not os.path.exists(path):
            sleep(0.01)
        item = ("--repo", "acme/widgets", "--target", "7")
        for argv in (("claim", "--agent-id", "worker-a", *item), ("heartbeat", "--agent-id", "worker-a", *item)):
            subprocess.run([BIN / "agent-coord", *argv], env=environment, check=True, capture_output=True)
        root = directory / ".local/state/agent-coordination"
        command = {
            "api": 1,
            "argv": ["status", *item, "--json"],
            "cwd": "/",
            "env": environment,
            "now": "2026-03-01T12:00:00.000000Z",
            "seed": "00" * 32,
        }
        target = {"backend": {"kind": "local", "root": str(root)}, "repo": "acme/widgets", "target": "7"}
        asked: dict[str, tuple[str, object]] = {
            "floor": ("status.target", target),
            "hello": ("hello", {}),
            "status.target": ("status.target", target),
            "rewritten": ("status.target", target),
            "cli.run": ("cli.run", command),
        }
        frames = {
            name: json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n"
            for name, (method, params) in asked.items()
        }
        bare = str(directory / "floor.sock")
        found: dict[tuple[str, int], list[Load]] = {}
        with floor(bare, once(path, frames["status.target"])) as pid:
            for _ in range(options.rounds):
                for name, frame in frames.items():
                    for connections in CONNECTIONS:
                        beat = rewriting(root / "heartbeats/worker-a.json") if name == "rewritten" else nullcontext()
                        there = (pid, bare) if name == "floor" else (daemon.pid, path)
                        with beat:
                            load = measure(*there, frame, connections, options.seconds)
                        found.setdefault((name, connections), []).append(load)
    finally:
        daemon.terminate()
        daemon.wait()
        shutil.rmtree(directory)
    print(f"{'':15}{'connections':>12}{'requests/s':>12}{'CPU/request':>14}")
    for (name, connections), loads in found.items():
        rate, cost = (median(load.per_second for load in loads), median(load.microseconds for load in loads))
        print(f"{name:15}{connections:>12}{rate:>12,.0f}{cost:>11.1f} µs")
    kept = [_keeps(found[name, 16]) for name in ("hello", "status.target")]
    print(f"gate (hello, status.target at 16: at most 50 µs, at least 15,000/s): {'kept' if all(kept) else 'missed'}")
    return 0 if all(kept) else 1


def _keeps(loads: Sequence[Load]) -> bool:
    rate, cost = (median(load.per_second for load in loads), median(load.microseconds for load in loads))
    return cost <= 50 and rate >= 15_000


if __name__ == "__main__":
    sys.exit(main())
