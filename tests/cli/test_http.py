"""Commands on an HTTP backend: the answers of any other, and what only a remote one can do to them."""

import json
from typing import Any

import pytest

from tests.cli.line import Line, said
from tests.stores.http_server import TOKEN, Asked, Reply, Server, State, error, reply

ITEM = ("--repo", "o/r", "--target", "7")
CLAIM = "claims/o/r/7.json"
BEAT = "heartbeats/a1.json"


def test_a_lease_is_taken_refused_renewed_and_given_back(line: Line, state: State, server: Server) -> None:
    claimed = b"claimed o/r#7 by a1 until 2026-01-01T04:00:00Z\n"
    assert said(line("claim", "--agent-id", "a1", *ITEM, "--batch-id", "b1")) == (0, claimed, [])
    assert said(line("heartbeat", "--agent-id", "a1")) == (0, b"heartbeat a1 2026-01-01T00:00:00Z\n", [])
    refusal = ["CLAIM_REFUSED: active claim for o/r#7 held by a1; heartbeat live"]
    assert said(line("claim", "--agent-id", "a2", *ITEM)) == (3, b"", refusal)
    assert line("claim", "--agent-id", "a1", *ITEM).exit == 0
    event = json.loads(line("record-event", "--batch-id", "b1", "--type", "note", "--json").stdout)
    assert state.records[CLAIM][1] == 2
    seen = json.loads(line("status", "--json").stdout)
    assert [row["path"] for row in seen["claims"] + seen["heartbeats"]] == [CLAIM, BEAT]
    assert event["record"]["event_id"] in [row["event_id"] for row in seen["events"]]
    assert line("release", "--agent-id", "a1", *ITEM).exit == 0
    released: Any = state.document(CLAIM)
    assert released["status"] == "released"
    assert len([path for path in state.records if path.startswith("events/b1/")]) == 3
    assert line.tree() == {}
    assert server.connections == 7  # one a command, however many requests it takes


def test_a_batch_is_registered_closed_and_audited(line: Line, state: State, server: Server) -> None:
    line.file("m.json", {"batch_id": "b1", "lanes": [{"name": "worker", "owner": "a1", "targets": ["7"]}]})
    line.env["AGENT_COORD_MACHINE_ID"] = "m1"
    for argv in (
        ("register-batch", "--file", "m.json"),
        ("claim", "--agent-id", "a1", *ITEM, "--batch-id", "b1"),
        ("release", "--agent-id", "a1", *ITEM, "--terminal", "done"),
        ("batch-audit", "--batch-id", "b1"),
        ("doctor",),
    ):
        output = line(*argv)
        assert (output.exit, output.stderr) == (0, []), argv
    state.filtered = True
    output = line("batch-audit", "--batch-id", "b1")
    assert output.exit == 2
    assert b"event trail for b1 is filtered by a scoped token" in output.stdout + "\n".join(output.stderr).encode()


@pytest.mark.parametrize(
    "argv",
    [
        ("claim", "--agent-id", "a1", *ITEM),
        ("release", "--agent-id", "a1", *ITEM),
        ("heartbeat", "--agent-id", "a1"),
        ("record-event", "--batch-id", "b1", "--type", "note"),
        ("status",),
        ("status", *ITEM, "--json"),
        ("status", "--batch-id", "b1", "--json"),
        ("batch-audit", "--batch-id", "b1", "--json"),
        ("doctor", "--json"),
    ],
)
@pytest.mark.parametrize(
    ("answer", "reason"),
    [(error(401, "unknown_token"), "401 unknown_token"), (reply(500, b"oops"), "500 oops"), (Reply(resets=True), None)],
)
def test_a_backend_in_doubt_is_exit_2_and_one_line(
    line: Line, server: Server, argv: tuple[str, ...], answer: Reply, reason: str | None
) -> None:
    server.answering = lambda asked: answer
    output = line(*argv)
    assert output.exit == 2
    if argv[0] != "batch-audit":  # which reports on what it could not learn
        assert output.stdout == b""
        [text] = output.stderr
        assert text.startswith("http backend ")
        if argv[0] == "doctor":
            assert reason is None or f" failed: {reason}" in text  # it also says what to do
        else:
            said = f" failed: {reason}" if reason else f"unreachable: Connection reset by peer ({server.url})"
            assert text.endswith(said)
    assert TOKEN not in "\n".join(output.stderr) + output.stdout.decode()


def test_a_scoped_token_degrades_a_status_and_says_so(line: Line, state: State, server: Server) -> None:
    line("claim", "--agent-id", "a1", *ITEM)

    def scoped(asked: Asked) -> Reply:
        if "heartbeats" in asked.target or "issue" in asked.target:
            return error(403, "forbidden")
        return error(400, "invalid_prefix") if "events" in asked.target else state(asked)

    server.answering = scoped
    output = line("status", "--json")
    assert (output.exit, output.stderr) == (0, [])
    assert json.loads(output.stdout)["section_notes"] == {
        "heartbeats": "heartbeats not readable by scoped token",
        "events": "event state not supported by backend",
    }
    output = line("status", *ITEM)
    assert said(output) == (2, b"", [f"http backend read {BEAT} failed: 403 forbidden"])
    state.put(BEAT, {})
    server.answering = lambda asked: error(403, "forbidden") if "issue" in asked.target else state(asked)
    note = json.loads(line("status", *ITEM, "--json").stdout)["section_notes"]["claims"]
    assert note == "claims/o/r/issue:7.json not readable by scoped token; a claim there would not be reported"
    state.filtered, server.answering = True, state
    assert json.loads(line("status", "--json").stdout)["degraded"] == [
        f"{prefix} filtered by scoped token" for prefix in ("claims", "heartbeats", "batches", "events")
    ]


