"""Registering batches: everything is checked first, then one record is written."""

import json
from typing import Any

import pytest

from agentcoord.errors import StoreError, UsageError
from agentcoord.operations.batches import BatchRequest, register_batch
from tests.operations.stage import FakeClock, FaultyStore, Stage, lane
from tests.stores.counting import CountingStore

BATCH = "batches/b1.json"
MANIFEST: dict[str, Any] = {"batch_id": "b1", "lanes": [lane()]}


async def register(stage: Stage, manifest: object = MANIFEST, store: Any = None, **more: Any) -> Any:
    data = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    return (await register_batch(stage.context(store), BatchRequest(manifest=data, **more))).record


async def test_a_manifest_is_kept_verbatim_with_its_stamps(stage: Stage) -> None:
    manifest = {"zeta": {"a": [1, None]}, **MANIFEST, "objective": "ünï"}
    assert list((await register(stage, manifest)).items()) == [
        *manifest.items(),
        ("schema_version", 1),
        ("registered_at", "2026-01-01T00:00:00Z"),
        ("updated_at", "2026-01-01T00:00:00Z"),
    ]


async def test_registering_again_replaces_all_but_when_and_what_it_is(stage: Stage, clock: FakeClock) -> None:
    await register(stage, MANIFEST | {"objective": "x"}, synthetic={"synthetic": True, "synthetic_kind": "smoke"})
    stored = await stage.record(BATCH)
    stage.lay(BATCH, stored | {"status": "completed", "completed_at": "x", "lanes": [lane(terminal="done")]})
    clock.advance(minutes=1)
    assert await register(stage) == MANIFEST | {
        "schema_version": 1,
        "registered_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:01:00Z",
        "synthetic": True,
        "synthetic_kind": "smoke",
    }


async def test_a_launch_prompt_is_kept_to_the_byte(stage: Stage) -> None:
    prompt = "first\r\n\tsecond «→» \n\n"
    record = await register(stage, MANIFEST | {"launch_prompt": "old"}, launch_prompt=prompt.encode())
    assert record["launch_prompt"] == prompt
    assert (await register(stage, launch_prompt=b""))["launch_prompt"] == ""


