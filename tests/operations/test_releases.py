"""Giving a lease back: plainly, as a handoff, and for good with its lane."""

from contextlib import nullcontext
from typing import Any

import pytest

from agentcoord.errors import Conflict, StoreError, UsageError
from agentcoord.operations.claims import Released, ReleaseRequest, release
from agentcoord.operations.closeout import Closed, record_closing
from agentcoord.operations.context import Context
from agentcoord.protocol.identity import NOBODY, Identity
from agentcoord.stores.memory import MemoryStore
from tests.operations.stage import CLAIM, FakeClock, FaultyStore, Stage, lane

CLOSING = "events/b1/lane_closed-87eba76e7f316453.json"
BATCH = "batches/b1.json"
M1 = Identity(machine_id="m1")


def asked(agent_id: str = "a1", **more: Any) -> ReleaseRequest:
    return ReleaseRequest(agent_id=agent_id, repo="o/r", target=more.pop("target", "7"), **more)


async def closing(context: Context, **more: Any) -> Closed:
    payload = {"agent_id": "a1", "repo": "o/r", "target": "7", "terminal": "done", **more}
    return await record_closing(context, "b1", {key: value for key, value in payload.items() if value is not None})


# -- plain and handed over


async def test_a_release_ends_the_lease_and_keeps_the_record(stage: Stage, clock: FakeClock) -> None:
    await stage.claim("a1", batch_id="b1", branch="main", metadata={"phase": "test"})
    clock.advance(minutes=1)
    released = await release(stage.context(), asked(branch="other", metadata={"pr_url": "https://x/1"}))
    now = "2026-01-01T00:01:00Z"
    assert released.closed is None
    assert await stage.record(CLAIM) == released.record
    assert released.record == {
        "schema_version": 1,
        "repo": "o/r",
        "target": "7",
        "agent_id": "a1",
        "batch_id": "b1",
        "branch": "other",
        "status": "released",
        "claimed_at": "2026-01-01T00:00:00Z",
        "updated_at": now,
        "expires_at": now,
        "phase": "test",
        "released_by": "a1",
        "released_at": now,
        "pr_url": "https://x/1",
    }
    [event] = await stage.events(type_="claim.released")
    assert (event["status"], event["agent_id"], event["branch"]) == ("released", "a1", "other")
    assert "message" not in event


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"handoff_to": "a2"}, {"release_mode": "handoff", "handoff_to": "a2"}),
        ({"handoff_note": "wip"}, {"release_mode": "handoff", "handoff_note": "wip"}),
        (
            {"handoff_to": "a2", "handoff_note": "wip"},
            {"release_mode": "handoff", "handoff_to": "a2", "handoff_note": "wip"},
        ),
        ({"handoff_to": ""}, {"release_mode": "handoff", "handoff_to": ""}),
        ({}, {}),
    ],
)
async def test_a_handoff_replaces_whatever_handoff_there_was(
    stage: Stage, given: dict[str, str], stored: dict[str, str]
) -> None:
    await stage.claim("a1", batch_id="b1")
    await release(stage.context(), asked(handoff_to="old", handoff_note="old"))
    record = (await release(stage.context(), asked(**given))).record
    fields = ("release_mode", "handoff_to", "handoff_note")
    assert {key: record[key] for key in fields if key in record} == stored
    event = (await stage.events(type_="claim.released"))[-1]
    assert {key: event[key] for key in fields if key in event} == stored
    assert event.get("message") == stored.get("handoff_note")


