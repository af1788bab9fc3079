"""The published schemas and their fixtures, and the verdicts of two validators and of our own types on a value."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import jsonschema_rs
from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

from agentcoord.errors import UsageError
from agentcoord.protocol.contracts.catalogue import BY_FAMILY, CONTRACTS, Contract

ROOT = Path(__file__).parents[2]
SCHEMAS = {contract.schema: json.loads((ROOT / contract.schema).read_bytes()) for contract in CONTRACTS}

Kind = Literal["valid", "invalid", "procedural", "replay"]

FORMATS = FormatChecker(["date-time", "uri"])
"""Raises KeyError above when the packages that check the two formats are missing: then they would not be asserted."""

_library_checks_instant = FormatChecker(["date-time"])


@FORMATS.checks("date-time")
def _is_instant(value: object) -> bool:
    # The package knows no leap seconds, which RFC 3339 has; of an attention record the schema's pattern forbids them.
    return _library_checks_instant.conforms(_without_leap(value), "date-time")


def _without_leap(value: object) -> object:
    return value[:17] + "59" + value[19:] if isinstance(value, str) and value[16:19] == ":60" else value


_FAMILIES_OF = {
    "schema/state/v1/attention": "attention",
    "schema/state/v1": "host_limit",
    "schema/state/v1/usage": "usage",
    "schema/state/v1/route": "route",
    "schema/state/v1/merge-authority": "merge_authority",
    "schema/state/v1/batch-completion": "batch_completion",
    "schema/state/v1/batch-blocker": "batch_blocker",
    "contracts/fixtures/v1": "archive",
    "contracts/fixtures/v2": "lane_closed",
}
_CAPACITY = {
    "capacity-profile-": "capacity_profile",
    "inbox-": "inbox",
    "lane-occupancy-": "lane_occupancy",
    "capacity-reservation-": "capacity_reservation",
}


class Fixture:
    """One file of a fixtures folder."""

    def __init__(self, root: Path, path: Path) -> None:
        self.root = root
        self.path = path
        self.name = str(path.relative_to(root))
        parts = Path(self.name).parts
        kinds = [part for part in parts if part in ("valid", "invalid", "procedural", "replay")]
        # Beside the folders of the two live contracts there are files, and they are valid.
        self.kind: Kind = cast("Kind", kinds[0]) if kinds else "valid"
        live = parts[0] == "contracts"
        self.folder = "/".join(parts[:3] if live else parts[: parts.index("fixtures")])

    @property
    def contract(self) -> Contract:
        if self.folder.endswith("capacity-reservation"):
            families = [family for prefix, family in _CAPACITY.items() if self.path.name.startswith(prefix)]
            return BY_FAMILY[families[0]]
        return BY_FAMILY[_FAMILIES_OF[self.folder]]

    def read(self) -> Any:
        return json.loads(self.path.read_bytes())


def fixtures(root: Path, *kinds: Kind) -> list[Fixture]:
    """List the fixtures below a root, of some kinds or of all."""
    found = [Fixture(root, path) for path in _files(root)]
    return [fixture for fixture in found if not kinds or fixture.kind in kinds]


def _files(root: Path) -> Iterator[Path]:
    for top in ("schema/state", "contracts/fixtures"):
        yield from sorted(path for path in (root / top).rglob("*.json") if "fixtures" in path.parts[:-1])


def _resources() -> Registry[Any]:
    resources = [(schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS.values()]
    return Registry[Any]().with_resources(resources)


@cache
def _validator(path: str) -> Any:
    return Draft202012Validator(SCHEMAS[path], registry=_resources(), format_checker=FORMATS)


@cache
def _second_validator(path: str) -> Any:
    registry = jsonschema_rs.Registry([(schema["$id"], schema) for schema in SCHEMAS.values()])
    return jsonschema_rs.Draft202012Validator(SCHEMAS[path], registry=registry, validate_formats=True)


def schema_allows(contract: Contract, value: object) -> bool:
    """Ask `jsonschema`, formats asserted."""
    return bool(_validator(contract.schema).is_valid(value))


def second_schema_allows(contract: Contract, value: object) -> bool:
    """Ask another implementation of JSON Schema, whose regular expressions and formats are its own."""
    return bool(_second_validator(contract.schema).is_valid(value))


ORDER = "must not precede"
"""What only our own check of an attention record says, since a schema compares no two fields."""


def types_allow(contract: Contract, value: object) -> bool:
    """Ask our own types for what a schema can say."""
    try:
        contract.require(value)
    except UsageError as error:
        return ORDER in str(error)
    return True
