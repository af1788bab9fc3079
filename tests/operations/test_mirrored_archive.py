"""Archived events are skipped as live ones are, and all that is said of the archive stays what it was.

Each `compare` also syncs with everything read, and wants the same mirror, the same count and the same notices.
"""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from agentcoord.operations.mirror import sync_mirror
from agentcoord.operations.trail import TrailRequest
from agentcoord.protocol.documents import Document, decode, encode_pretty
from agentcoord.protocol.instants import stamp
from tests.operations.mirroring import Play, closing, compacted, event
from tests.operations.stage import START

pytestmark = pytest.mark.anyio

ENVELOPE = "archive/events/b1/compact-{}.json"
COLLIDING = "e108ddf9", "e3008894"
"""Ids of two events of batch b1 that the hints take for one."""


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path)


@pytest.mark.parametrize("simulated", [False, True])
async def test_what_the_archive_holds_of_what_was_skipped_is_told(tmp_path: Path, *, simulated: bool) -> None:
    play = Play(tmp_path)
    play.event("e1")
    play.event("e2")
    play.event("s1", synthetic=True)
    await play.compare(simulated=simulated)
    copies = [event("e1", message="another"), event("s1", synthetic=True), event("e9")]
    envelope = {"record_family": "compacted_events", "archived_at": stamp(START), "delete_after": stamp(START)}
    paths = [f"events/b1/{name}.json" for name in ("e1", "s1", "e9", "lost")]
    play.lay("archive/events/b1/compact-1.json", envelope | {"source_paths": paths, "records": copies})
    await play.compare(simulated=simulated)
    play.store.read_names.clear()
    context = play.context()
    await sync_mirror(context, TrailRequest(sync=True, include_synthetic=simulated), str(play.root), few=0)
    assert play.store.read_names == ["archive/events/b1/compact-1.json"]
    told = "1 of 4 events read from the archive; 2 more" if simulated else "1 of 3 events read from the archive; 1 more"
    assert context.notices == [
        f"note: {told} held there too; 1 source event was dropped by compaction; archive deleted after {stamp(START)}"
    ]


async def syncing(play: Play, *, simulated: bool = False) -> list[str]:
    """Sync, compare, and say what was read of the archive and of the events."""
    play.store.read_names.clear()
    await play.compare(simulated=simulated)
    return play.store.read_names.copy()


async def test_envelopes_are_read_once(play: Play) -> None:
    for number in range(4):
        play.lay(ENVELOPE.format(number), compacted([event(f"a{number}"), event(f"z{number}")]))
    assert len(await syncing(play)) == 4
    assert await syncing(play) == []
    play.event("e1")
    assert await syncing(play) == ["events/b1/e1.json"]
    play.lay(ENVELOPE.format(9), compacted([event("a9")]))
    assert await syncing(play) == [ENVELOPE.format(9)]
    assert await syncing(play) == []


async def test_an_event_that_was_archived_since_is_read_once_more_where_it_is_now(play: Play) -> None:
    for name in ("e1", "e2", "lane_closed-1"):
        play.lay_event("b1", name, closing | {"at": stamp(START - timedelta(days=9))})
    play.event("e4", target="8")
    assert len(await syncing(play)) == 4
    lines = play.mirror.read_bytes()
    await play.gc(0, 40)
    (envelope,) = play.envelopes
    assert await syncing(play) == [str(envelope.relative_to(play.root))]
    assert play.mirror.read_bytes() == lines
    assert await syncing(play) == []
    play.event("e5")
    assert await syncing(play) == ["events/b1/e5.json"]


async def test_copies_that_are_in_the_mirror_need_no_second_look_whichever_counts(play: Play) -> None:
    play.event("e1")
    for number in range(2):
        archived_at = stamp(START + timedelta(days=number))
        play.lay(ENVELOPE.format(number), compacted([event("e1")], archived_at=archived_at))
    assert len(await syncing(play)) == 3
    assert await syncing(play) == []
    play.remove("b1", "e1")
    assert await syncing(play) == []
    play.lose_envelope(1)
    assert await syncing(play) == []
    play.lose_envelope(0)
    assert await syncing(play) == []


