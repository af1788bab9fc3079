"""A private file is read as it was checked, whatever lies there and whatever is swapped meanwhile."""

import fcntl
import os
import random
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from agentcoord.errors import ConfigError
from agentcoord.settings import envfile
from agentcoord.settings.privatewrite import rewrite_private
from agentcoord.settings.securefile import MAX_BYTES, Waiting, lock_name, opening, peek, read_private

ME = os.geteuid()
SOMEBODY_ELSE = ME + 12345
TEXT = "AGENT_COORD_MACHINE_ID=m5\n"

needs_root = pytest.mark.skipif(ME != 0, reason="only root can give a file away")


class Conventional:
    """A home with a user file where the convention puts it."""

    def __init__(self, home: Path) -> None:
        self.leaf = home / ".config" / "agent-coord"
        self.leaf.mkdir(parents=True)
        for directory in (self.leaf.parent, self.leaf):
            directory.chmod(0o755)
        self.leaf.chmod(0o700)
        self.file = write(self.leaf / "env", TEXT)
        self.lock = self.leaf / lock_name(os.path.realpath(self.leaf), "env")

    def read(self, waiting: Waiting | None = None) -> str | None:
        return read_private(str(self.file), explicit=False, uid=ME, waiting=waiting)

    def refusal(self, waiting: Waiting | None = None) -> str:
        return refusal(self.file, explicit=False, waiting=waiting)


def write(path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


def refusal(path: Path | str, *, explicit: bool = True, uid: int = ME, waiting: Waiting | None = None) -> str:
    with pytest.raises(ConfigError) as raised:
        read_private(str(path), explicit=explicit, uid=uid, waiting=waiting)
    return str(raised.value)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def home(private: Path) -> Conventional:
    return Conventional(private)


# The file itself


def test_a_private_file_is_read(home: Conventional) -> None:
    assert home.read() == TEXT
    assert read_private(str(home.file), explicit=True, uid=ME) == TEXT


def test_a_missing_file_is_empty_by_convention_and_an_error_by_name(private: Path) -> None:
    for path in (private / "env", private / "no" / "where" / "env"):
        assert read_private(str(path), explicit=False, uid=ME) is None
        assert read_private(str(path), explicit=True, uid=ME, missing_ok=True) is None
        assert refusal(path) == f"configured user env file does not exist: {path}"


def test_a_link_is_refused_even_to_a_private_file(home: Conventional, private: Path) -> None:
    home.file.rename(private / "real")
    home.file.symlink_to(private / "real")
    expected = f"user config must be a regular file, not a symlink: {home.file}"
    assert home.refusal() == expected
    assert refusal(home.file) == expected
    home.file.unlink()
    home.file.symlink_to(private / "nothing")
    assert home.refusal() == expected


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused_without_waiting_for_it(home: Conventional, make: Callable[[Path], None]) -> None:
    home.file.unlink()
    make(home.file)
    assert home.refusal() == f"user config must be a regular file: {home.file}"


def test_a_socket_is_refused(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(private)  # the path of a socket must be short, that of a cache directory may not be
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s")
        assert refusal(private / "s") == f"user config must be a regular file: {private / 's'}"


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero"])
def test_a_device_is_refused(path: str) -> None:
    assert refusal(path) == f"user config must be a regular file: {path}"


@pytest.mark.parametrize("path", ["/", "/dev/", "/dev/.", "/dev/.."])
def test_a_path_without_a_name_is_refused(path: str) -> None:
    assert refusal(path) == f"user config must be a regular file: {path}"


@pytest.mark.parametrize("mode", [0o601, 0o610, 0o640, 0o604, 0o620, 0o644, 0o666, 0o660])
def test_any_permission_of_others_is_insecure(home: Conventional, mode: int) -> None:
    home.file.chmod(mode)
    assert home.refusal() == f"user config permissions are insecure (expected 0600): {home.file}"


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_the_owners_own_permissions_are_theirs(home: Conventional, mode: int) -> None:
    home.file.chmod(mode)
    assert home.read() == TEXT


def test_somebody_elses_file_is_refused() -> None:
    assert refusal("/etc/passwd", uid=SOMEBODY_ELSE) == "user config is not owned by the current user: /etc/passwd"


@needs_root
def test_a_file_given_away_is_refused(home: Conventional) -> None:
    os.chown(home.file, SOMEBODY_ELSE, -1)
    assert home.refusal() == f"user config is not owned by the current user: {home.file}"


@pytest.mark.skipif(ME == 0, reason="root may read anything")
def test_a_file_the_owner_cannot_read_is_named(home: Conventional) -> None:
    home.file.chmod(0)
    assert home.refusal() == f"cannot read user config {home.file}: Permission denied"


@pytest.mark.parametrize("data", [b"# \xff\n", b"\xc3", b"\xed\xa0\x80", b"a\x80b"])
def test_only_utf8_is_text(home: Conventional, data: bytes) -> None:
    write(home.file, data)
    assert home.refusal() == f"user config contains invalid UTF-8: {home.file}"


@pytest.mark.parametrize("data", [b"", b"\0", b"\xef\xbb\xbfA=1\n", b"A=1\r\nB=2\r\n", b"#" * MAX_BYTES])
def test_any_other_bytes_come_through_unchanged(home: Conventional, data: bytes) -> None:
    write(home.file, data)
    assert home.read() == data.decode()


def test_a_file_that_does_not_end_is_not_read_to_its_end(home: Conventional) -> None:
    write(home.file, b"#" * (MAX_BYTES + 1))
    assert home.refusal() == f"user config is larger than {MAX_BYTES} bytes: {home.file}"
    os.truncate(home.file, 1 << 40)
    assert home.refusal() == f"user config is larger than {MAX_BYTES} bytes: {home.file}"


@pytest.mark.parametrize("path", ["/\0", "/a/\ud800", "/" + "x" * 300, "/" + "x/" * 3000 + "y"])
def test_a_path_that_cannot_be_one_is_refused(path: str) -> None:
    assert refusal(path).startswith("cannot read user config ")


# The directories above it


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o1777, 0o720])
def test_a_directory_others_may_change_is_unsafe(home: Conventional, mode: int) -> None:
    config = home.leaf.parent
    config.chmod(mode)
    assert home.refusal() == f"config parent permissions are unsafe: {config}"
    assert refusal(home.file) == f"config parent permissions are unsafe: {config}"