async def test_without_a_batch_a_release_leaves_no_event(stage: Stage) -> None:
    await stage.claim("a1")
    await release(stage.context(), asked())
    assert list(await stage.records()) == [CLAIM]


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        (asked("a2"), "claim belongs to a1; a2 cannot release it"),
        (asked(target="8"), "no claim exists for o/r#8"),
        (asked(target="issue:7"), "no claim exists for o/r#issue:7"),
        (asked(target="a/b"), "invalid target: a/b"),
        (asked(terminal="finished"), "--terminal must be one of: done, abandoned, superseded"),
        (asked(terminal=""), "--terminal must be one of: done, abandoned, superseded"),
        (
            asked(terminal="done", handoff_to="a2"),
            "--terminal cannot be combined with --handoff-to or --handoff-note",
        ),
        (
            asked(terminal="done", handoff_note=""),
            "--terminal cannot be combined with --handoff-to or --handoff-note",
        ),
        (asked(terminal="done"), "terminal release requires a claim with batch_id"),
        (asked(terminal="done", facts={"workspace": " "}), "--workspace must not be empty for terminal closeout"),
        (asked(terminal="done", metadata={"host": ""}), "--host must not be empty for terminal closeout"),
        (asked(terminal="done", branch=""), "--branch must not be empty for terminal closeout"),
        (asked(terminal="done", facts={"pr_state": ""}), "--pr-state must not be empty for terminal closeout"),
        (asked(terminal="done", metadata={"pr_url": "x"}), "--pr-url must be an HTTP(S) URL with a host"),
        (
            asked(terminal="done", facts={"evidence_url": "https:///x"}),
            "--evidence-url must be an HTTP(S) URL with a host",
        ),
        (
            asked(terminal="done", facts={"evidence_url": "https://h/a b"}),
            "--evidence-url must be an HTTP(S) URL with a host",
        ),
    ],
)
async def test_what_may_not_be_released_stays_held(stage: Stage, request_: ReleaseRequest, fault: str) -> None:
    await stage.claim("a1")
    before = await stage.records()
    with pytest.raises(UsageError) as caught:
        await release(stage.context(), request_)
    assert str(caught.value) == fault
    assert await stage.records() == before


async def test_facts_stored_by_a_careless_claim_are_checked_before_they_are_published(stage: Stage) -> None:
    await stage.claim("a1", batch_id="b1", metadata={"pr_url": "not a url"})
    stage.register(lane())
    with pytest.raises(UsageError, match="--pr-url must be an HTTP"):
        await release(stage.context(), asked(terminal="done"))
    assert await stage.events(type_="lane_closed") == []


async def test_a_release_that_lost_a_race_changes_nothing(stage: Stage, clock: FakeClock) -> None:
    await stage.claim("a1")

    async def first() -> None:
        clock.advance(seconds=1)
        await stage.claim("a1")

    with pytest.raises(Conflict) as caught:
        await release(stage.context(FaultyStore(stage.store, at=1, first=first)), asked())
    assert str(caught.value) == f"state changed at {CLAIM}"
    assert (await stage.record(CLAIM))["status"] == "active"


# -- for good


async def test_the_last_lane_closed_completes_the_batch(stage: Stage, clock: FakeClock) -> None:
    stage.register(lane(), lane("qa", "a2", ("8",)), objective="x")
    await stage.claim("a1", batch_id="b1", metadata={"phase": "start"})
    clock.advance(seconds=9)
    now, closer = "2026-01-01T00:00:09Z", {"agent_id": "a1", "machine": "m1"}
    released = await release(
        stage.context(identity=M1), asked(terminal="done", facts={"pr_state": "merged", "workspace": "w"})
    )
    assert released.closed is not None
    assert released.closed.changed
    assert list((await stage.record(CLOSING)).items()) == [
        ("schema_version", 2),
        ("event_id", "lane_closed-87eba76e7f316453"),
        ("batch_id", "b1"),
        ("type", "lane_closed"),
        ("lane", "worker"),
        ("agent_id", "a1"),
        ("repo", "o/r"),
        ("target", "7"),
        ("terminal", "done"),
        ("pr_state", "merged"),
        ("workspace", "w"),
        ("closed_by", closer),
        ("at", now),
        ("machine_id", "m1"),
    ]
    claim = await stage.record(CLAIM)
    assert (claim["status"], claim["terminal"], claim["closed_by"], claim["workspace"]) == (
        "released",
        "done",
        closer,
        "w",
    )
    batch = await stage.record(BATCH)
    assert "status" not in batch
    assert batch["updated_at"] == now
    assert batch["lanes"][0] == lane() | {
        "status": "done",
        "terminal": "done",
        "closed_at": now,
        "closed_by": closer,
        "workspace": "w",
        "pr_state": "merged",
    }
    assert await stage.events(type_="claim.released") == []

    await stage.claim("a2", "8", batch_id="b1")
    await release(stage.context(), asked("a2", target="8", terminal="abandoned"))
    batch = await stage.record(BATCH)
    assert (batch["status"], batch["completed_at"], batch["objective"]) == ("completed", now, "x")
    assert batch["lanes"][1]["closed_by"] == {"agent_id": "a2", "machine": "UNKNOWN"}