@pytest.mark.parametrize("counting", ["a live one", "a newer one"])
async def test_a_copy_that_is_not_in_the_mirror_is_read_until_it_is(play: Play, counting: str) -> None:
    newer = compacted([event("e1", message="new")], archived_at=stamp(START + timedelta(days=1)))
    if counting == "a live one":
        play.event("e1", message="new")
    else:
        play.lay(ENVELOPE.format(2), newer)
    old = ENVELOPE.format(1)
    play.lay(old, compacted([event("e1", message="old")]))
    for _ in range(2):
        assert old in await syncing(play)
        assert play.ids() == ["e1"]
    play.remove("b1", "e1")
    play.lose_envelope(1)
    assert await syncing(play) == [old]
    assert play.ids() == ["e1", "e1"]
    assert await syncing(play) == []


async def test_what_is_read_each_time_is_missed_when_it_is_gone(play: Play) -> None:
    play.event("e1", message="new")
    play.event("e2")
    play.lay(ENVELOPE.format(1), compacted([event("e1", message="old")]))
    play.lay(ENVELOPE.format(2), compacted([event("e2")]))
    await syncing(play)
    play.lose_envelope(0)
    assert await syncing(play) == []
    play.lay("events/b1/elsewhere.json", event("e2"))
    for _ in range(2):
        assert await syncing(play) == ["events/b1/elsewhere.json"]
    play.remove("b1", "elsewhere")
    assert await syncing(play) == []


def replace(play: Play) -> None:
    play.lay(ENVELOPE.format(1), compacted([event("e1"), event("e9")], delete_after=stamp(START)))


def remove(play: Play) -> None:
    (play.root / ENVELOPE.format(1)).unlink()


@pytest.mark.parametrize(("meddle", "read"), [(replace, [ENVELOPE.format(1)]), (remove, [])])
async def test_an_envelope_that_was_replaced_or_removed(
    play: Play, meddle: Callable[[Play], None], read: list[str]
) -> None:
    play.event("e1")
    for number in range(3):
        play.lay(ENVELOPE.format(number), compacted([event(f"e{number}")]))
    await syncing(play)
    meddle(play)
    assert await syncing(play) == read
    assert await syncing(play) == []


async def test_what_has_to_be_warned_of_is_found_between_one_that_is_new_and_one_that_is_known(play: Play) -> None:
    play.lay(ENVELOPE.format(1), compacted([event("e1"), event("e2")]))
    await syncing(play)
    play.lay(ENVELOPE.format(2), compacted([event("e1", unseen="another")]))
    for _ in range(2):
        assert await syncing(play) == [ENVELOPE.format(2)]
        assert (await play.outcome(play.store, play.root, simulated=False))[0] == (
            "refusing to sync an incomplete trail: archive/events"
        )
    play.lose_envelope(1)
    assert await syncing(play) == []


async def test_what_has_to_be_warned_of_is_found_once_no_live_copy_hides_it(play: Play) -> None:
    play.event("e1")
    for number, unseen in enumerate("xy"):
        play.lay(ENVELOPE.format(number), compacted([event("e1", unseen=unseen)]))
    assert len(await syncing(play)) == 3
    assert await syncing(play) == []
    play.remove("b1", "e1")
    for _ in range(2):
        assert await syncing(play) == []
        assert "refusing" in str(await play.outcome(play.store, play.root, simulated=False))


@pytest.mark.parametrize(
    "document",
    [
        compacted([event("s1", synthetic=True)], archived_at="once"),
        compacted([event("e1", event_id="")]),
        {"record_family": "archived_record", "data": event("e1"), "source_path": "x", "archived_at": stamp(START)},
        compacted([event("e1")], source_paths=["x", "x"]),
    ],
)
async def test_envelopes_that_say_too_little_to_be_remembered_are_read_each_time(
    play: Play, document: Document
) -> None:
    play.lay(ENVELOPE.format(0), compacted([event("e0")]))
    await syncing(play)
    play.lay(ENVELOPE.format(1), document)
    for _ in range(2):
        assert await syncing(play) == [ENVELOPE.format(1)]
    play.lose_envelope(1)
    assert await syncing(play) == []


async def test_simulation_in_an_envelope_that_was_left_out_is_read_when_it_is_asked_for(play: Play) -> None:
    play.lay(ENVELOPE.format(1), compacted([event("e1"), event("s1", synthetic=True)]))
    play.lay(ENVELOPE.format(2), compacted([event("e2")]))
    assert len(await syncing(play)) == 2
    assert await syncing(play) == []
    assert await syncing(play, simulated=True) == [ENVELOPE.format(1)]
    assert play.ids() == ["e1", "e2", "s1"]
    assert await syncing(play, simulated=True) == []
    assert await syncing(play) == []


