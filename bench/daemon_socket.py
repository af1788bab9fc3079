"""What a request costs the daemon, and how many it answers in a second: `hello`, and a target status by `cli.run`.

Processor time is that of the daemon's process, from the system's own count; the load comes from another process with
1, 16 and 64 connections, each of which asks again as soon as it is answered. The gate is for answers that need no
look at the disk: `hello`. A status reads settings and records anew each time, as without a daemon.
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
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

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
        claim = [BIN / "agent-coord", "claim", "--agent-id", "worker-a", "--repo", "acme/widgets", "--target", "7"]
        subprocess.run(claim, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        command = {
            "api": 1,
            "argv": ["status", "--repo", "acme/widgets", "--target", "7", "--json"],
            "cwd": "/",
            "env": environment,
            "now": "2026-03-01T12:00:00.000000Z",
            "seed": "00" * 32,
        }
        nothing: dict[str, object] = {}
        requests: dict[str, dict[str, object]] = {
            "hello": {"jsonrpc": "2.0", "id": 1, "method": "hello", "params": nothing},
            "status": {"jsonrpc": "2.0", "id": 1, "method": "cli.run", "params": command},
        }
        found: dict[tuple[str, int], list[Load]] = {}
        for _ in range(options.rounds):
            for name, request in requests.items():
                for connections in CONNECTIONS:
                    frame = json.dumps(request).encode() + b"\n"
                    load = measure(daemon.pid, path, frame, connections, options.seconds)
                    found.setdefault((name, connections), []).append(load)
    finally:
        daemon.terminate()
        daemon.wait()
        shutil.rmtree(directory)
    print(f"{'':8}{'connections':>12}{'requests/s':>12}{'CPU/request':>14}")
    for (name, connections), loads in found.items():
        rate, cost = (median(load.per_second for load in loads), median(load.microseconds for load in loads))
        print(f"{name:8}{connections:>12}{rate:>12,.0f}{cost:>11.1f} µs")
    at = found["hello", 16]
    kept = median(load.microseconds for load in at) <= 50 and median(load.per_second for load in at) >= 15_000
    print(f"gate (hello at 16: at most 50 µs, at least 15,000/s): {'kept' if kept else 'missed'}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
