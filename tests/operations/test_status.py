"""What status sees in each scope, what it reads for that, and what it says of what it could not see."""

from typing import Any

import pytest

from agentcoord.errors import StoreError, Unreadable, UsageError
from agentcoord.operations.projection import RecordRow, Row
from agentcoord.operations.status import Status, StatusRequest, status
from tests.operations.stage import FakeClock, FaultyStore, Stage, lane
from tests.stores.counting import CountingStore

CLAIMS = "claims/o/r"


async def look(stage: Stage, store: Any = None, **scope: Any) -> Status:
    return await status(stage.context(store), StatusRequest(**scope))


async def at(stage: Stage, target: str, store: Any = None) -> Status:
    return await look(stage, store, repo="o/r", target=target)


def claim(agent_id: str | None = "a1", target: str | None = "7", **more: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"repo": "o/r", "target": target, "agent_id": agent_id, "status": "active"}
    return {key: value for key, value in (facts | more).items() if value is not None}


# -- which scope


@pytest.mark.parametrize(
    ("scope", "fault"),
    [
        ({"batch_id": "b1", "repo": "o/r"}, "--batch-id cannot be combined with --repo or --target"),
        ({"batch_id": "b1", "target": "7"}, "--batch-id cannot be combined with --repo or --target"),
        ({"repo": "o/r"}, "missing required --target"),
        ({"target": "7"}, "missing required --repo"),
        ({"batch_id": "b1", "include_archived": True}, "--include-archived is only valid for unscoped status"),
        (
            {"repo": "o/r", "target": "7", "include_archived": True},
            "--include-archived is only valid for unscoped status",
        ),
        ({"batch_id": "a/b"}, "invalid batch-id: a/b"),
        ({"batch_id": ""}, "invalid batch-id: "),
        ({"repo": "o", "target": "7"}, "invalid target repo: o"),
        ({"repo": "o/r", "target": "a/b"}, "invalid target: a/b"),
    ],
)
async def test_a_scope_that_means_nothing_is_refused_unread(stage: Stage, scope: dict[str, Any], fault: str) -> None:
    store = CountingStore(stage.store)
    with pytest.raises(UsageError) as caught:
        await look(stage, store, **scope)
    assert str(caught.value) == fault
    assert store.reads == store.lists == []


# -- one work item: point reads only


@pytest.mark.parametrize(
    ("target", "read"),
    [
        ("7", ["7", "issue:7", "pr:7"]),
        ("issue:7", ["issue:7", "7", "pr:7"]),
        ("Issue:7", ["Issue:7", "7", "issue:7", "pr:7"]),
        ("pr:7:QA", ["pr:7:QA", "7:qa", "issue:7:qa", "pr:7:qa"]),
        ("foo", ["foo", "adhoc:foo"]),
        ("adhoc:foo", ["adhoc:foo", "foo"]),
        ("adhoc:7", ["adhoc:7"]),
        ("issue:foo", ["issue:foo"]),
    ],
)
async def test_a_work_item_costs_one_read_a_spelling_and_no_listing(stage: Stage, target: str, read: list[str]) -> None:
    for number in range(50):
        stage.lay(f"{CLAIMS}/{number + 100}.json", claim(f"other{number}"))
    store = CountingStore(stage.store)
    await at(stage, target, store)
    assert store.reads == [f"{CLAIMS}/{spelling}.json" for spelling in read]
    assert len(store.reads) <= 4
    assert store.lists == store.writes == []


async def test_each_distinct_holder_costs_one_read_more(stage: Stage) -> None:
    stage.lay(f"{CLAIMS}/7.json", claim("a1"))
    stage.lay(f"{CLAIMS}/issue:7.json", claim("a2", "issue:7"))
    stage.lay(f"{CLAIMS}/pr:7.json", claim("a1", "pr:7"))
    store = CountingStore(stage.store)
    seen = await at(stage, "7", store)
    claims = [f"{CLAIMS}/{spelling}.json" for spelling in ("7", "issue:7", "pr:7")]
    assert store.reads == [*claims, "heartbeats/a1.json", "heartbeats/a2.json"]
    assert store.lists == []
    assert [row["agent_id"] for row in seen.claims] == ["a1", "a2", "a1"]


async def test_what_is_out_of_scope_is_unchecked_rather_than_empty(stage: Stage) -> None:
    seen = await at(stage, "7")
    assert seen.scope == {"kind": "target", "repo": "o/r", "target": "7"}
    assert {"batches", "events"} <= seen.notes.keys()
    assert seen.notes["batches"] == seen.notes["events"]
    assert seen.degraded == [seen.notes["batches"]]


