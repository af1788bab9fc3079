"""Attention on the command line: what is read, what is said, and with which exit."""

import errno
import json

import pytest

from agentcoord.cli.output import Output
from tests.cli.line import Line, said
from tests.operations.test_attention import OPEN, PATH
from tests.stores.http_server import Server, State, error

WHOSE = ("--workspace", "w", "--repo", "o/r")
ONE = (*WHOSE, "--attention-id", "a-1")


def upsert(line: Line, *options: str, **more: object) -> Output:
    return line("attention-upsert", "--record-json", line.file("a.json", OPEN | more), *options)


@pytest.fixture
def asked(line: Line) -> Line:
    """A state root with one request."""
    line.env["AGENT_COORD_STATE_ROOT"] = str(line.root)
    assert said(upsert(line)) == (0, b"attention a-1 open at generation 3\n", [])
    return line


def test_a_request_is_asked_shown_listed_and_settled(asked: Line) -> None:
    shown = b"unblocks-work a-1 [open]\n  Ship it?\n"
    assert said(asked("attention-get", *ONE)) == (0, shown, [])
    assert said(asked("attention-list", *WHOSE)) == (0, shown, [])
    resolved = b"attention a-1 resolved at generation 4\n"
    assert said(asked("attention-resolve", *ONE, "--source-generation", "4")) == (0, resolved, [])
    assert said(asked("attention-list", *WHOSE)) == (0, b"", [])
    shown = b"unblocks-work a-1 [resolved]\n  Ship it?\n"
    assert said(asked("attention-list", *WHOSE, "--include-resolved")) == (0, shown, [])


def test_json_is_the_record(asked: Line) -> None:
    for argv in (("attention-get", *ONE), ("attention-upsert", "--record-json", "a.json")):
        assert json.loads(asked(*argv, "--json").stdout) == {"record": OPEN}
    listed = asked("attention-list", *WHOSE, "--limit", "7", "--json")
    assert json.loads(listed.stdout) == {"records": [OPEN], "limit": 7, "truncated": False}
    assert list(json.loads(listed.stdout)) == ["records", "limit", "truncated"]
    settled = json.loads(asked("attention-resolve", *ONE, "--source-generation", "3", "--json").stdout)
    at = "2026-01-01T00:00:00Z"
    assert settled == {"record": OPEN | {"status": "resolved", "refreshed_at": at, "resolved_at": at}}


def test_a_question_is_one_line_that_moves_no_cursor(asked: Line) -> None:
    assert upsert(asked, question="one\r\n\ttwo\x1b[31m\x9b three").exit == 0
    assert asked("attention-get", *ONE).stdout == b"unblocks-work a-1 [open]\n  one two[31m three\n"


def test_a_record_may_come_from_stdin(line: Line) -> None:
    line.stdin = json.dumps(OPEN).encode()
    assert line.local("attention-upsert", "--record-json", "-").exit == 0


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "attention record JSON must not be empty"),
        (b"[]", "attention record must be a JSON object"),
        (b" " * 262_144 + b"x", "attention record exceeds 262144 bytes"),
        (json.dumps(OPEN | {"x\x1b[31m\ny": 1}).encode(), "attention record contains unknown field x[31m y"),
    ],
)
def test_what_is_no_record_is_a_usage_error_and_leaves_nothing(line: Line, data: bytes, fault: str) -> None:
    line.stdin = data
    assert said(line.local("attention-upsert", "--record-json", "-")) == (1, b"", [fault])
    assert line.tree() == {}


