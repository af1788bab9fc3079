"""What may wait, in which order it is sent, and what an outcome means for it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentcoord.errors import (
    ConfigError,
    Conflict,
    CoordError,
    Defect,
    Rejected,
    StoreError,
    Undecided,
    Unreadable,
    UsageError,
)
from agentcoord.protocol.documents import Document
from agentcoord.protocol.heartbeats import Beat
from agentcoord.protocol.identity import Identity
from agentcoord.protocol.outbox import (
    LEAST_PAUSE,
    LONGEST_ASKED,
    LONGEST_PAUSE,
    LateBeat,
    LateEvent,
    Order,
    Taken,
    is_refusal,
    is_throttled,
    may_wait,
    merged,
    pause_after,
    require_late,
)
from agentcoord.protocol.statuses import normalize

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EVENT: Document = {
    "event_id": "20260101T000000.000000Z-0a1b2c3d",
    "batch_id": "b1",
    "type": "note",
    "at": "2026-01-01T00:00:00Z",
}


def beat(at: datetime = NOW, **more: Any) -> LateBeat:
    said = Beat(agent_id="ana", ttl=900, status=normalize("in_progress"))
    return LateBeat(replace(said, **more), Identity(), at, "0a1b2c3d")


def answer(status: int, *, worded: bool = True, retry_after: float | None = None) -> Rejected:
    return Rejected("said", status=status, reason="x", worded=worded, retry_after=retry_after)


@pytest.mark.parametrize(
    ("error", "waits", "refused"),
    [
        (Undecided("no answer, or one that cannot be read"), True, False),
        (answer(500), True, False),
        (answer(503, worded=False), True, False),
        (answer(302, worded=False), True, False),
        (answer(429), True, False),
        (answer(408), True, False),
        (answer(401), False, False),  # it says nothing of the record: with a new token it may go
        (answer(403), False, True),
        (answer(400), False, True),
        (answer(404), False, True),
        (answer(404, worded=False), False, False),  # a page of somebody in between
        (answer(413, worded=False), False, True),
        (Conflict("heartbeats/ana.json"), False, False),
        (StoreError("whoever called is gone"), False, False),
        (Unreadable("broken", path="p", defect=Defect.MALFORMED), False, True),
        (UsageError("an unsafe path"), False, True),
        (Taken("another"), False, True),
        (ConfigError("no token"), False, False),
    ],
    ids=repr,
)
def test_what_an_outcome_means(error: CoordError, waits: bool, refused: bool) -> None:
    if isinstance(error, StoreError):
        assert may_wait(error) == waits
    assert is_refusal(error) == refused


@given(st.integers(0, 10_000), st.floats(0, 1), st.none() | st.floats(0, 1e12))
def test_pauses_grow_and_end_and_heed_what_is_asked(failures: int, chance: float, asked: float | None) -> None:
    pause = pause_after(failures, answer(503, retry_after=asked), chance)
    assert LEAST_PAUSE <= pause <= max(LONGEST_PAUSE, LONGEST_ASKED)
    assert pause >= min(asked or 0, LONGEST_ASKED)
    if asked is None:
        assert pause <= LONGEST_PAUSE
        assert pause_after(failures + 1, answer(503), chance) >= pause


def test_pauses_are_not_the_same_for_a_whole_fleet() -> None:
    assert pause_after(9, Undecided("x"), 0.0) == LONGEST_PAUSE / 2
    assert pause_after(9, Undecided("x"), 1.0) == LONGEST_PAUSE


def test_only_a_quota_holds_up_against_other_answers() -> None:
    assert is_throttled(answer(429, retry_after=9))
    assert not is_throttled(answer(429))
    assert not is_throttled(answer(503, retry_after=9))


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.sampled_from(["add", "remove", "take"])), max_size=60
    ),
    st.sets(st.integers(0, 30)),
)
def test_only_the_first_of_a_lane_may_go_and_no_lane_waits_for_another(
    steps: list[tuple[str, int, str]], held: set[int]
) -> None:
    order, model, waited = Order(), dict[str, set[int]](), dict[str, int]()
    for lane, number, step in steps:
        if step == "add" and not any(number in numbers for numbers in model.values()):
            order.add(lane, number)
            model.setdefault(lane, set()).add(number)
        elif step == "remove":
            order.remove(lane, number)
            model.get(lane, set()).discard(number)
        else:
            heads = {name: min(numbers) for name, numbers in model.items() if numbers}
            ready = {name: head for name, head in heads.items() if head not in held}
            taken = order.take(lambda head: head not in held)
            assert (taken is None) == (not ready)
            if taken is not None:
                (chosen,) = [name for name, head in ready.items() if head == taken]
                for name in ready:
                    waited[name] = 0 if name == chosen else waited.get(name, 0) + 1
                    assert waited[name] <= len("abc")
        assert {lane: order.holds(lane) for lane in "abc"} == {lane: bool(model.get(lane)) for lane in "abc"}
        assert sorted(order.heads()) == sorted(min(numbers) for numbers in model.values() if numbers)
        assert bool(order) == any(model.values())


def test_two_heartbeats_that_say_the_same_are_one() -> None:
    first, second, third = beat(), beat(NOW + timedelta(minutes=5)), beat(NOW + timedelta(minutes=9))
    both = merged(first, replace(second, chance="11111111"))
    assert both == replace(second, since=NOW), "named as the first, and of the time of the last"
    assert merged(both or first, third) == replace(third, since=NOW)


def test_heartbeats_that_say_different_things_both_count() -> None:
    later = beat(NOW + timedelta(minutes=5))
    assert merged(later, beat()) is None, "time would go backwards"
    assert merged(beat(), replace(later, identity=Identity("m2"))) is None
    assert merged(replace(beat(), sent={"agent_id": "ana"}), later) is None, "it may stand already"
    assert merged(LateEvent(EVENT), later) is None
    assert merged(LateEvent(EVENT), LateEvent(EVENT)) is None
    others: list[dict[str, Any]] = [
        {"branch": "x"},
        {"metadata": {"phase": "x"}},
        {"status": normalize("done")},
        {"ttl": 60},
    ]
    for more in others:
        assert merged(beat(**more), later) is None, "what only the older one says would be lost"
        assert merged(beat(), beat(later.at, **more)) is None


@pytest.mark.parametrize(
    "late",
    [
        LateEvent({}),
        LateEvent(EVENT | {"event_id": "lane_closed-0123456789abcdef"}),
        LateEvent(EVENT | {"event_id": "../../claims/o/r/7"}),
        LateEvent(EVENT | {"event_id": 7}),
        LateEvent(EVENT | {"batch_id": "../b"}),
        LateEvent(EVENT | {"batch_id": None}),
        LateEvent(EVENT | {"type": ""}),
        LateEvent(EVENT | {"at": "soon"}),
        LateEvent(EVENT | {"at": "9999-01-01T00:00:00Z"}),
        LateEvent(EVENT | {"message": "x" * 300_000}),
        beat(agent_id="../ana"),
        beat(ttl=0),
        beat(NOW + timedelta(hours=2)),
        beat(NOW.replace(tzinfo=None)),
        replace(beat(), chance="../../.."),
        replace(beat(), event=EVENT | {"event_id": "x"}),
    ],
    ids=str,
)
def test_what_no_command_would_have_made_is_not_taken(late: LateEvent | LateBeat) -> None:
    with pytest.raises(UsageError):
        require_late(late, NOW)


def test_what_a_command_makes_is_taken() -> None:
    require_late(LateEvent(EVENT), NOW)
    require_late(replace(beat(), sent={}, event=EVENT), NOW)
