"""What one beat keeps of the beat before, and when a phase has changed."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.heartbeats import Beat, PhaseChange, build_heartbeat, phase_change
from agentcoord.protocol.identity import NOBODY, Identity
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.liveness import liveness
from agentcoord.protocol.records import HEARTBEAT_KEPT
from agentcoord.protocol.statuses import normalize
from tests.protocol.strategies import NOW, Json, metadata, nearby, records

LATER = NOW + timedelta(seconds=600)
WORK: Json = {"repo": "o/r", "target": "7", "batch_id": "b1", "branch": "x"}
KEPT = [
    "repo",
    "target",
    "batch_id",
    "branch",
    "thread_handle",
    "chat_handle",
    "host",
    "machine_id",
    "session_id",
    "session_source",
    "pr_url",
    "dashboard_url",
    "operator",
    "phase",
    "generation",
    "instance_id",
    "synthetic",
    "synthetic_kind",
]
STORED: Json = {
    **{field: f"old {field}" for field in KEPT},
    **WORK,
    "schema_version": 1,
    "agent_id": "a1",
    "status": "napping",
    "status_raw": "napping",
    "updated_at": stamp(NOW),
    "expires_at": stamp(NOW + timedelta(seconds=900)),
    "custom": "x",
}


def beat(status: str = "in_progress", **fields: Any) -> Beat:
    return Beat(agent_id="a1", ttl=fields.pop("ttl", 900), status=normalize(status), **fields)


def built(stored: Json | None, told: Beat, *, identity: Identity = NOBODY) -> Json:
    return build_heartbeat(stored, told, identity, LATER)


def test_a_first_beat_says_what_was_told_in_order() -> None:
    told = beat(
        "Completed", repo="o/r", target="7", batch_id="b1", branch="x", metadata={"phase": "p", "generation": 1}
    )
    assert list(built(None, told, identity=Identity("m1", "s1", "codex_thread_id")).items()) == [
        ("schema_version", 1),
        ("agent_id", "a1"),
        ("repo", "o/r"),
        ("target", "7"),
        ("batch_id", "b1"),
        ("branch", "x"),
        ("status", "done"),
        ("updated_at", "2026-01-01T12:10:00Z"),
        ("expires_at", "2026-01-01T12:25:00Z"),
        ("status_raw", "Completed"),
        ("phase", "p"),
        ("generation", 1),
        ("machine_id", "m1"),
        ("session_id", "s1"),
        ("session_source", "codex_thread_id"),
    ]


@pytest.mark.parametrize("field", KEPT)
@pytest.mark.parametrize(
    "told",
    [beat(), beat(repo="o/r", target="7"), beat(batch_id="b1"), beat(branch="x")],
    ids=["nothing supplied", "same item", "same batch", "same branch"],
)
def test_the_same_work_keeps(field: str, told: Beat) -> None:
    assert built(STORED, told)[field] == STORED[field]


@pytest.mark.parametrize("field", ["status_raw", "custom", "released_at"])
def test_no_beat_keeps(field: str) -> None:
    assert field not in built(STORED | {"released_at": "x"}, beat())


OTHER = "other/repo"


@pytest.mark.parametrize(
    ("supplied", "stays"),
    [
        pytest.param({"batch_id": "b2"}, {"repo": "o/r", "target": "7"}, id="another batch"),
        pytest.param({"branch": "y"}, {"repo": "o/r", "target": "7"}, id="another branch"),
        pytest.param({"target": "8"}, {"repo": "o/r"}, id="another target"),
        pytest.param({"repo": OTHER, "target": "7"}, {}, id="another repository, same target"),
        pytest.param({"repo": OTHER, "target": "8"}, {}, id="another item"),
        pytest.param({"repo": OTHER}, {}, id="another repository, target open"),
        pytest.param({"repo": "o/r"}, {"repo": "o/r"}, id="the same repository, target open"),
        pytest.param(
            {"repo": "o/r", "target": "7", "branch": "y"}, {"repo": "o/r", "target": "7"}, id="same item, branch"
        ),
    ],
)
def test_other_work_keeps_only_what_is_still_so(supplied: Json, stays: Json) -> None:
    record = built(STORED, beat(**supplied))
    expected = built(None, beat()) | stays | supplied
    assert record == expected


def test_a_target_of_another_repository_is_not_the_one_before_though_spelled_alike() -> None:
    record = built(STORED, beat(repo=OTHER, target="7"))
    assert list(record) == list(built(None, beat(repo=OTHER, target="7")))  # in its own place, not where a kept one is


@pytest.mark.parametrize("field", ["repo", "target", "batch_id", "branch"])
def test_a_fact_where_none_was_is_a_change(field: str) -> None:
    stored = {k: v for k, v in STORED.items() if k != field}
    assert "phase" not in built(stored, beat(**{field: WORK[field]}))


def test_a_repository_without_a_target_changes_nothing_where_no_target_is_stored() -> None:
    stored = {k: v for k, v in STORED.items() if k != "target"}
    assert built(stored, beat(repo="o/r"))["phase"] == STORED["phase"]


@given(records([*STORED, *KEPT]), metadata, st.sampled_from([{}, {"repo": "o/r"}, {"target": "8"}, WORK]))
def test_no_record_stores_a_null_and_what_is_told_stands(stored: Json, options: Json, work: Json) -> None:
    record = built(stored, beat(metadata=options, **work))
    assert None not in record.values()
    assert (options | work).items() <= record.items()
    assert set(record) <= {*KEPT, "schema_version", "agent_id", "status", "updated_at", "expires_at", "status_raw"}


@given(records([*STORED, *KEPT]), metadata)
def test_beating_twice_the_same_is_beating_once(stored: Json, options: Json) -> None:
    once = built(stored, beat(metadata=options))
    assert built(once, beat(metadata=options)) == once


def test_what_is_kept_is_listed_once() -> None:
    assert sorted(HEARTBEAT_KEPT) == sorted(KEPT)


@given(st.integers(1, 10**7), nearby)
def test_a_beat_is_live_for_its_ttl(ttl: int, now: datetime) -> None:
    record = build_heartbeat(None, beat(ttl=ttl), NOBODY, now)
    assert liveness(record, now) == "live"
    assert liveness(record, now + timedelta(seconds=ttl)) == "stale"
    assert liveness(record, now + timedelta(seconds=4 * ttl)) == "dead"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [(NOBODY, ("m1", "s1")), (Identity(machine_id="m2"), ("m2", None)), (Identity("m2", "s2", "x"), ("m2", "s2"))],
    ids=["silent", "other machine", "both"],
)
def test_who_beats_is_merged_with_who_beat(environment: Identity, expected: tuple[str | None, ...]) -> None:
    stored = STORED | {"machine_id": "m1", "session_id": "s1"}
    record = built(stored, beat(), identity=environment)
    assert (record.get("machine_id"), record.get("session_id")) == expected
    elsewhere = built(stored, beat(target="8"), identity=environment)
    assert elsewhere.get("machine_id") == environment.machine_id  # nothing of who did other work is inherited


# Phases --------------------------------------------------------------------------------------------

PHASED: Json = {"agent_id": "a1", "repo": "o/r", "target": "7", "batch_id": "b1", "phase": "start"}


@pytest.mark.parametrize(
    ("stored", "told", "batch_id"),
    [
        pytest.param(PHASED, {}, "b1", id="batch as stored"),
        pytest.param(PHASED, {"batch_id": "b1"}, "b1", id="same batch"),
        pytest.param(PHASED, {"repo": "o/r", "target": "7"}, "b1", id="same item"),
        pytest.param(PHASED, {"branch": "other"}, "b1", id="a branch does not matter"),
        pytest.param(PHASED, {"batch_id": "b2"}, None, id="another batch"),
        pytest.param(PHASED, {"target": "8"}, None, id="another target"),
        pytest.param(PHASED, {"repo": "o/x"}, None, id="another repository"),
        pytest.param({k: v for k, v in PHASED.items() if k != "batch_id"}, {}, None, id="no batch known"),
        pytest.param({k: v for k, v in PHASED.items() if k != "batch_id"}, {"batch_id": "b1"}, None, id="a batch anew"),
        pytest.param(PHASED | {"phase": ""}, {}, None, id="no phase before"),
        pytest.param(PHASED | {"phase": None}, {}, None, id="null before"),
        pytest.param(PHASED | {"phase": "test"}, {}, None, id="the same phase"),
        pytest.param(None, {"batch_id": "b1"}, None, id="no beat before"),
    ],
)
def test_a_phase_changes_within_the_same_work(stored: Json | None, told: Json, batch_id: str | None) -> None:
    change = phase_change(stored, beat(metadata={"phase": "test"}, **told))
    expected = None if batch_id is None else PhaseChange(batch_id=batch_id, previous="start", phase="test")
    assert change == expected


@pytest.mark.parametrize("options", [{}, {"phase": ""}, {"host": "codex"}], ids=repr)
def test_without_a_phase_told_there_is_no_change(options: Json) -> None:
    assert phase_change(PHASED, beat(metadata=options)) is None
