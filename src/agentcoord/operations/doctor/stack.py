"""The component report that stack aggregators read: fixed checks, fixed texts, read-only (spec: cli §14.2)."""

from typing import Literal, cast

from msgspec import Struct

from agentcoord.errors import CoordError
from agentcoord.operations.doctor.checks import check_backend, check_records
from agentcoord.operations.doctor.fleet import Evidence, FleetStore, check_fleet, look_at_fleet
from agentcoord.operations.doctor.report import Backend, environment_identity, held_against
from agentcoord.protocol.documents import Document
from agentcoord.protocol.identity import Identity
from agentcoord.protocol.paths import FAMILIES
from agentcoord.stores.base import Store
from agentcoord.version import VERSION

State = Literal["healthy", "degraded", "failed", "skipped"]


class Check(Struct, frozen=True):
    """One line of the report; consumers key on id and status."""

    id: str
    status: State
    summary: str
    details: Document
    guidance: str | None = None


class StackReport(Struct, frozen=True):
    """The component's checks, and the worst of them."""

    checks: tuple[Check, ...]

    @property
    def status(self) -> State:
        """Give the component's own state."""
        states = {check.status for check in self.checks}
        return "failed" if "failed" in states else "degraded" if "degraded" in states else "healthy"


async def examine_stack(
    store: Store | None,
    fault: CoordError | None,
    backend: Backend,
    identity: Identity,
    *,
    deep: bool,
    prefix: str | None,
) -> StackReport:
    """Examine a component without changing anything; `fault` is why there is no store to ask."""
    fleet = backend.kind == "http"
    if store is not None:
        try:
            if fleet:
                await check_fleet(cast("FleetStore", store), backend.url, deep=deep, prefix=prefix)
            else:
                await check_backend(store, writable=False)
        except CoordError as error:
            fault = error
    environment = environment_identity(identity)
    if store is None or fault is not None or not deep:
        resources = _skipped(deep=deep, unavailable=fault is not None)
    else:
        try:
            found = await _look(store, backend, prefix)
        except CoordError as error:
            resources = _unreadable(error, prefix)
        else:
            resources = _resources(found, prefix, fleet=fleet)
            environment = held_against(environment, found.machine)
    checks = (
        Check("cli.version", "healthy", "agent-coord CLI is ready", {"version": VERSION}),
        _backend(backend, fault),
        resources,
        _identity(environment),
    )
    return StackReport(checks)


def _backend(backend: Backend, fault: CoordError | None) -> Check:
    details: Document = {
        "backend": backend.kind,
        "backend_repo": backend.repo,
        "backend_url": backend.url,
        "state_root": backend.root,
    }
    if fault is None:
        return Check("backend.readability", "healthy", "Coordination backend is readable", details)
    return Check(
        "backend.readability",
        "failed",
        "Coordination backend is not readable",
        details | {"error": str(fault)},
        "Restore access to the configured coordination backend, then rerun the doctor.",
    )


def _skipped(*, deep: bool, unavailable: bool) -> Check:
    details: Document = {"mode": "deep" if deep else "shallow"}
    if unavailable:
        details["reason"] = "backend_unavailable"
        summary = "Resource evidence was not collected because the backend is unavailable"
    else:
        summary = "Deep resource evidence was not requested"
    return Check("resources.deep", "skipped", summary, details)


async def _look(store: Store, backend: Backend, prefix: str | None) -> Evidence:
    if backend.kind == "http":
        return await look_at_fleet(cast("FleetStore", store), backend.url, prefix)
    return Evidence(resources=await check_records(store, FAMILIES if prefix is None else [prefix]))


def _asked(prefix: str | None) -> Document:
    asked: Document = {"mode": "deep", "prefixes": list(FAMILIES) if prefix is None else [prefix]}
    if prefix is not None:
        asked["unprobed_prefixes"] = [family for family in FAMILIES if family != prefix.split("/")[0]]
    return asked


def _unreadable(error: CoordError, prefix: str | None) -> Check:
    return Check(
        "resources.deep",
        "failed",
        "Deep coordination resource evidence is unreadable",
        _asked(prefix) | {"error": str(error)},
        "Repair or restore the unreadable coordination state, then rerun the deep doctor.",
    )


def _resources(found: Evidence, prefix: str | None, *, fleet: bool) -> Check:
    details = _asked(prefix)
    if fleet or prefix is not None:
        details["resource_checks"] = found.resources.results
    if found.identity is not None:
        details["identity"] = found.identity
    if found.resources.notes:
        return Check(
            "resources.deep",
            "degraded",
            "Deep coordination resource evidence is incomplete",
            details | {"notes": found.resources.notes},
            "Review the resource notes and backend capabilities before relying on unavailable evidence.",
        )
    what = "Deep coordination resources are" if prefix is None else "Requested coordination resource is"
    return Check("resources.deep", "healthy", f"{what} readable", details)


def _identity(environment: Document) -> Check:
    match environment["machine_match"]:
        case "match":
            summary = "Environment machine id matches the authenticated backend token machine"
            return Check("identity.machine", "healthy", summary, environment)
        case "mismatch":
            return Check(
                "identity.machine",
                "failed",
                "Environment machine id contradicts the authenticated backend token machine",
                environment,
                "Install the machine token matching AGENT_COORD_MACHINE_ID, or correct the exported machine id, then "
                "rerun the deep doctor.",
            )
        case _:
            summary = "Machine identity was not verified against an authenticated backend token machine"
            return Check("identity.machine", "skipped", summary, environment)
