"""What a manifest must say, and how a stored one is read."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.errors import CoordError, UsageError
from agentcoord.protocol.batches import (
    UNKNOWN,
    Lane,
    build_batch,
    lane_of,
    lanes_of,
    require_manifest,
    spelled,
    split_ref,
)
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.paths import is_segment
from tests.protocol.strategies import NOW, Json, readable, records, values

LANE: Json = {"name": "w", "owner": "a1", "targets": ["7"]}
MANIFEST: Json = {"batch_id": "b1", "lanes": [LANE]}


def lane(**fields: Any) -> Json:
    return MANIFEST | {"lanes": [LANE | fields]}


def without(*fields: str, **more: Any) -> Json:
    return MANIFEST | {"lanes": [{k: v for k, v in LANE.items() if k not in fields} | more]}


FAULTS: list[tuple[Any, str | None, str]] = [
    ([], None, "batch manifest must be a JSON object"),
    (None, None, "batch manifest must be a JSON object"),
    ("x", "b1", "batch manifest must be a JSON object"),
    ({"lanes": [LANE]}, None, "batch manifest missing batch_id"),
    ({"lanes": [LANE]}, "", "batch manifest missing batch_id"),
    (MANIFEST | {"batch_id": ""}, None, "batch manifest missing batch_id"),
    (MANIFEST | {"batch_id": None}, None, "batch manifest missing batch_id"),
    (MANIFEST, "b2", "--batch-id does not match batch manifest batch_id"),
    (MANIFEST | {"batch_id": "../b"}, None, "invalid batch-id: ../b"),
    (MANIFEST | {"batch_id": "a b"}, None, "invalid batch-id: a b"),
    ({"lanes": [LANE]}, "b/1", "invalid batch-id: b/1"),
    (MANIFEST | {"repo": "o"}, None, "invalid batch repo: o"),
    (MANIFEST | {"repo": ""}, None, "invalid batch repo: "),
    (MANIFEST | {"repo": 5}, None, "invalid batch repo: 5"),
    ({"batch_id": "b1"}, None, "batch manifest lanes must be an array"),
    (MANIFEST | {"lanes": None}, None, "batch manifest lanes must be an array"),
    (MANIFEST | {"lanes": {}}, None, "batch manifest lanes must be an array"),
    (MANIFEST | {"lanes": []}, None, "batch manifest lanes must not be empty"),
    (MANIFEST | {"lanes": ["w"]}, None, "batch lane 1 must be a JSON object"),
    (MANIFEST | {"lanes": [LANE, None]}, None, "batch lane 2 must be a JSON object"),
    (without("name"), None, "batch lane 1 missing name"),
    (lane(name=""), None, "batch lane 1 missing name"),
    (lane(name=None), None, "batch lane 1 missing name"),
    (lane(name="", id="w"), None, "batch lane 1 missing name"),  # `id` counts where there is no `name` at all
    (without("name", id=""), None, "batch lane 1 missing name"),
    (lane(name=5), None, "batch lane 1 name must be a string"),
    (lane(name=["w"]), None, "batch lane 1 name must be a string"),
    (lane(name="a:b"), None, "batch lane a:b cannot contain ':'"),
    (without("owner"), None, "batch lane w missing owner"),
    (lane(owner=""), None, "batch lane w missing owner"),
    (lane(owner=5), None, "batch lane w owner must be a string"),
    (lane(owner="a b"), None, "invalid lane owner: a b"),
    (lane(owner="../a"), None, "invalid lane owner: ../a"),
    (without("targets"), None, "batch lane w missing targets"),
    (lane(targets=[]), None, "batch lane w missing targets"),
    (lane(targets=""), None, "batch lane w missing targets"),
    (lane(targets=[None, ""]), None, "batch lane w missing targets"),
    (lane(targets=["7", "8/9"]), None, "invalid lane target: 8/9"),
    (lane(targets="a b"), None, "invalid lane target: a b"),
    (without("targets", target="a/b"), None, "invalid lane target: a/b"),
    (lane(depends_on="w"), None, "batch lane w has invalid dependency ref: w"),
    (lane(depends_on=["b1:w", "b1:"]), None, "batch lane w has invalid dependency ref: b1:"),
    (lane(depends_on=[":w"]), None, "batch lane w has invalid dependency ref: :w"),
    (lane(depends_on=""), None, "batch lane w has invalid dependency ref: "),
    (lane(depends_on=["b1:w", None]), None, "batch lane w has invalid dependency ref: "),
    (lane(targets=[{"a": 1}]), None, 'invalid lane target: {"a":1}'),
    (lane(depends_on=["b/1:w"]), None, "batch lane w has invalid dependency ref: b/1:w"),
    (MANIFEST | {"lanes": [LANE, LANE | {"owner": "a2"}]}, None, "batch lane w is duplicated"),
    (MANIFEST | {"lanes": [LANE, {"id": "w", "owner": "a2", "target": 8}]}, None, "batch lane w is duplicated"),
]


@pytest.mark.parametrize(("manifest", "option", "fault"), FAULTS, ids=[f"{n} {row[2]}" for n, row in enumerate(FAULTS)])
def test_a_fault_is_named(manifest: object, option: str | None, fault: str) -> None:
    with pytest.raises(UsageError) as raised:
        require_manifest(manifest, option)
    assert str(raised.value) == fault


@pytest.mark.parametrize(
    "lanes",
    [
        [LANE],
        [{"id": "w", "agent_id": "a1", "target": 7}],
        [LANE | {"targets": "7"}],
        [LANE | {"targets": [7, None, "", "issue:8"]}],
        [LANE | {"depends_on": "b:1:w"}],
        [LANE | {"depends_on": ["b1:w", "other.batch:lane with spaces"]}],
        [LANE | {"depends_on": None, "phase": None, "custom": {"deep": [1]}}],
        [LANE, LANE | {"name": "v"}],
        [LANE | {"name": "lane with spaces / and slash"}],
    ],
    ids=[
        "plain",
        "legacy names",
        "scalar",
        "mixed",
        "colon in batch",
        "refs",
        "anything else",
        "shared owner",
        "free name",
    ],
)
def test_a_manifest_that_is_accepted_is_not_touched(lanes: list[Json]) -> None:
    manifest = {"custom": [None, {"x": 1}], "batch_id": "b1", "repo": "o/r", "lanes": lanes, "status": "x"}
    assert require_manifest(manifest, None) == manifest
    assert list(require_manifest(manifest, "b1")) == list(manifest)


def test_the_option_names_the_batch_where_the_manifest_does_not() -> None:
    assert require_manifest({"lanes": [LANE]}, "b1") == {"lanes": [LANE], "batch_id": "b1"}
    assert require_manifest(MANIFEST | {"batch_id": 5}, "5")["batch_id"] == "5"


segment = st.text("aZ09_:-", min_size=1, max_size=4)
names = st.text(st.characters(codec="utf-8", exclude_characters=":"), min_size=1, max_size=4)
lanes = st.fixed_dictionaries(
    {"owner": segment, "targets": st.lists(segment, min_size=1, max_size=3)},
    optional={"depends_on": st.lists(st.builds("{}:{}".format, segment, names)), "custom": values, "phase": values},
)


def manifest_of(more: Json, batch_id: str, by_name: dict[str, Json]) -> Json:
    other = {key: value for key, value in more.items() if key != "repo"}
    return other | {"batch_id": batch_id, "lanes": [lane | {"name": name} for name, lane in by_name.items()]}


manifests = st.builds(
    manifest_of,
    st.dictionaries(readable, values, max_size=3),
    segment,
    st.dictionaries(names, lanes, min_size=1, max_size=4),
)


@given(manifests)
def test_any_well_formed_manifest_passes_verbatim(manifest: Json) -> None:
    accepted = require_manifest(manifest, None)
    assert accepted == manifest
    record = build_batch(accepted, None, {}, None, NOW)
    stamped = {"schema_version", "registered_at", "updated_at"}
    assert {k: v for k, v in record.items() if k not in stamped} == {
        k: v for k, v in manifest.items() if k not in stamped
    }
    read = lanes_of(record)
    assert [lane.name for lane in read] == [entry["name"] for entry in manifest["lanes"]]
    assert [lane.document for lane in read] == manifest["lanes"]


@given(values | records(MANIFEST).map(lambda found: found | {"lanes": [found.get("lanes")]}), st.none() | readable)
def test_whatever_a_manifest_holds_it_is_accepted_or_refused(value: object, option: str | None) -> None:
    try:
        accepted = require_manifest(value, option)
    except CoordError as error:
        assert str(error)  # noqa: PT017 - a manifest that is accepted is as good
    else:
        for lane in lanes_of(accepted):
            assert not lane.malformed
            assert ":" not in lane.name
            assert is_segment(lane.owner)
            assert lane.targets
            assert all(map(is_segment, lane.targets))
            assert all(split_ref(ref) is not None for ref in lane.depends_on)


@pytest.mark.parametrize(
    ("ref", "parts"),
    [
        ("b1:w", ("b1", "w")),
        ("b:1:w", ("b:1", "w")),
        ("b1: w ", ("b1", " w ")),
        ("b1", None),
        ("b1:", None),
        (":w", None),
        ("b 1:w", None),
        ("", None),
        (":", None),
    ],
)
def test_a_dependency_is_split_at_the_last_colon(ref: str, parts: tuple[str, str] | None) -> None:
    assert split_ref(ref) == parts


# Reading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "read"),
    [
        (LANE, ("w", "a1", ("7",), ())),
        ({"id": "w", "agent_id": "a1", "target": 7}, ("w", "a1", ("7",), ())),
        ({"name": "", "id": "w", "owner": None, "agent_id": "a1"}, ("w", "a1", (), ())),
        ({"name": "w", "id": "v", "owner": "a1", "agent_id": "a2"}, ("w", "a1", (), ())),
        ({}, (UNKNOWN, UNKNOWN, (), ())),
        ({"name": 5, "owner": True, "targets": [1.5, None, False]}, ("5", "true", ("1.5", "false"), ())),
        ({"targets": [], "target": "7"}, (UNKNOWN, UNKNOWN, (), ())),
        ({"targets": None, "target": "7"}, (UNKNOWN, UNKNOWN, ("7",), ())),
        ({"depends_on": "b1:w"}, (UNKNOWN, UNKNOWN, (), ("b1:w",))),
        ({"depends_on": ["b1:w", None, ""]}, (UNKNOWN, UNKNOWN, (), ("b1:w",))),
    ],
    ids=repr,
)
def test_a_lane_shows_what_it_can(entry: Json, read: tuple[object, ...]) -> None:
    lane = lane_of(entry)
    assert (lane.name, lane.owner, lane.targets, lane.depends_on) == read
    assert not lane.malformed


@pytest.mark.parametrize("entry", [None, "w", 5, [], True])
def test_a_lane_that_is_no_object_is_malformed(entry: object) -> None:
    assert lane_of(entry) == Lane(UNKNOWN, UNKNOWN, (), (), {}, malformed=True)


@pytest.mark.parametrize("found", [{}, {"lanes": None}, {"lanes": {}}, {"lanes": "w"}, {"lanes": []}], ids=repr)
def test_a_batch_without_an_array_of_lanes_has_none(found: Json) -> None:
    assert lanes_of(found) == []


@given(records(["lanes"]).map(lambda found: found | {"lanes": [found.get("lanes"), found]}))
def test_a_stored_manifest_is_always_readable(batch: Json) -> None:
    read = lanes_of(batch)
    assert len(read) == len(batch["lanes"])
    assert all(lane.name and lane.owner and all(lane.targets) for lane in read)


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (False, "false"), (7, "7"), ("x", "x"), (10**25, "1" + "0" * 25)]
)
def test_a_scalar_is_spelled_as_json_does(value: object, text: str) -> None:
    assert spelled(value) == text


# Registering --------------------------------------------------------------------------------------

LATER = NOW + timedelta(hours=1)


def registered(
    manifest: Json, stored: Json | None = None, synthetic: Json | None = None, prompt: str | None = None
) -> Json:
    return build_batch(manifest, stored, synthetic or {}, prompt, LATER)


def test_the_stamps_follow_the_manifest() -> None:
    record = registered(MANIFEST)
    assert list(record) == ["batch_id", "lanes", "schema_version", "registered_at", "updated_at"]
    assert (record["schema_version"], record["registered_at"], record["updated_at"]) == (1, stamp(LATER), stamp(LATER))


@pytest.mark.parametrize(
    ("manifest", "stored", "registered_at"),
    [
        ({}, None, stamp(LATER)),
        ({}, {"registered_at": "first"}, "first"),
        ({"registered_at": "mine"}, {"registered_at": "first"}, "mine"),
        ({"registered_at": ""}, {"registered_at": None}, stamp(LATER)),
    ],
    ids=["new", "again", "said by the manifest", "blank"],
)
def test_the_time_of_the_first_registration_stays(manifest: Json, stored: Json | None, registered_at: str) -> None:
    assert registered(MANIFEST | manifest, stored)["registered_at"] == registered_at


def test_registering_again_replaces_everything_else() -> None:
    closed = {"name": "w", "terminal": "done", "status": "done"}
    stored = registered(MANIFEST) | {"status": "completed", "completed_at": "x", "custom": 1, "lanes": [closed]}
    assert registered(MANIFEST, stored) == registered(MANIFEST)


SIMULATED = {"synthetic": True, "synthetic_kind": "smoke"}


@pytest.mark.parametrize(
    ("manifest", "stored", "options", "marks"),
    [
        ({}, {}, {}, {}),
        ({}, {}, SIMULATED, SIMULATED),
        ({"synthetic_kind": "mine"}, {}, SIMULATED, SIMULATED),
        ({}, SIMULATED, {}, SIMULATED),
        ({"synthetic": False}, SIMULATED, {}, {"synthetic": False, "synthetic_kind": "smoke"}),
        ({"synthetic": None}, SIMULATED, {}, SIMULATED),
        ({"synthetic_kind": "mine"}, SIMULATED, {}, {"synthetic": True, "synthetic_kind": "mine"}),
    ],
    ids=["none", "options", "options win", "carried over", "manifest says no", "null says nothing", "manifest wins"],
)
def test_simulation_marks_survive_unless_replaced(manifest: Json, stored: Json, options: Json, marks: Json) -> None:
    record = registered(MANIFEST | manifest, stored, options)
    assert {name: record[name] for name in SIMULATED if name in record} == marks


@pytest.mark.parametrize(
    ("manifest", "prompt", "kept"),
    [
        ({}, "p", "p"),
        ({"launch_prompt": "m"}, None, "m"),
        ({"launch_prompt": "m"}, "p\n", "p\n"),
        ({"launch_prompt": "m"}, "", ""),
    ],
)
def test_an_explicit_prompt_overrides(manifest: Json, prompt: str | None, kept: str) -> None:
    assert registered(MANIFEST | manifest, None, None, prompt)["launch_prompt"] == kept
