"""Every fixture is what its folder says: to two validators, and to our own types, which agree."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from agentcoord.errors import UsageError
from agentcoord.protocol.contracts import usage
from agentcoord.protocol.contracts.catalogue import CONTRACTS
from agentcoord.protocol.documents import canonical
from tests.contracts.procedures import records_in, require_rules
from tests.contracts.published import ROOT, SCHEMAS, Fixture, fixtures, schema_allows, second_schema_allows, types_allow
from tests.contracts.replays import ANSWERS, expectation, plain

GIVEN = os.environ.get("AGENT_COORD_FIXTURES")
"""Fixtures of another program, laid out as ours are; looked at as well when they are named."""

ROOTS = [ROOT, *([Path(GIVEN)] if GIVEN else [])]

FOLDERS = sorted({fixture.folder for fixture in fixtures(ROOT)})


def all_of(*kinds: Any) -> Any:
    found = [fixture for root in ROOTS for fixture in fixtures(root, *kinds)]
    return pytest.mark.parametrize("fixture", found, ids=lambda fixture: fixture.name)


@all_of("valid", "invalid")
def test_a_fixture_is_what_its_folder_says(fixture: Fixture) -> None:
    value, wanted = fixture.read(), fixture.kind == "valid"
    verdicts = {
        "jsonschema": schema_allows(fixture.contract, value),
        "jsonschema-rs": second_schema_allows(fixture.contract, value),
        "types": types_allow(fixture.contract, value),
    }
    assert verdicts == dict.fromkeys(verdicts, wanted)


BROKEN = {
    "attention-refreshed-before-created": "refreshed_at must not precede created_at",
    "attention-resolved-before-created": "resolved_at must not precede created_at",
    "host-limit-cleared-before-observed": "`cleared_at` must not precede `observed_at`",
    "host-limits-cleared-before-observed": "`cleared_at` must not precede `observed_at`",
    "host-limits-same-key": "two host_limit records have one key: default, mill-02",
    "host-limits-same-key-in-status": "two host_limit records have one key: default, mill-02",
    "inboxes-same-id": "two inbox records have one key: default, issues",
    "lane-occupancies-same-lane": "two lane_occupancy records have one key: default, b7:api",
    "capacity-profiles-same-id": "two capacity_profile records have one key: default, big",
    "reservation-expires-early": "must expire 600 s after it was created",
    "reservation-expires-half-a-second-late": "must expire 600 s after it was created",
    "reservation-expires-late": "must expire 600 s after it was created",
    "reservation-foreign-lane": "is not of batch b7",
    "reservation-lane-of-longer-batch": "is not of batch b7",
    "reservation-one-lane-two-states": "lane b7:api is there twice in one reservation",
    "reservations-consumed-in-another-inbox": "lane b7:a was launched from a reservation, and does not run",
    "reservations-consumed-while-blocked": "lane b7:a was launched from a reservation, and does not run",
    "reservations-consumed-without-lane": "lane b7:a was launched from a reservation, and does not run",
    "reservations-lane-held-twice": "is held by two reservations",
    "reservations-lane-held-twice-for-a-second": "lane b7:api is held by two reservations",
    "reservations-same-id": "two capacity_reservation records have one key: default, r-1",
}
"""What each of our own documents breaks: it is to be refused for that, not for something else in it."""


@all_of("procedural")
def test_what_only_a_producer_can_see_is_allowed_by_the_schema_and_not_by_the_rules(fixture: Fixture) -> None:
    value = fixture.read()
    records = records_in(fixture, value)
    assert records
    for contract, record in records:
        assert schema_allows(contract, record)
        assert second_schema_allows(contract, record)
        assert types_allow(contract, record)
    if "expected_after_supersede" in value:
        told = usage.aggregate(usage.read_projection(value["status"]))
        assert plain(told) == value["expected_after_supersede"]
        return
    wanted = re.escape(BROKEN[fixture.path.stem]) if fixture.root == ROOT else None
    with pytest.raises(UsageError, match=wanted):
        require_rules(fixture, value)


def test_a_lane_is_held_twice_only_until_one_of_the_reservations_expires() -> None:
    (fixture,) = [each for each in fixtures(ROOT, "procedural") if each.path.stem.endswith("twice-for-a-second")]
    value = fixture.read()
    with pytest.raises(UsageError, match="held by two reservations"):
        require_rules(fixture, value)
    require_rules(fixture, value | {"as_of": "2026-09-01T06:10:00Z"})


@all_of("replay")
def test_a_replay_comes_out_as_it_says(fixture: Fixture) -> None:
    document = fixture.read()
    answered = ANSWERS[fixture.folder](document)
    assert answered == expectation(fixture.folder, document)
    assert canonical(ANSWERS[fixture.folder](document)) == canonical(answered)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_contract_has_fixtures_of_each_kind(folder: str) -> None:
    kinds = {fixture.kind for fixture in fixtures(ROOT) if fixture.folder == folder}
    assert {"valid", "invalid", "replay"} <= kinds


def test_every_contract_has_valid_and_invalid_fixtures() -> None:
    found = {(fixture.contract.family, fixture.kind) for fixture in fixtures(ROOT, "valid", "invalid")}
    families = {contract.family for contract in CONTRACTS if not contract.family.endswith("_projection")}
    assert found == {(family, kind) for family in families for kind in ("valid", "invalid")}


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.family)
def test_a_schema_says_what_the_catalogue_says(contract: Any) -> None:
    schema = SCHEMAS[contract.schema]
    assert schema["$id"].endswith(f"/{contract.schema}")
    assert schema["x-contract-version"] == contract.version
    assert schema["x-record-family"] == contract.family
    assert tuple(schema.get("x-logical-key", ())) == contract.key
    assert schema.get("x-storage-key", {}).get("template") == contract.template
    for name in contract.encoded:
        assert name in schema["x-storage-key"]["encoding"]


def test_no_schema_is_left_out_of_the_catalogue() -> None:
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "schema/state").rglob("*.schema.json")}
    found |= {str(path.relative_to(ROOT)) for path in (ROOT / "contracts").glob("*.json")}
    assert found == set(SCHEMAS)