def test_a_file_that_cannot_be_read_is_exit_2_and_a_vast_one_is_too_large(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = line.local("attention-upsert", "--record-json", "none.json")
    assert said(output) == (2, b"", ["attention record unreadable: none.json: No such file or directory"])

    async def vast(path: str) -> bytes:
        raise OSError(errno.EFBIG, "larger than 64 MiB")

    monkeypatch.setattr(line, "_read_file", vast)
    output = line.local("attention-upsert", "--record-json", "vast.json")
    assert said(output) == (1, b"", ["attention record exceeds 262144 bytes"])
    output = line.local("register-batch", "--file", "vast.json")
    assert said(output) == (2, b"", ["batch manifest unreadable: vast.json: larger than 64 MiB"])


@pytest.mark.parametrize(
    ("argv", "exit_", "fault"),
    [
        (("attention-upsert",), 1, "missing required --record-json"),
        (("attention-resolve", *ONE), 1, "missing required --source-generation"),
        (("attention-resolve", *WHOSE, "--source-generation", "1"), 1, "missing required --attention-id"),
        (("attention-get", "--repo", "o/r"), 1, "missing required --workspace"),
        (("attention-list", "--workspace", "w"), 1, "missing required --repo"),
        (("attention-list", *WHOSE, "--limit", "0"), 1, "--limit must be between 1 and 100"),
        (("attention-list", *WHOSE, "--limit", "101"), 1, "--limit must be between 1 and 100"),
        (
            ("attention-resolve", *ONE, "--source-generation=-1"),
            1,
            "--source-generation must be an integer between 0 and 9007199254740991",
        ),
        (("attention-get", "--workspace", "a/b", *ONE[2:]), 1, "invalid attention workspace: a/b"),
        (("attention-get", *WHOSE, "--attention-id", "a-2"), 2, "attention record not found: a-2"),
        (
            ("attention-resolve", *ONE, "--source-generation", "2"),
            2,
            "source generation 2 is older than stored generation 3",
        ),
    ],
)
def test_a_refusal_is_one_line_and_changes_nothing(asked: Line, argv: tuple[str, ...], exit_: int, fault: str) -> None:
    before = asked.tree()
    assert said(asked(*argv)) == (exit_, b"", [fault])
    assert asked.tree() == before


def test_reading_prefers_the_status_root(asked: Line) -> None:
    asked.env["AGENT_COORD_STATUS_STATE_ROOT"] = asked.env.pop("AGENT_COORD_STATE_ROOT")
    assert said(asked("attention-get", *ONE))[0] == 0
    assert said(asked("attention-list", *WHOSE))[2] == []


# -- over HTTP


def test_a_request_over_http(line: Line, state: State, server: Server) -> None:
    assert said(upsert(line)) == (0, b"attention a-1 open at generation 3\n", [])
    assert state.document(PATH) == OPEN
    assert json.loads(line("attention-list", *WHOSE, "--json").stdout)["records"] == [OPEN]
    assert line("attention-resolve", *ONE, "--source-generation", "3").exit == 0
    state.put(PATH, b'"text"')
    fault = f"invalid stored attention record at {PATH}: attention record must be a JSON object"
    assert said(line("attention-get", *ONE)) == (2, b"", [fault])


def test_what_a_scoped_token_sees_of_a_list_is_no_list(line: Line, state: State, server: Server) -> None:
    assert upsert(line).exit == 0
    state.filtered = True
    fault = "attention list is filtered and incomplete for the scoped token"
    assert said(line("attention-list", *WHOSE, "--json")) == (2, b"", [fault])
    server.answering = lambda asked: error(403, "forbidden")
    for argv, action in (
        (("attention-list", *WHOSE), "list attention/w/o/r"),
        (("attention-get", *ONE), f"read {PATH}"),
        (("attention-resolve", *ONE, "--source-generation", "3"), f"read {PATH}"),
        (("attention-upsert", "--record-json", "a.json"), f"read {PATH}"),
    ):
        assert said(line(*argv)) == (2, b"", [f"http backend {action} failed: 403 forbidden"])


def test_a_list_over_http_stops_before_it_parses_too_many(line: Line, state: State, server: Server) -> None:
    for number in range(1000):
        state.put(f"attention/w/o/r/a-{number}.json", OPEN | {"id": f"a-{number}"})
    assert json.loads(line("attention-list", *WHOSE, "--json").stdout)["truncated"] is True
    state.put("attention/w/o/r/b.json", [])
    fault = "http backend list attention/w/o/r exceeds scan maximum 1000"
    assert said(line("attention-list", *WHOSE)) == (2, b"", [fault])
