"""The state as a person sees it: what stands where at which width, and that no record can do more than be read."""

import re
import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.cli.output import Terminal
from agentcoord.cli.render.ages import age, span
from agentcoord.cli.render.board import EVENTS_SHOWN, board
from agentcoord.cli.render.page import LONGEST, cleaned, width
from agentcoord.operations.status import NOT_IN_BATCH, NOT_IN_TARGET, Status

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STYLED = re.compile(r"\033\[(?:1|2|31|32|33)m([^\033]+)\033\[0m")


def at(**ago: float) -> str:
    return (NOW - timedelta(**ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


Shown = dict[str, Any]


def claim(target: str, agent: object, expires: str, **fields: object) -> Shown:
    return {
        "path": f"claims/acme/site/{target}.json",
        "repo": "acme/site",
        "target": target,
        "status": "active",
        "agent_id": agent,
        "branch": f"work/{target}",
        "expires_at": expires,
        **fields,
    }


def beat(agent: str, status: str, liveness: str, updated: str, **fields: object) -> Shown:
    path = f"heartbeats/{agent}.json"
    row = {"path": path, "agent_id": agent, "status": status, "liveness": liveness, "target": "acme/site#1"}
    return {**row, "updated_at": updated, **fields}


def lane(name: str, owner: str, status: str, liveness: str, **fields: object) -> Shown:
    row: Shown = {"name": name, "owner": owner, "targets": ["7"], "status": status, "liveness": liveness}
    return {**row, "deps": [], "blocked_on": [], **fields}


def event(number: int, **fields: object) -> Shown:
    when = at(minutes=100 - number)
    row = {"path": f"events/spring/{number}.json", "batch_id": "spring", "type": "progress", "at": when}
    return {**row, "message": f"step {number}", **fields}


def fleet() -> Status:
    return Status(
        scope={"kind": "all"},
        claims=[
            claim("1", "ann", at(hours=-2, minutes=-10), phase="review"),
            claim("2", "bob", at(hours=-3)),
            claim("3", "cy", at(hours=3), batch_id="spring"),
            claim("4", "nobody", at(hours=-1)),
            claim("5", "ann", at(days=3), status="released", release_mode="handoff", handoff_to="bob"),
        ],
        heartbeats=[
            beat("ann", "in_progress", "live", at(minutes=4)),
            beat("bob", "blocked", "stale", at(minutes=40), phase="review"),
            beat("cy", "in_progress", "dead", at(days=2)),
            beat("dee", "done", "dead", at(hours=9)),
        ],
        batches=[
            {
                "path": "batches/spring.json",
                "batch_id": "spring",
                "lanes": [
                    lane("build", "ann", "in_progress", "live"),
                    lane("test", "bob", "blocked", "stale", deps=["spring:build"], blocked_on=["spring:build"]),
                    lane("docs", "dee", "done", "dead", terminal="done", closed_at=at(hours=9)),
                ],
                "objective": "Ship the spring release",
                "updated_at": at(hours=9),
            }
        ],
        events=[
            event(1, lane="build", agent_id="ann", type="phase.changed", previous_phase="planning", phase="review"),
            event(2, lane="test", agent_id="bob", type="help_requested", reason="question", message="which one?"),
        ],
        notes={"heartbeats": "heartbeat records unreadable: eve"},
    )


def shown(seen: Status, columns: int = 100) -> str:
    return board(seen, NOW, Terminal(person=True, columns=columns)).decode()


def section(seen: Status, name: str, columns: int = 200) -> list[str]:
    """Give the lines below a heading, in order."""
    blocks = [block.splitlines() for block in shown(seen, columns).split("\n\n")]
    (lines,) = [lines[1:] for lines in blocks if lines[0].partition("  ")[0] == name]
    return lines


AT_100 = """\
4 claims held, 1 with a dead holder, 1 with a stale holder, 1 with a holder never heard · 4 agents,
1 live, 1 stale, 2 dead · 1 batch, 3 lanes, 1 blocked · 2 events · 1 degraded

claims  5
○ dead         acme/site#3  cy      expired 3 h ago   work/3  batch spring
◐ stale        acme/site#2  bob     3 h left          work/2
? never heard  acme/site#4  nobody  1 h left          work/4
● live         acme/site#1  ann     2 h 10 m left     review  work/1
● live         acme/site#5  ann     released 3 d ago  handed to bob

heartbeats  4
○ dead   cy   in_progress  2 d ago   acme/site#1
◐ stale  bob  blocked      40 m ago  acme/site#1  review
● live   ann  in_progress  4 m ago   acme/site#1
○ dead   dee  done         9 h ago   acme/site#1

batches  1
spring  9 h ago  Ship the spring release
  ◐ stale  test   bob  blocked      blocked on spring:build  target 7
  ● live   build  ann  in_progress  target 7
  ○ dead   docs   dee  done         closed 9 h ago  target 7

events  2
1 h 39 m ago  phase.changed   spring/build  ann  planning → review  step 1
1 h 38 m ago  help_requested  spring/test   bob  question  which one?

degraded
! heartbeats: heartbeat records unreadable: eve
"""

AT_40 = """\
4 claims held, 1 with a dead holder,
1 with a stale holder,
1 with a holder never heard · 4 agents,
1 live, 1 stale, 2 dead · 1 batch,
3 lanes, 1 blocked · 2 events ·
1 degraded

claims  5
○ dead         acme/site#3  cy
               expired 3 h ago  work/3
               batch spring
◐ stale        acme/site#2  bob
               3 h left  work/2
? never heard  acme/site#4  nobody
               1 h left  work/4
● live         acme/site#1  ann
               2 h 10 m left  review
               work/1
● live         acme/site#5  ann
               released 3 d ago
               handed to bob

heartbeats  4
○ dead   cy   in_progress  2 d ago
              acme/site#1
◐ stale  bob  blocked  40 m ago
              acme/site#1  review
● live   ann  in_progress  4 m ago
              acme/site#1
○ dead   dee  done  9 h ago  acme/site#1

batches  1
spring  9 h ago  Ship the spring release
  ◐ stale  test   bob  blocked  blocked
                  on spring:build
                  target 7
  ● live   build  ann  in_progress
                  target 7
  ○ dead   docs   dee  done
                  closed 9 h ago
                  target 7

events  2
1 h 39 m ago  phase.changed
              spring/build  ann
              planning → review  step 1
1 h 38 m ago  help_requested
              spring/test  bob  question
              which one?

degraded
! heartbeats: heartbeat records
  unreadable: eve
"""


class TestAppearance:
    @pytest.mark.parametrize(("columns", "page"), [(100, AT_100), (40, AT_40)])
    def test_at_a_width(self, columns: int, page: str) -> None:
        assert shown(fleet(), columns) == page

    def test_on_a_wide_screen_a_row_is_a_line(self) -> None:
        assert [len(section(fleet(), name)) for name in ("claims", "heartbeats", "batches", "events")] == [5, 4, 4, 2]

    def test_colour_is_only_added(self) -> None:
        coloured = board(fleet(), NOW, Terminal(person=True, columns=100, colour=True)).decode()
        assert STYLED.sub(r"\1", coloured) == AT_100
        assert "\033[31m○ dead\033[0m" in coloured

    def test_what_does_not_fit_its_column_goes_on_below(self) -> None:
        seen = Status(scope={"kind": "all"}, claims=[claim("1", "a" * 30, at(hours=-1)), claim("2", "b", at(hours=-2))])
        assert section(seen, "claims", 80) == [
            "? never heard  acme/site#2  b                           2 h left  work/2",
            "? never heard  acme/site#1  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "                                                        1 h left  work/1",
        ]

    def test_words_are_broken_only_when_they_must_be(self) -> None:
        message = "one two " + "x" * 50
        seen = Status(scope={"kind": "batch", "batch_id": "spring"}, events=[event(1, message=message)])
        assert section(seen, "events", 40) == [
            "1 h 39 m ago  progress  spring  -  one",
            "              two",
            "              xxxxxxxxxxxxxxxxxxxxxxxxxx",
            "              xxxxxxxxxxxxxxxxxxxxxxxx",
        ]

    def test_wide_letters_take_two_columns(self) -> None:
        rows = [beat("作業員", "done", "live", at(minutes=1)), beat("cafe\u0301", "done", "live", at(minutes=2))]
        assert section(Status(scope={"kind": "all"}, heartbeats=[*rows]), "heartbeats") == [
            "● live  作業員  done  1 m ago  acme/site#1",
            "● live  cafe\u0301    done  2 m ago  acme/site#1",
        ]


class TestContent:
    def test_nothing_at_all(self) -> None:
        (line,) = shown(Status(scope={"kind": "all"}), 120).splitlines()
        assert line == (
            "Nothing is coordinated here yet. To begin:  "
            "agent-coord claim --agent-id ID --repo OWNER/REPO --target TARGET"
        )

    def test_a_work_item_that_nobody_has(self) -> None:
        notes = {"batches": NOT_IN_TARGET, "events": NOT_IN_TARGET}
        seen = Status(scope={"kind": "target", "repo": "acme/site", "target": "9"}, notes=notes)
        assert (
            shown(seen, 120)
            == """\
acme/site#9 · 0 claims held · 0 agents
Nobody has claimed it. To take it:  agent-coord claim --agent-id ID --repo acme/site --target 9

degraded
· batches: not checked in target scope
· events: not checked in target scope
"""
        )

    def test_a_work_item_is_not_called_free_when_a_claim_may_be_hidden(self) -> None:
        scope = {"kind": "target", "repo": "acme/site", "target": "9"}
        seen = Status(scope=scope, notes={"claims": "claims/acme/site/pr:9.json malformed"})
        assert "Nobody" not in shown(seen)

    def test_a_batch(self) -> None:
        seen = Status(scope={"kind": "batch", "batch_id": "spring"}, notes={"claims": NOT_IN_BATCH})
        seen.batches, seen.events = fleet().batches, fleet().events
        assert shown(seen).startswith("batch spring · 0 agents · 1 batch, 3 lanes, 1 blocked · 2 events\n")

    @pytest.mark.parametrize(
        ("note", "said"),
        [
            (None, "never heard"),
            ("holder heartbeat not found", "never heard"),
            ("heartbeat records unreadable: eve, ann", "unreadable"),
            ("heartbeat records unreadable: eve", "never heard"),
            ("holder heartbeat mismatched", "unknown"),
            ("heartbeats filtered by scoped token", "unknown"),
        ],
    )
    def test_an_agent_was_never_heard_only_if_it_would_have_been_seen(self, note: str | None, said: str) -> None:
        seen = Status(scope={"kind": "all"}, claims=[claim("1", "ann", at(hours=-1))])
        if note is not None:
            seen.note("heartbeats", note)
        assert section(seen, "claims")[0].startswith(f"? {said}  ")

    def test_a_lease_nobody_can_be_asked_about_is_lost_once_it_is_over(self) -> None:
        beats = [beat("bob", "in_progress", "stale", at(minutes=20))]
        claims = [claim("1", "bob", at(hours=-1)), claim("2", "ann", at(hours=1))]
        lines = section(Status(scope={"kind": "all"}, claims=[*claims], heartbeats=[*beats]), "claims")
        assert lines == [
            "? never heard  acme/site#2  ann  expired 1 h ago  work/2",
            "◐ stale        acme/site#1  bob  1 h left         work/1",
        ]

    def test_the_newest_events_come_last_and_the_others_are_counted(self) -> None:
        seen = Status(scope={"kind": "all"}, events=[event(number) for number in range(EVENTS_SHOWN + 3)])
        lines = section(seen, "events")
        assert lines[0] == "… 3 earlier events: status --plain and status --json list them all"
        assert [line.rpartition("  ")[2] for line in lines[1:]] == [f"step {n}" for n in range(3, EVENTS_SHOWN + 3)]

    def test_the_archive_when_asked_for(self) -> None:
        row: Shown = {"path": "archive/x.json", "record_family": "claims", "reason": "released"}
        row |= {"source_path": "claims/acme/site/1.json", "archived_at": at(days=3), "delete_after": at(days=-27)}
        seen = Status(scope={"kind": "all"}, archive=[row])
        assert section(seen, "archive") == [
            "claims  archived 3 d ago  expires in 27 d  claims/acme/site/1.json  released"
        ]

    def test_values_that_are_no_instants_stand_as_they_are(self) -> None:
        claims = [claim("1", "ann", ""), claim("2", 7, at(hours=1))]
        claims[0]["expires_at"], claims[1]["target"] = ["soon"], None
        assert section(Status(scope={"kind": "all"}, claims=[*claims]), "claims") == [
            "? never heard  acme/site    7    expired 1 h ago   work/2",
            "? never heard  acme/site#1  ann  expires ['soon']  work/1",
        ]


class TestWords:
    @pytest.mark.parametrize(
        ("seconds", "said"),
        [
            (0, "0 s"),
            (59.9, "59 s"),
            (60, "1 m"),
            (3599, "59 m"),
            (3600, "1 h"),
            (7800, "2 h 10 m"),
            (-7800, "2 h 10 m"),
            (36_000 + 600, "10 h"),
            (86_399, "23 h"),
            (86_400, "1 d"),
            (700 * 86_400, "700 d"),
            (800 * 86_400, "2 y"),
        ],
    )
    def test_spans(self, seconds: float, said: str) -> None:
        assert span(seconds) == said

    def test_ages(self) -> None:
        assert age(at(minutes=4), NOW) == "4 m ago"
        assert age(at(hours=-2, minutes=-10), NOW) == "in 2 h 10 m"
        assert age(at(), NOW) == "now"
        assert age("yesterday", NOW) is None
        assert age(None, NOW) is None

    @pytest.mark.parametrize(
        ("value", "said"),
        [
            ("plain", "plain"),
            ("two\nlines\tand more ", "two lines and more"),
            ("\033[31mred\033[0m", "�[31mred�[0m"),
            ("\x00\x7f\x9b", "���"),
            ("a\u202eb\u2066c\u200bd", "abcd"),
            ("\ud800", "�"),
            ("x\u2028y\u0085z", "x y z"),
            ("❤\ufe0f", "❤"),
            (None, "-"),
            (True, "true"),
            (3, "3"),
            ({"a": ["\033"]}, "{'a': ['\\x1b']}"),
        ],
    )
    def test_cleaned(self, value: object, said: str) -> None:
        assert cleaned(value) == said

    def test_a_number_that_python_will_not_spell(self) -> None:
        assert cleaned(10**5000) == "�"

    def test_a_long_value_is_cut(self) -> None:
        assert cleaned("x" * 100_000) == "x" * (LONGEST - 1) + "…"


# Whatever a record holds ---------------------------------------------------------------------------------


TEXT = st.text(st.characters(exclude_categories=()), max_size=30) | st.sampled_from(
    [
        "\033[2J",
        "x" * 300,
        "作" * 40,
        "\u202e",
        "a\u0301" * 30,
        "released",
        "active",
        "dead",
        "live",
        at(hours=1),
        at(hours=-1),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
LANE = st.dictionaries(st.sampled_from(sorted(fleet().batches[0]["lanes"][2])), JSON)


def rows(example: Shown, more: tuple[str, ...] = ()) -> st.SearchStrategy[list[Shown]]:
    return st.lists(st.dictionaries(st.sampled_from([*example, *more]), JSON), max_size=2)


BATCH = st.fixed_dictionaries(
    {"lanes": st.lists(LANE | JSON, max_size=2) | JSON}, optional={"batch_id": JSON, "status": JSON}
)
STATUS = st.builds(
    Status,
    scope=st.fixed_dictionaries(
        {"kind": st.sampled_from(["all", "target", "batch"])}, optional={"repo": JSON, "target": JSON}
    ),
    notes=st.dictionaries(st.sampled_from(["claims", "heartbeats", "lanes"]), TEXT),
    claims=rows(claim("1", "a", ""), ("phase", "terminal", "handoff_to", "synthetic")),
    heartbeats=rows(beat("a", "", "", ""), ("phase", "machine_id")),
    batches=st.lists(BATCH, max_size=2),
    events=rows(event(1), ("phase", "previous_phase", "lane", "agent_id", "kind")),
    archive=st.none() | rows({"record_family": 0, "source_path": 0, "source_paths": 0, "archived_at": 0}),
)


def columns_of(line: str) -> int:
    """Measure a line without the help of what is tested."""
    return sum(
        0 if unicodedata.category(letter) in ("Mn", "Me") else 1 + (unicodedata.east_asian_width(letter) in ("F", "W"))
        for letter in line
    )


@given(STATUS, st.integers(20, 200))
def test_any_record_stays_within_its_lines(seen: Status, columns: int) -> None:
    page = board(seen, NOW, Terminal(person=True, columns=columns)).decode()
    for line in page.splitlines():
        assert line.isprintable()
        assert columns_of(line) <= columns
        assert line == line.rstrip()
    coloured = board(seen, NOW, Terminal(person=True, columns=columns, colour=True)).decode()
    assert STYLED.sub(r"\1", coloured) == page


@given(JSON)
def test_cleaned_text_is_one_printable_line(value: Any) -> None:
    text = cleaned(value)
    assert text.isprintable()
    assert text == " ".join(text.split(" ")).strip()
    assert len(text) <= LONGEST
    assert width(text) == columns_of(text)
    text.encode()