def test_a_component_that_is_a_file_is_named(home: Conventional, private: Path) -> None:
    write(private / "f", "")
    for path in (private / "f" / "env", private / "f" / "agent-coord" / "env"):
        for explicit in (True, False):
            expected = f"config parent component is not a directory: {private / 'f'}"
            assert refusal(path, explicit=explicit) == expected


@needs_root
def test_somebody_elses_directory_is_unsafe(home: Conventional) -> None:
    os.chown(home.leaf.parent, SOMEBODY_ELSE, -1)
    assert home.refusal() == f"config parent component has an unsafe owner: {home.leaf.parent}"


@needs_root
def test_somebody_elses_link_is_unsafe(home: Conventional, private: Path) -> None:
    home.leaf.parent.rename(private / "dotfiles")
    home.leaf.parent.symlink_to(private / "dotfiles")
    assert home.read() == TEXT
    os.chown(home.leaf.parent, SOMEBODY_ELSE, -1, follow_symlinks=False)
    assert home.refusal() == f"config parent must not contain a user-controlled symlink: {home.leaf.parent}"


@pytest.mark.parametrize("target", ["dotfiles", "./dotfiles/", "dotfiles/../dotfiles", "{private}/dotfiles", "via"])
def test_links_between_safe_directories_are_followed(home: Conventional, private: Path, target: str) -> None:
    home.leaf.parent.rename(private / "dotfiles")
    (private / "via").symlink_to("dotfiles")
    home.leaf.parent.symlink_to(target.format(private=private))
    home.leaf.chmod(0o755)
    assert home.read() == TEXT
    assert mode_of(private / "dotfiles" / "agent-coord") == 0o700


