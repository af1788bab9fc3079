"""What `log` prints: text for people, a table, JSON, each to the stream it belongs to."""

import json
from typing import Any

import pytest

from agentcoord.cli.output import Output
from tests.cli.line import Line

ITEM = "o/r#7"


def lay(line: Line, name: str, **fields: Any) -> None:
    record = {"event_id": name, "batch_id": "b1", "type": "note", "at": "2026-01-01T00:00:00Z", "agent_id": "a1"}
    line.lay(f"events/b1/{name}.json", record | {"repo": "o/r", "target": "7"} | fields)


def lay_claim(line: Line, **fields: Any) -> None:
    claim = {"repo": "o/r", "target": "7", "agent_id": "a1", "status": "active", "updated_at": "2026-01-01T00:00:00Z"}
    line.lay("claims/o/r/7.json", claim | fields)


def texts(output: Output) -> list[str]:
    return output.stdout.decode().splitlines()


def test_text_is_aligned_and_ends_where_there_is_nothing_more(line: Line) -> None:
    lay(line, "e1", message="red", phase="coding")
    lay(line, "e2", target="issue:7", synthetic=True, machine_id="m1")
    lay(line, "e3", repo="o/other")
    output = line.local("log", ITEM, "--include-synthetic")
    assert texts(output) == [
        "2026-01-01T00:00:00Z  ?   ?  o/r#7        note  coding  a1  red",
        "2026-01-01T00:00:00Z  m1  ?  o/r#issue:7  note  ?       a1  [synthetic]",
    ]
    assert output.stderr == []
    assert texts(line.local("log", ITEM))[0] == "2026-01-01T00:00:00Z  ?  ?  o/r#7  note  coding  a1  red"


def test_an_answer_without_rows_says_what_was_asked(line: Line) -> None:
    assert texts(line.local("log", ITEM)) == ["no events for o/r#7"]
    assert texts(line.local("log")) == ["no events for the current filters"]
    assert texts(line.local("log", "--type", "x")) == ["no events for the current filters"]
    lay(line, "e1")
    narrowed = ("--limit", "0", "--since", "2d", "--type", "x", "--host", "h", "--machine", "m")
    shown = "--since 2d, --machine m, --host h, --type x, --limit 0"
    assert texts(line.local("log", ITEM, *narrowed)) == [f"no events shown for o/r#7 ({shown})"]
    assert texts(line.local("log", "--limit", "0")) == ["no events shown for the current filters (--limit 0)"]


def test_a_table_has_stdout_to_itself(line: Line) -> None:
    lay_claim(line, host="claude-code", machine_id="m5", expires_at="2025-12-31T00:00:00Z", phase="p\x1b[2J")
    output = line.local("log", ITEM, "--format", "tsv")
    claim = "claim active m5 claude a1 7 phase p[2J updated 2026-01-01T00:00:00Z lease elapsed 2025-12-31T00:00:00Z"
    assert (output.stdout, output.stderr) == (b"", ["no events for o/r#7", claim])
    assert texts(line.local("log", ITEM)) == ["no events for o/r#7", claim]
    lay(line, "e1", message="a\tb\nc")
    output = line.local("log", "--format", "tsv")
    assert output.stdout == b"2026-01-01T00:00:00Z\t?\t?\to/r#7\tnote\t?\ta1\tb1\ta b c\t?\te1\tfalse\t?\n"


def test_json_has_its_keys_in_order_however_many_rows_there_are(line: Line) -> None:
    for number in range(300):
        lay(line, f"e{number:03}")
    lay_claim(line)
    output = line.local("log", ITEM, "--json")
    answer = json.loads(output.stdout)
    assert list(answer) == ["work_item", "trail", "events_suppressed", "events", "claim", "claims"]
    assert answer["work_item"] == {"repo": "o/r", "target": "7", "matched_targets": ["7"]}
    assert [event["event_id"] for event in answer["events"]] == [f"e{number:03}" for number in range(300)]
    assert " ".join(answer["events"][0]) == (
        "at machine host work_item type phase agent_id batch_id detail host_raw event_id synthetic synthetic_kind"
    )
    assert answer["claims"] == [answer["claim"]]
    assert " ".join(answer["claim"]) == (
        "status machine host agent_id phase updated_at expires_at target lease_elapsed synthetic synthetic_kind"
    )
    assert output.stdout == (json.dumps(answer, indent=2) + "\n").encode()
    answer = json.loads(line.local("log", "--json", "--limit", "0").stdout)
    assert answer == {"trail": "complete", "events_suppressed": True, "events": []}


def test_json_tells_an_incomplete_trail(line: Line) -> None:
    line.lay("events/b1/list.json", [])
    output = line.local("log", ITEM, "--json")
    answer = json.loads(output.stdout)
    assert (output.exit, answer["trail"], answer["events_suppressed"]) == (0, "incomplete", False)
    assert len(output.stderr) == 1


@pytest.mark.parametrize(
    ("argv", "fault"),
    [
        (("o/r", "--json"), "invalid work item repo: o/r"),
        (("--json", "--format", "tsv"), "--json and --format are mutually exclusive"),
        (("--since=-3d",), '--since expects a duration like 3d or an ISO8601 timestamp, got "-3d"'),
        ((ITEM, "o/r#8"), "unexpected arguments: o/r#8"),
        (("--", "--sync"), "invalid work item repo: --sync"),
    ],
)
def test_a_wrong_query_touches_nothing(line: Line, argv: tuple[str, ...], fault: str) -> None:
    output = line("log", "--state-root", str(line.root), *argv)
    assert (output.exit, output.stdout, output.stderr) == (1, b"", [fault])
    assert line.tree() == {}


def test_reading_makes_no_state_root(line: Line) -> None:
    assert line.local("log", ITEM).exit == 0
    assert line.tree() == {}
