"""What the local store promises about its files: their bytes, their neighbours, and what a broken one costs."""

import json
import os
import stat
from hashlib import sha256
from pathlib import Path

import pytest

from agentcoord.errors import Conflict, Defect, StoreError, Unreadable, UsageError
from agentcoord.stores.base import Stored
from agentcoord.stores.local import LocalStore
from agentcoord.stores.tree import MAX_RECORD_BYTES
from tests.stores.layout import BEAT, CLAIM, lay, listed, names
from tests.stores.processes import drive

# -- files as others read them


async def test_a_record_is_pretty_json_and_its_version_is_their_digest(local: LocalStore, root: Path) -> None:
    version = await local.write(CLAIM, {"target": "319", "note": "für →", "lanes": []}, version=None, note="")
    data = (root / CLAIM).read_bytes()
    assert data == '{\n  "target": "319",\n  "note": "für →",\n  "lanes": []\n}\n'.encode()
    assert version == sha256(data).hexdigest()


async def test_the_lock_stays_and_no_temporary_file_does(local: LocalStore, root: Path) -> None:
    version = await local.write(CLAIM, {"n": 1}, version=None, note="")
    await local.write(CLAIM, {"n": 2}, version=version, note="")
    assert names((root / CLAIM).parent) == ["319.json", "319.json.lock"]
    lock = (root / f"{CLAIM}.lock").stat()
    assert (stat.S_IMODE(lock.st_mode), lock.st_size) == (0o600, 0)
    with pytest.raises(Conflict):
        await local.write(CLAIM, {"n": 3}, version=version, note="")
    assert names((root / CLAIM).parent) == ["319.json", "319.json.lock"]


async def test_a_deleted_record_leaves_its_lock(local: LocalStore, root: Path) -> None:
    version = await local.write(BEAT, {}, version=None, note="")
    await local.delete(BEAT, version=version, note="")
    assert names(root / "heartbeats") == ["worker-a.json.lock"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
async def test_new_files_follow_the_umask(local: LocalStore, root: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        await local.write(CLAIM, {}, version=None, note="")
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / CLAIM).stat().st_mode) == 0o666 & ~mask
    assert stat.S_IMODE((root / "claims").stat().st_mode) == 0o777 & ~mask


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o666, 0o444])
async def test_a_record_keeps_its_mode(local: LocalStore, root: Path, mode: int) -> None:
    version = await local.write(BEAT, {"n": 1}, version=None, note="")
    (root / BEAT).chmod(mode)
    await local.write(BEAT, {"n": 2}, version=version, note="")
    assert stat.S_IMODE((root / BEAT).stat().st_mode) == mode


async def test_a_record_of_another_program_is_replaced_by_its_digest(local: LocalStore, root: Path) -> None:
    place = lay(root, BEAT, b'{"compact":true}')
    stored = await local.read(BEAT)
    assert stored is not None
    assert stored.version == sha256(b'{"compact":true}').hexdigest()
    await local.write(BEAT, {"compact": False}, version=stored.version, note="")
    assert json.loads(place.read_bytes()) == {"compact": False}


async def test_writing_what_is_there_keeps_the_version(local: LocalStore) -> None:
    version = await local.write(BEAT, {"n": 1}, version=None, note="")
    assert await local.write(BEAT, {"n": 1}, version=version, note="") == version


def test_no_method_suspends(root: Path) -> None:
    local = LocalStore(root)
    version = drive(local.write(BEAT, {}, version=None, note=""))
    assert drive(local.read(BEAT)) is not None
    assert len(list(drive(local.list("heartbeats")).entries)) == 1
    drive(local.check(writable=True))
    drive(local.delete(BEAT, version=version, note=""))


# -- listings