async def test_closing_again_changes_nothing(stage: Stage, clock: FakeClock) -> None:
    stage.register(lane())
    await stage.claim("a1", batch_id="b1")
    await release(stage.context(), asked(terminal="done"))
    before = await stage.records()
    clock.advance(hours=1)
    again = await release(stage.context(), asked(terminal="done"))
    assert again.closed is not None
    assert not again.closed.changed
    assert await stage.records() == before


@pytest.mark.parametrize(
    "other",
    [
        asked(terminal="abandoned"),
        asked(terminal="done", facts={"pr_state": "merged"}),
        asked(terminal="done", facts={"evidence_url": "https://h"}),
        asked(terminal="done", facts={"workspace": "elsewhere"}),
        asked(terminal="done", metadata={"pr_url": "https://h/1"}),
    ],
)
async def test_the_first_closeout_is_the_one_that_counts(stage: Stage, other: ReleaseRequest) -> None:
    stage.register(lane())
    await stage.claim("a1", batch_id="b1")
    await release(stage.context(), asked(terminal="done"))
    before = await stage.records()
    with pytest.raises(UsageError) as caught:
        await release(stage.context(), other)
    assert str(caught.value) == "conflicting terminal closeout for lane worker; first closeout is authoritative"
    assert await stage.records() == before


async def test_the_machine_is_no_contradiction(stage: Stage) -> None:
    stage.register(lane())
    await stage.claim("a1", batch_id="b1")
    await closing(stage.context(identity=M1))
    released = await release(stage.context(identity=Identity(machine_id="m2")), asked(terminal="done"))
    assert released.record["closed_by"] == {"agent_id": "a1", "machine": "m1"}


@pytest.mark.parametrize(
    ("batch", "more", "fault"),
    [
        (None, {}, "batch b1 not found for terminal closeout"),
        ({"repo": "o/other"}, {}, "terminal closeout repo does not match batch b1"),
        ({"lanes": [lane(targets=("8",))]}, {}, "terminal closeout does not match exactly one lane in batch b1"),
        ({"lanes": [lane(), lane("qa")]}, {}, "terminal closeout does not match exactly one lane in batch b1"),
        ({"lanes": []}, {}, "terminal closeout does not match exactly one lane in batch b1"),
        ({"lanes": "none"}, {}, "terminal closeout does not match exactly one lane in batch b1"),
        ({"lanes": ["worker", 7]}, {}, "terminal closeout does not match exactly one lane in batch b1"),
        ({}, {"lane": "nobody"}, "terminal closeout does not match exactly one lane in batch b1"),
        (
            {"lanes": [lane(targets=("issue:7", "9"))]},
            {},
            "terminal closeout target does not match exact registered spelling for lane worker; registered: issue:7, 9",
        ),
        ({"lanes": [lane(owner="a9")]}, {}, "terminal closeout agent does not match lane worker"),
        ({}, {"terminal": "gone"}, "--terminal must be one of: done, abandoned, superseded"),
        ({}, {"repo": "nowhere"}, "invalid terminal closeout repo: nowhere"),
    ],
)
async def test_a_closeout_that_means_no_lane_is_refused_whole(
    stage: Stage, batch: dict[str, Any] | None, more: dict[str, Any], fault: str
) -> None:
    if batch is not None:
        stage.lay(BATCH, {"batch_id": "b1", "lanes": [lane()]} | batch)
    before = await stage.records()
    with pytest.raises(UsageError) as caught:
        await closing(stage.context(), **more)
    assert str(caught.value) == fault
    assert await stage.records() == before


