"""The queue for people: what is most urgent comes first, it fits the screen, and says when it is not all there is."""

import json
import re
from typing import Any

import pytest

from agentcoord.cli.output import Output, Terminal
from agentcoord.cli.render.page import width
from tests.cli.line import Line, said
from tests.cli.test_answers import golden
from tests.operations.test_attention import OPEN
from tests.stores.http_server import Server, State

COLOURED = Terminal(person=True, columns=80, colour=True)


def ask(line: Line, id_: str, *, workspace: str = "default", repo: str = "acme/app", **more: Any) -> None:
    record = OPEN | {"id": id_, "workspace": workspace, "repository": repo} | more
    line.lay(f"attention/{workspace}/{repo}/{id_}.json", record)


@pytest.fixture
def asked(line: Line) -> Line:
    """Requests of two workspaces and repositories, one of them settled."""
    ask(line, "merge", target="pr:7", priority_class="current-head-merge", question="Merge it\nas it is?")
    ask(line, "key", target="issue:12", priority_class="urgent-risk", question="Rotate the key?", choices=["now"])
    ask(line, "older", repo="acme/site", target="3", created_at="2025-12-30T23:00:00.5+01:00", workspace="w2")
    ask(line, "newer", repo="acme/site", target="4", created_at="2025-12-31T22:59:59Z")
    at = "2025-12-31T23:58:00Z"
    ask(line, "done", priority_class="urgent-risk", status="resolved", resolved_at=at, refreshed_at=at)
    return line


def ids(output: Output) -> list[str]:
    assert output.exit == 0
    return [record["id"] for record in json.loads(output.stdout)["records"]]


def test_the_most_urgent_comes_first_then_the_longest_waiting(asked: Line) -> None:
    assert ids(asked.local("attention", "--json")) == ["key", "older", "newer", "merge"]
    assert ids(asked.local("attention", "--all", "--json")) == ["key", "older", "newer", "merge", "done"]
    golden("attention.json", asked, asked.local("attention", "--all", "--limit", "2", "--json"))
    golden("attention.txt", asked, asked.local("attention", "--all"))


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--repo", "acme/site"), ["older", "newer"]),
        (("--workspace", "default"), ["key", "newer", "merge"]),
        (("--workspace", "w2", "--repo", "acme/site"), ["older"]),
        (("--workspace", "w3"), []),
        (("--limit", "1"), ["key"]),
    ],
)
def test_it_can_be_narrowed(asked: Line, options: tuple[str, ...], found: list[str]) -> None:
    assert ids(asked.local("attention", *options, "--json")) == found


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_it_fits_the_screen_and_moves_no_cursor(asked: Line, columns: int) -> None:
    ask(asked, "long", question="\x1b[2J\u202eWhy?\r\n" + "w" * 500, priority_class="urgent-risk", choices=["名" * 90])
    wide = Terminal(person=True, columns=columns)
    shown = asked("attention", "--all", "--state-root", str(asked.root), terminal=wide).stdout.decode()
    assert all(width(line) <= columns for line in shown.splitlines())
    assert shown.replace("\n", "").isprintable()
    assert "\u202e" not in shown
    assert re.sub(r"\s+", "", "Rotate the key?") in re.sub(r"\s+", "", shown)


def test_colour_is_for_terminals_that_want_it(asked: Line) -> None:
    argv = ("attention", "--state-root", str(asked.root))
    plain = asked(*argv).stdout
    coloured = asked(*argv, terminal=COLOURED).stdout
    assert b"\x1b" not in plain
    assert b"\x1b[31murgent-risk\x1b[0m" in coloured
    assert re.sub(rb"\x1b\[\d+m", b"", coloured) == plain


def test_nothing_waiting_is_an_answer(line: Line) -> None:
    (line.root / "attention").mkdir(parents=True)
    assert said(line.local("attention")) == (0, b"nothing is waiting\n", [])
    ask(line, "done", status="resolved", resolved_at="2025-12-31T23:58:00Z")
    assert said(line.local("attention")) == (0, b"nothing is waiting\n", [])
    assert b"resolved" in line.local("attention", "--all").stdout


def test_a_broken_request_hides_no_other_and_is_named(asked: Line) -> None:
    asked.lay("attention/default/acme/app/bad.json", b"{")
    asked.lay("attention/default/acme/app/else.json", OPEN)
    output = asked.local("attention", "--json")
    shown = json.loads(output.stdout)
    assert output.exit == 2
    assert [record["id"] for record in shown["records"]] == ["key", "older", "newer", "merge"]
    assert shown["complete"] is False
    first, second = output.stderr
    assert first.startswith("warning: malformed stored JSON at attention/default/acme/app/bad.json: ")
    assert second == (
        "warning: stored attention identity does not match path attention/default/acme/app/else.json; "
        "the queue is incomplete"
    )
    for number in range(20):
        asked.lay(f"attention/default/acme/app/bad{number}.json", b"{")
    assert asked.local("attention").stderr[-1].startswith("warning: 12 more cannot be read; ")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--limit", "0"), "--limit must be between 1 and 10000"),
        (("--limit", "10001"), "--limit must be between 1 and 10000"),
        (("--repo", "acme"), "invalid attention repo: acme"),
        (("--workspace", "a/b"), "invalid attention workspace: a/b"),
        (("--workspace", ""), "invalid attention workspace: "),
        (("more",), "unexpected arguments: more"),
        (("--include-resolved",), "invalid option: --include-resolved"),
        (("--terminal", "done"), "--terminal is only valid with terminal closeout"),
    ],
)
def test_what_it_cannot_be_called_with(asked: Line, options: tuple[str, ...], fault: str) -> None:
    assert said(asked.local("attention", *options)) == (1, b"", [fault])


def test_a_queue_that_is_too_long_says_how_to_ask_for_less(asked: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentcoord.operations.attention.QUEUE_SCAN", 4)
    output = asked.local("attention", "--limit", "4")
    fault = "state prefix attention exceeds scan maximum 4; ask for less with --workspace and --repo"
    assert said(output) == (2, b"", [fault])
    assert ids(asked.local("attention", "--workspace", "w2", "--limit", "4", "--json")) == ["older"]


def test_reading_prefers_the_status_root(asked: Line) -> None:
    asked.env["AGENT_COORD_STATUS_STATE_ROOT"] = str(asked.root)
    assert ids(asked("attention", "--json")) == ["key", "older", "newer", "merge"]


def test_over_http(line: Line, state: State, server: Server) -> None:
    state.put("attention/default/o/r/a-1.json", OPEN | {"workspace": "default"})
    assert ids(line("attention", "--json")) == ["a-1"]
    assert ids(line("attention", "--workspace", "default", "--json")) == ["a-1"]
    state.filtered = True
    output = line("attention", "--json")
    assert (output.exit, json.loads(output.stdout)["complete"]) == (2, False)
    assert output.stderr == ["warning: this token sees only a part of attention; the queue is incomplete"]
