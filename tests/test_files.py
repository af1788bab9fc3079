"""A file is replaced whole or not at all, and a lock is waited for, but not for ever."""

import errno
import fcntl
import os
import resource
import stat
from pathlib import Path

import pytest

from agentcoord import files
from agentcoord.errors import StoreError
from agentcoord.files import (
    cause_of,
    make_directories,
    make_directory,
    opened_directory,
    release_lock,
    remove_durably,
    replace_durably,
    shell_line,
    sync_directory,
    take_lock,
)
from tests.stores.processes import in_child


class Interrupted(bytes):
    """Bytes that raise Ctrl-C at the moment when a part of them has been written."""

    def __len__(self) -> int:
        raise KeyboardInterrupt


class Sleep:
    """Counts pauses instead of making them, and may let something happen in one."""

    def __init__(self, wake: int | None = None) -> None:
        self.pauses: list[float] = []
        self.release = wake

    def __call__(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if self.release is not None and len(self.pauses) == 5:
            os.close(self.release)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.json"


def beside(file: Path) -> list[str]:
    return sorted(path.name for path in file.parent.iterdir())


def hold(file: Path) -> int:
    """Lock a file as another program would; closing what is returned lets go."""
    fd = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def is_held(file: Path) -> bool:
    with open(f"{file}.lock", "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# -- replacing


def test_a_new_file_follows_the_umask(file: Path) -> None:
    before = os.umask(0o027)
    try:
        replace_durably(str(file), b"new")
    finally:
        os.umask(before)
    assert file.read_bytes() == b"new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert beside(file) == ["a.json"]


@pytest.mark.parametrize("mode", [0o600, 0o666, 0o444, 0o755])
def test_a_mode_is_kept(file: Path, mode: int) -> None:
    file.write_bytes(b"old")
    file.chmod(mode)
    replace_durably(str(file), b"new")
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"new", mode)


def test_a_mode_may_be_given(file: Path) -> None:
    file.write_bytes(b"old")
    file.chmod(0o644)
    replace_durably(str(file), b"new", mode=0o600)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("data", [b"", b"x" * 5_000_000])
def test_any_size_is_written(file: Path, data: bytes) -> None:
    replace_durably(str(file), data)
    assert file.read_bytes() == data


def test_who_has_the_old_file_open_keeps_it(file: Path) -> None:
    file.write_bytes(b"old")
    with file.open("rb") as old:
        replace_durably(str(file), b"new")
        assert old.read() == b"old"


def test_an_open_directory_is_where_the_file_is(file: Path, tmp_path: Path) -> None:
    with opened_directory(str(tmp_path)) as directory:
        replace_durably("elsewhere/a.json", b"new", directory=directory)
        assert file.read_bytes() == b"new"
        remove_durably("elsewhere/a.json", directory=directory)
        assert beside(file) == []


def test_a_name_without_a_directory_is_in_the_working_directory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    replace_durably("a.json", b"new")
    assert file.read_bytes() == b"new"
    remove_durably("a.json")
    make_directories("b/c")
    assert beside(file) == ["b"]


def test_a_symlink_is_not_replaced(file: Path, tmp_path: Path) -> None:
    file.symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match=r"a\.json") as told:
        replace_durably(str(file), b"new")
    assert told.value.errno == errno.ELOOP
    assert beside(file) == ["a.json"]
    assert file.is_symlink()


def test_a_directory_is_not_replaced(file: Path) -> None:
    file.mkdir()
    with pytest.raises(IsADirectoryError):
        replace_durably(str(file), b"new")
    assert beside(file) == ["a.json"]
    assert file.is_dir()


def test_an_interrupt_leaves_the_old_file_whole(file: Path) -> None:
    file.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        replace_durably(str(file), Interrupted(b"half"))
    assert file.read_bytes() == b"old"
    assert beside(file) == ["a.json"]