async def test_a_named_lane_tells_lanes_of_one_target_apart(stage: Stage) -> None:
    stage.register(lane(), lane("qa"))
    closed = await closing(stage.context(), lane="qa")
    assert closed.event["lane"] == "qa"
    assert [entry.get("terminal") for entry in (await stage.record(BATCH))["lanes"]] == [None, "done"]


async def test_who_took_the_lane_over_may_close_it(stage: Stage, clock: FakeClock) -> None:
    stage.register(lane())
    await stage.claim("a1", batch_id="b1", ttl=1)
    clock.advance(hours=1)
    await stage.claim("a2", batch_id="b1")
    assert (await release(stage.context(), asked("a2", terminal="done"))).record["terminal"] == "done"


@pytest.mark.parametrize("broken", [{"schema_version": 9}, {"agent_id": "UNKNOWN"}, {"at": "soon"}, {"batch_id": "b9"}])
async def test_a_history_that_does_not_admit_a_stranger_keeps_him_out(stage: Stage, broken: dict[str, Any]) -> None:
    stage.register(lane())
    await stage.claim("a2", batch_id="b1")
    [event] = await stage.events()
    stage.lay(f"events/b1/{event['event_id']}.json", event | broken)
    before = await stage.records()
    with pytest.raises(UsageError, match="agent does not match lane worker"):
        await release(stage.context(), asked("a2", terminal="done"))
    assert await stage.records() == before


# -- interrupted anywhere, taken up again


def lost(path: str) -> StoreError:
    return StoreError(f"no answer for {path}")


@pytest.mark.parametrize("command", ["release", "record-event"])
@pytest.mark.parametrize(
    ("error", "landed"), [(lost, False), (lost, True), (Conflict, False)], ids=["failed", "unanswered", "conflict"]
)
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("pause", [0, 90, -5], ids=["at once", "later", "clock set back"])
@pytest.mark.parametrize("owner", ["a1", "a9"], ids=["by its owner", "by its claimant"])
@pytest.mark.parametrize("identity", [M1, NOBODY], ids=["m1", "unknown machine"])
async def test_a_closeout_interrupted_at_any_write_ends_the_same_when_run_again(
    clock: FakeClock,
    command: str,
    error: Any,
    landed: bool,
    step: int,
    pause: int,
    owner: str,
    identity: Identity,
) -> None:
    async def prepared() -> Stage:
        stage = Stage(MemoryStore(), FakeClock())
        stage.register(lane(owner=owner), lane("qa", "a2", ("8",), terminal="done", closed_at="x"))
        await stage.claim("a1", batch_id="b1")
        return stage

    async def run(stage: Stage, store: Any) -> Released | Closed:
        context = stage.context(store, identity=identity)
        return await (release(context, asked(terminal="done")) if command == "release" else closing(context))

    clean = await prepared()
    writes = FaultyStore(clean.store)
    await run(clean, writes)
    assert writes.writes == (3 if command == "release" else 2)

    stage = await prepared()
    faulty = FaultyStore(stage.store, at=step, error=error, landed=landed)
    # The batch is written last, and losing a race for it is a reason to look again.
    survivable = step > writes.writes or (step == writes.writes and error is Conflict)
    with nullcontext() if survivable else pytest.raises(StoreError):
        await run(stage, faulty)
    stage.clock.advance(seconds=pause)
    await run(stage, stage.store)
    settled = await stage.records()
    again = await run(stage, stage.store)
    closed = again.closed if isinstance(again, Released) else again
    assert closed is not None
    assert not closed.changed
    assert await stage.records() == settled
    assert len(await stage.events(type_="lane_closed")) == 1
    assert _timeless(settled) == _timeless(await clean.records())
    if pause == 0:
        assert settled == await clean.records()