async def test_one_lease_under_two_names_is_one_row(stage: Stage) -> None:
    stage.lay(f"{CLAIMS}/7.json", claim())
    stage.lay(f"{CLAIMS}/issue:7.json", claim())
    stage.lay(f"{CLAIMS}/pr:7.json", claim(agent_id=None))
    seen = await at(stage, "7")
    assert [row["path"] for row in seen.claims] == [f"{CLAIMS}/7.json", f"{CLAIMS}/pr:7.json"]


@pytest.mark.parametrize("data", [b"{", b"", b"\xff"])
async def test_the_queried_spelling_has_to_be_readable(stage: Stage, data: bytes) -> None:
    stage.store.plant(f"{CLAIMS}/7.json", data)
    with pytest.raises(Unreadable, match=f"{CLAIMS}/7.json"):
        await at(stage, "7")
    seen = await at(stage, "issue:7")
    assert seen.notes["claims"] == f"{CLAIMS}/7.json unreadable; a claim there would not be reported"
    assert seen.notes["claims"] in seen.degraded


async def test_a_spelling_that_holds_no_claim_record_is_named(stage: Stage) -> None:
    stage.lay(f"{CLAIMS}/7.json", [])
    stage.lay(f"{CLAIMS}/pr:7.json", "claim")
    with pytest.raises(StoreError) as caught:
        await at(stage, "7")
    assert str(caught.value) == f"state record is not a claim object: {CLAIMS}/7.json"
    seen = await at(stage, "issue:7")
    assert seen.notes["claims"] == "; ".join(
        f"{CLAIMS}/{name}.json not a claim record; a claim there would not be reported" for name in ("7", "pr:7")
    )


async def test_a_backend_that_does_not_answer_is_never_an_absent_claim(stage: Stage) -> None:
    with pytest.raises(StoreError, match="did not answer"):
        await at(stage, "7", FaultyStore(stage.store, unreadable=f"{CLAIMS}/pr:"))


@pytest.mark.parametrize(
    ("beat", "note"),
    [
        (None, "holder heartbeat not found"),
        (b"{", "holder heartbeat unreadable"),
        (b"[]", "holder heartbeat unreadable"),
        (b'{"agent_id": "a9"}', "holder heartbeat mismatched"),
    ],
)
async def test_what_is_wrong_with_a_holders_heartbeat_is_said(stage: Stage, beat: bytes | None, note: str) -> None:
    stage.lay(f"{CLAIMS}/7.json", claim())
    if beat is not None:
        stage.store.plant("heartbeats/a1.json", beat)
    seen = await at(stage, "7")
    assert seen.notes["heartbeats"] == note
    assert seen.heartbeats == []
    stage.lay(f"{CLAIMS}/pr:7.json", claim(None, "pr:7"))
    assert (await at(stage, "7")).notes["heartbeats"] == f"{note} for 7 (a1); claim holder not set for pr:7"


async def test_only_an_aliased_holder_may_be_unreadable(stage: Stage) -> None:
    stage.lay(f"{CLAIMS}/pr:7.json", claim("a1", "pr:7"))
    silent = FaultyStore(stage.store, unreadable="heartbeats")
    assert (await at(stage, "7", silent)).notes["heartbeats"] == "holder heartbeat unreadable"
    with pytest.raises(StoreError, match="did not answer"):
        await at(stage, "pr:7", silent)


@pytest.mark.parametrize(
    ("seconds", "liveness"), [(0, "live"), (59, "live"), (60, "stale"), (239, "stale"), (240, "dead")]
)
async def test_a_holders_liveness_is_that_of_the_moment(
    stage: Stage, clock: FakeClock, seconds: int, liveness: str
) -> None:
    stage.lay(f"{CLAIMS}/7.json", claim())
    await stage.beat("a1", ttl=60)
    clock.advance(seconds=seconds)
    assert (await at(stage, "7")).heartbeats[0]["liveness"] == liveness


# -- one batch


