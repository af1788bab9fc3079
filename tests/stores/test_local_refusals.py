"""What the local store refuses to touch: symlinks, other kinds of files, and what it may not open."""

import errno
import os
import resource
import socket
from pathlib import Path

import pytest

from agentcoord.errors import Defect, StoreError, Unreadable
from agentcoord.stores.local import LocalStore
from tests.stores.layout import BEAT, CLAIM, lay, listed, names
from tests.stores.processes import as_nobody, drive

# -- symlinks and other kinds of files


async def refuses(local: LocalStore, path: str, message: str, defect: Defect) -> None:
    """Assert that reading, writing and deleting a path are refused with one message."""
    with pytest.raises(Unreadable) as told:
        await local.read(path)
    assert (str(told.value), told.value.defect, told.value.path) == (message, defect, path)
    for version in (None, "0" * 64):
        with pytest.raises(StoreError) as told_by_write:
            await local.write(path, {"mine": True}, version=version, note="")
        assert str(told_by_write.value) == message
    with pytest.raises(StoreError) as told_by_delete:
        await local.delete(path, version="0" * 64, note="")
    assert str(told_by_delete.value) == message


async def refuses_to_list(local: LocalStore, prefix: str, message: str) -> None:
    with pytest.raises(StoreError) as told:
        await local.list(prefix)
    assert str(told.value) == message


async def test_the_root_may_be_a_symlink(root: Path, tmp_path: Path) -> None:
    lay(root, BEAT)
    (tmp_path / "link").symlink_to(root)
    local = LocalStore(tmp_path / "link")
    version = await local.write(CLAIM, {}, version=None, note="")
    assert (root / CLAIM).is_file()
    assert await local.read(CLAIM) is not None
    assert [entry.path for entry in await listed(local, "claims")] == [CLAIM]
    await local.check(writable=True)
    await local.delete(CLAIM, version=version, note="")


@pytest.mark.parametrize("dangling", [False, True])
async def test_a_symlink_is_no_record(local: LocalStore, root: Path, tmp_path: Path, dangling: bool) -> None:
    target = tmp_path / "x.json"
    if not dangling:
        target.write_bytes(b"{}")
    (root / "heartbeats").mkdir(parents=True)
    (root / BEAT).symlink_to(target)
    message = f"state layout invalid: {BEAT} is a symlink"
    await refuses(local, BEAT, message, Defect.SYMLINK)
    await refuses_to_list(local, "heartbeats", message)
    assert (root / BEAT).is_symlink()
    assert target.exists() is not dangling


@pytest.mark.parametrize("at", ["claims", "claims/acme", "claims/acme/widgets"])
@pytest.mark.parametrize("dangling", [False, True])
async def test_a_symlink_is_no_directory(
    local: LocalStore, root: Path, tmp_path: Path, at: str, dangling: bool
) -> None:
    elsewhere = tmp_path / "elsewhere"
    if not dangling:
        lay(elsewhere, CLAIM[len(at) + 1 :])
    (root / at).parent.mkdir(parents=True)
    (root / at).symlink_to(elsewhere)
    message = f"state layout invalid: {at} is a symlink"
    await refuses(local, CLAIM, message, Defect.SYMLINKED_DIRECTORY)
    await refuses_to_list(local, "claims", message)
    await refuses_to_list(local, "claims/acme/widgets", message)
    assert elsewhere.exists() is not dangling
    if not dangling:
        assert names((elsewhere / CLAIM[len(at) + 1 :]).parent) == ["319.json"]


@pytest.mark.parametrize("at", ["claims", "claims/acme"])
async def test_a_file_is_no_directory(local: LocalStore, root: Path, at: str) -> None:
    lay(root, at, b"x")
    message = f"state layout invalid: {at} is not a directory"
    await refuses(local, CLAIM, message, Defect.NOT_IN_DIRECTORY)
    await refuses_to_list(local, "claims/acme/widgets", message)


