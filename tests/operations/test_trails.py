"""Reading a trail from a store: what is missing is said, what would be wrong is raised, nothing is written."""

from typing import Any

import pytest

from agentcoord.errors import Defect, Rejected, StoreError, Unreadable, UsageError
from agentcoord.operations.trail import Trail, TrailRequest, read_trail, require_query
from agentcoord.protocol.documents import Document, decode
from agentcoord.stores.base import Decode, Listing, Version
from agentcoord.stores.memory import MemoryStore
from tests.operations.stage import Stage

pytestmark = pytest.mark.anyio

ITEM = TrailRequest(work_item="o/r#7")


class Gaps(MemoryStore):
    """A store whose listings of some prefixes fail, or leave something out."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: dict[str, StoreError] = {}
        self.filtered: set[str] = set()

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        raise AssertionError(f"reading a trail wrote {path}")

    async def list(self, prefix: str, *, decode: Decode = decode, at_most: int | None = None) -> Listing:
        if prefix in self.failing:
            raise self.failing[prefix]
        listing = await super().list(prefix, decode=decode, at_most=at_most)
        return Listing(listing.entries, filtered=prefix in self.filtered)


@pytest.fixture
def gaps() -> Gaps:
    return Gaps()


@pytest.fixture
def stage(stage: Stage, gaps: Gaps) -> Stage:
    return Stage(gaps, stage.clock)


def lay_event(stage: Stage, name: str, **fields: Any) -> None:
    record: Document = {"event_id": name, "batch_id": "b1", "type": "note", "at": stage.stamp(), "repo": "o/r"}
    stage.lay(f"events/b1/{name}.json", record | {"target": "7"} | fields)


def lay_claim(stage: Stage, target: str = "7", **fields: Any) -> None:
    record: Document = {"repo": "o/r", "target": target, "agent_id": "a1", "status": "active"}
    stage.lay(f"claims/o/r/{target}.json", record | {"updated_at": stage.stamp()} | fields)


def lay_envelope(stage: Stage, name: str, *records: Document, **fields: Any) -> None:
    envelope: Document = {
        "record_family": "compacted_events",
        "source_paths": [f"events/b1/{name}-{number}.json" for number in range(len(records))],
        "records": list(records),
        "archived_at": stage.stamp(),
        "delete_after": stage.stamp(seconds=100),
    }
    stage.lay(f"archive/events/b1/{name}.json", envelope | fields)


async def read(stage: Stage, request: TrailRequest = ITEM) -> tuple[Trail, list[str]]:
    context = stage.context()
    trail = await read_trail(context, request)
    return trail, context.notices


FORBIDDEN = Unreadable("no", path="p", defect=Defect.FORBIDDEN)
UNSUPPORTED = Rejected("no", status=400, reason="invalid_prefix")
BROKEN = StoreError("the backend did not answer")
NO_CLAIM = "a claim for this work item would not be reported"
MAY_BE = "this trail may be incomplete"


@pytest.mark.parametrize(
    ("prefix", "error", "notice", "short"),
    [
        ("events", None, f"warning: events filtered by scoped token; {MAY_BE}", True),
        ("events", FORBIDDEN, f"warning: events not readable by scoped token; {MAY_BE}", True),
        ("events", UNSUPPORTED, f"warning: events not supported by backend; {MAY_BE}", True),
        ("archive/events", None, f"warning: archived events filtered by scoped token; {MAY_BE}", True),
        ("archive/events", FORBIDDEN, f"warning: archived events not readable by scoped token; {MAY_BE}", True),
        (
            "archive/events",
            UNSUPPORTED,
            "warning: archived events not supported by backend; nothing can have been archived there",
            False,
        ),
        (
            "archive/events",
            BROKEN,
            f"warning: archived events unreadable (the backend did not answer); {MAY_BE}",
            True,
        ),
        ("claims", None, f"warning: claims filtered by scoped token; {NO_CLAIM}", True),
        ("claims", FORBIDDEN, f"warning: claims not readable by scoped token; {NO_CLAIM}", True),
        ("claims", UNSUPPORTED, f"warning: claims not supported by backend; {NO_CLAIM}", True),
        ("claims", BROKEN, f"warning: claims unreadable (the backend did not answer); {NO_CLAIM}", True),
    ],
)
async def test_a_listing_that_is_not_whole_is_said_to_be(
    stage: Stage, gaps: Gaps, prefix: str, error: StoreError | None, notice: str, short: bool
) -> None:
    lay_event(stage, "e1")
    if error is None:
        gaps.filtered.add(prefix)
    else:
        gaps.failing[prefix] = error
    trail, notices = await read(stage)
    assert notices == [notice]
    assert trail.incomplete == ([prefix] if short else [])
    assert len(trail.rows) == (prefix != "events" or error is None)


async def test_events_that_cannot_be_listed_are_fatal(stage: Stage, gaps: Gaps) -> None:
    gaps.failing["events"] = BROKEN
    with pytest.raises(StoreError, match="did not answer"):
        await read(stage)


async def test_a_record_that_cannot_be_read_costs_its_row(stage: Stage, gaps: Gaps) -> None:
    lay_event(stage, "e1")
    gaps.plant("events/b1/bad.json", b"{nope")
    stage.lay("events/b1/list.json", [])
    gaps.plant("archive/events/b1/bad.json", b"")
    stage.lay("archive/events/b1/odd.json", {"record_family": "odd"})
    trail, notices = await read(stage)
    assert [row.event_id for row in trail.rows] == ["e1"]
    assert trail.incomplete == ["events", "archive/events"]
    assert notices[0].startswith("warning: events unreadable (")
    assert notices[0].endswith(f") at events/b1/bad.json; {MAY_BE}")
    assert notices[1:] == [
        f"warning: live event record is not an object at events/b1/list.json; {MAY_BE}",
        f"warning: archived events unreadable (the file is empty) at archive/events/b1/bad.json; {MAY_BE}",
        f"warning: unknown archived record family at archive/events/b1/odd.json; {MAY_BE}",
    ]


@pytest.mark.parametrize("path", ["events/b1/x.json", "archive/events/b1/x.json", "claims/o/r/8.json"])
async def test_text_that_is_not_utf8_is_fatal_and_nothing_else_is_said(stage: Stage, gaps: Gaps, path: str) -> None:
    gaps.plant("events/b1/bad.json", b"{nope")
    gaps.plant(path, b'{"custom":[{"\xff":1}]}')
    context = stage.context()
    with pytest.raises(StoreError) as raised:
        await read_trail(context, ITEM)
    assert str(raised.value) == f"state unreadable: invalid UTF-8 in persisted log record at {path}"
    assert context.notices == []


async def test_live_and_archived_events_are_one_trail(stage: Stage) -> None:
    lay_event(stage, "e3", at=stage.stamp(seconds=3))
    lay_event(stage, "e1", at=stage.stamp(seconds=1))
    old = {"event_id": "e2", "batch_id": "b1", "at": stage.stamp(seconds=2), "repo": "O/R", "target": "issue:7"}
    copy = {"event_id": "e3", "batch_id": "b1", "repo": "o/r", "target": "7", "message": "stale"}
    other = {"event_id": "e9", "batch_id": "b1", "repo": "o/r", "target": "8"}
    lay_envelope(stage, "c1", old, copy)
    lay_envelope(stage, "c2", other)
    trail, notices = await read(stage)
    assert [(row.event_id, row.detail) for row in trail.rows] == [("e1", ""), ("e2", ""), ("e3", "")]
    assert trail.matched == ["7", "issue:7"]
    until = stage.stamp(seconds=100)
    note = "note: 1 of 3 events read from the archive; 1 more held there too"
    assert notices == [f"{note}; archive deleted after {until}; mirror it with log --sync"]


async def test_two_live_records_of_one_id_are_both_shown(stage: Stage) -> None:
    lay_event(stage, "e1")
    stage.lay("events/b2/e1.json", {"event_id": "e1", "batch_id": "b1", "repo": "o/r", "target": "7"})
    trail, _ = await read(stage)
    assert len(trail.rows) == 2


async def test_a_live_copy_of_another_item_still_counts(stage: Stage) -> None:
    lay_event(stage, "e1", target="8")
    lay_envelope(stage, "c1", {"event_id": "e1", "batch_id": "b1", "repo": "o/r", "target": "7"})
    trail, notices = await read(stage)
    assert trail.rows == []
    assert notices[0].startswith("note: the archive holds a compacted record for this trail; ")


async def test_limit_keeps_the_last_after_all_else(stage: Stage) -> None:
    for number in range(5):
        lay_event(stage, f"e{number}", at=stage.stamp(seconds=number), type="odd" if number % 2 else "even")
    for limit, ids in ((0, []), (1, ["e4"]), (2, ["e2", "e4"]), (9, ["e0", "e2", "e4"])):
        trail, _ = await read(stage, TrailRequest(work_item="o/r#7", type="EVEN", limit=limit))
        assert [row.event_id for row in trail.rows] == ids
        assert trail.in_scope == 5
        assert trail.matched == ["7"]


async def test_simulation_is_left_out_unless_asked_for(stage: Stage) -> None:
    lay_event(stage, "e1", synthetic=True)
    lay_claim(stage, synthetic=True)
    trail, _ = await read(stage)
    assert (trail.rows, trail.in_scope, trail.claims) == ([], 0, [])
    trail, _ = await read(stage, TrailRequest(work_item="o/r#7", include_synthetic=True))
    assert (len(trail.rows), len(trail.claims)) == (1, 1)


@pytest.mark.parametrize(
    "narrowing", [{"since": "1d"}, {"machine": "m"}, {"host": "h"}, {"type": "note"}, {"limit": 0}]
)
async def test_a_filter_leaves_no_place_for_claims(stage: Stage, narrowing: dict[str, Any]) -> None:
    lay_claim(stage)
    trail, _ = await read(stage, TrailRequest(work_item="o/r#7", **narrowing))
    assert trail.claims == []
    blank: dict[str, Any] = {name: "" if isinstance(value, str) else 1 for name, value in narrowing.items()}
    trail, _ = await read(stage, TrailRequest(work_item="o/r#7", **blank))
    assert [claim.agent_id for claim in trail.claims] == ["a1"]


async def test_claims_are_not_even_listed_without_a_work_item(stage: Stage, gaps: Gaps) -> None:
    gaps.failing["claims"] = BROKEN
    trail, notices = await read(stage, TrailRequest())
    assert (trail.incomplete, notices) == ([], [])


async def test_a_claim_that_is_no_object_is_missed_only_where_it_may_be_the_items(stage: Stage) -> None:
    stage.lay("claims/o/r/8.json", [])
    stage.lay("claims/o/other/7.json", [])
    trail, notices = await read(stage)
    assert (trail.incomplete, notices) == ([], [])
    stage.lay("claims/o/r/pr:7.json", [])
    trail, notices = await read(stage)
    assert trail.incomplete == ["claims"]
    assert notices == [f"warning: live claim record is not an object at claims/o/r/pr:7.json; {MAY_BE}"]


async def test_a_limited_view_does_not_bring_an_ended_claim_back(stage: Stage) -> None:
    lay_claim(stage)
    lay_event(stage, "e1", type="claim.released", at=stage.stamp(seconds=1))
    lay_event(stage, "e2", at=stage.stamp(seconds=2))
    trail, _ = await read(stage, TrailRequest(work_item="o/r#7", limit=1))
    assert ([row.event_id for row in trail.rows], trail.claims) == (["e2"], [])


BOTH = "give the work item either positionally or with --repo/--target, not both"
SINCE = "--since expects a duration like 3d or an ISO8601 timestamp"
SYNC = "--sync mirrors the complete trail and cannot be narrowed by"


@pytest.mark.parametrize(
    ("fields", "json", "fault"),
    [
        ({"work_item": "o/r#7", "repo": "o/r", "format": "x"}, False, BOTH),
        ({"repo": "o/r", "format": "x"}, False, "--repo and --target must be given together"),
        ({"target": ""}, False, "--repo and --target must be given together"),
        ({"work_item": "o/r"}, False, "invalid work item repo: o/r"),
        ({"work_item": "#7"}, False, "invalid work item repo: "),
        ({"work_item": "o/r#a#7"}, False, "invalid work item repo: o/r#a"),
        ({"repo": "", "target": "7"}, False, "invalid work item repo: "),
        ({"work_item": "o/r#", "format": "x"}, False, "invalid work item target: "),
        ({"format": "x", "limit": -1}, True, "--format must be text or tsv"),
        ({"format": "tsv", "limit": -1}, True, "--json and --format are mutually exclusive"),
        ({"limit": -1, "since": "x"}, False, "--limit must not be negative, got -1"),
        ({"since": "x", "sync": True}, False, f'{SINCE}, got "x"'),
        (
            {"sync": True, "work_item": "o/r#7", "limit": 0, "since": "3d"},
            False,
            f"{SYNC} --since, --limit, a work item",
        ),
        ({"sync": True, "type": "a", "host": "b", "machine": "c"}, False, f"{SYNC} --machine, --host, --type"),
    ],
)
def test_the_first_fault_of_a_query_is_named(fields: dict[str, Any], json: bool, fault: str) -> None:
    with pytest.raises(UsageError) as raised:
        require_query(TrailRequest(**fields), json=json)
    assert str(raised.value) == fault


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"work_item": ""},
        {"work_item": "", "repo": "o/r", "target": "7"},
        {"format": ""},
        {"sync": True, "since": "", "machine": "", "host": "", "type": "", "work_item": ""},
        {"limit": 0},
    ],
)
def test_empty_texts_are_as_good_as_none(fields: dict[str, Any]) -> None:
    require_query(TrailRequest(**fields), json=True)
