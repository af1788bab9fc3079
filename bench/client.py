"""How long a command takes through the daemon of this machine, beside an interpreter that does nothing.

Installs the project as a wheel in an environment of its own, as a person would: an editable install starts slower.

Usage: python bench/client.py [--rounds N] [--daemon WORD...]
"""

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from measure import BIN, ROOT, clean_environment, interleave, print_table, scratch

ITEM = ("--repo", "acme/app", "--target", "7")
COMMANDS = {
    "status --target": ("status", *ITEM),
    "claim": ("claim", "--agent-id", "a1", *ITEM),
}
PATIENCE = 30.0  # seconds until a daemon that does not come up, or does not answer, ends the script


def install(place: Path) -> Path:
    """Install the project as a wheel, and a console script that does nothing; gives the directory of programs."""
    built = place / "dist"
    pip = [str(BIN / "python"), "-m", "pip", "-qq", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(built), str(ROOT)], check=True
    )
    environment = place / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    programs = environment / "bin"
    own = [str(programs / "python"), *pip[1:], "install"]
    # Pip first: the console scripts of the one that comes with Python 3.11 import `re`.
    requirements = ROOT / "requirements"
    for lock in ("pip.txt", "run.txt"):
        subprocess.run([*own, "--require-hashes", "-r", str(requirements / lock)], check=True)
    (wheel,) = built.iterdir()
    subprocess.run([*own, "--no-deps", str(wheel)], check=True)
    script = programs.joinpath("agent-coord").read_text(encoding="utf-8")
    nothing = programs / "nothing"
    nothing.write_text(script.replace("agentcoord.__main__", "nothing"), encoding="utf-8")
    nothing.chmod(0o755)
    (packages,) = environment.glob("lib/python*/site-packages")
    packages.joinpath("nothing.py").write_text("def main():\n    return 0\n", encoding="utf-8")
    return programs


@contextmanager
def running(argv: Sequence[str], path: Path, environment: Mapping[str, str]) -> Generator[int]:
    """Have a daemon run that answers at `path`; gives its process id."""
    daemon = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        until = perf_counter() + PATIENCE
        while not _answers(path):
            if daemon.poll() is not None or perf_counter() > until:
                sys.exit(f"no daemon answers at {path}: {' '.join(argv)}")
            time.sleep(0.02)
        yield daemon.pid
    finally:
        daemon.terminate()
        daemon.wait(PATIENCE)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def share(path: Path, words: Sequence[str], environment: Mapping[str, str], rounds: int) -> float:
    """Give the median seconds from the first byte that a client sends to the last that it gets."""
    taken: list[float] = []
    for _ in range(rounds):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(str(path))
            lines = connection.makefile("rwb")
            params: dict[str, Any] = {
                "api": 1,
                "version": "bench",
                "argv": list(words),
                "cwd": "/",
                "env": dict(environment),
                "terminal": {"person": False, "columns": 80, "colour": False, "notices": False},
                "program": "/agent-coord",
                "node": os.uname().nodename,
                "now": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "seed": secrets.token_hex(32),
            }
            began = perf_counter()
            _send(lines, {"id": 1, "method": "cli.run", "params": params})
            while "result" not in (said := json.loads(lines.readline())):
                if "error" in said:
                    sys.exit(f"the daemon refused: {said['error']['message']}")
                if said["method"] == "accepted":
                    _send(lines, {"method": "go", "params": {"id": 1}})
            taken.append(perf_counter() - began)
    return median(taken)


def _send(lines: Any, frame: Mapping[str, object]) -> None:
    lines.write(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n")
    lines.flush()


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description="Measure commands through the daemon.")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--daemon", nargs=argparse.REMAINDER, help="the words that start another daemon; comes last")
    given = parser.parse_args()
    rounds = max(20, given.rounds)
    with scratch("client") as place:
        programs = install(place)
        runtime = place / "run"
        environment = clean_environment(place) | {
            "AGENT_COORD_RUNTIME_DIR": str(runtime),
            "AGENT_COORD_STATE_ROOT": str(place / "state"),
            "XDG_STATE_HOME": str(place / "daemon"),
            "PATH": f"{programs}:{os.defpath}",
        }
        through, alone = {"AGENT_COORD_DAEMON": "require"}, {"AGENT_COORD_DAEMON": "off"}
        python, command = str(programs / "python"), str(programs / "agent-coord")
        argv = given.daemon or [str(programs / "agentcoordd"), "run", "--serve-any-root"]
        subprocess.run([command, *COMMANDS["claim"]], env=environment | alone, check=True, stdout=subprocess.DEVNULL)
        rows: dict[str, tuple[str, ...]] = {
            "python -c pass": (python, "-c", "pass"),
            "nothing": (str(programs / "nothing"),),
        }
        changes: dict[str, Mapping[str, str]] = {}
        for name, words in COMMANDS.items():
            for how, change in (("daemon", through), ("in-process", alone)):
                rows[f"{name}, {how}"] = (command, *words)
                changes[f"{name}, {how}"] = change
        with running(argv, runtime / "daemon.sock", environment):
            figures = interleave(rows, rounds=rounds, environment=environment, changes=changes)
            print_table(figures, floor="python -c pass")
            print()
            for name, words in COMMANDS.items():
                own = share(runtime / "daemon.sock", words, environment, rounds)
                print(f"{name}: {1000 * own:.2f} ms from asking the daemon to its answer")


if __name__ == "__main__":
    main()