def test_a_link_does_not_hide_the_directories_it_leads_through(home: Conventional, private: Path) -> None:
    (private / "open" / "in").mkdir(parents=True)
    home.leaf.parent.rename(private / "open" / "in" / "dotfiles")
    home.leaf.parent.symlink_to(private / "open" / "in" / "dotfiles")
    (private / "open").chmod(0o777)
    assert home.refusal() == f"config parent permissions are unsafe: {private / 'open'}"


def test_the_directory_that_holds_a_link_is_checked_too(private: Path) -> None:
    (private / "open").mkdir()
    (private / "real").mkdir(mode=0o700)
    write(private / "real" / "env", TEXT)
    (private / "open" / "link").symlink_to(private / "real")
    (private / "open").chmod(0o777)
    assert refusal(private / "open" / "link" / "env") == f"config parent permissions are unsafe: {private / 'open'}"


def test_links_in_a_circle_end(private: Path) -> None:
    (private / "a").symlink_to("b")
    (private / "b").symlink_to("a")
    assert refusal(private / "a" / "env").startswith(f"cannot read user config {private}/a/env: Too many levels")


# The conventional directory


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o711, 0o705, 0o701, 0o2755])
def test_a_conventional_directory_is_closed_when_others_could_only_look(home: Conventional, mode: int) -> None:
    home.leaf.chmod(mode)
    assert home.read() == TEXT
    assert mode_of(home.leaf) == 0o700


@pytest.mark.parametrize("mode", [0o700, 0o500])
def test_a_closed_directory_is_left_alone(home: Conventional, mode: int) -> None:
    home.leaf.chmod(mode)
    assert home.read() == TEXT
    assert mode_of(home.leaf) == mode


@pytest.mark.parametrize("mode", [0o770, 0o775, 0o702, 0o720, 0o1777])
def test_a_conventional_directory_others_could_change_is_refused(home: Conventional, mode: int) -> None:
    home.leaf.chmod(mode)
    assert home.refusal() == f"config parent leaf permissions are unsafe (expected 0700): {home.leaf}"
    assert mode_of(home.leaf) == mode


def test_a_directory_somebody_named_is_never_changed(home: Conventional) -> None:
    home.leaf.chmod(0o755)
    assert read_private(str(home.file), explicit=True, uid=ME) == TEXT
    assert mode_of(home.leaf) == 0o755


def test_a_missing_file_changes_nothing(home: Conventional) -> None:
    home.file.unlink()
    home.leaf.chmod(0o755)
    assert home.read() is None
    assert mode_of(home.leaf) == 0o755


@needs_root
def test_a_conventional_directory_of_root_is_not_ours() -> None:
    # Root owns it, which is good enough for a directory above but not for this one.
    expected = "config parent leaf is not owned by the current user: /etc"
    assert refusal("/etc/passwd", explicit=False, uid=SOMEBODY_ELSE) == expected


def test_a_linked_leaf_is_closed_only_under_its_own_name(home: Conventional, private: Path) -> None:
    (private / "dotfiles").mkdir()
    real = private / "dotfiles" / "agent-coord"
    home.leaf.rename(real)
    home.leaf.symlink_to(real)
    real.chmod(0o755)
    assert home.read() == TEXT
    assert mode_of(real) == 0o700
    other = real.rename(private / "dotfiles" / "everything")
    other.chmod(0o755)
    home.leaf.unlink()
    home.leaf.symlink_to(other)
    assert home.refusal() == f"config parent leaf permissions are unsafe (expected 0700): {other}"
    assert mode_of(other) == 0o755
    other.chmod(0o700)
    assert home.read() == TEXT


# The lock


