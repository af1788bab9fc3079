"""Many processes want one work item at the same instant; exactly one may get it.

Each is forked from a parent that has already run a claim, since on two cores the starts of two hundred interpreters
would spread the race over seconds. What then runs is the command itself. With `--kill`, some are killed at random
instants while a reader goes on reading every record: no record may ever be half-written, and no dead process may
leave a lock behind. Exits 1 when a round breaks a promise.
Usage: python bench/claims_race.py [--processes N] [--rounds N] [--seed N] [--kill]
"""

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import NoReturn

from agentcoord.__main__ import main as command
from measure import clean_environment, scratch

REPO = "example/race"
GRANTED, UNKNOWN, REFUSED = 0, 2, 3
KILLED = -signal.SIGKILL
READ_AT_ONCE = 1 << 20  # more than a record may be


@dataclass(frozen=True)
class Answer:
    """How one process ended, and what it said on both streams."""

    agent: str
    exit: int
    said: str


@dataclass
class Tally:
    """What the rounds came to, and each promise that one of them broke."""

    ends: Counter[str] = field(default_factory=Counter[str])
    seconds: list[float] = field(default_factory=list[float])
    broken: list[str] = field(default_factory=list[str])


def argv_for(agent: str, target: str, state: Path) -> list[str]:
    """Spell the claim that every process of a round makes."""
    return [
        *("claim", "--state-root", str(state)),
        *("--agent-id", agent, "--repo", REPO, "--target", target),
    ]


def run_here(argv: list[str], output: Path) -> NoReturn:
    """Become the command: both streams into one file, and out with its exit status. Only for a forked child."""
    status = 70  # what a traceback leaves, which is then found in the output
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        status = command(argv)
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 70
    except BaseException:  # whatever it is, it must be seen, and must not unwind into the parent's code
        traceback.print_exc()
    finally:
        os._exit(status)


def fork(child: Callable[[], NoReturn]) -> int:
    """Start a child that never returns into this program."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        child()
    return pid


def run_alone(argv: list[str], output: Path) -> Answer:
    """Run the command in one forked child, with nobody in its way."""
    pid = fork(lambda: run_here(argv, output))
    _, status = os.waitpid(pid, 0)
    return Answer(argv[argv.index("--agent-id") + 1], os.waitstatus_to_exitcode(status), output.read_text())


class Race:
    """One state root, and the rounds that are run on it."""

    def __init__(self, directory: Path, *, processes: int, kill: bool, seed: int) -> None:
        self.state = directory / "state"
        self.tally = Tally()
        self._outputs = directory / "outputs"
        self._outputs.mkdir()
        self._processes = processes
        self._kill = kill
        self._random = Random(seed)
        self._killing = 0.5  # seconds over which a round's kills are spread; fitted to what they hit

    def run(self, number: int) -> None:
        """Run one round and judge it."""
        target = f"{number}"
        ready, tell = os.pipe()
        gate, opener = os.pipe()
        pids = {self._start(agent, target, tell, gate, opener): agent for agent in self._agents()}
        for _ in pids:
            os.read(ready, 1)
        began = time.perf_counter()
        os.close(opener)  # every process waits for the end of this pipe, and so all are let go at once
        if self._kill:
            self._kill_some(list(pids))
        answers = [self._reap(pid, agent) for pid, agent in pids.items()]
        self.tally.seconds.append(time.perf_counter() - began)
        for descriptor in (ready, tell, gate):
            os.close(descriptor)
        self._judge(target, answers)

    def _agents(self) -> list[str]:
        return [f"racer-{number:03}" for number in range(self._processes)]

    def _start(self, agent: str, target: str, tell: int, gate: int, opener: int) -> int:
        def child() -> NoReturn:
            os.close(opener)
            os.write(tell, b".")
            os.read(gate, 1)
            run_here(argv_for(agent, target, self.state), self._outputs / agent)

        return fork(child)

    def _kill_some(self, pids: Sequence[int]) -> None:
        # Nobody has been waited for yet, so a process that has ended still owns its id, and no stranger is hit.
        instants = sorted(self._random.uniform(0, self._killing) for _ in range(len(pids) // 4))
        began = time.perf_counter()
        for instant, pid in zip(instants, self._random.sample(pids, len(instants)), strict=True):
            time.sleep(max(0.0, began + instant - time.perf_counter()))
            os.kill(pid, signal.SIGKILL)

    def _reap(self, pid: int, agent: str) -> Answer:
        _, status = os.waitpid(pid, 0)
        output = self._outputs / agent
        said = output.read_text() if output.exists() else ""
        output.unlink(missing_ok=True)
        return Answer(agent, os.waitstatus_to_exitcode(status), said)

    def _judge(self, target: str, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self.tally.ends[kind := kind_of(answer)] += 1
            if kind == "wrong":
                self._break(target, f"{answer.agent} exited with {answer.exit} and said {answer.said!r}")
        winners = [answer.agent for answer in answers if answer.exit == GRANTED]
        killed = [answer.agent for answer in answers if answer.exit == KILLED]
        if self._kill:
            self._killing *= 1.4 if len(killed) > len(answers) // 8 else 0.7
        holder = self._holder(target)
        # Who was killed may have won before it could say so.
        if len(winners) > 1 or (not winners and holder not in killed and len(killed) < len(answers)):
            self._break(target, f"{len(winners)} processes won: {winners}; the record names {holder}")
        if winners and holder != winners[0]:
            self._break(target, f"{winners[0]} won, and the record names {holder}")
        if self._kill:
            self._judge_next(target, holder)
        self._judge_leftovers(target)

    def _judge_next(self, target: str, holder: str | None) -> None:
        """After the killing, one more claim must get a clear answer: no lock may outlive its process."""
        expected = GRANTED if holder is None else REFUSED
        after = run_alone(argv_for("afterwards", target, self.state), self._outputs / "afterwards")
        if after.exit != expected:
            self._break(target, f"a claim afterwards exited with {after.exit} and said {after.said!r}")

    def _judge_leftovers(self, target: str) -> None:
        for name in sorted(os.listdir(self._directory)):
            if name.endswith((".json", ".json.lock")):
                continue
            self.tally.ends["leftover"] += 1
            (self._directory / name).unlink()
            if not self._kill:  # who is killed cannot tidy up; a listing passes such a file over
                self._break(target, f"{name} was left behind")

    @property
    def _directory(self) -> Path:
        return self.state / "claims" / REPO

    def _holder(self, target: str) -> str | None:
        try:
            return json.loads((self._directory / f"{target}.json").read_bytes())["agent_id"]
        except FileNotFoundError:
            return None

    def _break(self, target: str, what: str) -> None:
        self.tally.broken.append(f"round {target}: {what}")


def kind_of(answer: Answer) -> str:
    """Name how a process ended; everything the contract does not allow is wrong."""
    if "Traceback" in answer.said:
        return "wrong"
    if answer.exit == UNKNOWN and "claim write contention" not in answer.said:
        return "wrong"
    if answer.exit == REFUSED and "CLAIM_REFUSED" not in answer.said:
        return "wrong"
    return {GRANTED: "won", REFUSED: "refused", UNKNOWN: "contended", KILLED: "killed"}.get(answer.exit, "wrong")


def read_records(state: Path, until: int, report: int) -> NoReturn:
    """Parse every record again and again until the pipe `until` closes, then report. Only for a forked child."""
    os.set_blocking(until, False)
    reads, bad = 0, list[str]()
    try:
        while True:
            try:
                if os.read(until, 1) == b"":
                    break
            except BlockingIOError:
                pass
            for path in state.rglob("*.json"):
                reads += 1
                try:
                    json.loads(path.read_bytes())
                except (OSError, ValueError):
                    bad.append(path.name)
    finally:
        os.write(report, json.dumps({"reads": reads, "bad": bad[:20]}).encode())
        os._exit(0)


@contextmanager
def reader(state: Path, tally: Tally) -> Generator[None]:
    """A process that reads all the while, and whose findings count like a round's."""
    until, stop = os.pipe()
    answer, report = os.pipe()

    def child() -> NoReturn:
        os.close(stop)
        read_records(state, until, report)

    pid = fork(child)
    try:
        yield
    finally:
        os.close(stop)
        os.waitpid(pid, 0)
        found = json.loads(os.read(answer, READ_AT_ONCE))
        tally.ends["read"] += found["reads"]
        tally.broken += [f"{name} could not be parsed while it was written" for name in found["bad"]]


