"""What the doctor found, one by one: what it is called, how bad it is, and what mends it.

Pure: errors, listings and settings come in, findings go out. An error fails the doctor, a warning does not.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from msgspec import Struct

from agentcoord.errors import CoordError, Defect, Unreadable
from agentcoord.files import printable, shell_line
from agentcoord.stores.filesystem import FileSystem
from agentcoord.stores.survey import Survey

Severity = Literal["error", "warning"]

SHOWN_RECORDS = 100
"""How many unreadable records are named; of the rest, the number."""
LEFTOVER_MINUTES = 60
"""A temporary file this old has lost its writer: writing one takes seconds."""


class Finding(Struct, frozen=True):
    """One thing that is wrong, under an `id` that stays the same over releases.

    `mend` is one shell command, None where no single one mends it.
    """

    id: str
    severity: Severity
    summary: str
    mend: str | None = None


def of_error(error: CoordError, root: str | None = None, *, severity: Severity = "error") -> Finding:
    """Give the finding of an error; `root` is the absolute state root, if the record at fault lies below one."""
    mend = error.mend
    if mend is None and root is not None and isinstance(error, Unreadable):
        mend = _of_record(error, f"{root.rstrip('/')}/{error.path}")
    return Finding(error.finding, severity, printable(str(error)), mend)


def _of_record(error: Unreadable, place: str) -> str | None:
    match error.defect:
        case Defect.MALFORMED | Defect.NOT_AN_OBJECT:
            return shell_line("mv", place, f"{place}.broken")
        case Defect.NOT_READABLE:
            return shell_line("chmod", "u+r", place)
        case Defect.SYMLINK:
            return shell_line("rm", place)
        case _:
            return None


def of_errors(errors: Iterable[CoordError], root: str | None) -> list[Finding]:
    """Give the findings of errors, of the same one once, and of unreadable records the first hundred."""
    findings: dict[str, Finding] = {}
    records = left_out = 0
    for error in errors:
        finding = of_error(error, root)
        if finding.summary in findings:
            continue
        if isinstance(error, Unreadable):
            records += 1
            if records > SHOWN_RECORDS:
                left_out += 1
                continue
        findings[finding.summary] = finding
    if left_out:
        more = "1 more record" if left_out == 1 else f"{left_out} more records"
        findings[""] = Finding("records.more", "error", f"{more} cannot be read; mend these first and look again")
    return list(findings.values())


def of_survey(seen: Survey, root: str, *, known: Collection[str], deep: bool) -> list[Finding]:
    """Give the findings of a survey but those `known` by their summary.

    Faults below the families fail a deep doctor only, as records do.
    """
    findings = [of_error(error, root) for error in seen.misplaced]
    findings += [of_error(error, root, severity="error" if deep else "warning") for error in seen.faults]
    findings = list({finding.summary: finding for finding in findings if finding.summary not in known}.values())
    if seen.leftovers:
        findings.append(_leftovers(seen.leftovers, root))
    if seen.open_root is not None:
        findings.append(
            Finding(
                "state_root.open",
                "warning",
                f"others can change the state root: {printable(seen.open_root)}",
                shell_line("chmod", "700", seen.open_root),
            )
        )
    findings += (
        Finding(
            "state_root.parent_open",
            "warning",
            f"others can replace the state root by changing a directory above it: {printable(above)}",
            shell_line("chmod", "go-w", above),
        )
        for above in seen.open_above
    )
    return findings


def _leftovers(paths: Sequence[str], root: str) -> Finding:
    base = root.rstrip("/")
    families = dict.fromkeys(f"{base}/{path.partition('/')[0]}" for path in paths)
    many = "1 temporary file" if len(paths) == 1 else f"{len(paths)} temporary files"
    return Finding(
        "leftovers",
        "warning",
        f"{many} of writers that were killed, such as {printable(paths[0])}",
        shell_line(
            *("find", *families, "-type", "f", "-name", ".?*.tmp-[0-9]*-[0-9a-f]*"),
            *("-mmin", f"+{LEFTOVER_MINUTES}", "-delete"),
        ),
    )


def of_file_system(found: FileSystem, root: str) -> list[Finding]:
    """Warn of locks that somebody else has to keep, or that are known from trying alone."""
    kind, shown = printable(found.mount.type), printable(root)
    match found.locks:
        case "network":
            said = f"{shown} is on {kind}: locks are the server's business, and every machine has to mount it with them"
            return [Finding("file_system.network", "warning", said)]
        case "tested":
            said = f"{shown} is on {kind}, which is not known here: its locks work on this machine"
            return [Finding("file_system.unknown", "warning", said)]
        case "untested":
            said = f"{shown} is on {kind}, which is not known here: its locks could not be tried"
            return [Finding("file_system.unknown", "warning", said)]
        case _:
            return []


def of_no_machine(*, savable: bool) -> Finding:
    """Warn of an environment that has no machine id; it is `savable` where there is a place for a user file."""
    return Finding(
        "identity.machine_unset",
        "warning",
        "no machine id: a lane closed by an unknown machine never satisfies batch-audit",
        "agent-coord config set --machine-id NAME" if savable else None,
    )


def of_relative_root(root: str, absolute: str, variable: str | None) -> Finding:
    """Warn of a root that is another one in another directory; `variable` is the one it comes from, if any."""
    return Finding(
        "state_root.relative",
        "warning",
        f"the state root {printable(root)} is relative: agents in other directories use another one",
        None if variable is None else shell_line("export", f"{variable}={absolute}"),
    )


def of_split_brain(refusal: str, file: str) -> Finding:
    """Report a local root in use beside a file that configures a fleet."""
    load = shell_line(".", file)
    return Finding(
        "selection.split_brain", "error", printable(refusal), None if load is None else f"set -a; {load}; set +a"
    )
