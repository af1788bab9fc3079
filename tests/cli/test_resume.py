"""`resume`: one block for a person, one object for a program, and who is told of it."""

import json

import pytest

from agentcoord.cli.output import Output, Terminal
from tests.cli.line import Line
from tests.cli.test_answers import golden
from tests.operations.test_attention import OPEN

ITEM = ("--repo", "acme/shop", "--target", "7")
PERSON = Terminal(person=True, columns=80, notices=True)


@pytest.fixture
def left(line: Line) -> Line:
    """An item that was handed over, with a question open."""
    line.env["AGENT_COORD_MACHINE_ID"] = "m1"
    more = ("--batch-id", "b1", "--branch", "topic", "--pr-url", "https://example.com/pr/1")
    assert line.local("claim", "--agent-id", "ana", *ITEM, *more).exit == 0
    line.clock.advance(seconds=5)
    assert line.local("heartbeat", "--agent-id", "ana", *ITEM, "--phase", "testing", "--ttl", "60").exit == 0
    record = OPEN | {"id": "q1", "repository": "acme/shop", "target": "issue:7", "question": "Keep\nthe old route?"}
    line.lay("attention/default/acme/shop/q1.json", record)
    line.clock.advance(minutes=3)
    assert (
        line.local("release", "--agent-id", "ana", *ITEM, "--handoff-to", "ben", "--handoff-note", "red\x1b[31m").exit
        == 0
    )
    return line


def on_terminal(line: Line, terminal: Terminal, command: str, *words: str) -> Output:
    return line(command, *ITEM, *words, "--state-root", str(line.root), terminal=terminal)


def test_one_block_has_it_all(left: Line) -> None:
    golden("resume-released.txt", left, left.local("resume", *ITEM))
    golden("resume-released.json", left, left.local("resume", *ITEM, "--json"))
    left.clock.advance(minutes=2)
    assert left.local("claim", "--agent-id", "ben", *ITEM, "--batch-id", "b1").exit == 0
    golden("resume-held.txt", left, left.local("resume", *ITEM, "--limit", "2"))


def test_nothing_a_record_says_moves_the_cursor_and_no_line_is_wider_than_the_screen(left: Line) -> None:
    shown = on_terminal(left, Terminal(person=True, columns=40), "resume").stdout.decode()
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 40


def test_who_names_no_machine_is_told_apart_all_the_same(line: Line) -> None:
    assert line.local("claim", "--agent-id", "ana", *ITEM, "--instance-id", "i1").exit == 0
    assert b"\n  machine    unnamed  instance i1\n" in line.local("resume", *ITEM).stdout


def test_nobody_was_there(line: Line) -> None:
    output = line.local("resume", *ITEM)
    assert (output.exit, output.stdout) == (0, b"acme/shop#7  nobody has claimed it\n")
    facts = json.loads(line.local("resume", *ITEM, "--json").stdout)
    assert (facts["standing"], facts["claim"], facts["complete"]) == ("unclaimed", None, True)


def test_what_could_not_be_read_is_said(left: Line) -> None:
    left.lay("heartbeats/ana.json", b"{")
    output = left.local("resume", *ITEM, "--json")
    facts = json.loads(output.stdout)
    assert output.exit == 0
    assert not facts["complete"]
    assert output.stderr == [f"warning: {note}" for note in facts["notes"]] != []


def test_the_item_can_be_named_in_one_word(left: Line) -> None:
    assert left.local("resume", "acme/shop#7").stdout == left.local("resume", *ITEM).stdout


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--repo", "acme/shop"),
        ("--target", "7"),
        (*ITEM, "--limit", "-1"),
        ("acme/shop#7", *ITEM),
        ("acme/shop",),
        ("#7",),
        ("acme/shop#7", "acme/shop#8"),
    ],
)
def test_a_bad_question_is_one_line(line: Line, words: tuple[str, ...]) -> None:
    output = line.local("resume", *words)
    assert (output.exit, output.stdout, len(output.stderr)) == (1, b"", 1)


def test_a_claim_hints_at_it_where_somebody_else_left_the_item(left: Line) -> None:
    hint = "notice: agent-coord resume --repo acme/shop --target 7 shows how it was left"
    claimed = on_terminal(left, PERSON, "claim", "--agent-id", "ben")
    assert (claimed.exit, claimed.stderr[-1]) == (0, hint), "after a handoff"
    assert left.local("heartbeat", "--agent-id", "ben", "--ttl", "60").exit == 0
    left.clock.advance(hours=1)
    taken = on_terminal(left, PERSON, "claim", "--agent-id", "cleo")
    assert (taken.exit, taken.stderr[-1]) == (0, hint), "after a takeover"
    again = on_terminal(left, PERSON, "claim", "--agent-id", "cleo")
    assert hint not in again.stderr
    assert left.local("release", "--agent-id", "cleo", *ITEM).exit == 0
    plain = on_terminal(left, PERSON, "claim", "--agent-id", "dan")
    assert hint not in plain.stderr, "a plain release leaves nothing to be told"


def test_a_script_is_told_nothing_more(left: Line) -> None:
    claimed = left.local("claim", "--agent-id", "ben", *ITEM)
    assert (claimed.stderr, claimed.stdout.count(b"\n")) == ([], 1)