async def test_a_listing_passes_over_what_is_no_record(local: LocalStore, root: Path) -> None:
    for path in (".hidden.json", "a.json.lock", ".a.json.tmp-1-ff", "notes.txt", "json", ".dot/b.json", "c.json.bak"):
        lay(root, f"heartbeats/{path}")
    lay(root, BEAT)
    (root / "heartbeats/empty").mkdir()
    os.mkfifo(root / "heartbeats/pipe")
    assert [entry.path for entry in await listed(local, "heartbeats")] == [BEAT]


async def test_dot_directories_count_where_repositories_name_them_and_dot_files_never(
    local: LocalStore, root: Path
) -> None:
    for above in ("attention/ws/.github/.github", "claims/o/.github", "claims/.o/r", "archive/claims/o/.github"):
        lay(root, f"{above}/a.json")
        lay(root, f"{above}/.a.json")
        assert f"{above}/a.json" in [entry.path for entry in await listed(local, above.partition("/")[0])]
    assert len(await listed(local, "claims")) == 2
    for nowhere in ("events/.github", "claims/o/r/.hidden", "attention/.ws/o/r", "archive/.claims/o/r"):
        lay(root, f"{nowhere}/a.json")
        assert f"{nowhere}/a.json" not in [entry.path for entry in await listed(local, nowhere.partition("/")[0])]


@pytest.mark.parametrize("link", ["claims/.github", "claims/o/.github", "attention/w/o/.github"])
async def test_a_symlink_where_a_dotted_repository_belongs_is_named(local: LocalStore, root: Path, link: str) -> None:
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(root)
    with pytest.raises(StoreError, match=f"{link} is a symlink"):
        await listed(local, link.partition("/")[0])


@pytest.mark.parametrize("family", ["claims", "heartbeats", "archive"])
async def test_a_dot_name_that_is_no_directory_hides_nothing(local: LocalStore, root: Path, family: str) -> None:
    lay(root, f"{family}/o/r/7.json")
    (root / family / ".#lock").symlink_to("nowhere")
    (root / family / "o" / ".#7.json").symlink_to("user@host.1:2")
    assert [entry.path for entry in await listed(local, family)] == [f"{family}/o/r/7.json"]


async def test_contents_are_read_as_the_listing_is_walked(local: LocalStore, root: Path) -> None:
    for name in "abc":
        lay(root, f"heartbeats/{name}.json", b'"then"')
    listing = await local.list("heartbeats")
    (root / "heartbeats/b.json").unlink()
    lay(root, "heartbeats/c.json", b'"now"')
    entries = [entry for entry in listing.entries if isinstance(entry, Stored)]
    assert [(entry.path, entry.document) for entry in entries] == [
        ("heartbeats/a.json", "then"),
        ("heartbeats/c.json", "now"),
    ]
    assert list(listing.entries) == []


async def test_a_directory_removed_in_between_is_no_error(local: LocalStore, root: Path) -> None:
    place = lay(root, CLAIM)
    listing = await local.list("claims")
    place.unlink()
    place.parent.rmdir()
    assert list(listing.entries) == []


async def test_a_bad_record_costs_one_row(local: LocalStore, root: Path) -> None:
    lay(root, "heartbeats/a.json", b"{nope")
    lay(root, "heartbeats/b.json")
    bad, good = await listed(local, "heartbeats")
    assert isinstance(bad, Unreadable)
    assert (bad.path, bad.defect) == ("heartbeats/a.json", Defect.MALFORMED)
    assert isinstance(good, Stored)


async def test_a_name_that_is_not_text_costs_one_row(local: LocalStore, root: Path) -> None:
    lay(root, "heartbeats/b.json")
    try:
        os.close(os.open(os.fsencode(root / "heartbeats") + b"/\xff.json", os.O_CREAT | os.O_WRONLY))
    except OSError:
        pytest.skip("this file system takes only text for names")
    good, bad = await listed(local, "heartbeats")
    assert isinstance(good, Stored)
    assert isinstance(bad, Unreadable)
    assert bad.path == "heartbeats/\ufffd.json"
    str(bad).encode()


