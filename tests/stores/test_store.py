"""The promise of a store, asked of every one of them without looking which one it is."""

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentcoord.errors import Conflict, Exit, StoreError, UsageError
from agentcoord.protocol.documents import is_document
from agentcoord.stores.base import Store, Stored
from tests.stores.counting import CountingStore

CLAIM = "claims/acme/widgets/319.json"
BEAT = "heartbeats/worker-a.json"

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**63), max_value=2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


async def paths(store: Store, prefix: str) -> list[str]:
    return [entry.path for entry in (await store.list(prefix)).entries]


async def put(store: Store, path: str, document: object) -> str:
    """Write whatever is there now."""
    stored = await store.read(path)
    return await store.write(path, document, version=stored.version if stored else None, note="put")


async def test_no_more_is_looked_at_than_is_allowed(store: Store) -> None:
    for number in range(3):
        await store.write(f"attention/w/o/r/{number}.json", {}, version=None, note="")
    prefix = "attention/w/o/r"
    assert len(list((await store.list(prefix, at_most=3)).entries)) == 3
    with pytest.raises(StoreError, match=f"^(state prefix|http backend list) {prefix} exceeds scan maximum 2$"):
        await store.list(prefix, at_most=2)
    assert len(list((await store.list(prefix)).entries)) == 3


async def test_nothing_is_there_at_first(store: Store) -> None:
    assert await store.read(CLAIM) is None
    assert await paths(store, "claims") == []
    assert await paths(store, "claims/acme/widgets") == []


async def test_what_was_written_is_read_with_its_version(store: Store) -> None:
    version = await store.write(CLAIM, {"status": "active"}, version=None, note="Claim acme/widgets#319")
    stored = await store.read(CLAIM)
    assert stored is not None
    assert (stored.path, stored.document, stored.version) == (CLAIM, {"status": "active"}, version)


async def test_an_empty_place_is_taken_once(store: Store) -> None:
    await store.write(CLAIM, {"agent_id": "a"}, version=None, note="")
    with pytest.raises(Conflict, match=f"^state already exists at {CLAIM}$") as refused:
        await store.write(CLAIM, {"agent_id": "b"}, version=None, note="")
    assert (refused.value.path, refused.value.exit) == (CLAIM, Exit.UNKNOWN)
    stored = await store.read(CLAIM)
    assert stored is not None
    assert stored.document == {"agent_id": "a"}


async def test_a_write_needs_the_version_that_was_read(store: Store) -> None:
    first = await store.write(CLAIM, {"n": 1}, version=None, note="")
    second = await store.write(CLAIM, {"n": 2}, version=first, note="")
    assert second != first
    with pytest.raises(Conflict, match=f"^state changed at {CLAIM}$"):
        await store.write(CLAIM, {"n": 3}, version=first, note="")
    stored = await store.read(CLAIM)
    assert stored is not None
    assert (stored.document, stored.version) == ({"n": 2}, second)


async def test_a_version_of_nothing_does_not_create(store: Store) -> None:
    elsewhere = await store.write("batches/b.json", {"n": 1}, version=None, note="")
    with pytest.raises(Conflict, match=f"^state changed at {CLAIM}$"):
        await store.write(CLAIM, {"n": 1}, version=elsewhere, note="")
    assert await store.read(CLAIM) is None


async def test_a_record_that_was_removed_cannot_be_replaced(store: Store) -> None:
    version = await store.write(BEAT, {"n": 1}, version=None, note="")
    await store.delete(BEAT, version=version, note="")
    with pytest.raises(Conflict, match=r"^state changed at "):
        await store.write(BEAT, {"n": 2}, version=version, note="")
    assert await store.read(BEAT) is None
    await store.write(BEAT, {"n": 3}, version=None, note="")


async def test_only_what_was_read_is_deleted(store: Store) -> None:
    first = await store.write(BEAT, {"n": 1}, version=None, note="")
    second = await store.write(BEAT, {"n": 2}, version=first, note="")
    with pytest.raises(Conflict, match=f"^state changed at {BEAT}$"):
        await store.delete(BEAT, version=first, note="")
    assert await store.read(BEAT) is not None
    await store.delete(BEAT, version=second, note="")
    assert await store.read(BEAT) is None
    assert await paths(store, "heartbeats") == []


@pytest.mark.parametrize("path", [BEAT, CLAIM])
async def test_nothing_cannot_be_deleted(store: Store, path: str) -> None:
    elsewhere = await store.write("batches/b.json", {"n": 1}, version=None, note="")
    with pytest.raises(Conflict, match=f"^state changed at {path}$"):
        await store.delete(path, version=elsewhere, note="")


async def test_a_listing_is_sorted_by_whole_paths(store: Store) -> None:
    # By name the directory `a` comes first; by path it comes last, since "-" and "." sort before "/".
    written = [
        "claims/o/a/1.json",
        "claims/o/a.b/1.json",
        "claims/o/a-b/1.json",
        "claims/o/a/10.json",
        "claims/n/z/9.json",
    ]
    for path in written:
        await store.write(path, {"path": path}, version=None, note="")
    entries = list((await store.list("claims")).entries)
    assert [entry.path for entry in entries] == sorted(written)
    assert all(isinstance(entry, Stored) and entry.document == {"path": entry.path} for entry in entries)


