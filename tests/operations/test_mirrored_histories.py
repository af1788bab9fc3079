"""Whatever happens to a state between two syncs: a sync that skips what the mirror has leaves what a full one would."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from operator import methodcaller
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcoord.protocol.documents import Document
from agentcoord.protocol.instants import stamp
from tests.operations.mirroring import Play
from tests.operations.stage import START

pytestmark = pytest.mark.anyio

names = st.sampled_from(["e1", "e2", "e3", "e4", "lane_closed-1"])
facts = st.fixed_dictionaries(
    {},
    optional={
        "at": st.sampled_from([*(stamp(START + timedelta(days=days)) for days in (-3, -2, -1, 1)), "once"]),
        "message": st.sampled_from(["", "é\u2028", "a\tb"]),
        "synthetic": st.booleans(),
        "event_id": st.sampled_from(["e1", "b/e1", ""]),
        "lane": st.just("qa"),
        "phase": st.sampled_from("xy"),
    },
)
batches = st.sampled_from(["b1", "b2"])
few_names = st.sampled_from(["e1", "e2", "e3"])
few_facts: st.SearchStrategy[Document] = st.sampled_from(
    [{}, {}, {}, {"message": "another"}, {"lane": "unseen"}, {"synthetic": True}, {"event_id": ""}]
)
copies = st.lists(st.tuples(few_names, few_facts), min_size=1, max_size=3)
oddities: st.SearchStrategy[Document] = st.sampled_from(
    [{}, {}, {}, {}, {}, {}, {"synthetic": True}, {"archived_at": "once"}]
)


Step = Callable[[Play], Awaitable[None] | None]


def step(name: str, *given: st.SearchStrategy[Any], **named: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.builds(methodcaller, st.just(name), *given, **named)


archiving = st.one_of(
    *[step("envelop", st.just("b1"), st.integers(0, 2), st.integers(0, 1), copies, oddities)] * 3,
    step("lose_envelope", st.integers(0, 2)),
    step("cut_off_gc", st.integers(1, 2)),
)
syncs = step("compare", simulated=st.booleans(), few=st.sampled_from([0, 0, 0, 2]))
lays = step("lay_event", batches, names, facts) | step("close", batches, names, facts)
changes = st.one_of(
    lays,
    lays,
    lays,
    step("remove", batches, names),
    step("gc", st.integers(0, 2), st.integers(0, 40)),
    *[step("gc", st.just(0), st.just(40))] * 3,
    archiving,
    step("wait", st.sampled_from([3600, 90_000, 3_000_000, -5])),
    step("drop_line", st.integers(0, 5)),
    step(
        "trip_over",
        st.sampled_from(["events/b1/e1.json", "events/b2/e9.json", "claims/o/r/7.json", "archive/events/b1/e1.json"]),
        st.sampled_from([b"{", b"[]", b'"\xff"']),
        simulated=st.booleans(),
    ),
)
rounds = st.lists(st.tuples(st.lists(changes, max_size=4), syncs), min_size=3, max_size=8)


here = st.just("b1")
shelves = st.one_of(
    archiving, archiving, step("lay_event", here, few_names, few_facts), step("remove", here, few_names)
)
archived_rounds = st.lists(
    st.tuples(
        st.lists(shelves, min_size=1, max_size=2),
        step("compare", simulated=st.sampled_from([False, False, False, True])),
    ),
    min_size=4,
    max_size=10,
)


@settings(max_examples=100)
@given(rounds)
async def test_it_is_as_if_everything_had_been_read(rounds: list[tuple[list[Step], Step]]) -> None:
    await compare_all(rounds)


@settings(max_examples=60)
@given(archived_rounds)
async def test_what_is_archived_is_as_if_it_had_been_read(rounds: list[tuple[list[Step], Step]]) -> None:
    await compare_all(rounds)


async def compare_all(rounds: list[tuple[list[Step], Step]]) -> None:
    with TemporaryDirectory() as directory:
        play = Play(Path(directory))
        for changes, sync in rounds:
            for each in (*changes, sync):
                if (going := each(play)) is not None:
                    await going