def print_figures(tally: Tally, *, processes: int, kill: bool) -> None:
    """Print what came of it, and at most twenty broken promises."""
    rounds = len(tally.seconds)
    print(f"{rounds} rounds of {processes} processes{', some of them killed' if kill else ''}")
    for kind, count in sorted(tally.ends.items()):
        print(f"  {kind:10} {count}")
    slowest = max(tally.seconds)
    print(f"  a round takes {median(tally.seconds):.3f} s (median), {slowest:.3f} s (slowest)")
    print(f"  broken promises: {len(tally.broken)}")
    for line in tally.broken[:20]:
        print(f"    {line}")


def main() -> int:
    """Read the command line, run the rounds and judge them."""
    parser = argparse.ArgumentParser(description="Let many processes race for one claim.")
    parser.add_argument("--processes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill", action="store_true", help="kill a quarter of them at random instants")
    given = parser.parse_args()
    with scratch("race") as directory:
        os.environ.clear()
        os.environ.update(clean_environment(directory))
        race = Race(directory, processes=given.processes, kill=given.kill, seed=given.seed)
        warm_up(race.state)
        if given.kill:
            with reader(race.state, race.tally):
                run_rounds(race, given.rounds)
        else:
            run_rounds(race, given.rounds)
        print_figures(race.tally, processes=given.processes, kill=given.kill)
    return 1 if race.tally.broken else 0


def warm_up(state: Path) -> None:
    """Run one claim in this very process, so that its children find everything imported."""
    kept = os.dup(1)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        status = command(argv_for("warm-up", "warm-up", state))
        sys.stdout.flush()
    os.dup2(kept, 1)
    os.close(kept)
    if status != GRANTED:
        sys.exit(f"the first claim exited with {status}")


def run_rounds(race: Race, rounds: int) -> None:
    """Run the rounds one after another."""
    for number in range(1, rounds + 1):
        race.run(number)


if __name__ == "__main__":
    sys.exit(main())
