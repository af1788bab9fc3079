"""The doctor that does not stop: whatever is wrong at once, where settings came from, and what mends each fault.

How it ends is not its own matter: the first error is the one at which the plain doctor would have ended.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from agentcoord.errors import CoordError, Defect, StoreError, Unreadable, UsageError
from agentcoord.files import printable
from agentcoord.operations.context import readable, require_object
from agentcoord.operations.doctor.checks import check_backend
from agentcoord.operations.doctor.daemon import DaemonSeen, findings_of
from agentcoord.operations.doctor.findings import Aside, Finding, of_errors, of_file_system, of_survey
from agentcoord.operations.doctor.fleet import examine_fleet, mismatch
from agentcoord.operations.doctor.report import Explanation, Report, with_evidence
from agentcoord.protocol.paths import FAMILIES
from agentcoord.settings.provenance import Origin
from agentcoord.stores.base import Store
from agentcoord.stores.filesystem import FileSystem, require_locks
from agentcoord.stores.survey import Survey

_ROOTLESS = ("state_root.missing", "state_root.unreadable", "state_root.kind")


class Ground(Struct, frozen=True):
    """What only files can tell of a local state root; each is looked at when it is called.

    `room` raises StoreError for a root in which no file can be written.
    """

    root: str
    survey: Callable[[], Survey]
    file_system: Callable[[], FileSystem | None]
    room: Callable[[], None]
    aside: Aside


async def explain(
    report: Report,
    store: Store | None,
    ground: Ground | None,
    faults: Sequence[CoordError],
    *,
    settings: Sequence[Origin],
    hints: Sequence[Finding],
    prefix: str | None = None,
    daemon: DaemonSeen | None = None,
) -> tuple[Report, CoordError | None]:
    """Complete a report with all that can be found out; also gives the error at which the plain doctor ends.

    `faults` is what went wrong before, such as why there is no backend to ask, and `hints` is what the
    settings show to be wrong; `prefix` is the part of a fleet's state that was asked for, `daemon` what was seen of
    the daemon.
    """
    met = list(faults)
    fleet = report.backend.kind == "http"
    if store is not None:
        try:
            if fleet:
                evidence = await examine_fleet(store, report.backend.url, deep=report.deep, prefix=prefix)
                report = with_evidence(report, evidence)
                wrong = mismatch(report.environment)
                met += [] if wrong is None else [wrong]
            else:
                await check_backend(store, writable=True)
        except StoreError as error:
            met.append(error)
    found = seen = None
    if ground is not None:
        found, seen = ground.file_system(), ground.survey()
        met += _without_locks(ground, found)
    rootless = any(error.finding in _ROOTLESS for error in met)  # then one error says it all
    if store is not None and report.deep and not rootless and not fleet:
        for family in FAMILIES:
            met += await _unreadable(store, family, seen)
    if ground is not None and seen is not None:
        # Here the plain doctor would have ended well, since it writes nothing.
        if store is not None and not any(error.finding.startswith("state_root.") for error in met):
            met += _without_room(ground)
        if any(error.finding == "state_root.unwritable" for error in met):
            seen = replace(seen, unwritable=())  # as is everything below it
        met += seen.unwritable if report.deep else ()
    findings = of_errors(met, None if ground is None else ground.aside)
    if ground is not None and seen is not None:
        if found is not None:
            findings += of_file_system(found, ground.root)
        known = {finding.summary for finding in findings}
        findings += of_survey(seen, ground.root, known=known, deep=report.deep)
    findings += hints
    findings += [] if daemon is None else findings_of(daemon)
    explanation = Explanation(settings=tuple(settings), file_system=found, daemon=daemon, findings=tuple(findings))
    first = met[0] if met else None
    status = report.status if first is None else "error"
    return replace(report, status=status, explanation=explanation), first


def _without_locks(ground: Ground, found: FileSystem | None) -> list[CoordError]:
    try:
        if found is not None:
            require_locks(ground.root, found)
    except StoreError as error:
        return [error]
    return []


def _without_room(ground: Ground) -> list[CoordError]:
    try:
        ground.room()
    except StoreError as error:
        return [error]
    return []


async def _unreadable(store: Store, family: str, seen: Survey | None) -> list[CoordError]:
    """Collect what is wrong with the records of a family, also when it cannot be listed as a whole."""
    met: list[CoordError] = []
    try:
        for entry in (await store.list(family)).entries:
            try:
                require_object(readable(entry), "an")
            except StoreError as error:
                met.append(error)
    except StoreError as error:
        met.append(error)
        for path in () if seen is None else seen.names:
            if path.startswith(f"{family}/"):
                try:
                    stored = await store.read(path)
                    if stored is not None:
                        require_object(stored, "an")
                except UsageError:  # a name that no caller could ask for
                    shown = printable(path)
                    said = f"state record has a name that no command can give: {shown}"
                    met.append(Unreadable(said, path=shown, defect=Defect.NOT_READABLE))
                except StoreError as defect:
                    met.append(defect)
    return met
