"""What is watched: the records as they were last read, what of them needs somebody, and what has changed since.

Nothing here reads, waits or knows the time of day. A row is the object that `--json` prints of a record; of a batch
there is one for each lane.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, cast

from msgspec import Struct, field

from agentcoord.cli.render.words import is_one, is_over, lanes_of, listed
from agentcoord.protocol.claims import RELEASED
from agentcoord.protocol.documents import Document, is_document
from agentcoord.protocol.statuses import SATISFYING, TERMINAL

Section = Literal["attention", "claims", "heartbeats", "lanes", "events"]
SECTIONS: tuple[Section, ...] = ("attention", "claims", "heartbeats", "lanes", "events")
"""In the order in which they are told."""

Rows = dict[str, Document]
"""Rows by what tells one from all others of its section."""

_KEY = ("workspace", "repository", "id")
_QUIET = frozenset({*TERMINAL, *SATISFYING, RELEASED})


class Known(Struct):
    """All that is known, and in words what could not be read of it."""

    rows: dict[Section, Rows] = field(default_factory=lambda: {section: {} for section in SECTIONS})
    missing: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def take_status(self, status: Document) -> None:
        """Take what `status --json` says."""
        for section in ("claims", "heartbeats", "events"):
            self.rows[section] = {str(row.get("path")): row for row in objects(status.get(section))}
        self.rows["lanes"] = dict(_lanes(objects(status.get("batches"))))
        notes = status.get("section_notes")
        self.missing["status"] = [f"{name}: {note}" for name, note in notes.items()] if is_document(notes) else []

    def take_attention(self, queue: Document) -> None:
        """Take what `attention --json` says."""
        rows = ((row, [str(row.get(name)) for name in _KEY]) for row in objects(queue.get("records")))
        self.rows["attention"] = {"/".join(key): row for row, key in rows}
        whole = queue.get("complete") is not False and queue.get("truncated") is not True
        self.missing["attention"] = [] if whole else ["attention: not all requests could be read or are shown"]

    @property
    def all_heard(self) -> bool:
        """Whether the heartbeats of all who have one are known."""
        return not any(note.startswith("heartbeats: ") for note in self.missing.get("status", ()))

    @property
    def holders(self) -> Mapping[str, Document]:
        """The heartbeats by the agents they are of."""
        return {str(row.get("agent_id")): row for row in self.rows["heartbeats"].values()}


class Change(Struct, frozen=True):
    """One row that is new, is another or is gone; of one that is gone, as it was."""

    section: Section
    change: Literal["added", "changed", "removed"]
    row: Document


def changes(before: Mapping[Section, Rows], after: Mapping[Section, Rows]) -> Iterator[Change]:
    """Give what has changed, section by section."""
    for section in SECTIONS:
        old, new = before[section], after[section]
        if old is new:
            continue
        for key, row in new.items():
            known = old.get(key)
            if known != row:
                yield Change(section, "added" if known is None else "changed", row)
        for key in old.keys() - new.keys():
            yield Change(section, "removed", old[key])


def objects(value: object) -> list[Document]:
    """Give the objects in a list, and nothing of what is none."""
    return [cast("Document", row) for row in listed(value) if isinstance(row, dict)]


def _lanes(batches: Iterable[Document]) -> Iterator[tuple[str, Document]]:
    """Give the lanes of all batches, each with what of its batch it is known by."""
    for batch in batches:
        whole = {name: batch.get(name) for name in ("batch_id", "repo")}
        seen: dict[object, int] = {}
        for lane in lanes_of(batch):
            named = str(lane.get("name"))
            seen[named] = again = seen.get(named, 0) + 1
            yield f"{batch.get('path')} {named} {again}", whole | cast("Document", lane)


# Whose it is ---------------------------------------------------------------------------------------


class Filter(Struct, frozen=True):
    """What to leave out: all that is not of this repository, batch or machine. None lets everything through.

    With `loose`, a part of the name will do, as while it is being typed.
    """

    repo: str | None = None
    batch: str | None = None
    machine: str | None = None
    loose: frozenset[str] = frozenset()

    @property
    def given(self) -> dict[str, str]:
        """Map what is filtered by to what is wanted."""
        each = {"repo": self.repo, "batch": self.batch, "machine": self.machine}
        return {name: value for name, value in each.items() if value}

    def takes(self, section: Section, row: Document, holders: Mapping[str, Document]) -> bool:
        """Tell whether a row is among what is wanted."""
        for name, wanted in self.given.items():
            found = _BY[name](section, row, holders)
            if not isinstance(found, str):
                return False
            if found != wanted and not (name in self.loose and wanted.casefold() in found.casefold()):
                return False
        return True


def _repo_of(section: Section, row: Document, holders: Mapping[str, Document]) -> object:
    if section == "heartbeats":  # whose work item is one text, or none
        target = str(row.get("target"))
        return target.partition("#")[0] if "#" in target else None
    return row.get("repository" if section == "attention" else "repo")


def _batch_of(section: Section, row: Document, holders: Mapping[str, Document]) -> object:
    return row.get("batch_id")


def machine_of(section: Section, row: Document, holders: Mapping[str, Document]) -> object:
    """Name the machine of a row; where the record does not say, that of whoever holds it."""
    if section == "attention":
        source = row.get("source")
        return source.get("host_id") if is_document(source) else None
    holder = holders.get(str(row.get("owner" if section == "lanes" else "agent_id")), {})
    return row.get("machine_id") or (holder.get("machine_id") if section in ("claims", "lanes") else None)


_BY = {"repo": _repo_of, "batch": _batch_of, "machine": machine_of}


# Who is needed -------------------------------------------------------------------------------------

Why = Literal["attention", "dead", "unheard", "stale", "blocked"]
WHYS: tuple[Why, ...] = ("attention", "dead", "blocked", "stale", "unheard")
"""Why somebody is needed, most pressing first."""


class Need(Struct, frozen=True):
    """What needs somebody, and why: a request for attention, a claim or a lane."""

    why: Why
    section: Section
    row: Document


def needs(
    rows: Mapping[Section, Iterable[Document]], holders: Mapping[str, Document], *, all_heard: bool = True
) -> list[Need]:
    """Find what needs somebody: what is asked, whose holder is not there, and what is blocked.

    That a holder was never heard of can be said only where the heartbeats of all are known.
    """
    found = [Need("attention", "attention", row) for row in rows["attention"] if row.get("status") == "open"]
    for row in rows["claims"]:
        why = _absence(row, holders)
        if why is not None and (all_heard or why != "unheard"):
            found.append(Need(why, "claims", row))
    blocked = (row for row in rows["lanes"] if listed(row.get("blocked_on")) and not is_over(row))
    found += [Need("blocked", "lanes", row) for row in blocked]
    found.sort(key=lambda need: WHYS.index(need.why))
    return found


def _absence(claim: Document, holders: Mapping[str, Document]) -> Why | None:
    """Say how the holder of a claim is missed; None of one that is there, or need not be."""
    if is_one(claim.get("status"), _QUIET) or claim.get("terminal") is not None:
        return None
    liveness = liveness_of(claim.get("agent_id"), holders)
    if liveness in ("dead", "stale"):
        return cast("Why", liveness)
    return "unheard" if liveness == "no-heartbeat" else None


def liveness_of(agent: object, holders: Mapping[str, Document]) -> str:
    """Say whether an agent is there, by its heartbeat."""
    beat = holders.get(str(agent))
    return "no-heartbeat" if beat is None else str(beat.get("liveness"))