@pytest.mark.parametrize("owner", ["a1", "a9"], ids=["by its owner", "by its claimant"])
async def test_a_closeout_cut_off_before_its_claim_is_finished_by_repeating_it_whoever_holds_the_claim_now(
    stage: Stage, clock: FakeClock, owner: str
) -> None:
    stage.register(lane(owner=owner))
    await stage.claim("a1", batch_id="b1", ttl=60)
    with pytest.raises(StoreError):
        await release(stage.context(FaultyStore(stage.store, at=2, error=lost)), asked(terminal="done"))
    clock.advance(seconds=60)
    await stage.claim("a2", batch_id="b1")
    with pytest.raises(UsageError, match="terminal closeout"):
        await release(stage.context(), asked("a2", terminal="done"))
    for other in ({"terminal": "abandoned"}, {"evidence_url": "https://x/1"}, {"agent_id": "a3"}):
        with pytest.raises(UsageError, match="conflicting|does not match lane"):
            await closing(stage.context(), **other)
    finished = await closing(stage.context())
    assert (finished.event_created, finished.batch_changed) == (False, True)
    assert (await stage.record(BATCH))["status"] == "completed"
    assert (await stage.record(CLAIM))["agent_id"] == "a2"


async def test_a_lane_without_an_owner_is_not_owned_by_who_is_called_unknown(stage: Stage) -> None:
    stage.register({"name": "worker", "targets": ["7"]})
    with pytest.raises(UsageError, match="agent does not match lane worker"):
        await closing(stage.context(), agent_id="UNKNOWN")


async def test_nothing_that_comes_after_a_cut_off_closeout_keeps_it_from_being_finished(stage: Stage) -> None:
    stage.register(lane(owner="a9"))
    await stage.claim("a1", batch_id="b1")
    with pytest.raises(StoreError):
        await release(stage.context(FaultyStore(stage.store, at=2, error=lost)), asked(terminal="done"))
    for phase in ("one", "two"):  # by an agent that never acquired the lane: the history does not hold together now
        await stage.beat("a5", repo="o/r", target="7", batch_id="b1", metadata={"phase": phase})
    stage.register(lane(owner="a8"))
    assert (await closing(stage.context())).batch_changed


async def test_a_closing_event_admits_only_its_own_closeout(stage: Stage) -> None:
    stage.register(lane())
    stage.lay(
        CLOSING,
        {"schema_version": 2, "event_id": "lane_closed-87eba76e7f316453", "batch_id": "b1", "type": "lane_closed"}
        | {"lane": "worker", "agent_id": "a2", "repo": "o/r", "target": "7", "terminal": "done"}
        | {"workspace": "default", "closed_by": {"agent_id": "a2", "machine": "m1"}, "at": stage.stamp()},
    )
    before = await stage.records()
    for other in ({"agent_id": "a3"}, {"agent_id": "a2", "terminal": "abandoned"}):
        with pytest.raises(UsageError, match="agent does not match lane worker"):
            await closing(stage.context(), **other)
    assert await stage.records() == before


def _timeless(records: dict[str, Any]) -> dict[str, Any]:
    """Leave out when it was done: the retry was later."""
    times = ("at", "updated_at", "released_at", "expires_at", "completed_at", "closed_at")

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(part) for key, part in value.items() if key not in times}  # pyright: ignore[reportUnknownVariableType]
        return [without(part) for part in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]

    return {path: without(document) for path, document in records.items()}