async def test_a_directory_called_like_a_record_is_a_repository(local: LocalStore, root: Path) -> None:
    lay(root, "claims/o/api.json/7.json")
    lay(root, "archive/claims/o/api.json/7.json")
    assert [entry.path for entry in await listed(local, "claims")] == ["claims/o/api.json/7.json"]
    assert [entry.path for entry in await listed(local, "archive")] == ["archive/claims/o/api.json/7.json"]


# -- what cannot be read


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" \n",
        b'{"status": "act',
        b'{"a": 1} {"b": 2}',
        b'{"a": "\xff\xfe"}',
        b'{"a": 1}\x00\x00',
        b"\x00" * 64,
        b"\xef\xbb\xbf{}",
        b'{"a": NaN}',
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'"' + b"x" * (10 * 1024 * 1024) + b'"',
    ],
    ids=["empty", "blank", "cut", "two", "not-utf8", "nul-end", "nul", "bom", "nan", "deep", "deep-object", "10MiB"],
)
async def test_a_broken_record_is_named_and_nothing_else(local: LocalStore, root: Path, data: bytes) -> None:
    place = lay(root, BEAT, data)
    with pytest.raises(Unreadable, match=rf"^state unreadable: .+ at {BEAT}$") as told:
        await local.read(BEAT)
    assert (told.value.path, told.value.defect) == (BEAT, Defect.MALFORMED)
    assert len(str(told.value)) < 200
    (entry,) = await listed(local, "heartbeats")
    assert isinstance(entry, Unreadable)
    assert str(entry) == str(told.value)
    with pytest.raises(StoreError):
        await local.write(BEAT, {}, version=None, note="")
    assert place.read_bytes() == data


async def test_a_large_record_is_read_whole(local: LocalStore, root: Path) -> None:
    document = {"text": "x" * 3_000_000}
    version = await local.write(BEAT, document, version=None, note="")
    stored = await local.read(BEAT)
    assert stored is not None
    assert (stored.document, stored.version) == (document, version)
    (entry,) = await listed(local, "heartbeats")
    assert isinstance(entry, Stored)
    assert entry.version == version


async def test_what_could_not_be_read_back_is_not_written(local: LocalStore, root: Path) -> None:
    with pytest.raises(StoreError, match=r"^state record is too large to write: heartbeats/worker-a\.json: "):
        await local.write(BEAT, "x" * MAX_RECORD_BYTES, version=None, note="")
    with pytest.raises(UsageError, match=r"^state record is not valid UTF-8: "):
        await local.write(BEAT, {"operator": "\udcff"}, version=None, note="")
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(StoreError, match=r"^state record is nested too deeply to write: "):
        await local.write(BEAT, nested, version=None, note="")
    assert names(root.parent) == []


@pytest.mark.parametrize("size", [16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 1024 * 1024])
async def test_no_size_is_cut(local: LocalStore, root: Path, size: int) -> None:
    data = b'"' + b"x" * (size - 2) + b'"'
    lay(root, BEAT, data)
    stored = await local.read(BEAT)
    (entry,) = await listed(local, "heartbeats")
    assert stored is not None
    assert isinstance(entry, Stored)
    assert stored.source == entry.source == data


async def test_a_path_too_long_is_told_as_such(local: LocalStore, root: Path) -> None:
    lay(root, CLAIM)
    path = f"claims/acme/widgets/{'x' * 300}.json"
    with pytest.raises(Unreadable, match=r"^state record path is too long: ") as told:
        await local.read(path)
    assert told.value.defect is Defect.PATH_TOO_LONG
    with pytest.raises(StoreError, match=rf"^state record path is too long: {path}$"):
        await local.write(path, {}, version=None, note="")


async def test_a_path_that_is_not_text_is_refused(local: LocalStore) -> None:
    with pytest.raises(UsageError, match=r"^unsafe state path: 'heartbeats/\\udcff\.json'$"):
        await local.read("heartbeats/\udcff.json")
