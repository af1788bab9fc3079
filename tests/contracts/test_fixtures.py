"""Every fixture is what its folder says: to two validators, and to our own types, which agree."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agentcoord.errors import UsageError
from agentcoord.protocol.contracts import capacity, host_limits, usage
from agentcoord.protocol.contracts.catalogue import BY_FAMILY, CONTRACTS
from agentcoord.protocol.documents import canonical
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


def records_in(value: Any) -> list[dict[str, Any]]:
    """Find the records in a document that a producer should not have written."""
    if "schema_version" in value:
        return [value]
    lists: list[Any] = [entries for entries in value.get("status", value).values() if isinstance(entries, list)]
    return [record for entries in lists for record in entries if "schema_version" in record]


def family_of(fixture: Fixture, record: dict[str, Any]) -> str:
    if fixture.folder.endswith("capacity-reservation"):
        return "capacity_reservation" if "reservation_id" in record else "lane_occupancy"
    return fixture.contract.family


@all_of("procedural")
def test_what_only_a_producer_can_see_is_allowed_by_the_schema_and_not_by_the_rules(fixture: Fixture) -> None:
    value = fixture.read()
    records = records_in(value)
    assert records
    for record in records:
        contract = BY_FAMILY[family_of(fixture, record)]
        assert schema_allows(contract, record)
        assert types_allow(contract, record)
    if "expected_after_supersede" in value:
        told = usage.aggregate(usage.read_projection(value["status"]))
        assert plain(told) == value["expected_after_supersede"]
        return
    with pytest.raises(UsageError):
        rule(fixture, value)


def rule(fixture: Fixture, value: Any) -> None:
    """Ask what goes beyond one record's schema."""
    if fixture.folder.endswith("capacity-reservation"):
        reservations = [value] if "reservation_id" in value else value["active_reservations"]
        held = [capacity.require_reservation(each) for each in reservations]
        lanes = [capacity.require_occupancy(each) for each in value.get("lane_occupancies", [])]
        capacity.require_reservations(held, lanes, datetime(2026, 7, 14, 20, 5, tzinfo=UTC))
    elif "host_limits" in value:
        host_limits.require_limits(host_limits.read_projection(value))
    else:
        fixture.contract.require(value)


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
