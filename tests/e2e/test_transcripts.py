"""A two-lane batch from registration to closeout, as a person types it."""

import json
import re

import pytest

from tests.command import Answer, Coord

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
M1 = {"AGENT_COORD_MACHINE_ID": "m1"}
ITEM = ("--repo", "o/r", "--target", "7")
MANIFEST = {
    "batch_id": "b1",
    "repo": "o/r",
    "lanes": [
        {"name": "worker", "owner": "a1", "targets": ["7"]},
        {"name": "qa", "owner": "a2", "targets": ["8"], "depends_on": ["b1:worker"]},
    ],
}


def timeless(answer: Answer) -> str:
    assert (answer.exit, answer.err) == (0, "")
    return STAMP.sub("<ts>", answer.out)


@pytest.fixture
def played(coord: Coord) -> Coord:
    (coord.work / "m.json").write_text(json.dumps(MANIFEST))
    assert coord("register-batch", "--file", "m.json").out == "registered batch b1\n"
    claim = ("claim", "--agent-id", "a1", *ITEM, "--batch-id", "b1", "--phase", "start")
    assert timeless(coord(*claim)) == "claimed o/r#7 by a1 until <ts>\n"
    beat = ("heartbeat", "--agent-id", "a1", *ITEM, "--batch-id", "b1")
    assert timeless(coord(*beat, "--phase", "start")) == "heartbeat a1 <ts>\n"
    assert timeless(coord(*beat, "--phase", "test")) == "heartbeat a1 <ts>\n"
    return coord


def test_a_batch_is_worked_on_and_closed(played: Coord) -> None:
    assert timeless(played("status", "--batch-id", "b1")) == (
        "claims\n"
        "- not checked in batch scope\n"
        "heartbeats\n"
        "- a1 in_progress live o/r#7 updated <ts>\n"
        "batches\n"
        "- b1\n"
        "  - lane worker owner a1 targets 7 status in_progress live deps - blocked_on -\n"
        "  - lane qa owner a2 targets 8 status unknown no-heartbeat deps b1:worker blocked_on b1:worker\n"
        "events\n"
        "- b1 - claim.acquired start by a1 at <ts>\n"
        "- b1 - phase.changed test by a1 at <ts> phase start -> test\n"
        "degraded\n"
        "- not checked in batch scope\n"
        "- lane-owner heartbeats not found: a2\n"
    )
    release = ("release", "--agent-id", "a1", *ITEM, "--terminal")
    assert timeless(played(*release, "done", env=M1)) == "released o/r#7 by a1\n"
    claim = json.loads((played.state / "claims/o/r/7.json").read_text())
    assert list(claim) == [
        *("schema_version", "repo", "target", "agent_id", "batch_id", "status", "claimed_at", "updated_at"),
        *("expires_at", "phase", "released_by", "released_at", "machine_id", "terminal", "workspace"),
        "closed_by",
    ]
    batch = json.loads((played.state / "batches/b1.json").read_text())
    assert list(batch) == ["batch_id", "repo", "lanes", "schema_version", "registered_at", "updated_at"]
    assert list(batch["lanes"][0]) == [
        *("name", "owner", "targets", "status", "terminal", "closed_at", "closed_by", "workspace")
    ]
    assert timeless(played(*release, "done", env=M1)) == "lane already closed for o/r#7\n"
    other = played(*release, "abandoned", env=M1)
    assert (other.exit, other.out) == (1, "")
    assert other.err == "conflicting terminal closeout for lane worker; first closeout is authoritative\n"
    audit = played("batch-audit", "--batch-id", "b1")
    assert (audit.exit, audit.err) == (1, "")
    assert audit.out == (
        "batch-audit b1 incomplete\n"
        "- lane worker owner a1 complete\n"
        "- lane qa owner a2 incomplete missing claim.acquired, terminal\n"
    )


def test_a_second_agent_is_refused(played: Coord) -> None:
    refused = played("claim", "--agent-id", "a2", *ITEM, "--json")
    assert refused.exit == 3
    assert refused.err == "CLAIM_REFUSED: active claim for o/r#7 held by a1; heartbeat live\n"
    assert refused.json()["refused"] is True


def test_a_deep_look_at_an_empty_root(coord: Coord) -> None:
    coord.state.mkdir()
    env = M1 | {"AGENT_COORD_SESSION_ID": "s1"}
    assert timeless(coord("doctor", "--deep", env=env)) == (
        "agent-coord doctor\n"
        "version: 0.1.0\n"
        "backend: local\n"
        "backend_repo: \n"
        f"state_root: {coord.state}\n"
        "mode: deep\n"
        "status: ok\n"
        "machine_id: m1\n"
        "session_id: s1\n"
        "session_source: agent_coord_session_id\n"
        "machine_match: unverified\n"
    )
    report = coord("doctor", "--deep", "--json", env=env).json()
    assert list(report) == [
        *("version", "backend", "backend_repo", "backend_url", "state_root", "deep", "status", "environment_identity")
    ]


def test_the_walkthrough_leaves_nothing(coord: Coord) -> None:
    demo = coord("demo", env={"AGENT_COORD_ENV_FILE": "broken", "HOME": None})
    assert (demo.exit, demo.err) == (0, "")
    assert demo.out.startswith("agent-coord demo\n")
    assert demo.out.endswith("demo complete; temporary state removed\n")
    assert list(coord.tmp.iterdir()) == list(coord.work.iterdir()) == []
    assert not coord.state.exists()