def test_a_write_cut_short_leaves_the_old_file_whole(file: Path) -> None:
    file.write_bytes(b"old")

    def replace() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        replace_durably(str(file), b"x" * 10_000)
        return "written"

    assert in_child(replace).startswith("OSError: ")
    assert file.read_bytes() == b"old"
    assert beside(file) == ["a.json"]


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_durably(str(tmp_path / "b/a.json"), b"new")
    with pytest.raises(FileNotFoundError):
        remove_durably(str(tmp_path / "a.json"))


# -- directories


def test_directories_are_made_with_what_is_above_them(tmp_path: Path) -> None:
    for _ in range(2):
        make_directories(f"{tmp_path}/a/b/c/")
        make_directory(f"{tmp_path}/a/b")
    assert (tmp_path / "a/b/c").is_dir()
    make_directories("/")


def test_a_file_is_no_directory(file: Path) -> None:
    file.write_bytes(b"")
    with pytest.raises(FileExistsError):
        make_directories(str(file))
    with pytest.raises(NotADirectoryError):
        make_directories(f"{file}/b")
    with pytest.raises(FileExistsError):
        make_directory(str(file))


def test_what_cannot_be_synced_is_not_an_error() -> None:
    reader, writer = os.pipe()
    sync_directory(reader)  # EINVAL, as for a directory of some file systems
    os.close(reader)
    os.close(writer)
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_directory(reader)


# -- locks


def test_a_lock_is_held_and_let_go(file: Path) -> None:
    lock = take_lock(str(file))
    assert is_held(file)
    release_lock(lock)
    assert not is_held(file)
    assert beside(file) == ["a.json.lock"]
    assert stat.S_IMODE(Path(f"{file}.lock").stat().st_mode) == 0o600


def test_an_interrupted_wait_leaves_nothing_open(file: Path) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    other, before = hold(file), os.listdir("/dev/fd")
    with pytest.raises(KeyboardInterrupt):
        take_lock(str(file), sleep=interrupt)
    assert os.listdir("/dev/fd") == before
    os.close(other)
    assert not is_held(file)


def test_a_lock_is_let_go_though_a_child_still_has_it_open(file: Path) -> None:
    ready, done = os.pipe()
    lock = take_lock(str(file))
    child = os.fork()
    if child == 0:
        os.close(done)
        os.read(ready, 1)
        os._exit(0)
    release_lock(lock)
    assert not is_held(file)
    os.close(done)
    os.close(ready)
    os.waitpid(child, 0)


def test_a_lock_is_waited_for(file: Path) -> None:
    sleep = Sleep(wake=hold(file))
    lock = take_lock(str(file), sleep=sleep)
    assert len(sleep.pauses) == 5
    assert is_held(file)
    release_lock(lock)
    assert sleep.pauses == sorted(sleep.pauses)


@pytest.mark.parametrize("wait", [0.0, 0.5, 10.0])
def test_the_wait_has_an_end(file: Path, wait: float) -> None:
    sleep, other = Sleep(), hold(file)
    with pytest.raises(StoreError, match=rf"^another process has held {file}\.lock for more than {wait:g} seconds; "):
        take_lock(str(file), wait=wait, sleep=sleep)
    assert wait <= sum(sleep.pauses) < wait + 0.03
    os.close(other)
    assert not is_held(file)


def test_a_symlink_is_no_lock(file: Path, tmp_path: Path) -> None:
    Path(f"{file}.lock").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="lock") as told:
        take_lock(str(file))
    assert told.value.errno == errno.ELOOP
    assert beside(file) == ["a.json.lock"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left on device"),
        (errno.EROFS, "read-only file system"),
        (errno.EACCES, "permission denied"),
    ],
)
def test_a_cause_is_told_in_words(number: int, words: str) -> None:
    assert cause_of(OSError(number, "?")) == words