def test_unsupported_is_an_answer_for_events_alone(line: Line, state: State, server: Server) -> None:
    server.answering = lambda asked: error(400, "invalid_prefix") if "batches" in asked.target else state(asked)
    assert said(line("status")) == (2, b"", ["http backend list batches failed: 400 invalid_prefix"])


def test_a_claim_whose_answer_is_lost_is_known_all_the_same(line: Line, state: State, server: Server) -> None:
    def losing(asked: Asked) -> Reply:
        answer = state(asked)
        return Reply(closes=True) if asked.method == "PUT" else answer

    server.answering = losing
    assert line("claim", "--agent-id", "a1", *ITEM, "--batch-id", "b1").exit == 0
    assert [asked.method for asked in server.asked] == ["GET", "PUT", "GET", "GET", "PUT", "GET"]
    assert server.targets("GET").count("/v1/whoami") == 1
    assert len(state.records) == 2
    server.answering = lambda asked: Reply(closes=True) if asked.method == "PUT" else state(asked)
    output = line("claim", "--agent-id", "a1", *ITEM)
    assert (output.exit, output.stdout) == (2, b"")
    [text] = output.stderr
    assert text.startswith("http backend unreachable: ")


@pytest.mark.parametrize("argv", [("status",), ("claim",), ("doctor",), ("heartbeat", "--agent-id", "a1")])
def test_a_bad_address_is_refused_before_anything_else_and_not_shown(line: Line, argv: tuple[str, ...]) -> None:
    line.env |= {"AGENT_COORD_API_URL": "https://me:s3cret@h?x", "AGENT_COORD_API_TOKEN": TOKEN}
    message = "invalid HTTP backend URL: must not include a query or fragment"
    assert said(line(*argv)) == (2, b"", [message])


def test_an_option_is_missed_once_the_backend_is_known_and_before_it_is_asked(line: Line, server: Server) -> None:
    assert said(line("claim")) == (1, b"", ["missing required --agent-id"])
    assert server.asked == []


def test_a_token_belongs_to_its_url(line: Line, state: State, server: Server) -> None:
    other = server.url.replace("127.0.0.1", "localhost")
    shown = other.replace("//", "//***@")
    warning = (
        f"warning: process-scoped AGENT_COORD_API_TOKEN is being used with {shown}, which it was not set alongside; "
        "the process token takes precedence over any saved token."
    )
    output = line("status", "--api-url", other.replace("//", "//me:s3cret@"))
    assert (output.exit, output.stderr) == (0, [warning])
    del line.env["AGENT_COORD_API_TOKEN"]
    message = "AGENT_COORD_API_TOKEN is required when using the HTTP backend"
    assert said(line("status")) == (2, b"", [message])


def test_the_stack_report_of_a_remote_backend(line: Line, server: Server) -> None:
    output = line("doctor", "--stack-json", "--api-url", server.url)
    assert (output.exit, output.stderr) == (0, [])
    server.answering = lambda asked: error(401, "unknown_token")
    output = line("doctor", "--stack-json", "--api-url", server.url)
    assert (output.exit, output.stderr) == (2, [])
    check = json.loads(output.stdout)["checks"][1]
    assert check["details"]["error"].startswith("http backend verify readable failed: 401 unknown_token; ")
    output = line("doctor", "--stack-json", "--api-url", "https://h?x")
    assert json.loads(output.stdout)["checks"][1]["details"]["error"].startswith("invalid HTTP backend URL: ")


def test_a_trail_is_read_with_what_a_scoped_token_may_see(line: Line, state: State, server: Server) -> None:
    line("claim", "--agent-id", "a1", *ITEM, "--batch-id", "b1")

    def scoped(asked: Asked) -> Reply:
        if "archive" in asked.target:
            return error(400, "invalid_prefix")
        return error(403, "forbidden") if "claims" in asked.target else state(asked)

    server.answering = scoped
    output = line("log", "o/r#7", "--json")
    answer = json.loads(output.stdout)
    assert [event["type"] for event in answer["events"]] == ["claim.acquired"]
    assert (output.exit, answer["trail"], answer.get("claims")) == (0, "incomplete", None)
    assert output.stderr == [
        "warning: archived events not supported by backend; nothing can have been archived there",
        "warning: claims not readable by scoped token; a claim for this work item would not be reported",
    ]
    output = line("log", "--sync")
    assert (output.exit, output.stdout) == (2, b"")
    assert output.stderr[-1] == "refusing to sync an incomplete trail: claims"
    server.answering = lambda asked: error(400, "invalid_prefix") if "archive" in asked.target else state(asked)
    line.env["AGENT_COORD_STATUS_STATE_ROOT"] = str(line.directory / "mine")
    output = line("log", "--sync")
    assert (output.exit, output.stdout.decode()) == (0, f"synced 1 new event to {line.directory}/mine/log.tsv\n")
    state.filtered = True
    assert json.loads(line("log", "--json").stdout)["trail"] == "incomplete"
    server.answering = lambda asked: reply(500, b"oops")
    assert said(line("log")) == (2, b"", ["http backend list events failed: 500 oops"])
