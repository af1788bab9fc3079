"""What gc takes, and what it says."""

import json
from datetime import timedelta
from typing import Any

import pytest

from agentcoord.protocol.documents import Document
from agentcoord.protocol.instants import stamp
from tests.cli.line import Line
from tests.operations.stage import START

OLD = stamp(START - timedelta(days=8))
LANE: Document = {"batch_id": "b1", "repo": "o/r", "target": "7"}
ACQUIRED = LANE | {"schema_version": 1, "event_id": "e1", "type": "claim.acquired", "phase": "start"}
CLOSED = LANE | {
    "schema_version": 2,
    "event_id": "e2",
    "type": "lane_closed",
    "lane": "qa",
    "terminal": "done",
    "workspace": "default",
    "closed_by": {"agent_id": "a1", "machine": "m1"},
    "at": "2026-01-01T01:00:00Z",
}
COMPACTION = "archive/events/b1/compact-e8516d23c4719c54-288a817f6c29330c.json"


def lay_lane(line: Line) -> None:
    """Lay the two events of the worked transcript, and let their window pass."""
    line.lay("events/b1/e1.json", ACQUIRED | {"at": "2026-01-01T00:00:00Z"})
    line.lay("events/b1/e2.json", CLOSED)
    line.clock.advance(hours=24 * 8)


@pytest.mark.parametrize("json_too", [(), ("--json",)])
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "gc requires exactly one of --dry-run or --execute"),
        (("--dry-run", "--execute"), "gc requires exactly one of --dry-run or --execute"),
        (("--execute", "--hot-days", "-1"), "--hot-days must be zero or greater"),
        (("--execute", "--archive-days=-1"), "--archive-days must be zero or greater"),
        (("--dry-run", "--synthetic-hot-days", "-3"), "--synthetic-hot-days must be zero or greater"),
        (("--dry-run", "--prefix", "archive"), "--prefix must be one of: claims, heartbeats, batches, events"),
        (("--dry-run", "--prefix", ""), "--prefix must be one of: claims, heartbeats, batches, events"),
        (
            ("--dry-run", "--prefix", "claims", "--prefix", "attention"),
            "--prefix must be one of: claims, heartbeats, batches, events",
        ),
    ],
)
def test_what_it_cannot_be_called_with(line: Line, argv: tuple[str, ...], said: str, json_too: tuple[str, ...]) -> None:
    lay_lane(line)
    before = line.tree()
    output = line.local("gc", *argv, *json_too)
    assert (output.exit, output.stdout, output.stderr) == (1, b"", [said])
    assert line.tree() == before


def test_the_worked_transcript(line: Line) -> None:
    lay_lane(line)
    sources = "events/b1/e1.json,events/b1/e2.json"
    for mode in ("dry-run", "execute"):
        output = line.local("gc", f"--{mode}")
        assert (output.exit, output.stderr) == (0, [])
        assert output.stdout.decode().splitlines() == [
            f"gc {mode} hot=7d archive=30d synthetic_hot=1d",
            f"- compact {sources} -> {COMPACTION} (terminal_target_events)",
        ]
    output = line.local("gc", "--execute")
    assert output.stdout.decode().splitlines()[1:] == ["- no actions"]


def test_json_says_the_same_of_what_is_planned_and_what_is_done(line: Line) -> None:
    lay_lane(line)
    line.lay("claims/o/r/7.json", {"status": "released", "updated_at": OLD})
    gone = {"record_family": "archived_record", "delete_after": OLD}
    line.lay("archive/batches/b0.json", gone)
    line.lay("batches/b2.json", {"status": "completed", "completed_at": OLD})
    line.lay("archive/batches/b2.json", gone)
    options = ("--hot-days", "6", "--archive-days", "9", "--json")
    planned: Any = json.loads(line.local("gc", "--dry-run", *options).stdout)
    assert list(planned) == ["mode", "policy", "prefixes", "actions"]
    assert planned["mode"] == "dry-run"
    assert planned["policy"] == {"hot_days": 6, "archive_days": 9, "synthetic_hot_days": 1}
    assert planned["prefixes"] == ["claims", "heartbeats", "batches", "events"]
    assert [list(action.items()) for action in planned["actions"]] == [
        [
            ("action", "delete"),
            ("source_path", "archive/batches/b0.json"),
            ("reason", "archive_expired"),
            ("eligible_at", OLD),
        ],
        [
            ("action", "replace_archive"),
            ("source_path", "batches/b2.json"),
            ("archive_path", "archive/batches/b2.json"),
            ("reason", "expired_archive_replacement"),
            ("eligible_at", OLD),
        ],
        [
            ("action", "archive"),
            ("source_path", "claims/o/r/7.json"),
            ("archive_path", "archive/claims/o/r/7.json"),
            ("reason", "terminal_claim"),
            ("eligible_at", OLD),
        ],
        [
            ("action", "compact"),
            ("source_paths", ["events/b1/e1.json", "events/b1/e2.json"]),
            ("archive_path", COMPACTION),
            ("reason", "terminal_target_events"),
            ("eligible_at", "2026-01-01T01:00:00Z"),
        ],
    ]
    done: Any = json.loads(line.local("gc", "--execute", *options).stdout)
    assert done == planned | {"mode": "execute"}
    text = line.local("gc", "--dry-run", "--archive-days", "0").stdout.decode()
    assert text == "gc dry-run hot=7d archive=0d synthetic_hot=1d\n- no actions\n"


def test_prefixes_keep_their_order_and_are_said_once(line: Line) -> None:
    lay_lane(line)
    argv = ("--prefix", "heartbeats", "--prefix=claims", "--prefix", "heartbeats", "--json")
    shown: Any = json.loads(line.local("gc", "--dry-run", *argv).stdout)
    assert shown["prefixes"] == ["heartbeats", "claims"]
    assert shown["actions"] == []


def test_what_others_have_configured_does_not_stop_it(line: Line) -> None:
    """The guard against writes that nobody sees is for work; what is old here is old whoever looks."""
    (line.home / ".config/agent-coord").mkdir(parents=True)
    (line.home / ".config/agent-coord/http-env.sh").write_text("export AGENT_COORD_API_URL=https://x.test\n")
    output = line("gc", "--execute")
    assert output.exit == 0
    assert [line.split(":")[0] for line in output.stderr] == ["notice"]


def test_help_offers_it(line: Line) -> None:
    shown = line("gc", "--help").stdout.decode()
    assert "not in this release" not in shown
    for option in ("--dry-run", "--execute", "--hot-days DAYS", "--archive-days DAYS", "--prefix FAMILY"):
        assert option in shown