async def test_a_batch_costs_its_own_records_and_those_it_waits_for(stage: Stage) -> None:
    stage.register(
        lane("worker", "a1"),
        lane("qa", "a2", depends_on=["b1:worker", "b2:other"]),
        lane("docs", "a1", depends_on="b2:other"),
    )
    stage.register(lane("other", "a3"), lane("more", "a4"), batch_id="b2")
    stage.register(lane("unrelated", "a5"), batch_id="b3")
    store = CountingStore(stage.store)
    seen = await look(stage, store, batch_id="b1")
    assert sorted(store.reads) == [
        "batches/b1.json",
        "batches/b2.json",
        "heartbeats/a1.json",
        "heartbeats/a2.json",
        "heartbeats/a3.json",
    ]
    assert store.lists == ["events/b1"]
    assert [batch["batch_id"] for batch in seen.batches] == ["b1"]
    assert seen.notes["heartbeats"] == "lane-owner heartbeats not found: a1, a2, a3"


async def test_an_unknown_batch_is_an_answer(stage: Stage) -> None:
    seen = await look(stage, batch_id="none")
    assert seen.degraded == ["not checked in batch scope", "batch not found"]
    assert seen.notes == {"claims": "not checked in batch scope", "batches": "batch not found"}


async def test_faults_of_a_batch_are_named_section_by_section(stage: Stage) -> None:
    stage.register(
        lane("worker", "a1"),
        lane("qa", "a2", depends_on=["nothing", "b/1:x", "b9:gone", "b1:nobody"]),
        lane("a:b", "a9"),
        "no lane",  # pyright: ignore[reportArgumentType]
    )
    stage.lay("heartbeats/a1.json", [])
    stage.lay("heartbeats/a2.json", {"agent_id": "somebody"})
    seen = await look(stage, batch_id="b1")
    assert seen.notes == {
        "claims": "not checked in batch scope",
        "heartbeats": "lane-owner heartbeats unreadable: a1; lane-owner heartbeats mismatched: a2; "
        "lane-owner heartbeats not found: UNKNOWN",
        "lanes": "malformed lane names: a:b",
        "dependencies": "malformed dependency refs: nothing, b/1:x, b1:nobody",
        "unresolved_dependencies": "unresolved dependency refs: b9:gone",
    }
    assert [lane["liveness"] for lane in seen.batches[0]["lanes"]] == [
        "unreadable",
        "mismatched",
        "no-heartbeat",
        "no-heartbeat",
    ]


@pytest.mark.parametrize(
    ("state", "met"),
    [
        ("done", True),
        ("merged", True),
        ("ready_gates_clean", True),
        ("completed", True),
        ("released", False),
        ("abandoned", False),
        ("in_progress", False),
    ],
)
async def test_a_dependency_is_met_by_the_owners_own_word(stage: Stage, state: str, met: bool) -> None:
    stage.register(lane("worker", "a1"), lane("qa", "a2", depends_on=["b1:worker"]))
    await stage.beat("a2")
    stage.lay("heartbeats/a1.json", {"agent_id": "a1", "status": state})
    seen = await look(stage, batch_id="b1")
    assert seen.batches[0]["lanes"][1]["blocked_on"] == ([] if met else ["b1:worker"])


@pytest.mark.parametrize("path", ["batches/b1.json", "events/b1/e1.json"])
@pytest.mark.parametrize("data", [b"", b"{", b"[]"])
async def test_a_batch_whose_own_records_are_broken_is_unknown(stage: Stage, path: str, data: bytes) -> None:
    stage.register(lane())
    stage.store.plant(path, data)
    with pytest.raises(StoreError, match=path):
        await look(stage, batch_id="b1")


# -- everything


async def test_everything_is_four_listings_and_no_more(stage: Stage) -> None:
    await stage.claim("a1", batch_id="b1")
    store = CountingStore(stage.store)
    seen = await look(stage, store)
    assert store.lists == ["claims", "heartbeats", "batches", "events"]
    assert store.reads == []
    assert (seen.degraded, seen.notes, seen.archive) == ([], {}, None)
    await look(stage, store, include_archived=True)
    assert store.lists[4:] == ["claims", "heartbeats", "batches", "events", "archive"]


async def test_events_are_in_the_order_of_their_instants_as_written(stage: Stage) -> None:
    for name, instant in (("c", "2026-01-02T00:00:00Z"), ("b", "2026-01-01T00:00:00Z"), ("a", "2026-01-02T00:00:00Z")):
        stage.lay(f"events/b1/{name}.json", {"at": instant})
    stage.lay("events/b0/z.json", {})
    assert [row["path"] for row in (await look(stage)).events] == [
        "events/b1/b.json",
        "events/b1/a.json",
        "events/b1/c.json",
        "events/b0/z.json",
    ]


