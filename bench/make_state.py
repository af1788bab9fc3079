"""Make a state root such as a busy fleet leaves behind, the same for the same seed and instant.

Agents hold claims, beat, work in batches and tell what happened. Times lie around now, so that live, stale
and dead holders, running and expired leases all occur. Nothing is synced to disk: this is material, not state.
Usage: python bench/make_state.py --root DIR [--claims N] [--heartbeats N] [--batches N] [--events N] [--seed N]
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec

Record = dict[str, Any]

REPOSITORIES = (
    "example/api", "example/api.json", "example/billing", "example/console", "example/docs", "example/infra",
    "example/ingest", "example/mobile", "example/search", "example/web", "tools/linter", "tools/release",
)  # fmt: skip
PHASES = ("planning", "implementing", "validating", "pushing", "review")
WORKING = ("in_progress", "blocked", "blocked_user_input", "waiting_on_checks_or_review", "failed")
TERMINAL = ("done", "done", "done", "abandoned", "superseded")
LANES = ("worker", "qa", "docs", "review", "release")
MACHINES = tuple(f"machine-{number:02}" for number in range(24))
HEARTBEAT_TTL = timedelta(seconds=900)


@dataclass(frozen=True)
class Size:
    """How many records of each family there shall be."""

    claims: int = 10_000
    heartbeats: int = 10_000
    batches: int = 500
    events: int = 20_000


@dataclass(frozen=True)
class Lane:
    """A lane of a batch, and who works in it on what."""

    batch_id: str
    name: str
    owner: str
    repo: str
    target: str
    opened: datetime
    closed: str | None

    def record(self, depends_on: list[str]) -> Record:
        """Spell the lane as its batch manifest does."""
        lane: Record = {"name": self.name, "owner": self.owner, "targets": [self.target]}
        if depends_on:
            lane["depends_on"] = depends_on
        if self.closed is not None:
            ended = self.opened + timedelta(hours=6)
            lane |= {"status": self.closed, "terminal": self.closed, "closed_at": stamp(ended), "workspace": "default"}
            lane["closed_by"] = {"agent_id": self.owner, "machine": machine_of(self.owner)}
        return lane


def stamp(instant: datetime) -> str:
    """Spell an instant as records do: UTC, whole seconds."""
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


def machine_of(agent: str) -> str:
    """Name the machine an agent always works on."""
    return MACHINES[sha256(agent.encode()).digest()[0] % len(MACHINES)]


def agent_named(number: int) -> str:
    """Name the agent of a number."""
    return f"worker-{number:05}"


class Fleet:
    """Draws the records of all families, in one order, from one source of chance."""

    def __init__(self, size: Size, *, seed: int, now: datetime) -> None:
        self._size = size
        self._random = Random(seed)
        self._now = now.replace(microsecond=0)
        self._lanes: dict[str, list[Lane]] = {}

    def records(self) -> Iterator[tuple[str, Record]]:
        """All records with their paths; batches first, since the others speak of them."""
        yield from self._batches()
        yield from self._claims()
        yield from self._heartbeats()
        yield from islice(self._events(), self._size.events)

    def _ago(self, longest: timedelta) -> datetime:
        return self._now - timedelta(seconds=self._random.randrange(int(longest.total_seconds())))

    def _agent(self) -> str:
        # One agent in eleven has never been heard of: its claims have no heartbeat to lean on.
        return agent_named(self._random.randrange(max(1, self._size.heartbeats * 11 // 10)))

    def _place(self, agent: str, phase: str | None = None) -> Record:
        place: Record = {"thread_handle": f"thread-{agent}", "host": machine_of(agent), "operator": "fleet"}
        if phase is not None:
            place["phase"] = phase
        return place | {
            "machine_id": machine_of(agent),
            "session_id": sha256(agent.encode()).hexdigest()[:24],
            "session_source": "agent_coord_session_id",
        }

    def _batches(self) -> Iterator[tuple[str, Record]]:
        for number in range(self._size.batches):
            batch_id = f"batch-{number:04}"
            repo = self._random.choice(REPOSITORIES)
            opened = self._ago(timedelta(days=20)) - timedelta(hours=8)
            finished = self._random.random() < 0.3
            lanes: list[Lane] = []
            rows: list[Record] = []
            for position in range(self._random.randint(2, 8)):
                name = f"{LANES[position % len(LANES)]}-{position}"
                closed = self._random.choice(TERMINAL) if finished or self._random.random() < 0.15 else None
                target = f"{number * 10 + position + 1}"
                lane = Lane(batch_id, name, self._agent(), repo, target, opened, closed)
                rows.append(lane.record(self._dependencies(lanes)))
                lanes.append(lane)
            self._lanes[batch_id] = lanes
            record: Record = {
                "batch_id": batch_id,
                "repo": repo,
                "objective": f"Bring {repo} to the next release, part {number}",
                "operator": "fleet",
                "lanes": rows,
                "schema_version": 1,
                "registered_at": stamp(opened),
                "updated_at": stamp(opened + timedelta(hours=6)),
            }
            if all(lane.closed for lane in lanes):
                record |= {"status": "completed", "completed_at": stamp(opened + timedelta(hours=6))}
            yield f"batches/{batch_id}.json", record

    def _dependencies(self, earlier: list[Lane]) -> list[str]:
        chosen: list[Lane] = []
        if earlier and self._random.random() < 0.5:
            chosen.append(self._random.choice(earlier))
        if self._lanes and self._random.random() < 0.1:
            chosen.append(self._random.choice(self._lanes[f"batch-{self._random.randrange(len(self._lanes)):04}"]))
        return [f"{lane.batch_id}:{lane.name}" for lane in chosen]

    def _claims(self) -> Iterator[tuple[str, Record]]:
        planned = [lane for lanes in self._lanes.values() for lane in lanes]
        for number in range(self._size.claims):
            lane = planned[number] if number < len(planned) else None
            agent = lane.owner if lane else self._agent()
            repo = lane.repo if lane else self._random.choice(REPOSITORIES)
            target = lane.target if lane else f"{100_000 + number}"
            taken = lane.opened if lane else self._ago(timedelta(days=20))
            record: Record = {"schema_version": 1, "repo": repo, "target": target, "agent_id": agent}
            if lane:
                record["batch_id"] = lane.batch_id
            record |= {"branch": f"work/{target}-{agent}", "status": "active", "claimed_at": stamp(taken)}
            record |= self._claim_state(lane, agent, taken)
            yield f"claims/{repo}/{target}.json", record | self._place(agent, self._random.choice(PHASES))

    def _claim_state(self, lane: Lane | None, agent: str, taken: datetime) -> Record:
        if lane is not None and lane.closed is not None:
            return self._released(agent, lane.opened + timedelta(hours=6)) | {
                "terminal": lane.closed,
                "workspace": "default",
                "closed_by": {"agent_id": agent, "machine": machine_of(agent)},
            }
        if self._random.random() < 0.25:
            handoff: Record = {"release_mode": "handoff", "handoff_to": self._agent(), "handoff_note": "tests are red"}
            return self._released(agent, taken + timedelta(hours=1)) | (handoff if self._random.random() < 0.3 else {})
        renewed = self._ago(min(timedelta(hours=12), self._now - taken + timedelta(seconds=1)))
        return {"updated_at": stamp(renewed), "expires_at": stamp(renewed + timedelta(hours=4))}

    def _released(self, agent: str, ended: datetime) -> Record:
        at = stamp(ended)
        return {"status": "released", "updated_at": at, "expires_at": at, "released_by": agent, "released_at": at}

    def _heartbeats(self) -> Iterator[tuple[str, Record]]:
        for number in range(self._size.heartbeats):
            agent = agent_named(number)
            # Within its ttl an agent is live, up to four times that stale, and after it dead.
            silence = self._random.choice((1, 1, 2, 4, 96))
            heard = self._ago(HEARTBEAT_TTL * silence)
            finished = silence == 96 and self._random.random() < 0.6
            record: Record = {
                "schema_version": 1,
                "agent_id": agent,
                "status": self._random.choice(("done", "ready", "merged") if finished else WORKING),
                "updated_at": stamp(heard),
                "expires_at": stamp(heard + HEARTBEAT_TTL),
                "repo": self._random.choice(REPOSITORIES),
                "target": f"{100_000 + self._random.randrange(max(1, self._size.claims))}",
            }
            yield f"heartbeats/{agent}.json", record | self._place(agent, self._random.choice(PHASES))

    def _events(self) -> Iterator[tuple[str, Record]]:
        lanes = [lane for of_batch in self._lanes.values() for lane in of_batch]
        for lane in lanes:
            if lane.closed is not None:
                yield self._closing(lane)
        step = 0
        while lanes:  # each lane in turn tells one more thing, until there are enough
            for lane in lanes:
                yield self._step(lane, step)
            step += 1

    def _closing(self, lane: Lane) -> tuple[str, Record]:
        name = "lane_closed-" + sha256(lane.name.encode()).hexdigest()[:16]
        at = stamp(lane.opened + timedelta(hours=6))
        record: Record = {"schema_version": 2, "event_id": name, "batch_id": lane.batch_id, "lane": lane.name}
        record |= {"type": "lane_closed", "agent_id": lane.owner, "repo": lane.repo, "target": lane.target}
        record |= {"terminal": lane.closed, "workspace": "default", "at": at}
        record["closed_by"] = {"agent_id": lane.owner, "machine": machine_of(lane.owner)}
        return f"events/{lane.batch_id}/{name}.json", record

    def _step(self, lane: Lane, step: int) -> tuple[str, Record]:
        moment = lane.opened + timedelta(minutes=5 * step, seconds=self._random.randrange(300))
        second = moment.strftime("%Y%m%dT%H%M%S")
        name = f"{second}.{self._random.randrange(1_000_000):06}Z-{self._random.randbytes(4).hex()}"
        record: Record = {"schema_version": 1, "event_id": name, "batch_id": lane.batch_id, "type": "claim.acquired"}
        if step > 0:
            record |= self._told(step)
        record |= {"lane": lane.name, "agent_id": lane.owner, "repo": lane.repo, "target": lane.target}
        record["branch"] = f"work/{lane.target}-{lane.owner}"
        record["at"] = stamp(moment)
        return f"events/{lane.batch_id}/{name}.json", record | self._place(lane.owner, record.get("phase"))

    def _told(self, step: int) -> Record:
        chance = self._random.random()
        if chance < 0.04:
            return {"type": "help_requested", "reason": "question"}
        if chance < 0.08:
            return {"type": "error", "severity": "P2", "category": "tests", "message": "three tests fail on main"}
        if chance < 0.3:
            return {"type": "progress", "status": self._random.choice(WORKING), "message": f"step {step} is done"}
        old, new = PHASES[(step - 1) % len(PHASES)], PHASES[step % len(PHASES)]
        return {"type": "phase.changed", "previous_phase": old, "phase": new, "message": f"phase {old} -> {new}"}


def write_state(root: Path, size: Size, *, seed: int, now: datetime) -> int:
    """Write the whole state below `root` and return the number of records."""
    encode = msgspec.json.Encoder().encode
    made: set[Path] = set()
    count = 0
    for path, record in Fleet(size, seed=seed, now=now).records():
        file = root / path
        if file.parent not in made:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            made.add(file.parent)
        file.write_bytes(msgspec.json.format(encode(record), indent=2) + b"\n")
        count += 1
    return count


def main() -> None:
    """Read the command line and write the state."""
    parser = argparse.ArgumentParser(description="Make a realistic state root.")
    parser.add_argument("--root", type=Path, required=True)
    for family in ("claims", "heartbeats", "batches", "events"):
        parser.add_argument(f"--{family}", type=int, default=getattr(Size, family))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--now", type=datetime.fromisoformat, default=datetime.now(UTC), help="an instant, with offset")
    given = parser.parse_args()
    size = Size(given.claims, given.heartbeats, given.batches, given.events)
    count = write_state(given.root, size, seed=given.seed, now=given.now.astimezone(UTC))
    print(f"{count} records below {given.root}")


if __name__ == "__main__":
    main()
