"""What commands answer: every JSON document to the byte, text as scripts read it, refusals on both streams.

The documents are in `golden/`; after a change that is meant, `WRITE_GOLDEN=1` writes them anew, to be
read in the diff.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agentcoord.cli.output import Output
from agentcoord.errors import Exit
from tests.cli.line import Line

GOLDEN = Path(__file__).parent / "golden"
ITEM = ("--repo", "o/r", "--target", "7")
MANIFEST = {
    "batch_id": "b1",
    "repo": "o/r",
    "objective": "shöw →",
    "lanes": [
        {"name": "worker", "owner": "a1", "targets": ["7"], "host": "codex"},
        {"name": "qa", "owner": "a2", "targets": ["8"], "depends_on": ["b1:worker"]},
    ],
}


def golden(name: str, line: Line, output: Output) -> None:
    shown = line.shown(output)
    place = GOLDEN / name
    if os.environ.get("WRITE_GOLDEN"):
        place.write_bytes(shown)
    assert shown.decode() == place.read_text(encoding="utf-8")
    if name.endswith(".json"):
        assert json.dumps(json.loads(shown), ensure_ascii=False, indent=2) + "\n" == shown.decode()


@pytest.fixture
def played(line: Line) -> Line:
    """A batch of two lanes: the first is being worked on, the second waits for it."""
    line.env["AGENT_COORD_MACHINE_ID"] = "m1"
    assert line.local("register-batch", "--file", line.file("m.json", MANIFEST)).exit == 0
    more = ("--batch-id", "b1", "--phase", "start")
    assert line.local("claim", "--agent-id", "a1", *ITEM, *more, "--branch", "main").exit == 0
    line.clock.advance(seconds=1)
    assert line.local("heartbeat", "--agent-id", "a1", *ITEM, *more).exit == 0
    line.clock.advance(seconds=1)
    assert line.local("heartbeat", "--agent-id", "a1", "--phase", "test").exit == 0
    return line


# -- status


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("status-all", []),
        ("status-archived", ["--include-archived"]),
        ("status-target", [*ITEM]),
        ("status-alias", ["--repo", "o/r", "--target", "Issue:7"]),
        ("status-absent", ["--repo", "o/r", "--target", "99"]),
        ("status-batch", ["--batch-id", "b1"]),
        ("status-unknown-batch", ["--batch-id", "none"]),
    ],
)
def test_status(played: Line, name: str, options: list[str]) -> None:
    played.lay(
        "archive/claims/o/r/6.json",
        {
            "schema_version": 1,
            "record_family": "archived_record",
            "source_path": "claims/o/r/6.json",
            "reason": "terminal_claim",
            "synthetic": False,
            "archived_at": "2026-01-01T00:00:00Z",
            "delete_after": "2026-01-31T00:00:00Z",
            "data": {},
        },
    )
    golden(f"{name}.json", played, played.local("status", *options, "--json"))
    golden(f"{name}.txt", played, played.local("status", *options))


def test_status_with_everything_wrong_that_may_be(played: Line) -> None:
    played.lay("claims/o/r/issue:7.json", [])
    played.lay("claims/o/r/pr:7.json", {"target": "pr:7", "agent_id": "a2"})
    played.lay("heartbeats/a2.json", [])
    degraded = played.local("status", *ITEM, "--json")
    golden("status-degraded.json", played, degraded)
    golden("status-degraded.txt", played, played.local("status", *ITEM))
    assert (degraded.exit, degraded.stderr) == (0, [])


def test_status_of_nothing_at_all(line: Line) -> None:
    output = line.local("status")
    assert output.stdout == b"claims\n- none\nheartbeats\n- none\nbatches\n- none\nevents\n- none\n"
    document = json.loads(line.local("status", "--json").stdout)
    assert (document["degraded"], document["section_notes"]) == ([], {})
    assert line.tree() == {}, "looking makes nothing"


ODD: list[object] = [None, 7, 1.5, True, "", [], {}, [None], {"a": [1]}, "x\ny", 10**40, "\x1b[31m", "\ufeff"]


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_no_value_of_any_type_in_any_record_brings_a_command_down(line: Line, value: object) -> None:
    fields = [
        *("repo", "target", "agent_id", "status", "branch", "expires_at", "updated_at", "batch_id", "phase", "type"),
        *("at", "name", "owner", "targets", "depends_on", "terminal", "message", "claimed_at", "lane", "host"),
        *("closed_by", "workspace", "machine_id", "session_id", "generation", "registered_at", "synthetic"),
        *("event_id", "pr_url", "lanes", "delete_after", "source_paths", "record_family"),
    ]
    odd = dict.fromkeys(fields, value)
    commands = [
        ["status", "--include-archived"],
        ["status", *ITEM],
        ["status", "--batch-id", "b1"],
        ["status", "--batch-id", "b2"],
        ["batch-audit", "--batch-id", "b1"],
        ["batch-audit", "--batch-id", "b2"],
        ["doctor", "--deep"],
        ["claim", "--agent-id", "a1", *ITEM, "--batch-id", "b1"],
        ["claim", "--agent-id", "a2", *ITEM],
        ["release", "--agent-id", "a1", *ITEM],
        ["release", "--agent-id", "a1", *ITEM, "--terminal", "done"],
        ["record-event", "--batch-id", "b2", "--type", "lane_closed", "--terminal", "done", "--agent-id", "a1", *ITEM],
        ["heartbeat", "--agent-id", "a1", "--phase", "test", "--repo", "o/r"],
        ["register-batch", "--file", line.file("m.json", MANIFEST)],
    ]
    for json_ in ([], ["--json"]):
        for command in commands:
            owned = odd if command[0] not in ("release", "claim") else odd | {"agent_id": "a1", "status": "active"}
            line.lay("claims/o/r/7.json", owned)
            line.lay("heartbeats/a1.json", odd)
            line.lay("batches/b1.json", odd)
            line.lay("batches/b2.json", odd | {"lanes": [odd, value, {"name": "n", "owner": "a9", "targets": "7"}]})
            line.lay("events/b2/e.json", odd)
            line.lay("archive/claims/o/r/7.json", odd)
            output = line.local(*command, *json_)
            assert output.exit in (0, 1, 2, 3)
            assert (output.stdout == b"") <= (output.stderr != []), command


# -- the JSON of writing commands


def test_claim_says_what_was_written_and_the_fence(line: Line) -> None:
    claim = ("claim", "--agent-id", "a1", *ITEM, "--ttl", "60", "--json")
    first = line.local(*claim)
    golden("claim.json", line, first)
    assert json.loads(first.stdout)["record"] == json.loads((line.root / "claims/o/r/7.json").read_text())
    line.clock.advance(seconds=30)
    renewed = line.local(*claim)
    golden("claim-renewed.json", line, renewed)
    assert json.loads(renewed.stdout)["fence"] == json.loads(first.stdout)["fence"]
    line.clock.advance(seconds=60)
    taken = line.local("claim", "--agent-id", "a2", *ITEM, "--json")
    golden("claim-taken-over.json", line, taken)
    assert json.loads(taken.stdout)["fence"] != json.loads(first.stdout)["fence"]
    assert taken.stderr == []


@pytest.mark.parametrize("beat", ["live", "stale", "missing", "invalid", "unknown"])
def test_a_refusal_is_exit_3_on_both_streams(line: Line, beat: str) -> None:
    line.local("claim", "--agent-id", "a1", *ITEM)
    if beat in ("live", "stale"):
        line.local("heartbeat", "--agent-id", "a1", "--ttl", "60")
        line.clock.advance(seconds=60 if beat == "stale" else 0)
    elif beat != "missing":
        line.lay("heartbeats/a1.json", b"{" if beat == "invalid" else {})
    before = line.tree()
    said = f"CLAIM_REFUSED: active claim for o/r#7 held by a1; heartbeat {beat}"
    if beat not in ("live", "stale"):
        said += "; fallback claim expires at 2026-01-01T04:00:00Z"
    plain = line.local("claim", "--agent-id", "a2", *ITEM)
    assert (plain.exit, plain.stdout, plain.stderr) == (Exit.REFUSED, b"", [said])
    told = line.local("claim", "--agent-id", "a2", *ITEM, "--json")
    assert (told.exit, told.stderr) == (Exit.REFUSED, [said])
    golden(f"claim-refused-{beat}.json", line, told)
    assert line.tree() == before


def test_other_writes_say_what_was_written(played: Line) -> None:
    golden("heartbeat.json", played, played.local("heartbeat", "--agent-id", "a2", "--status", "Done", "--json"))
    golden("register-batch.json", played, played.local("register-batch", "--file", "m.json", "--json"))
    event = ("record-event", "--batch-id", "b1", "--type", "note", "--message", "half way →")
    golden("record-event.json", played, played.local(*event, "--json"))
    release = ("release", "--agent-id", "a1", *ITEM)
    golden("release-handoff.json", played, played.local(*release, "--handoff-to", "a2", "--json"))
    golden("release-terminal.json", played, played.local(*release, "--terminal", "done", "--json"))
    golden("release-again.json", played, played.local(*release, "--terminal", "done", "--json"))
    closing = ("record-event", "--batch-id", "b1", "--type", "lane_closed", "--terminal", "abandoned")
    agent = ("--agent-id", "a2", "--repo", "o/r", "--target", "8")
    golden("record-closing.json", played, played.local(*closing, *agent, "--json"))


def test_warnings_stay_off_the_json(line: Line) -> None:
    output = line.local("heartbeat", "--agent-id", "a1", "--status", "napping", "--json")
    assert output.exit == 0
    assert json.loads(output.stdout)["record"]["status_raw"] == "napping"
    [warning] = output.stderr
    assert warning.startswith('warning: status "napping" is not in the canonical status vocabulary')


# -- the lines of writing commands


def test_every_write_answers_with_one_line(played: Line) -> None:
    def said(*argv: str) -> str:
        output = played.local(*argv)
        assert (output.exit, output.stderr) == (0, [])
        return output.stdout.decode()

    release = ("release", "--agent-id", "a1", *ITEM)
    closing = ("record-event", "--batch-id", "b1", "--type", "lane_closed", "--terminal", "done")
    assert said("claim", "--agent-id", "a1", *ITEM) == "claimed o/r#7 by a1 until 2026-01-01T04:00:02Z\n"
    assert said("heartbeat", "--agent-id", "a1") == "heartbeat a1 2026-01-01T00:00:02Z\n"
    assert said("register-batch", "--file", "m.json") == "registered batch b1\n"
    assert said("record-event", "--batch-id", "b9", "--type", "note").startswith("recorded event b9 20260101T000002.")
    assert said(*release) == "released o/r#7 by a1\n"
    assert said(*release) == "released o/r#7 by a1\n"
    assert said(*release, "--terminal", "done") == "released o/r#7 by a1\n"
    assert said(*release, "--terminal", "done") == "lane already closed for o/r#7\n"
    assert said(*closing, "--agent-id", "a1", *ITEM) == "lane already closed for o/r#7\n"
    again = played.local(*release, "--terminal", "abandoned")
    assert (again.exit, again.stdout, again.stderr) == (
        1,
        b"",
        ["conflicting terminal closeout for lane worker; first closeout is authoritative"],
    )
    assert said("register-batch", "--file", "m.json") == "registered batch b1\n"
    assert said(*closing, "--agent-id", "a1", *ITEM) == "reconciled terminal closeout for o/r#7\n"
    other = (*closing, "--agent-id", "a2", "--repo", "o/r", "--target", "8")
    assert said(*other) == "recorded event b1 lane_closed-3f3ef786b34d6dd7\n"


def test_a_launch_prompt_may_come_from_stdin(played: Line) -> None:
    played.stdin = "first\r\nsecond →\n".encode()
    assert played.local("register-batch", "--file", "m.json", "--launch-prompt", "-").exit == 0
    assert json.loads((played.root / "batches/b1.json").read_bytes())["launch_prompt"] == "first\r\nsecond →\n"


# -- the rest


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("version", ["version"]),
        ("config-show", ["config", "show"]),
        ("config-show-local", ["config", "--state-root", "x"]),
        ("config-show-http", ["config", "show", "--api-url", "https://user:secret@h.example"]),
    ],
)
def test_constants(line: Line, name: str, argv: list[str]) -> None:
    for suffix, json_ in ((".json", ["--json"]), (".txt", [])):
        output = line(*argv, *json_)
        assert (output.exit, output.stderr) == (0, [])
        assert b"secret" not in output.stdout
        golden(name + suffix, line, output)
    assert line.tree() == {}


@pytest.mark.parametrize(
    ("name", "options"),
    [("doctor", []), ("doctor-deep", ["--deep"]), ("doctor-prefix", ["--deep", "--doctor-prefix", "claims/o"])],
)
def test_doctor(played: Line, name: str, options: list[str]) -> None:
    played.env |= {"AGENT_COORD_SESSION_ID": "s1"}
    golden(f"{name}.json", played, played.local("doctor", *options, "--json"))
    golden(f"{name}.txt", played, played.local("doctor", *options))


@pytest.mark.parametrize(
    ("name", "options", "exit_"),
    [
        ("stack", [], 0),
        ("stack-deep", ["--deep"], 0),
        ("stack-prefix", ["--deep", "--doctor-prefix", "claims/o"], 0),
        ("stack-missing", ["--deep", "--doctor-prefix", "heartbeats/a9.json"], 1),
        ("stack-broken", ["--deep"], 2),
        ("stack-absent", ["--deep"], 2),
    ],
)
def test_the_component_report(played: Line, name: str, options: list[str], exit_: int) -> None:
    if name == "stack-broken":
        played.lay("events/b1/x.json", b"{")
    if name == "stack-absent":
        played.root.rename(played.directory / "moved")
    output = played.local("doctor", "--stack-json", *options)
    assert (output.exit, output.stderr) == (exit_, [])
    golden(f"{name}.json", played, output)


def test_the_component_report_carries_a_broken_configuration(line: Line) -> None:
    line.env["AGENT_COORD_ENV_FILE"] = "relative"
    output = line.local("doctor", "--stack-json")
    assert (output.exit, output.stderr) == (2, [])
    golden("stack-unconfigured.json", line, output)


@pytest.mark.parametrize(
    ("name", "batch", "exit_"), [("audit", "b1", 1), ("audit-unknown", "b9", 2), ("audit-complete", "b1", 0)]
)
def test_audit(played: Line, name: str, batch: str, exit_: int) -> None:
    if name == "audit-complete":
        played.local("release", "--agent-id", "a1", *ITEM, "--terminal", "done")
        played.local("claim", "--agent-id", "a2", "--repo", "o/r", "--target", "8", "--batch-id", "b1")
        played.local("release", "--agent-id", "a2", "--repo", "o/r", "--target", "8")
    for suffix, json_ in ((".json", ["--json"]), (".txt", [])):
        output = played.local("batch-audit", "--batch-id", batch, *json_)
        assert (output.exit, output.stderr) == (exit_, [])
        golden(name + suffix, played, output)


@pytest.mark.parametrize(
    "argv",
    [
        ["status"],
        ["claim", "--agent-id", "a", *ITEM],
        ["heartbeat", "--agent-id", "a"],
        ["doctor"],
        ["batch-audit", "--batch-id", "b"],
    ],
)
@pytest.mark.parametrize("selector", [["--api-url", "http://127.0.0.1:1"], ["--backend", "o/r"]])
def test_a_backend_that_is_not_there_fails_closed(line: Line, argv: list[str], selector: list[str]) -> None:
    line.env["AGENT_COORD_API_TOKEN"] = "t0ps3cret"
    output = line(*argv, *selector)
    assert output.exit == 2
    said = "\n".join(output.stderr) + output.stdout.decode()
    assert "t0ps3cret" not in said
    assert line.tree() == {}


def records(line: Line) -> dict[str, Any]:
    return {name: data for name, data in line.tree().items() if name.endswith(".json")}


def test_relative_paths_are_taken_from_the_callers_directory(line: Line) -> None:
    assert line("claim", "--agent-id", "a", *ITEM, "--state-root", "state").exit == 0
    assert list(records(line)) == ["state/claims/o/r/7.json"]


@pytest.mark.parametrize("odd", ["a\n- acme/shop#1 active mallory", "\x1b[2J\x1b[H", "a\rb", "a\x9bK", "\x00"])
def test_no_record_adds_a_line_or_moves_the_cursor(line: Line, odd: str) -> None:
    line.local("claim", "--agent-id", odd, "--repo", "o/r", "--target", "7", "--branch", odd, "--batch-id", "b1")
    line.local("record-event", "--batch-id", "b1", "--type", "note", "--message", odd)
    line.lay("heartbeats/a.json", {"agent_id": odd, "status": odd, "target": odd})
    line.lay("batches/b1.json", {"batch_id": "b1", "lanes": [{"name": odd, "owner": odd, "targets": [odd, odd]}]})
    plain = {"\n"} | set(map(chr, range(32, 127)))
    for argv in (["status"], ["status", "--batch-id", "b1"], ["batch-audit", "--batch-id", "b1"]):
        shown = line.local(*argv).stdout.decode()
        assert set(shown) <= plain
        assert not any(text.startswith("- acme/shop#1") for text in shown.splitlines())
    for argv in (
        ["claim", "--agent-id", odd, "--repo", "o/r", "--target", "8"],
        ["release", "--agent-id", odd, "--repo", "o/r", "--target", "8"],
    ):
        output = line.local(*argv)
        assert (output.exit, output.stdout.count(b"\n")) == (0, 1)
        assert set(output.stdout.decode()) <= plain


def test_a_clock_at_the_end_of_time_still_claims(line: Line) -> None:
    line.clock.instant = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    for _ in range(2):
        assert line.local("claim", "--agent-id", "a", "--repo", "o/r", "--target", "7").exit == 0
        assert line.local("release", "--agent-id", "a", "--repo", "o/r", "--target", "7").exit == 0
