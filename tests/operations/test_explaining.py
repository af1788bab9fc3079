"""A doctor that goes on: all findings at once, and the error at which the plain one ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentcoord.errors import ConfigError, CoordError, StoreError
from agentcoord.operations.doctor.explaining import Ground, explain
from agentcoord.operations.doctor.findings import SHOWN_RECORDS, Finding, of_split_brain
from agentcoord.operations.doctor.report import Backend, Report, examine, plain_report
from agentcoord.protocol.identity import NOBODY
from agentcoord.stores.filesystem import FileSystem, Mount
from agentcoord.stores.local import LocalStore
from agentcoord.stores.memory import MemoryStore
from agentcoord.stores.survey import SHOWN_UNWRITABLE
from tests.stores.layout import lay

HERE = Backend(kind="local", root="/state")
NFS = Mount("/m", "nfs", ("nolock",))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "state"
    root.mkdir(mode=0o700)
    return root


async def explained(
    root: Path,
    *,
    faults: tuple[CoordError, ...] = (),
    file_system: FileSystem | None = None,
    room: Callable[[], None] = lambda: None,
    may_write: Callable[[str], bool] | None = None,
    **more: Any,
) -> tuple[Report, CoordError | None]:
    store = LocalStore(root)
    facts: dict[str, Any] = {"deep": True, "prefix": None, "split_brain_file": None, **more}
    plain = plain_report(HERE, NOBODY, **facts)
    ground = Ground(
        root=str(root),
        survey=lambda: store.survey(before=0.0, may_write=may_write),
        file_system=lambda: file_system,
        room=room,
        aside=store.aside,
    )
    return await explain(plain, store, ground, faults, settings=(), hints=())


def found(report: Report) -> list[Finding]:
    assert report.explanation is not None
    above = ("state_root.parent_open", "state_root.parent_owner")  # where the tests run is not their business
    return [one for one in report.explanation.findings if one.id not in above]


async def test_nothing_is_wrong(root: Path) -> None:
    report, first = await explained(root)
    assert (report.status, first, found(report)) == ("ok", None, [])


async def test_it_ends_where_the_plain_doctor_ends(root: Path) -> None:
    lay(root, "claims/o/r/1.json", b"[]")
    lay(root, "claims/o/r/2.json", b"{")
    lay(root, "heartbeats/a.json", b"{")
    (root / "heartbeats/b.json").symlink_to("a.json")
    lay(root, "archive")
    for deep in (True, False):
        with pytest.raises(StoreError) as raised:
            await examine(LocalStore(root), HERE, NOBODY, deep=deep, prefix=None, split_brain_file=None)
        report, first = await explained(root, deep=deep)
        assert str(first) == str(raised.value) == "state layout invalid: archive is not a directory"
        assert report.status == "error"
    (root / "archive").unlink()
    with pytest.raises(StoreError) as raised:
        await examine(LocalStore(root), HERE, NOBODY, deep=True, prefix=None, split_brain_file=None)
    report, first = await explained(root)
    assert str(first) == str(raised.value) == "state record is not an object: claims/o/r/1.json"
    assert [(one.id, one.severity, one.mend) for one in found(report)] == [
        ("records.unreadable", "error", f"mv -n {root}/claims/o/r/1.json {root}/claims/o/r/1.json.broken"),
        ("records.unreadable", "error", f"mv -n {root}/claims/o/r/2.json {root}/claims/o/r/2.json.broken"),
        ("layout.symlink", "error", None),
        ("records.unreadable", "error", f"mv -n {root}/heartbeats/a.json {root}/heartbeats/a.json.broken"),
    ]


async def test_what_a_shallow_doctor_does_not_look_for_does_not_fail_it(root: Path) -> None:
    lay(root, "heartbeats/a.json", b"{")
    (root / "heartbeats/b.json").symlink_to("a.json")
    report, first = await explained(root, deep=False)
    assert (report.status, first) == ("ok", None)
    assert [(one.id, one.severity) for one in found(report)] == [("layout.symlink", "warning")]


@pytest.mark.parametrize(
    ("beyond", "said"),
    [
        (0, None),
        (1, "1 more record cannot be read; mend these first and look again"),
        (3, "3 more records cannot be read; mend these first and look again"),
    ],
)
async def test_only_so_many_records_are_named(root: Path, beyond: int, said: str | None) -> None:
    for number in range(SHOWN_RECORDS + beyond):
        lay(root, f"heartbeats/a{number}.json", b"{")
    findings = found((await explained(root))[0])
    assert len([one for one in findings if one.id == "records.unreadable"]) == SHOWN_RECORDS
    assert [one.summary for one in findings if one.id == "records.more"] == ([] if said is None else [said])


async def test_a_fault_of_the_configuration_comes_first_and_the_root_is_looked_at_all_the_same(root: Path) -> None:
    lay(root, "claims")
    report, first = await explained(root, faults=(ConfigError("no", finding="user_file.mode", mend="chmod 600 /f"),))
    assert str(first) == "no"
    assert found(report)[0] == Finding("user_file.mode", "error", "no", "chmod 600 /f")
    assert found(report)[1].id == "layout.kind"


async def test_a_backend_without_files_is_asked_what_it_can_tell() -> None:
    store = MemoryStore()
    store.plant("claims/o/r/1.json", b"{")
    plain = plain_report(Backend(kind="github"), NOBODY, deep=True, prefix=None, split_brain_file=None)
    report, first = await explain(plain, store, None, (), settings=(), hints=())
    assert "claims/o/r/1.json" in str(first)
    [finding] = found(report)
    assert (finding.id, finding.mend) == ("records.unreadable", None)


async def test_a_split_brain_alone_stays_one(root: Path) -> None:
    report, first = await explained(root, split_brain_file="/h/env")
    assert (report.status, first) == ("split_brain", None)
    lay(root, "claims")
    assert (await explained(root, split_brain_file="/h/env"))[0].status == "error"
    assert of_split_brain("why", "/h/e nv", private=True).mend == "set -a; . '/h/e nv'; set +a"
    assert of_split_brain("why", "/h/e nv", private=False).mend is None


async def test_the_plain_doctor_does_not_bless_a_root_without_locks(root: Path) -> None:
    lay(root, "claims/o/r/1.json", b"{")  # would be met later
    where = FileSystem(NFS, "private", "nolock")
    with pytest.raises(StoreError) as raised:
        await examine(
            LocalStore(root),
            HERE,
            NOBODY,
            deep=True,
            prefix=None,
            split_brain_file=None,
            file_system=lambda: where,
        )
    report, first = await explained(root, file_system=where)
    assert raised.value.finding == "file_system.locks"
    assert str(first).startswith(f"state root has no working locks: {root} is on nfs: mounted with nolock")
    assert [one.id for one in found(report)] == ["file_system.locks", "records.unreadable"]


@pytest.mark.parametrize(
    ("locks", "ids"),
    [
        ("shared", []),
        ("network", ["file_system.network"]),
        ("tested", ["file_system.unknown"]),
        ("untested", ["file_system.unknown"]),
    ],
)
async def test_locks_that_may_not_work_are_warned_of(root: Path, locks: Any, ids: list[str]) -> None:
    report, first = await explained(root, file_system=FileSystem(Mount("/m", "x"), locks))
    assert (report.status, first) == ("ok", None)
    assert [(one.id, one.severity) for one in found(report)] == [(id, "warning") for id in ids]


async def test_a_root_that_is_none_is_named_once(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    report, first = await explained(place)
    assert str(first) == f"state root is not a directory: {place}"
    assert [one.id for one in found(report)] == ["state_root.kind"]


@pytest.mark.parametrize("odd", ["a\nb", "\x1b[2J", "caf\ufffd"])
async def test_no_command_is_given_that_a_line_cannot_carry(root: Path, odd: str) -> None:
    lay(root, f"heartbeats/{odd}.json", b"{")
    [finding] = found((await explained(root))[0])
    assert finding.mend is None


def full() -> None:
    raise StoreError("state root is not writable: /s: no space left on device", finding="state_root.unwritable")


async def test_a_root_without_room_is_an_error(root: Path) -> None:
    report, first = await explained(root, room=full)
    assert (report.status, str(first)) == ("error", "state root is not writable: /s: no space left on device")
    assert [(one.id, one.severity, one.mend) for one in found(report)] == [("state_root.unwritable", "error", None)]


async def test_a_root_that_is_none_is_not_written_to(root: Path) -> None:
    report, _ = await explained(root / "absent", room=full)
    assert [one.id for one in found(report)] == ["state_root.missing"]


@pytest.mark.parametrize(("deep", "severity"), [(True, "error"), (False, "warning")])
async def test_what_a_writer_would_fail_at_is_found(root: Path, deep: bool, severity: str) -> None:
    lay(root, "heartbeats/a.json", b"{}")
    lay(root, "heartbeats/a.json.lock").chmod(0o400)
    (root / "claims").mkdir()
    (root / "claims").chmod(0o500)
    closed = (f"{root}/claims", f"{root}/heartbeats/a.json.lock")
    report, first = await explained(root, deep=deep, may_write=lambda path: path.replace("/./", "/") not in closed)
    assert (report.status, first is None) == (("error", False) if deep else ("ok", True))
    assert sorted((one.id, one.severity, one.mend) for one in found(report)) == [
        ("layout.unwritable", severity, f"chmod u+rw {root}/heartbeats/a.json.lock"),
        ("layout.unwritable", severity, f"chmod u+rwx {root}/claims"),
    ]


@pytest.mark.parametrize(("beyond", "more"), [(0, []), (2, ["layout.more"])])
async def test_only_so_many_closed_places_are_named(root: Path, beyond: int, more: list[str]) -> None:
    for number in range(SHOWN_UNWRITABLE - 1 + beyond):
        lay(root, f"claims/{number}/a.txt", b"")
    ids = [one.id for one in found((await explained(root, may_write=lambda path: False))[0])]
    assert ids == ["layout.unwritable"] * SHOWN_UNWRITABLE + more


async def test_what_lies_in_a_root_without_room_is_not_told_as_well(root: Path) -> None:
    lay(root, "claims/o/a.txt", b"")
    report, _ = await explained(root, room=full, may_write=lambda path: False)
    assert [one.id for one in found(report)] == ["state_root.unwritable"]