def test_a_cause_without_a_number_is_what_was_said() -> None:
    assert cause_of(OSError("Something else")) == "something else"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("rm", "/a/b"), "rm /a/b"),
        (("mv", "/a b", "$HOME;'x"), "mv '/a b' '$HOME;'\"'\"'x'"),
        (("rm", "/caf\u00e9"), "rm '/caf\u00e9'"),
        (("rm", "/a\nb"), None),
        (("rm", "/\x1b[2J"), None),
        (("rm", os.fsdecode(b"/\xff")), None),
        (("rm", "/\ufffd"), None),
    ],
)
def test_a_command_is_spelled_so_that_a_shell_reads_its_words(words: tuple[str, ...], line: str | None) -> None:
    assert shell_line(*words) == line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nothing", "nothing"),
        ("you@h: https://h/x", "you@h: https://h/x"),
        ("a https://me:pw@h/x b", "a https://***@h/x b"),
        ("a ssh://me@h", "a ssh://***@h"),
        ("https://me:p w/d@x@h", "https://***@h"),
        ("https://a:b@h and https://c:d@h", "https://***@h and https://***@h"),
        ("https://ci:8080/1 by a@b", "https://ci:8080/1 by a@b"),
        ("https://ci/1 by a@b", "https://ci/1 by a@b"),
        ("https://***@h", "https://***@h"),
    ],
    ids=map(str, range(7)),
)
def test_userinfo_is_hidden_wherever_it_stands(text: str, shown: str) -> None:
    assert files.discreet(text) == shown


def test_a_command_that_would_be_shown_otherwise_is_none() -> None:
    assert files.shell_line("rm", "https://me:pw@h") is None
    assert files.shell_line("mv", "http://a:b", "c@d") is None


def test_a_free_name_is_one_that_nothing_has(tmp_path: Path) -> None:
    place = str(tmp_path / "a")
    assert files.free_name(place, ".x") == f"{place}.x"
    (tmp_path / "a.x").symlink_to("nowhere")
    assert files.free_name(place, ".x") == f"{place}.x.2"


def test_a_temporary_file_is_known_by_its_name() -> None:
    assert files.is_temporary(".a.json.tmp-1-0f")
    assert files.is_temporary(".a.json.tmp-1-0f", of="a.json")
    assert not files.is_temporary(".a.json.tmp-1-0f", of="json")
    assert files.is_temporary(f".{'x' * 200}.tmp-1-0f", of="x" * 240)
    assert not files.is_temporary("a.json.tmp-1-0f")


def test_a_change_gets_what_is_there_and_may_leave_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    stamps: list[list[int]] = []
    for found, wanted in [(b"", b"one"), (b"one", b"two"), (b"two", None)]:
        with files.changing(str(path)) as change:
            stamps.append(change.stamp())
            assert change.content() == found
            if wanted is not None:
                change.replace(wanted)
                assert change.stamp() != stamps[-1]
    assert path.read_bytes() == b"two"
    assert stamps[0] == []
    with files.changing(str(path)) as change:
        assert change.stamp() == stamps[2]
        path.write_bytes(b"owt")
        assert change.stamp() != stamps[2]
    assert sorted(os.listdir(path.parent)) == ["file", "file.lock"]


def test_a_change_that_fails_leaves_the_old_file_and_lets_the_next_one_in(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="no"), files.changing(str(path)):
        raise ValueError("no")
    with files.changing(str(path)) as change:
        change.replace(change.content() + b"er")
    assert path.read_bytes() == b"older"


@pytest.mark.parametrize("kind", ["symlink", "directory", "FIFO"])
def test_only_a_file_is_changed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "symlink":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(OSError, match="symbolic|directory|Invalid"), files.changing(str(path)) as change:
        change.content()
    assert sorted(os.listdir(tmp_path)) == ["file", "file.lock"]


@pytest.mark.parametrize("kind", ["symlink", "directory", "FIFO"])
def test_what_is_no_file_is_not_read_and_leaves_no_descriptor_open(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "symlink":
        path.symlink_to(__file__)
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    before = lowest_free_descriptor()
    with pytest.raises(OSError, match="symbolic|Invalid"), files.opened_file(str(path)):
        pass
    assert lowest_free_descriptor() == before


def lowest_free_descriptor() -> int:
    found = os.open("/", os.O_RDONLY)
    os.close(found)
    return found