class FakeTime:
    """A clock that moves when somebody sleeps, and what happens meanwhile."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.meanwhile = meanwhile
        self.waiting = Waiting(clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.meanwhile()


def held(lock: Path) -> int:
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def test_the_lock_is_named_after_the_real_directory() -> None:
    assert lock_name("/home/u/.config/agent-coord", "env") == ".agent-coord-config-4f99b3471b14419d.lock"


def test_a_writer_is_waited_for(home: Conventional) -> None:
    writer = held(home.lock)

    def finish() -> None:
        if len(time.slept) == 3:
            write(home.file, "AGENT_COORD_REF=new\n")
            os.close(writer)

    time = FakeTime(finish)
    assert home.read(time.waiting) == "AGENT_COORD_REF=new\n"
    assert time.slept == [0.05, 0.05, 0.05]


def test_a_writer_is_waited_for_no_longer_than_two_seconds(home: Conventional) -> None:
    writer = held(home.lock)
    time = FakeTime()
    expected = f"timed out acquiring config read lock after 2 seconds: {home.lock}"
    assert home.refusal(time.waiting) == expected
    assert sum(time.slept) == pytest.approx(2.0)
    os.close(writer)


def test_readers_do_not_wait_for_each_other(home: Conventional) -> None:
    descriptor = held(home.lock)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    time = FakeTime()
    assert home.read(time.waiting) == TEXT
    assert time.slept == []
    os.close(descriptor)


def test_the_lock_of_a_linked_directory_is_that_of_the_real_one(home: Conventional, private: Path) -> None:
    writer = held(home.lock)
    (private / "link").symlink_to(home.leaf)
    expected = f"timed out acquiring config read lock after 2 seconds: {home.lock}"
    assert refusal(private / "link" / "env", waiting=FakeTime().waiting) == expected
    os.close(writer)


def test_a_lock_that_is_no_private_file_is_refused(home: Conventional, private: Path) -> None:
    home.lock.symlink_to(write(private / "elsewhere", ""))
    assert home.refusal() == f"config lock must not be a symlink: {home.lock}"
    home.lock.unlink()
    os.mkfifo(home.lock)
    assert home.refusal() == f"config lock must be a regular file: {home.lock}"
    home.lock.unlink()
    write(home.lock, "", 0o644)
    assert home.refusal() == f"config lock permissions are insecure (expected 0600): {home.lock}"


def test_without_a_lock_file_nothing_is_created(home: Conventional) -> None:
    assert home.read() == TEXT
    assert list(home.leaf.iterdir()) == [home.file]


# Swapped between looking and opening


def test_a_link_put_there_after_the_checks_is_not_followed(home: Conventional, private: Path) -> None:
    write(private / "bait", "AGENT_COORD_API_URL=https://evil.example\n")
    writer = held(home.lock)

    def swap() -> None:
        home.file.unlink()
        home.file.symlink_to(private / "bait")
        os.close(writer)

    assert home.refusal(FakeTime(swap).waiting) == f"user config must be a regular file, not a symlink: {home.file}"


def test_a_directory_put_there_after_the_checks_is_not_entered(home: Conventional, private: Path) -> None:
    bait = private / "bait"
    bait.mkdir()
    write(bait / "env", "AGENT_COORD_API_URL=https://evil.example\n")
    writer = held(home.lock)

    def swap() -> None:
        home.leaf.rename(private / "away")
        home.leaf.symlink_to(bait)
        os.close(writer)

    assert home.read(FakeTime(swap).waiting) == TEXT


def test_swapping_all_the_time_never_leads_anywhere_else(home: Conventional, private: Path) -> None:
    bait = private / "bait"
    bait.mkdir()
    bait.chmod(0o755)
    write(bait / "env", "AGENT_COORD_API_URL=https://evil.example\n")
    stop = Event()

    def swap() -> None:
        while not stop.is_set():
            with suppress(OSError):
                home.leaf.rename(private / "away")
                home.leaf.symlink_to(bait)
                home.leaf.unlink()
                (private / "away").chmod(0o755)
                (private / "away").rename(home.leaf)

    swapper = Thread(target=swap)
    swapper.start()
    seen: set[str | None] = set()
    try:
        for _ in range(500):
            with suppress(ConfigError):
                seen.add(home.read())
    finally:
        stop.set()
        swapper.join()
    assert seen <= {TEXT, None}
    assert mode_of(bait) == 0o755


# A glance at a consumer file


def test_a_glance_follows_links_and_minds_no_permissions(private: Path) -> None:
    write(private / "real", "x=1\n", 0o644)
    (private / "link").symlink_to("real")
    assert peek(str(private / "link")) == "x=1\n"


def test_a_glance_at_what_cannot_be_read_is_nothing(private: Path) -> None:
    os.mkfifo(private / "fifo")
    write(private / "binary", b"AGENT_COORD_API_URL=x\n\xff")
    for path in (private / "none", private / "fifo", private / "binary", private, Path("/dev/null")):
        assert peek(str(path)) is None
    assert peek("/\0") is None


def test_a_glance_ends(private: Path) -> None:
    long = write(private / "long", "é" * MAX_BYTES)
    assert peek(str(long)) == "é" * (MAX_BYTES // 2)
    write(long, "x" + "é" * MAX_BYTES)
    assert peek(str(long)) == "x" + "é" * (MAX_BYTES // 2 - 1)


# Whatever else may lie there

TOKENS = [
    *(key.encode() for key in envfile.ALLOWED),
    *[b"AGENT_COORD_BOGUS", b"OTHER", b"export ", b"=", b"'", b'"', b"\\", b"#", b" ", b"\n", b"\r\n", b"\0"],
    *[b"\xff", b"\xef\xbb\xbf", b"/abs", b"rel", b"required", b"$(x)", "é".encode()],
]


def random_bytes(chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.2:
        return chance.randbytes(chance.randrange(200))
    if kind < 0.21:
        return chance.choice(TOKENS) * 40_000
    return b"".join(chance.choice(TOKENS) for _ in range(chance.randrange(40)))


def put_anything(path: Path, chance: random.Random) -> None:
    kind = chance.random()
    if kind < 0.9:
        write(path, random_bytes(chance), 0o600 if chance.random() < 0.9 else chance.randrange(0o1000))
    elif kind < 0.92:
        path.mkdir(mode=chance.randrange(0o1000))
    elif kind < 0.94:
        os.mkfifo(path, chance.randrange(0o1000))
    elif kind < 0.98:
        path.symlink_to(chance.choice(["/etc/passwd", "/dev/zero", "nowhere", "env", ".", "/"]))


def test_whatever_lies_there_is_read_or_refused(home: Conventional) -> None:
    """AGENT_COORD_FUZZ_FILES sets how many files are tried."""
    chance = random.Random(20260101)
    home.file.unlink()
    read = refused = 0
    for _ in range(int(os.environ.get("AGENT_COORD_FUZZ_FILES", "2000"))):
        put_anything(home.file, chance)
        home.leaf.chmod(0o700 if chance.random() < 0.9 else 0o700 | chance.randrange(0o100))
        try:
            text = home.read()
            envfile.configures_api_url(text or "")
            envfile.parse(text or "", str(home.file))
            read += 1
        except ConfigError:
            refused += 1
        home.leaf.chmod(0o700)
        if home.file.is_dir() and not home.file.is_symlink():
            home.file.rmdir()
        else:
            home.file.unlink(missing_ok=True)
    assert read
    assert refused


# What mends it


@pytest.mark.parametrize(("mode", "mended"), [(0o777, True), (0o1777, False), (0o2775, False)])
def test_a_directory_that_everybody_shares_is_not_to_be_closed(private: Path, mode: int, mended: bool) -> None:
    above = private / "it's open"
    above.mkdir()
    above.chmod(mode)
    with pytest.raises(ConfigError) as raised:
        read_private(str(write(above / "env", TEXT)), explicit=True, uid=ME)
    assert raised.value.finding == "user_file.parent_mode"
    quoted = str(above).replace("'", "'\"'\"'")
    assert raised.value.mend == (f"chmod go-w '{quoted}'" if mended else None)


def test_a_directory_under_another_name_is_not_to_be_closed(private: Path) -> None:
    other = private / "shared"
    other.mkdir()
    other.chmod(0o755)
    write(other / "env", TEXT)
    (private / "agent-coord").symlink_to(other)
    with pytest.raises(ConfigError) as raised:
        read_private(str(private / "agent-coord" / "env"), explicit=False, uid=ME)
    assert (raised.value.finding, raised.value.mend) == ("user_file.parent_mode", None)


@pytest.mark.parametrize("mode", [0o000, 0o200])
def test_a_closed_file_of_ours_is_opened_to_us(home: Conventional, mode: int) -> None:
    home.file.chmod(mode)
    assert opening(str(home.file), ME) == f"chmod 600 {home.file}"
    assert opening(str(home.file), SOMEBODY_ELSE) is None
    home.file.chmod(0o600)
    home.leaf.chmod(mode)
    assert opening(str(home.file), ME) == f"chmod 700 {home.leaf}"
    home.leaf.chmod(0o700)
    assert opening(str(home.file), ME) is None
    assert opening(str(home.leaf / "absent"), ME) is None


# Swapped by hand, at the very call that comes next


def before_opening(monkeypatch: pytest.MonkeyPatch, path: Path, swap: Callable[[], None]) -> None:
    """Swap once, right before a directory is opened by its path."""
    real, swapped = os.open, list[bool]()

    def opened(name: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if name == str(path) and not swapped:
            swapped.append(True)
            swap()
        return real(name, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", opened)


def swapped_for(directory: Path, bait: Path) -> Callable[[], None]:
    bait.mkdir()
    bait.chmod(0o755)
    write(bait / "env", "AGENT_COORD_API_URL=https://evil.example\n")

    def swap() -> None:
        directory.rename(directory.parent / "away")
        bait.rename(directory)

    return swap


def test_another_directory_than_the_one_checked_is_not_read(
    home: Conventional, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_opening(monkeypatch, home.leaf, swapped_for(home.leaf, private / "bait"))
    assert refusal(home.file) == f"config parent changed while it was checked: {home.leaf}"


def test_another_directory_than_the_one_checked_is_not_closed(
    home: Conventional, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.leaf.chmod(0o755)
    before_opening(monkeypatch, home.leaf, swapped_for(home.leaf, private / "bait"))
    assert home.refusal() == f"config parent changed while it was checked: {home.leaf}"
    assert mode_of(home.leaf) == 0o755


def test_a_directory_that_stays_open_is_refused(home: Conventional, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(descriptor: int, mode: int) -> None:
        """As on a file system whose permissions are those of the mount."""

    home.leaf.chmod(0o755)
    monkeypatch.setattr(os, "fchmod", kept)
    assert home.refusal() == f"config parent leaf permissions are unsafe (expected 0700): {home.leaf}"


def test_the_root_of_all_directories_is_checked_too(home: Conventional, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.lstat

    def open_to_all(path: Any, **more: Any) -> os.stat_result:
        found = real(path, **more)
        return os.stat_result((found.st_mode | 0o022, *list(found)[1:10])) if path == "/" else found

    monkeypatch.setattr(os, "lstat", open_to_all)
    assert home.refusal() == "config parent permissions are unsafe: /"


def test_no_file_becomes_the_terminal_of_the_process(home: Conventional, monkeypatch: pytest.MonkeyPatch) -> None:
    os.close(held(home.lock))
    real, kept = os.open, dict[str, bool]()

    def opened(name: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if not flags & (os.O_DIRECTORY | getattr(os, "O_PATH", 0)):
            kept[str(name)] = bool(flags & os.O_NOCTTY)
        return real(name, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", opened)
    assert home.read() == peek(str(home.file)) == TEXT
    rewrite_private(str(home.file), lambda _: TEXT, explicit=False, uid=ME)
    assert {name: kept[name] for name in ("env", home.lock.name, str(home.file))} == {
        "env": True,
        home.lock.name: True,
        str(home.file): True,
    }
