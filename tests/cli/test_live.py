"""Frames of the live view: never wider or higher than the screen, cut with a count, and clean whatever records hold."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcoord.cli.output import Terminal
from agentcoord.cli.render.live import TABLES, Table, View, console_for, frame
from agentcoord.cli.watched import Need, Section, Why
from agentcoord.protocol.instants import stamp
from tests.emulator import Emulator
from tests.protocol.strategies import NOW, Json, values

ENV = {"TERM": "xterm-256color"}
PLAIN = console_for(Terminal(person=True), ENV)
COLOURED = console_for(Terminal(person=True, colour=True), ENV)
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def ago(seconds: float) -> str:
    return stamp(NOW - timedelta(seconds=seconds))


BEAT: Json = {"agent_id": "a1", "liveness": "live", "updated_at": ago(12), "machine_id": "m5"}
CLAIM: Json = {"repo": "acme/site", "target": "42", "agent_id": "a1", "status": "active", "expires_at": ago(-7200)}
LANE: Json = {
    "batch_id": "b1",
    "repo": "acme/site",
    "name": "worker",
    "owner": "a1",
    "liveness": "live",
    "status": "in_progress",
    "targets": ["42"],
}
EVENT: Json = {"batch_id": "b1", "lane": "worker", "type": "note", "agent_id": "a1", "at": ago(60), "message": "begun"}
ASKED: Json = {
    "repository": "acme/site",
    "target": "42",
    "id": "a-1",
    "priority_class": "urgent-risk",
    "question": "Ship it?",
    "created_at": ago(300),
    "source": {"host_id": "m5"},
    "status": "open",
}


def view(**rows: Sequence[Any]) -> View:
    made: dict[Table, Sequence[Any]] = {name: rows.get(name, ()) for name in TABLES}
    return View(
        backend="/state", source="the daemon tells of changes", told=True, rows=made, holders={"a1": BEAT}, read=True
    )


def shown(seen: View, columns: int = 100, height: int = 20) -> list[str]:
    """Give the lines of a frame without blanks at their ends."""
    return [line.rstrip() for line in frame(seen, NOW, (columns, height), PLAIN)]


def on_screen(lines: Sequence[str], columns: int, height: int) -> Emulator:
    screen = Emulator(columns, height)
    screen.alternate = True
    for number, line in enumerate(lines, 1):
        screen.feed(f"\x1b[{number};1H{line}\x1b[0m\x1b[K")
    return screen


def test_a_frame_shows_all_there_is() -> None:
    seen = view(
        needs=[Need("attention", "attention", ASKED), Need("blocked", "lanes", LANE | {"blocked_on": ["b1:x"]})],
        claims=[CLAIM],
        lanes=[LANE],
        trail=[EVENT],
    )
    seen.leases = {("a1", "acme/site", "42"): {"state": "kept", "pid": 4242, "program": "claude"}}
    assert shown(seen) == [
        "agent-coord watch  /state" + " " * 66 + "12:00:00Z",
        "● the daemon tells of changes",
        "  needs someone  2",
        "  urgent-risk  acme/site#42  a-1  m5  5 m   Ship it?",
        "  blocked      b1/worker     a1   m5  12 s  in_progress  blocked on b1:x  kept by process 4242 clau…",
        "▸ claims  1",
        "  ● live  acme/site#42  a1  m5  12 s  2 h left  kept by process 4242 claude",
        "  lanes  1",
        "  ● live  b1/worker  a1  m5  12 s  in_progress  kept by process 4242 claude  targets 42",
        "  trail  1",
        "  note  b1/worker  a1  1 m  begun",
        *[""] * 8,
        "q quit  r repo  b batch  m machine  Esc clear  Tab next table  ↑↓ PgUp PgDn scroll",
    ]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"status": "released"}, "released"),
        ({"agent_id": "nobody"}, "? never heard"),
        ({"expires_at": ago(60)}, "expired 1 m ago"),
        ({"handoff_to": "a2", "terminal": "done", "phase": "review"}, "handed to a2  closed: done  review"),
    ],
)
def test_what_a_claim_says(row: Json, told: str) -> None:
    assert told in shown(view(claims=[CLAIM | row]))[4]


def test_a_table_that_is_cut_says_how_much_is_not_shown() -> None:
    claims = [CLAIM | {"target": str(number)} for number in range(10_000)]
    seen = view(claims=claims)
    assert "  … 9988 more" in shown(seen)
    seen.offsets["claims"] = 500
    lines = shown(seen)
    assert "  … 500 above, 9488 more" in lines
    assert "acme/site#500 " in lines[4]
    seen.offsets["claims"] = 99_999
    lines = shown(seen)
    assert "  … 9988 above" in lines
    assert "acme/site#9999 " in lines[15]
    assert seen.offsets["claims"] == 9988


def test_only_what_is_seen_is_made() -> None:
    class Counted(dict[str, Any]):
        looked = 0

        def get(self, key: str, default: Any = None) -> Any:  # type: ignore[override]
            Counted.looked += 1
            return super().get(key, default)

    frame(view(claims=[Counted(CLAIM) for _ in range(10_000)]), NOW, (120, 40), PLAIN)
    assert Counted.looked < 40 * 40


def test_the_table_in_focus_has_half_of_the_room() -> None:
    claims, trail = [CLAIM] * 50, [EVENT] * 50
    seen = view(claims=claims, trail=trail)
    seen.focus = "trail"
    shown(seen, height=47)
    assert (seen.heights["claims"], seen.heights["trail"]) == (9, 29)


def test_a_low_screen_shows_the_table_in_focus_alone() -> None:
    seen = view(claims=[CLAIM], trail=[EVENT])
    lines = shown(seen, height=8)
    assert "▸ claims  1" in lines
    assert not any("trail" in line for line in lines)


def test_filters_and_troubles_are_said() -> None:
    seen = view()
    seen.filters, seen.trouble = {"repo": "acme/site"}, "events: not readable by scoped token"
    seen.totals = {"claims": 7}
    lines = shown(seen)
    assert lines[1].startswith("! events: not readable by scoped token")
    assert "▸ claims  0 of 7" in lines
    assert lines[-1] == "only repo acme/site  Esc shows all"
    seen.editing = "repo"
    assert shown(seen)[-1].startswith("repo: acme/site▏")


def test_without_colour_there_is_no_style() -> None:
    lines = frame(view(claims=[CLAIM]), NOW, (100, 20), PLAIN)
    assert not any("\x1b" in line for line in lines)
    coloured = frame(view(claims=[CLAIM]), NOW, (100, 20), COLOURED)
    assert any("\x1b[32m" in line for line in coloured)
    assert [_STYLE.sub("", line) for line in coloured] == lines


_FIELDS = """
repo target agent_id status expires_at machine_id batch_id name owner liveness blocked_on targets type lane at message
phase branch terminal handoff_to priority_class question repository id source closed_at pid state
"""
_names = st.sampled_from(_FIELDS.split())
_rows = st.dictionaries(_names, values | st.text(max_size=30) | st.just("日本語 \x1b[31mtext\u202e"), max_size=8)
_holders = st.dictionaries(st.sampled_from(["a1", "None"]), _rows, max_size=2)


@settings(max_examples=150)
@given(
    st.dictionaries(st.sampled_from(TABLES), st.lists(_rows, max_size=12)),
    _holders,
    st.sampled_from(TABLES),
    st.integers(1, 300),
    st.integers(1, 60),
)
def test_a_frame_fits_the_screen_whatever_records_hold(
    rows: dict[Table, list[Json]], holders: dict[str, Json], focus: Table, columns: int, height: int
) -> None:
    whys: list[tuple[Why, Section]] = [("attention", "attention"), ("blocked", "lanes"), ("dead", "claims")]
    needed = [Need(*whys[number % 3], row) for number, row in enumerate(rows.get("needs", []))]
    seen = view(**rows | {"needs": needed})
    seen.holders, seen.focus = holders, focus
    seen.backend = seen.trouble = "x" * 50
    lines = frame(seen, NOW, (columns, height), COLOURED)
    assert len(lines) == max(height, 1)
    assert not any("\n" in line for line in lines)
    assert not on_screen(lines, columns, height).overflowed