@pytest.mark.parametrize("kind", ["fifo", "directory", "socket"])
async def test_another_kind_of_file_is_no_record(local: LocalStore, root: Path, kind: str) -> None:
    lay(root, "heartbeats/b.json")
    match kind:
        case "fifo":
            os.mkfifo(root / BEAT)
        case "socket":
            place = os.open(root / "heartbeats", os.O_RDONLY)
            here = os.open(".", os.O_RDONLY)
            os.chdir(place)  # the whole path may be longer than a socket's name
            try:
                with socket.socket(socket.AF_UNIX) as bound:
                    bound.bind("worker-a.json")
            finally:
                os.chdir(here)
                os.close(here)
                os.close(place)
        case _:
            (root / BEAT).mkdir()
    message = f"state layout invalid: {BEAT} is not a regular file"
    await refuses(local, BEAT, message, Defect.NOT_REGULAR)
    await refuses_to_list(local, "heartbeats", message)


async def test_a_record_that_turns_into_a_symlink_ends_the_walk(local: LocalStore, root: Path) -> None:
    place = lay(root, BEAT)
    listing = await local.list("heartbeats")
    place.unlink()
    place.symlink_to("/etc/hostname")
    with pytest.raises(StoreError, match=rf"^state layout invalid: {BEAT} is a symlink$"):
        list(listing.entries)


async def test_a_lock_that_is_a_symlink_is_refused(local: LocalStore, root: Path, tmp_path: Path) -> None:
    version = await local.write(BEAT, {"n": 1}, version=None, note="")
    lock = root / f"{BEAT}.lock"
    lock.unlink()
    lock.symlink_to(tmp_path / "precious")
    for attempt in (
        local.write(BEAT, {"n": 2}, version=version, note=""),
        local.delete(BEAT, version=version, note=""),
    ):
        with pytest.raises(StoreError, match=rf"^state layout invalid: {BEAT}\.lock is a symlink$"):
            await attempt
    assert not (tmp_path / "precious").exists()
    stored = await local.read(BEAT)
    assert stored is not None
    assert stored.version == version


async def test_a_lock_that_is_a_directory_is_refused(local: LocalStore, root: Path) -> None:
    (root / f"{BEAT}.lock").mkdir(parents=True)
    with pytest.raises(StoreError, match=rf"^state record is not writable: {BEAT}\.lock: is a directory$"):
        await local.write(BEAT, {}, version=None, note="")


# -- the root, and permissions


async def test_a_root_that_is_not_there_is_empty(local: LocalStore, root: Path) -> None:
    assert await local.read(CLAIM) is None
    assert await listed(local, "claims") == []
    with pytest.raises(StoreError, match=rf"^state root does not exist: {root}$"):
        await local.check(writable=False)
    assert names(root.parent) == []
    local.create_root()
    local.create_root()
    await local.check(writable=True)


async def test_a_root_is_created_with_what_is_above_it(tmp_path: Path) -> None:
    local = LocalStore(tmp_path / "a/b/c/")
    await local.write(CLAIM, {}, version=None, note="")
    assert (tmp_path / "a/b/c" / CLAIM).is_file()


async def test_a_root_that_is_a_file_is_named(local: LocalStore, root: Path) -> None:
    lay(root.parent, root.name, b"x")
    for attempt in (
        local.read(CLAIM),
        local.write(CLAIM, {}, version=None, note=""),
        local.delete(CLAIM, version="0" * 64, note=""),
        local.list("claims"),
        local.check(writable=False),
    ):
        with pytest.raises(StoreError, match=rf"^state root is not a directory: {root}$"):
            await attempt
    with pytest.raises(StoreError, match=rf"^state root is not a directory: {root}$"):
        local.create_root()
    with pytest.raises(StoreError, match=rf"^state root is not a directory: {root}/below$"):
        LocalStore(root / "below").create_root()