async def test_records_in_envelopes_count_among_the_few_that_are_read_each_time(play: Play) -> None:
    play.lay(ENVELOPE.format(1), compacted([event("e1"), event("e2")]))
    for few, read in ((3, 1), (3, 1), (2, 0)):
        play.store.read_names.clear()
        await play.compare(simulated=False, few=few)
        assert len(play.store.read_names) == read


@pytest.mark.parametrize("remembered", [{}, {ENVELOPE.format(1): ["x"]}, [], None])
@pytest.mark.parametrize("hit", [False, True])
async def test_where_what_is_remembered_makes_no_sense_all_is_read(
    play: Play, remembered: object, *, hit: bool
) -> None:
    play.lay(ENVELOPE.format(1), compacted([event("e1")]))
    play.event("e2")
    await syncing(play)
    known: Any = decode(play.cache.read_bytes())
    known["compared"]["remembered"] = remembered
    play.cache.write_bytes(encode_pretty(known))
    if hit:
        play.event("e1")
    else:
        play.remove("b1", "e2")
    assert ENVELOPE.format(1) in await syncing(play)
    assert await syncing(play) == []


async def test_hints_of_a_broken_length_are_passed_over(play: Play) -> None:
    play.lay(ENVELOPE.format(1), compacted([event("e1")]))
    await syncing(play)
    known: Any = decode(play.cache.read_bytes())
    known["compared"]["hints"] = "AAAAAAA="
    play.cache.write_bytes(encode_pretty(known))
    assert await syncing(play) == [ENVELOPE.format(1)]


async def test_an_event_that_only_looks_as_if_it_was_archived(play: Play) -> None:
    archived, live = COLLIDING
    assert crc32(f"b1/{archived}".encode()) == crc32(f"b1/{live}".encode())
    play.lay(ENVELOPE.format(1), compacted([event(archived)]))
    await syncing(play)
    play.event(live)
    assert await syncing(play) == [f"events/b1/{live}.json"]
    assert play.ids() == sorted(COLLIDING)


async def test_a_live_event_that_comes_back_beside_its_archived_copy_is_told(play: Play) -> None:
    play.lay(ENVELOPE.format(1), compacted([event("e1"), event("e2")]))
    await syncing(play)
    play.event("e1", message="edited")
    assert await syncing(play) == ["events/b1/e1.json"]
    context = play.context()
    await sync_mirror(context, TrailRequest(sync=True), str(play.root), few=0)
    assert context.notices[0].startswith("note: 1 of 2 events read from the archive; 1 more held there too")


async def test_simulation_that_is_not_mirrored_needs_no_second_look_where_another_copy_counts(play: Play) -> None:
    play.event("s1", synthetic=True, message="new")
    play.lay(ENVELOPE.format(1), compacted([event("e1"), event("s1", synthetic=True, message="old")]))
    assert len(await syncing(play)) == 2
    assert await syncing(play) == []


async def test_an_event_with_a_slash_in_its_id_is_not_taken_for_one_whose_path_spells_the_same(play: Play) -> None:
    live = "events/b1/x/e1.json"
    play.lay(live, event("e1") | {"batch_id": "b1/x"})
    await syncing(play)
    play.lay(ENVELOPE.format(1), compacted([event("x/e1")]))
    assert await syncing(play) == [live, ENVELOPE.format(1)]
    assert play.ids() == ["e1", "x/e1"]


async def test_a_mirror_that_somebody_put_into_another_order_is_searched_and_merged_as_a_whole(play: Play) -> None:
    days = [stamp(START + timedelta(days=day)) for day in range(5)]
    for name, at in zip(("e1", "e2", "e3"), days[::2], strict=True):
        play.event(name, at=at)
    await syncing(play)
    for mirror in (play.mirror, play.plain / "log.tsv"):
        mirror.write_bytes(b"".join(reversed(mirror.read_bytes().splitlines(keepends=True))))
    assert len(await syncing(play)) == 3
    play.lay(ENVELOPE.format(1), compacted([event("e1", at=days[0]), event("e3", at=days[4])]))
    assert await syncing(play) == [ENVELOPE.format(1)]
    assert await syncing(play) == []
    assert play.ids() == ["e3", "e2", "e1"], "nothing was new"
    play.event("e4", at=days[1])
    play.event("e5", at=days[3])
    assert len(await syncing(play)) == 2
    assert play.ids() == ["e1", "e4", "e2", "e5", "e3"]
