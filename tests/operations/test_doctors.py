"""What the doctor finds, shallow and deep, and how the component report puts it."""

from pathlib import Path
from typing import Any

import pytest

from agentcoord.errors import ConfigError, Rejected, StackUsageError, StoreError, UsageError
from agentcoord.operations.doctor.checks import require_prefix, require_stack_prefix
from agentcoord.operations.doctor.fleet import Bearer, check_fleet, look_at_fleet
from agentcoord.operations.doctor.report import Backend, Report, environment_identity, examine, held_against
from agentcoord.operations.doctor.stack import StackReport, examine_stack
from agentcoord.protocol.identity import NOBODY, Identity
from agentcoord.protocol.records import ATTENTION_SCAN
from agentcoord.stores.local import LocalStore
from agentcoord.stores.memory import MemoryStore
from tests.stores.layout import lay

HERE = Backend(kind="local", root="/state")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "state"
    root.mkdir()
    return root


async def doctor(root: Path, **more: Any) -> Report:
    facts: dict[str, Any] = {"deep": False, "prefix": None, "split_brain_file": None, **more}
    return await examine(LocalStore(root), HERE, NOBODY, **facts)


async def stack(root: Path, fault: Any = None, **more: Any) -> StackReport:
    facts: dict[str, Any] = {"deep": True, "prefix": None, **more}
    return await examine_stack(LocalStore(root), fault, HERE, NOBODY, **facts)


async def test_a_shallow_look_parses_nothing(root: Path) -> None:
    lay(root, "claims/o/r/7.json", b"{")
    report = await doctor(root)
    assert (report.status, report.environment) == ("ok", None)


@pytest.mark.parametrize(
    "path",
    [
        "claims/o/r/7.json",
        "heartbeats/a.json",
        "batches/b.json",
        "events/b/e.json",
        "attention/w/.github/r/1.json",
        "archive/claims/o/r/7.json",
    ],
)
@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 5000])
async def test_a_deep_look_parses_every_record(root: Path, path: str, data: bytes) -> None:
    lay(root, "claims/o/r/1.json")
    lay(root, path, data)
    with pytest.raises(StoreError, match=path):
        await doctor(root, deep=True)
    [_, backend, resources, _] = (await stack(root)).checks
    assert (backend.status, resources.status) == ("healthy", "failed")
    assert path in resources.details["error"]


async def test_a_root_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    root = tmp_path / "absent"
    with pytest.raises(StoreError) as caught:
        await doctor(root)
    assert str(caught.value) == f"state root does not exist: {root}"
    report = await stack(root)
    assert [check.status for check in report.checks] == ["healthy", "failed", "skipped", "skipped"]
    assert report.checks[2].details == {"mode": "deep", "reason": "backend_unavailable"}
    with pytest.raises(StoreError):  # still not
        await doctor(root)


@pytest.mark.parametrize("family", ["claims", "heartbeats", "batches", "events", "attention", "archive"])
async def test_a_family_that_is_a_file_is_a_broken_layout(root: Path, family: str) -> None:
    lay(root, family)
    with pytest.raises(StoreError) as caught:
        await doctor(root)
    assert str(caught.value) == f"state layout invalid: {family} is not a directory"
    assert (await stack(root, deep=False)).status == "failed"


async def test_a_split_brain_is_a_status_of_its_own(root: Path) -> None:
    report = await doctor(root, split_brain_file="/env", prefix="claims")
    assert (report.status, report.split_brain_file, report.prefix) == ("split_brain", "/env", "claims")


@pytest.mark.parametrize(
    ("machine", "token", "match"),
    [
        ("m1", "m1", "match"),
        ("m1", "m2", "mismatch"),
        (None, "m1", "unverified"),
        ("m1", None, "unverified"),
        (None, None, "unverified"),
    ],
)
def test_machines_match_only_when_both_are_known(machine: str | None, token: str | None, match: str) -> None:
    found = held_against(environment_identity(Identity(machine_id=machine)), token)
    assert found["machine_match"] == match
    assert list(found) == [
        "client_version",
        "machine_id",
        "session_id",
        "session_source",
        "token_machine",
        "machine_match",
    ]
    assert found["session_source"] == "unset"


async def test_the_component_report_has_its_four_checks(root: Path) -> None:
    report = await stack(root)
    assert report.status == "healthy"
    assert [(check.id, check.status) for check in report.checks] == [
        ("cli.version", "healthy"),
        ("backend.readability", "healthy"),
        ("resources.deep", "healthy"),
        ("identity.machine", "skipped"),
    ]
    assert report.checks[1].details == {
        "backend": "local",
        "backend_repo": None,
        "backend_url": None,
        "state_root": "/state",
    }
    assert report.checks[2].details == {
        "mode": "deep",
        "prefixes": ["claims", "heartbeats", "batches", "events", "attention", "archive"],
    }
    shallow = (await stack(root, deep=False)).checks[2]
    assert (shallow.status, shallow.details) == ("skipped", {"mode": "shallow"})