def test_an_empty_root_is_not_the_file_system() -> None:
    with pytest.raises(StoreError, match=r"^state root is empty$"):
        LocalStore("")


@pytest.mark.parametrize("family", ["claims", "heartbeats", "batches", "events", "attention", "archive"])
async def test_a_family_must_be_a_directory(local: LocalStore, root: Path, family: str, tmp_path: Path) -> None:
    lay(root, family, b"x")
    with pytest.raises(StoreError, match=rf"^state layout invalid: {family} is not a directory$"):
        await local.check(writable=True)
    (root / family).unlink()
    (root / family).symlink_to(tmp_path)
    with pytest.raises(StoreError, match=rf"^state layout invalid: {family} is a symlink$"):
        await local.check(writable=True)


def denied(root: Path, path: str, mode: int, act: str) -> str:
    """Take permissions from one path below the root and say what a bound user is told on reading, listing and so on."""
    place = root / path if path else root
    place.chmod(mode)

    def attempt() -> str:
        local = LocalStore("state")
        match act:
            case "read":
                drive(local.read(CLAIM))
            case "write":
                drive(local.write(CLAIM, {}, version="0" * 64, note=""))
            case "create":
                drive(local.write("claims/acme/widgets/1.json", {}, version=None, note=""))
            case "list":
                return "; ".join(str(entry) for entry in drive(local.list("claims")).entries)
            case _:
                drive(local.check(writable=act == "check-writable"))
        return "done"

    try:
        return as_nobody(attempt, within=root.parent)
    finally:
        place.chmod(0o755)


HERE = "claims/acme/widgets"


@pytest.mark.parametrize(
    ("path", "mode", "act", "told"),
    [
        (CLAIM, 0o000, "read", f"Unreadable: state record is not readable: {CLAIM}"),
        (HERE, 0o000, "read", f"Unreadable: state record path is not readable or searchable: {CLAIM}"),
        (HERE, 0o444, "read", f"Unreadable: state record path is not readable or searchable: {CLAIM}"),
        ("claims", 0o000, "read", f"Unreadable: state record path is not readable or searchable: {CLAIM}"),
        (CLAIM, 0o000, "list", f"state record is not readable: {CLAIM}"),
        (HERE, 0o000, "list", f"StoreError: state prefix is not readable or searchable: {HERE}"),
        (HERE, 0o444, "list", f"StoreError: state prefix is not readable or searchable: {HERE}"),
        (HERE, 0o111, "list", f"StoreError: state prefix is not readable or searchable: {HERE}"),
        ("claims", 0o000, "list", "StoreError: state prefix is not readable or searchable: claims"),
        ("", 0o000, "list", "StoreError: state root is not readable: state"),
        ("", 0o000, "check", "StoreError: state root is not readable: state"),
        ("", 0o444, "check", "StoreError: state root is not readable: state"),
        ("", 0o555, "check", "done"),
        ("", 0o555, "check-writable", "StoreError: state root is not writable: state"),
        (HERE, 0o555, "create", f"StoreError: state record is not writable: {HERE}/1.json.lock: permission denied"),
        (HERE, 0o000, "create", f"StoreError: state record is not writable: {HERE}/1.json: permission denied"),
        (HERE, 0o000, "write", f"StoreError: state record is not writable: {CLAIM}: permission denied"),
    ],
)
def test_a_refused_permission_names_its_path(root: Path, path: str, mode: int, act: str, told: str) -> None:
    lay(root, CLAIM)
    for directory in (root, root / "claims", root / "claims/acme", root / HERE):
        directory.chmod(0o755)
    assert denied(root, path, mode, act) == told


async def test_a_failure_of_ours_is_not_the_records(local: LocalStore, root: Path) -> None:
    lay(root, BEAT)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        with pytest.raises(StoreError) as told:
            await local.read(BEAT)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert str(told.value) == f"state record cannot be read now: {BEAT}: {os.strerror(errno.EMFILE).lower()}"
    assert not isinstance(told.value, Unreadable)
