"""Where compacted events go, and what still fits there, worked out a second time from what is said of the names."""

import json
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.errors import StoreError
from agentcoord.operations.context import Context
from agentcoord.operations.retention import RetentionRequest, retain
from agentcoord.protocol.archive import compaction_path
from agentcoord.protocol.documents import Document, encode_pretty
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.retention import Archive, Compact
from agentcoord.stores.memory import MemoryStore
from tests.operations.stage import START, Chance

OLD = stamp(START - timedelta(days=8))
RECORD_BYTES, PATH_BYTES = 1_048_576, 520

_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def spelled(value: Any) -> str:
    """Spell a value as a digest sees it."""
    if isinstance(value, dict):
        pairs = sorted(cast("dict[str, Any]", value).items(), key=lambda pair: [ord(sign) for sign in pair[0]])
        return "{" + ",".join(f"{spelled(key)}:{spelled(item)}" for key, item in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(spelled(item) for item in cast("list[Any]", value)) + "]"
    if isinstance(value, str):
        return (
            '"' + "".join(_SHORT.get(sign) or (f"\\u{ord(sign):04x}" if sign < " " else sign) for sign in value) + '"'
        )
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def digits(value: object) -> str:
    return sha256(spelled(value).encode()).hexdigest()[:16]


plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), inner)
    ),
    max_leaves=6,
)
documents = st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), plain, max_size=4)


@given(st.none() | st.text(st.characters(codec="utf-8")), plain, st.lists(documents, min_size=1, max_size=4))
def test_a_name_is_made_of_two_digests(lane: str | None, repo: Any, records: list[Document]) -> None:
    sources = [(f"events/b1/e{number}.json", record) for number, record in enumerate(records)]
    identity = digits({"lane": lane, "repo": repo, "target": "7"})
    content = digits([{"path": path, "data": data} for path, data in sources])
    place = compaction_path("b1", lane=lane, repo=repo, target="7", sources=sources)
    assert place == f"archive/events/b1/compact-{identity}-{content}.json"


@pytest.mark.anyio
@given(st.permutations(["at", "synthetic", "note", "repo"]), st.sampled_from([1, 2, None]))
async def test_a_plan_uses_that_name_whatever_the_order_of_keys(order: list[str], indent: int | None) -> None:
    store = MemoryStore()
    event = {"at": OLD, "synthetic": True, "note": "h\u00e9 \u2028\x7f\x01", "repo": "o/r"}
    data = json.dumps({key: event[key] for key in order}, indent=indent, ensure_ascii=True).encode()
    store.plant("events/b1/e1.json", data)
    (action,) = await planned(store)
    assert isinstance(action, Compact)
    identity = digits({"lane": None, "repo": "o/r", "target": None})
    content = digits([{"path": "events/b1/e1.json", "data": event}])
    assert action.archive_path == f"archive/events/b1/compact-{identity}-{content}.json"


async def planned(store: MemoryStore, *, execute: bool = False) -> tuple[Any, ...]:
    context = Context(store=store, now=lambda: START, random=Chance())
    return (await retain(context, RetentionRequest(execute=execute))).actions


def single(filling: str) -> tuple[str, Document]:
    return "heartbeats/a1.json", {"status": "done", "updated_at": OLD, "note": filling}


def event(filling: str) -> tuple[str, Document]:
    return "events/b1/e1.json", {"synthetic": True, "at": OLD, "note": filling}


@pytest.mark.anyio
@pytest.mark.parametrize("made", [single, event])
@pytest.mark.parametrize("sign", ["x", "\u00e9", "\n"])
async def test_an_envelope_may_be_as_large_as_the_cap_and_no_larger(
    made: Callable[[str], tuple[str, Document]], sign: str
) -> None:
    store = MemoryStore()
    path, record = made("")
    store.plant(path, encode_pretty(record))
    (action,) = await planned(store)
    assert isinstance(action, Archive | Compact)
    width = len(spelled(sign).encode()) - 2
    count, rest = divmod(RECORD_BYTES - len(spelled(action.envelope).encode()), width)
    path, record = made(sign * count + "x" * rest)
    store.plant(path, encode_pretty(record))
    (action,) = await planned(store)
    assert len(spelled(action.envelope).encode()) == RECORD_BYTES
    path, record = made(sign * count + "x" * (rest + 1))
    store.plant(path, encode_pretty(record))
    for execute in (False, True):
        with pytest.raises(StoreError, match=rf"^gc archive envelope exceeds {RECORD_BYTES} bytes at archive/"):
            await planned(store, execute=execute)
    assert await store.read(path) is not None


@pytest.mark.anyio
async def test_a_path_may_be_as_long_as_the_cap_and_no_longer() -> None:
    fixed = len("archive/events//compact-0123456789abcdef-0123456789abcdef.json")
    for spare, fits in [(0, True), (1, False)]:
        store = MemoryStore()
        batch = "b" * (PATH_BYTES - fixed + spare)
        store.plant(f"events/{batch}/1.json", encode_pretty({"synthetic": True, "at": OLD}))
        if fits:
            (action,) = await planned(store, execute=True)
            assert len(action.archive_path.encode()) == PATH_BYTES
            assert await store.read(action.archive_path) is not None
        else:
            with pytest.raises(StoreError, match=rf"^gc archive path exceeds {PATH_BYTES} bytes: archive/events/bbb"):
                await planned(store, execute=True)