def with_lane(**fields: Any) -> dict[str, Any]:
    entry = {key: value for key, value in (lane() | fields).items() if value is not ...}
    return {"batch_id": "b1", "lanes": [entry]}


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (b"", {}, "batch manifest JSON invalid: the file is empty"),
    (b"{", {}, "batch manifest JSON invalid: "),
    (b"\xff", {}, "batch manifest JSON invalid: "),
    (b'{"a": 1} {"b": 2}', {}, "batch manifest JSON invalid: "),
    (b'{"a": NaN}', {}, "batch manifest JSON invalid: "),
    (b'{"a": "\\ud800"}', {}, "batch manifest JSON invalid: "),
    (b"[" * 101 + b"]" * 101, {}, "batch manifest JSON invalid: nested deeper than 100 levels"),
    (b"[" * 100000, {}, "batch manifest JSON invalid: nested too deeply"),
    ([], {}, "batch manifest must be a JSON object"),
    (None, {}, "batch manifest must be a JSON object"),
    ({"lanes": [lane()]}, {}, "batch manifest missing batch_id"),
    ({"batch_id": "", "lanes": [lane()]}, {}, "batch manifest missing batch_id"),
    (MANIFEST, {"batch_id": "b2"}, "--batch-id does not match batch manifest batch_id"),
    (MANIFEST | {"batch_id": "../b1"}, {}, "invalid batch-id: ../b1"),
    (MANIFEST | {"batch_id": {}}, {}, "invalid batch-id: {}"),
    (MANIFEST | {"repo": "nowhere"}, {}, "invalid batch repo: nowhere"),
    ({"batch_id": "b1"}, {}, "batch manifest lanes must be an array"),
    (MANIFEST | {"lanes": {}}, {}, "batch manifest lanes must be an array"),
    (MANIFEST | {"lanes": []}, {}, "batch manifest lanes must not be empty"),
    (MANIFEST | {"lanes": [lane(), "qa"]}, {}, "batch lane 2 must be a JSON object"),
    (with_lane(name=...), {}, "batch lane 1 missing name"),
    (with_lane(name=""), {}, "batch lane 1 missing name"),
    (with_lane(name=None, id="x"), {}, "batch lane 1 missing name"),
    (with_lane(name=7), {}, "batch lane 1 name must be a string"),
    (with_lane(name="a:b"), {}, "batch lane a:b cannot contain ':'"),
    (with_lane(owner=...), {}, "batch lane worker missing owner"),
    (with_lane(owner=7), {}, "batch lane worker owner must be a string"),
    (with_lane(owner="a b"), {}, "invalid lane owner: a b"),
    (with_lane(targets=...), {}, "batch lane worker missing targets"),
    (with_lane(targets=[]), {}, "batch lane worker missing targets"),
    (with_lane(targets=[None, ""]), {}, "batch lane worker missing targets"),
    (with_lane(targets=["7", "a/b"]), {}, "invalid lane target: a/b"),
    (with_lane(targets=[{}]), {}, "invalid lane target: {}"),
    (with_lane(depends_on="nobody"), {}, "batch lane worker has invalid dependency ref: nobody"),
    (with_lane(depends_on=["b1:qa", ":qa"]), {}, "batch lane worker has invalid dependency ref: :qa"),
    (with_lane(depends_on=["b1:"]), {}, "batch lane worker has invalid dependency ref: b1:"),
    (with_lane(depends_on=["b/1:qa"]), {}, "batch lane worker has invalid dependency ref: b/1:qa"),
    (MANIFEST | {"lanes": [lane(), lane()]}, {}, "batch lane worker is duplicated"),
    (MANIFEST, {"launch_prompt": b"\xff"}, "launch prompt must be valid UTF-8"),
]


@pytest.mark.parametrize(
    ("manifest", "more", "fault"),
    WRONG,
)
async def test_a_manifest_that_is_wrong_anywhere_is_not_registered(
    stage: Stage, manifest: object, more: dict[str, Any], fault: str
) -> None:
    store = CountingStore(stage.store)
    with pytest.raises(UsageError) as caught:
        await register(stage, manifest, store, **more)
    said = str(caught.value)
    assert said.startswith(fault) if fault.endswith(" ") else said == fault
    assert "\n" not in said
    assert store.reads == store.writes == []


@pytest.mark.parametrize(
    "manifest",
    [
        with_lane(name=..., id="worker"),
        with_lane(owner=..., agent_id="a1"),
        with_lane(targets=..., target="7"),
        with_lane(targets=7),
        with_lane(targets=["7", None, ""]),
        with_lane(depends_on="b:1:qa"),
        MANIFEST | {"lanes": [lane(), lane("qa")]},
        MANIFEST | {"batch_id": 1},
    ],
)
async def test_other_spellings_of_a_manifest_are_as_good(stage: Stage, manifest: dict[str, Any]) -> None:
    record = await register(stage, manifest)
    assert record["lanes"] == manifest["lanes"]
    assert record["batch_id"] == str(manifest["batch_id"])


async def test_a_lost_race_names_the_batch(stage: Stage) -> None:
    async def first() -> None:
        await register(stage)

    with pytest.raises(StoreError) as caught:
        await register(stage, store=FaultyStore(stage.store, at=1, first=first))
    assert str(caught.value) == f"batch registration write contention for b1; state already exists at {BATCH}"


@pytest.mark.parametrize("data", [b"", b"{", b"[]"])
async def test_a_broken_batch_is_not_overwritten(stage: Stage, data: bytes) -> None:
    stage.store.plant(BATCH, data)
    store = CountingStore(stage.store)
    with pytest.raises(StoreError, match=BATCH):
        await register(stage, store=store)
    assert store.writes == []
