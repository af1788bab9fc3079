"""The doctor that does not stop: whatever is wrong at once, where settings came from, and what mends each fault.

How it ends is not its own matter: the first error is the one at which the plain doctor would have ended.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from agentcoord.errors import CoordError, StoreError
from agentcoord.operations.context import readable, require_object
from agentcoord.operations.doctor.checks import check_backend
from agentcoord.operations.doctor.findings import Finding, of_errors, of_file_system, of_survey
from agentcoord.operations.doctor.report import Explanation, Report
from agentcoord.protocol.paths import FAMILIES
from agentcoord.settings.provenance import Origin
from agentcoord.stores.base import Store
from agentcoord.stores.filesystem import FileSystem, require_locks
from agentcoord.stores.survey import Survey


class Ground(Struct, frozen=True):
    """What only files can tell of a local state root; each is looked at when it is called."""

    root: str
    survey: Callable[[], Survey]
    file_system: Callable[[], FileSystem | None]


async def explain(
    report: Report,
    store: Store | None,
    ground: Ground | None,
    faults: Sequence[CoordError],
    *,
    settings: Sequence[Origin],
    hints: Sequence[Finding],
) -> tuple[Report, CoordError | None]:
    """Complete a report with all that can be found out; also gives the error at which the plain doctor ends.

    `faults` is what went wrong before, such as why there is no backend to ask, and `hints` is what the
    settings show to be wrong.
    """
    met = list(faults)
    if store is not None:
        try:
            await check_backend(store, writable=True)
        except StoreError as error:
            met.append(error)
    found = seen = None
    if ground is not None:
        found, seen = ground.file_system(), ground.survey()
        try:
            if found is not None:
                require_locks(ground.root, found)
        except StoreError as error:
            met.append(error)
    if store is not None and report.deep:
        for family in FAMILIES:
            met += await _unreadable(store, family, seen)
    root = None if ground is None else ground.root
    findings = of_errors(met, root)
    if ground is not None and seen is not None:
        if found is not None:
            findings += of_file_system(found, ground.root)
        known = {finding.summary for finding in findings}
        findings += of_survey(seen, ground.root, known=known, deep=report.deep)
    findings += hints
    explanation = Explanation(settings=tuple(settings), file_system=found, findings=tuple(findings))
    first = met[0] if met else None
    status = report.status if first is None else "error"
    return replace(report, status=status, explanation=explanation), first


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
                except CoordError as defect:  # also of a name that no caller could ask for
                    met.append(defect)
    return met
