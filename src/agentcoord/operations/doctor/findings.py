"""What the doctor found, one by one: what it is called, how bad it is, and what mends it.

Pure: errors, listings and settings come in, findings go out. An error fails the doctor, a warning does not.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from agentcoord.errors import CoordError, Defect, Unreadable
from agentcoord.files import printable, shell_line
from agentcoord.stores.filesystem import FileSystem
from agentcoord.stores.survey import Place, Survey

Severity = Literal["error", "warning"]

SHOWN_RECORDS = 100
"""How many unreadable records are named; of the rest, the number."""
LEFTOVER_MINUTES = 60
"""A temporary file this old has lost its writer: writing one takes seconds."""


SHOWN_LEFTOVERS = 100
"""How many of them one command removes."""

_TO_DECIDE: Mapping[str, str] = {
    "user_file.key": "correct its name, or take the line out",
    "user_file.owner": "name a file of your own, or have its owner hand it over",
    "user_file.parent_owner": "keep the file below directories of yours or root's",
    "user_file.parent_mode": "it may be shared on purpose: close it, or keep the file elsewhere",
    "user_file.lock": "see what put it there before you remove it",
    "state_root.missing": "it cannot be made as it is: check the name and what is above it",
    "state_root.unreadable": "get access from its owner, or select another root",
    "state_root.unwritable": "make room or get access, or select another root",
    "layout.symlink": "see whether records are where it leads, and put them or nothing in its place",
    "layout.kind": "see what it is, and move it to another place",
    "layout.unreadable": "get access from its owner",
    "layout.unwritable": "get access from its owner",
    "records.unreadable": "see what it is, and move it to another place",
}
"""What a person has to decide about a finding that has no mend."""


class Finding(Struct, frozen=True):
    """One thing that is wrong, under an `id` that stays the same over releases.

    `mend` is one shell command, None where no single one mends it.
    """

    id: str
    severity: Severity
    summary: str
    mend: str | None = None


_BROKEN = (Defect.MALFORMED, Defect.NOT_AN_OBJECT)

Aside = Callable[[str], str | None]
"""Gives the command that takes a record out of the way and keeps it, by its path; None where none would."""


def of_error(error: CoordError, aside: Aside | None = None, *, severity: Severity = "error") -> Finding:
    """Give the finding of an error; `aside` is given where records are files."""
    mend = error.mend
    if mend is None and aside is not None and isinstance(error, Unreadable) and error.defect in _BROKEN:
        mend = aside(error.path)
    decision = _TO_DECIDE.get(error.finding) if mend is None else None
    said = printable(str(error))
    return Finding(error.finding, severity, said if decision is None else f"{said}; {decision}", mend)


def of_errors(errors: Iterable[CoordError], aside: Aside | None) -> list[Finding]:
    """Give the findings of errors, of the same one once, and of unreadable records the first hundred."""
    findings: dict[str, Finding] = {}
    records = left_out = 0
    for error in errors:
        finding = of_error(error, aside)
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
    findings = [of_error(error) for error in seen.misplaced]
    below: Severity = "error" if deep else "warning"
    findings += [of_error(error, severity=below) for error in (*seen.faults, *seen.unwritable)]
    findings = list({finding.summary: finding for finding in findings if finding.summary not in known}.values())
    if seen.leftovers:
        findings.append(_leftovers(seen.leftovers, root))
    if seen.open_root is not None:
        findings.append(_open("state_root.open", "others can change the state root", seen.open_root))
    replaceable = "others can replace the state root by changing a directory above it"
    findings += [_open("state_root.parent_open", replaceable, above) for above in seen.open_above]
    if seen.foreign_root is not None:
        findings.append(_foreign("state_root.owner", "the state root", seen.foreign_root))
    findings += [_foreign("state_root.parent_owner", "a directory above the state root", p) for p in seen.foreign_above]
    return findings


def _open(id: str, said: str, place: Place) -> Finding:
    shown = f"{said}: {printable(place.path)}"
    if not place.closable:
        return Finding(id, "warning", f"{shown}; it may be shared on purpose: close it, or move the root")
    return Finding(id, "warning", shown, shell_line("chmod", "go-w", place.path))


def _foreign(id: str, what: str, place: Place) -> Finding:
    said = f"{what} belongs to another user, who can change it: {printable(place.path)}"
    return Finding(id, "warning", f"{said}; move the root if you do not trust that user with it")


def _leftovers(paths: Sequence[str], root: str) -> Finding:
    base = root.rstrip("/")
    many = "1 temporary file" if len(paths) == 1 else f"{len(paths)} temporary files"
    said = f"{many} of writers that were killed, such as {printable(paths[0])}"
    # One by one: whatever else has such a name by then may have a writer.
    places = [place for path in paths if shell_line(place := f"{base}/{path}") is not None][:SHOWN_LEFTOVERS]
    if 0 < len(places) < len(paths):
        said += f"; {len(places)} of them at once"
    return Finding("leftovers", "warning", said, shell_line("rm", "--", *places) if places else None)


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


def of_no_machine(name: str | None) -> Finding:
    """Warn of an environment that has no machine id; `name` is one for it that can be saved, if there is any."""
    said = "no machine id: a lane closed by an unknown machine never satisfies batch-audit"
    mend = None if name is None else shell_line("agent-coord", "config", "set", "--machine-id", name)
    return Finding("identity.machine_unset", "warning", said if mend else f"{said}; choose one and set it", mend)


def of_tilde_root(root: str, absolute: str) -> Finding:
    """Warn of a root with a `~` in it that was to be the home directory."""
    said = f"no shell expanded the ~ of the state root {printable(root)}, so it is the directory {printable(absolute)}"
    return Finding("state_root.tilde", "warning", f"{said}; write the whole path where it is set")


def of_relative_root(root: str, absolute: str, variable: str | None) -> Finding:
    """Warn of a root that is another one in another directory; `variable` is the one it comes from, if any."""
    return Finding(
        "state_root.relative",
        "warning",
        f"the state root {printable(root)} is relative: agents in other directories use another one",
        None if variable is None else shell_line("export", f"{variable}={absolute}"),
    )


def of_split_brain(refusal: str, file: str, *, private: bool) -> Finding:
    """Report a local root in use beside a file that configures a fleet; only a `private` one is safe to load."""
    load = shell_line(".", file) if private else None
    mend = None if load is None else f"set -a; {load}; set +a"
    return Finding("selection.split_brain", "error", printable(refusal), mend)