async def test_a_heartbeat_that_is_no_object_costs_its_row_only(stage: Stage) -> None:
    await stage.beat("a1")
    stage.lay("heartbeats/a3.json", "x")
    stage.lay("heartbeats/a2.json", [])
    stage.lay("heartbeats/other.json", {"agent_id": "a3", "status": "blocked"})
    stage.register(lane(owner="a2"), lane("qa", "a3"))
    seen = await look(stage)
    assert seen.notes == {"heartbeats": "heartbeat records unreadable: a2, a3"}
    assert [row["agent_id"] for row in seen.heartbeats] == ["a1", "a3"]
    assert [lane["liveness"] for lane in seen.batches[0]["lanes"]] == ["unreadable", "unknown"]


@pytest.mark.parametrize("path", [f"{CLAIMS}/7.json", "batches/b1.json", "events/b1/e.json"])
@pytest.mark.parametrize("data", [b"[]", b'"x"', b"null", b"{", b""])
async def test_any_other_record_that_is_no_object_is_fatal_and_named(stage: Stage, path: str, data: bytes) -> None:
    stage.store.plant(path, data)
    with pytest.raises(Unreadable, match=path):
        await look(stage)


def facts(row: Row) -> dict[str, Any]:
    assert isinstance(row, RecordRow)
    return row.facts()


async def test_rows_show_what_is_there_and_say_unknown_of_the_rest(stage: Stage) -> None:
    stage.lay(f"{CLAIMS}/7.json", {})
    stage.lay("heartbeats/a1.json", {})
    stage.lay("batches/b1.json", {})
    stage.lay("events/b1/e.json", {})
    seen = await look(stage)
    assert [facts(row) for row in seen.claims] == [
        {
            "path": f"{CLAIMS}/7.json",
            "repo": "o/r",
            "target": "7",
            "status": "unknown",
            "agent_id": "UNKNOWN",
            "branch": "UNKNOWN",
            "expires_at": "UNKNOWN",
        }
    ]
    assert [facts(row) for row in seen.heartbeats] == [
        {
            "path": "heartbeats/a1.json",
            "agent_id": "a1",
            "status": "unknown",
            "liveness": "unknown",
            "target": "-",
            "updated_at": "UNKNOWN",
        }
    ]
    assert seen.batches == [{"path": "batches/b1.json", "batch_id": "b1", "lanes": []}]
    assert [facts(row) for row in seen.events] == [
        {"path": "events/b1/e.json", "batch_id": "b1", "type": "unknown", "at": "UNKNOWN"}
    ]


ODD: list[object] = [None, 7, 1.5, True, "", [], {}, [None], {"a": [1]}, "x\ny", 10**40]


@pytest.mark.parametrize("value", ODD, ids=repr)
async def test_no_value_of_any_type_in_any_field_brings_it_down(stage: Stage, value: object) -> None:
    fields = [
        *("repo", "target", "agent_id", "status", "branch", "expires_at", "updated_at", "batch_id", "phase", "type"),
        *("at", "lanes", "name", "owner", "targets", "depends_on", "terminal", "message", "claimed_at", "lane"),
    ]
    odd = dict.fromkeys(fields, value)
    stage.lay(f"{CLAIMS}/7.json", odd)
    stage.lay("heartbeats/a1.json", odd)
    stage.lay("batches/b1.json", odd)
    stage.lay("batches/b2.json", {"batch_id": value, "lanes": [odd, value]})
    stage.lay("events/b1/e.json", odd)
    stage.lay("archive/claims/o/r/7.json", odd)
    await look(stage, include_archived=True)
    await at(stage, "7")
    for batch_id in ("b1", "b2"):
        await look(stage, batch_id=batch_id)


async def test_a_heartbeat_of_unknown_says_nothing_of_a_lane_without_an_owner(stage: Stage) -> None:
    stage.register({"name": "worker", "targets": ["7"], "status": "blocked"})
    await stage.beat("UNKNOWN", status="done")
    for request in (StatusRequest(), StatusRequest(batch_id="b1")):
        [row] = (await status(stage.context(), request)).batches[0]["lanes"]
        assert (row["status"], row["liveness"]) == ("blocked", "no-heartbeat")


@pytest.mark.parametrize(
    ("repo", "target", "missing"), [("o/r", "", "target"), ("", "7", "repo"), ("", "", "repo"), ("o/r", None, "target")]
)
async def test_half_a_work_item_is_none(stage: Stage, repo: str, target: str | None, missing: str) -> None:
    with pytest.raises(UsageError, match=f"missing required --{missing}"):
        await status(stage.context(), StatusRequest(repo=repo, target=target))
