"""The doctor's verdict on the selected backend (spec: cli §14.1)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from agentcoord.operations.doctor.checks import check_backend, check_records
from agentcoord.operations.doctor.fleet import DEFAULT_PREFIX, Evidence, examine_fleet, mismatch
from agentcoord.protocol.documents import Document
from agentcoord.protocol.identity import Identity
from agentcoord.protocol.paths import FAMILIES
from agentcoord.stores.base import Store
from agentcoord.stores.filesystem import FileSystem, require_locks
from agentcoord.version import VERSION

if TYPE_CHECKING:  # most reports are not explained
    from agentcoord.operations.doctor.daemon import DaemonSeen
    from agentcoord.operations.doctor.findings import Finding
    from agentcoord.settings.provenance import Origin

Match = Literal["match", "mismatch", "unverified"]


class Backend(Struct, frozen=True):
    """How the backend is named in a report: only the part that its kind has. URLs come without userinfo."""

    kind: str
    repo: str | None = None
    url: str | None = None
    root: str | None = None


class Explanation(Struct, frozen=True):
    """What stands behind a report: where settings came from, where a local root lies, the daemon, all that is wrong."""

    settings: "tuple[Origin, ...]" = ()
    file_system: FileSystem | None = None
    daemon: "DaemonSeen | None" = None
    findings: "tuple[Finding, ...]" = ()


class Report(Struct, frozen=True):
    """What the doctor found. `split_brain_file` is what makes a reachable backend the wrong one."""

    backend: Backend
    deep: bool
    status: Literal["ok", "split_brain", "error"]
    prefix: str | None = None
    split_brain_file: str | None = None
    environment: Document | None = None
    evidence: Evidence | None = None
    explanation: Explanation | None = None


def environment_identity(identity: Identity) -> Document:
    """Give the writer's tuple as this environment resolves it, held against no token yet."""
    match: Match = "unverified"
    return {
        "client_version": VERSION,
        "machine_id": identity.machine_id,
        "session_id": identity.session_id,
        "session_source": identity.session_source or "unset",
        "token_machine": None,
        "machine_match": match,
    }


def held_against(environment: Document, token_machine: str | None) -> Document:
    """Hold an environment's machine against the one that the token belongs to."""
    match: Match = "unverified"
    if environment["machine_id"] is not None and token_machine is not None:
        match = "match" if environment["machine_id"] == token_machine else "mismatch"
    return environment | {"token_machine": token_machine, "machine_match": match}


async def examine(
    store: Store,
    backend: Backend,
    identity: Identity,
    *,
    deep: bool,
    prefix: str | None,
    split_brain_file: str | None,
    file_system: Callable[[], FileSystem | None] = lambda: None,
) -> Report:
    """Examine the backend; deep also parses every record. Raises StoreError for what cannot be trusted.

    `file_system` tells where a local root lies, and is asked once there is one.
    """
    if backend.kind == "http":
        evidence = await examine_fleet(store, backend.url, deep=deep, prefix=prefix)
        report = plain_report(backend, identity, deep=deep, prefix=prefix, split_brain_file=split_brain_file)
        return with_evidence(report, evidence)
    await check_backend(store, writable=True)
    if (found := file_system()) is not None:
        require_locks(backend.root or "", found)
    if deep:
        await check_records(store, FAMILIES)
    return plain_report(backend, identity, deep=deep, prefix=prefix, split_brain_file=split_brain_file)


def plain_report(
    backend: Backend, identity: Identity, *, deep: bool, prefix: str | None, split_brain_file: str | None
) -> Report:
    """Give the report on a backend with which nothing is wrong, but for a split brain."""
    return Report(
        backend=backend,
        deep=deep,
        status="ok" if split_brain_file is None else "split_brain",
        prefix=prefix or DEFAULT_PREFIX if backend.kind == "http" else prefix,
        split_brain_file=split_brain_file,
        environment=environment_identity(identity) if deep else None,
    )


def with_evidence(report: Report, evidence: Evidence | None) -> Report:
    """Add what a fleet's backend showed; a token of another machine makes it the wrong one."""
    if evidence is None or report.environment is None:
        return report
    environment = held_against(report.environment, evidence.machine)
    status = "error" if mismatch(environment) is not None else report.status
    return replace(report, evidence=evidence, environment=environment, status=status)