async def test_a_listing_holds_versions_that_a_write_accepts(store: Store) -> None:
    await store.write(BEAT, {"n": 1}, version=None, note="")
    (entry,) = (await store.list("heartbeats")).entries
    assert isinstance(entry, Stored)
    await store.write(BEAT, {"n": 2}, version=entry.version, note="")
    with pytest.raises(Conflict):
        await store.write(BEAT, {"n": 3}, version=entry.version, note="")


async def test_a_prefix_is_a_directory_and_not_a_beginning(store: Store) -> None:
    for path in ("claims/o/a/1.json", "claims/o/a-b/1.json", "claims/o/api.json/2.json", "heartbeats/a.json"):
        await store.write(path, {}, version=None, note="")
    assert await paths(store, "claims/o/a") == ["claims/o/a/1.json"]
    assert await paths(store, "claims/o/api.json") == ["claims/o/api.json/2.json"]
    assert await paths(store, "claims/o") == ["claims/o/a-b/1.json", "claims/o/a/1.json", "claims/o/api.json/2.json"]
    assert await paths(store, "claims/o/ap") == []
    assert not (await store.list("claims")).filtered


@pytest.mark.parametrize(
    "path", ["attention/ws/.github/.github/a-1.json", "claims/acme/.github/7.json", "claims/.acme/shop/7.json"]
)
async def test_owners_and_repositories_may_begin_with_a_dot(store: Store, path: str) -> None:
    await store.write(path, {}, version=None, note="")
    assert await paths(store, path.partition("/")[0]) == [path]
    assert await paths(store, path.rpartition("/")[0]) == [path]


@pytest.mark.parametrize("document", [None, True, 0, -1.5, "text", "", [], [1, [2]], {}])
async def test_a_record_may_be_any_json_value(store: Store, document: object) -> None:
    await store.write(BEAT, document, version=None, note="")
    stored = await store.read(BEAT)
    assert stored is not None
    assert stored.document == document


async def test_fields_nobody_knows_and_their_order_stay(store: Store) -> None:
    document: dict[str, Any] = {"z": {"ü": ["→", "\u2028", "\x00", "𝄞"]}, "a": None, "schema_version": 1}
    await store.write(BEAT, document, version=None, note="")
    stored = await store.read(BEAT)
    assert stored is not None
    assert is_document(stored.document)
    assert list(stored.document.items()) == list(document.items())


async def test_documents_are_not_shared_with_the_caller(store: Store) -> None:
    document = {"lanes": [{"name": "a"}]}
    kept = copy.deepcopy(document)
    await store.write(BEAT, document, version=None, note="")
    document["lanes"].clear()
    for _ in range(2):
        stored = await store.read(BEAT)
        assert stored is not None
        assert stored.document == kept
        assert is_document(stored.document)
        stored.document.clear()


@pytest.mark.parametrize(
    "path", ["", "/etc/x.json", "claims/../x.json", "..", "claims//x.json", "claims/", "a/./b.json", "a\0b"]
)
async def test_an_unsafe_path_is_refused(store: Store, path: str) -> None:
    with pytest.raises(UsageError, match=r"^unsafe state path: "):
        await store.read(path)
    with pytest.raises(UsageError, match=r"^unsafe state path: "):
        await store.write(path, {}, version=None, note="")
    with pytest.raises(UsageError, match=r"^unsafe state path: "):
        await store.delete(path, version="1", note="")
    with pytest.raises(UsageError, match=r"^unsafe state path: "):
        await store.list(path)


@given(first=JSON, second=JSON)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_document_is_read_back_and_its_version_is_its_content(
    store: Store, first: object, second: object
) -> None:
    one = await put(store, BEAT, first)
    stored = await store.read(BEAT)
    assert stored is not None
    assert (repr(stored.document), stored.version) == (repr(first), one)
    two = await store.write(BEAT, second, version=one, note="")
    again = await store.read(BEAT)
    assert again is not None
    assert (again.document, again.version) == (second, two)
    assert (one == two) == (stored.source == again.source)


@given(
    names=st.sets(
        st.from_regex(r"[a-z.:_-]{1,3}", fullmatch=True).filter(
            lambda name: "." not in (name[0], name[-1]) and ".." not in name
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_every_listing_is_in_order(store: Store, names: set[str]) -> None:
    for name in names:
        await put(store, f"claims/o/{name.replace(':', '_')}/1.json", {})
        await put(store, f"heartbeats/{name}.json", {})
    for prefix in ("claims", "heartbeats"):
        listed = await paths(store, prefix)
        assert listed == sorted(listed)
        assert len(listed) == len(set(listed))
    assert len(await paths(store, "heartbeats")) >= len(names)


async def test_a_counting_store_sees_each_call(store: Store) -> None:
    counting = CountingStore(store)
    version = await counting.write(BEAT, {}, version=None, note="")
    assert await counting.read(BEAT) is not None
    assert [entry.path for entry in (await counting.list("heartbeats")).entries] == [BEAT]
    await counting.delete(BEAT, version=version, note="")
    assert (counting.writes, counting.reads, counting.lists, counting.deletes) == (
        [BEAT],
        [BEAT],
        ["heartbeats"],
        [BEAT],
    )