async def test_a_configuration_that_cannot_be_trusted_fails_the_backend() -> None:
    report = await examine_stack(None, ConfigError("user file is insecure"), HERE, NOBODY, deep=True, prefix=None)
    assert [check.status for check in report.checks] == ["healthy", "failed", "skipped", "skipped"]
    assert report.checks[1].details["error"] == "user file is insecure"


async def test_one_part_of_the_state_may_be_asked_for(root: Path) -> None:
    lay(root, "claims/o/r/7.json")
    lay(root, "events/b/e.json", b"{")
    details = (await stack(root, prefix="claims/o")).checks[2].details
    assert details == {
        "mode": "deep",
        "prefixes": ["claims/o"],
        "unprobed_prefixes": ["heartbeats", "batches", "events", "attention", "archive"],
        "resource_checks": {"claims/o": "ok"},
    }
    missing = await stack(root, prefix="heartbeats/a.json")
    assert missing.status == "degraded"
    assert missing.checks[2].details["notes"] == {"heartbeats/a.json": "heartbeats/a.json does not exist"}
    assert (await stack(root, prefix="events/b/e.json")).status == "failed"
    assert (await stack(root, prefix="events")).status == "failed"


@pytest.mark.parametrize("prefix", ["", "/claims", "claims/", "claims//o", "claims/../x", "./claims", "claims/."])
def test_a_prefix_that_leads_elsewhere_is_refused(prefix: str) -> None:
    for check, error in ((require_prefix, UsageError), (require_stack_prefix, StackUsageError)):
        with pytest.raises(error, match="unsafe state path"):
            check(prefix)


@pytest.mark.parametrize(
    ("prefix", "fault"),
    [
        ("nothing", "unknown doctor prefix family: nothing"),
        ("nothing/claims", "unknown doctor prefix family: nothing"),
        ("claims/o/r/7", "invalid doctor prefix shape: claims/o/r/7"),
        ("claims/o/r/7.json/x", "invalid doctor prefix shape: claims/o/r/7.json/x"),
        ("heartbeats/a", "invalid doctor prefix shape: heartbeats/a"),
        ("archive/nothing", "invalid doctor prefix shape: archive/nothing"),
        ("archive/archive", "invalid doctor prefix shape: archive/archive"),
    ],
)
def test_the_component_report_takes_known_shapes_only(prefix: str, fault: str) -> None:
    with pytest.raises(StackUsageError) as caught:
        require_stack_prefix(prefix)
    assert str(caught.value) == fault


@pytest.mark.parametrize(
    "prefix",
    [
        "claims",
        "claims/o/api.json",
        "claims/o/r/7.json",
        "heartbeats/a.json",
        "attention/w/o/r/a.json",
        "archive",
        "archive/events/b",
        "archive/events/b/e.json",
    ],
)
def test_a_stack_report_looks_at_directories_and_records(prefix: str) -> None:
    require_stack_prefix(prefix)


class Fleet(MemoryStore):
    """A backend that a fleet shares, which knows no token."""

    async def check(self, *, writable: bool, prefix: str | None = None) -> None:
        raise Rejected("401 unknown_token", status=401, reason="unknown_token")

    async def whoami(self) -> Bearer | None:
        return None


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://localhost:8787", True),
        ("http://127.0.0.1", True),
        ("http://[::1]:80/coord", True),
        ("https://***@localhost", True),
        ("https://127.0.0.2", True),
        ("https://LOCALHOST", True),
        ("https://localhost.evil/", False),
        ("https://127.0.0.1.evil", False),
        ("https://h/a@localhost", False),
        ("https://localhost@h", False),
        (None, False),
    ],
)
async def test_only_for_this_machine_the_way_to_another_token_is_a_local_one(url: str | None, local: bool) -> None:
    with pytest.raises(StoreError, match="^401 unknown_token; the token is not known") as refused:
        await check_fleet(Fleet(), url, deep=False, prefix=None)
    assert (" --local " in str(refused.value)) == local


async def test_more_attention_than_may_be_looked_at_is_known_whatever_the_store_calls_it() -> None:
    fleet = Fleet()
    for n in range(ATTENTION_SCAN):
        fleet.plant(f"attention/w/o/r/{n}.json", b"{}")
    assert (await look_at_fleet(fleet, None, "attention")).resources.results == {"attention": "ok"}
    fleet.plant("attention/w/o/r/last.json", b"{}")
    found = (await look_at_fleet(fleet, None, "attention")).resources
    assert found.results == {"attention": "incomplete"}
    assert found.notes == {"attention": "attention scan stopped at 1000 records; full validation is incomplete"}