async def test_a_claim_settled_by_somebody_else_meanwhile_is_settled(stage: Stage) -> None:
    stage.register(lane())
    await stage.claim("a1", batch_id="b1")

    async def first() -> None:
        await release(stage.context(), asked(terminal="done"))

    released = await release(stage.context(FaultyStore(stage.store, at=2, first=first)), asked(terminal="done"))
    assert released.closed is not None
    assert (released.closed.event_created, released.closed.claim_changed, released.closed.batch_changed) == (
        True,
        False,
        False,
    )


async def test_a_claim_renewed_meanwhile_is_not_overwritten(stage: Stage, clock: FakeClock) -> None:
    stage.register(lane())
    await stage.claim("a1", batch_id="b1")

    async def first() -> None:
        clock.advance(seconds=1)
        await stage.claim("a1")

    with pytest.raises(Conflict, match=f"state changed at {CLAIM}"):
        await release(stage.context(FaultyStore(stage.store, at=2, first=first)), asked(terminal="done"))
    assert (await stage.record(CLAIM))["status"] == "active"
    await release(stage.context(), asked(terminal="done"))
    assert (await stage.record(CLAIM))["terminal"] == "done"


class AlwaysRaced(FaultyStore):
    """Loses every race for a batch."""

    async def write(self, path: str, document: object, *, version: str | None, note: str) -> str:
        if path.startswith("batches/"):
            self.writes += 1
            raise Conflict(path)
        return await self.inner.write(path, document, version=version, note=note)


async def test_a_batch_that_never_holds_still_is_given_up_after_three_rounds(stage: Stage) -> None:
    stage.register(lane())
    raced = AlwaysRaced(stage.store)
    with pytest.raises(StoreError) as caught:
        await closing(stage.context(raced))
    assert str(caught.value) == "batch b1 changed repeatedly during terminal closeout"
    assert raced.writes == 3


async def test_a_lane_stamped_otherwise_in_the_batch_is_a_contradiction(stage: Stage) -> None:
    stage.register(lane(terminal="abandoned"))
    with pytest.raises(UsageError, match="conflicting terminal closeout for lane worker"):
        await closing(stage.context())
    assert (await stage.record(BATCH))["lanes"] == [lane(terminal="abandoned")]


@pytest.mark.parametrize("path", [CLAIM, BATCH])
@pytest.mark.parametrize("data", [b"{", b"[]", b""])
async def test_broken_records_stop_a_closeout_before_it_begins(stage: Stage, path: str, data: bytes) -> None:
    stage.register(lane())
    await stage.claim("a1", batch_id="b1")
    stage.store.plant(path, data)
    before = await stage.records()
    with pytest.raises(StoreError, match=path):
        await release(stage.context(), asked(terminal="done"))
    assert await stage.records() == before


async def test_the_machine_of_a_closeout_counts_within_the_claim(stage: Stage) -> None:
    """A released claim that names another machine than its event is not settled yet."""
    stage.register(lane())
    await stage.claim("a1", batch_id="b1")
    await release(stage.context(identity=M1), asked(terminal="done"))
    stage.lay(CLAIM, await stage.record(CLAIM) | {"closed_by": {"agent_id": "a1", "machine": "m2"}})
    again = await release(stage.context(identity=Identity(machine_id="m2")), asked(terminal="done"))
    assert again.closed is not None
    assert (again.closed.claim_changed, again.closed.event_created) == (True, False)
    assert (await stage.record(CLAIM))["closed_by"] == {"agent_id": "a1", "machine": "m1"}


async def test_a_lane_that_is_replanned_meanwhile_is_not_closed_under_its_old_target(stage: Stage) -> None:
    stage.register(lane())
    await stage.claim("a1", batch_id="b1")

    async def replan() -> None:
        stage.register(lane(targets=("8",)))

    # Of the three writes, event, claim and batch, the last one meets a batch that was registered anew.
    store = FaultyStore(stage.store, at=3, first=replan)
    with pytest.raises(UsageError, match="does not match exact registered spelling"):
        await release(stage.context(store), asked(terminal="done"))
    assert "terminal" not in (await stage.record(BATCH))["lanes"][0]
