"""A private file is written whole and for its owner alone, or not touched at all."""

import errno
import fcntl
import os
import resource
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from agentcoord import files
from agentcoord.errors import ConfigError, UsageError
from agentcoord.settings.privatewrite import rewrite_private
from agentcoord.settings.securefile import MAX_BYTES, Waiting, lock_name, read_private

ME = os.geteuid()
SOMEBODY_ELSE = ME + 12345
OLD, NEW = "AGENT_COORD_MACHINE_ID=old\n", "AGENT_COORD_MACHINE_ID=new\n"

needs_root = pytest.mark.skipif(ME != 0, reason="only root can give a file away")


def write(
    path: Path, text: str = NEW, *, explicit: bool = False, uid: int = ME, waiting: Waiting | None = None
) -> list[str | None]:
    seen: list[str | None] = []

    def change(before: str | None) -> str:
        seen.append(before)
        return text

    rewrite_private(str(path), change, explicit=explicit, uid=uid, waiting=waiting)
    return seen


def refusal(path: Path, text: str = NEW, *, explicit: bool = False, uid: int = ME) -> str:
    with pytest.raises(ConfigError) as raised:
        write(path, text, explicit=explicit, uid=uid)
    return str(raised.value)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def lock_of(path: Path) -> Path:
    return path.parent / lock_name(os.path.realpath(path.parent), path.name)


def names(directory: Path) -> set[str]:
    return {place.name for place in directory.iterdir()}


@contextmanager
def umask(value: int) -> Generator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture
def env(private: Path) -> Path:
    """An existing user file where the convention puts it, with its lock."""
    leaf = private / ".config" / "agent-coord"
    leaf.mkdir(parents=True)
    leaf.parent.chmod(0o755)
    leaf.chmod(0o700)
    write(leaf / "env", OLD)
    return leaf / "env"


# What is made


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o177])
@pytest.mark.parametrize("explicit", [False, True])
def test_all_that_is_made_is_private_whatever_the_umask(private: Path, mask: int, explicit: bool) -> None:
    path = private / "a" / "b" / "agent-coord" / "env"
    with umask(mask):
        assert write(path, explicit=explicit) == [None, None]
    assert path.read_text() == NEW
    assert mode(path) == mode(lock_of(path)) == 0o600
    assert {mode(private / "a"), mode(private / "a/b"), mode(path.parent)} == {0o700}
    assert mode(private) == 0o755
    assert names(path.parent) == {"env", lock_of(path).name}
    assert read_private(str(path), explicit=explicit, uid=ME) == NEW


def test_an_existing_file_is_shown_to_the_change_and_replaced(env: Path) -> None:
    before = env.stat().st_ino
    assert write(env) == [OLD]
    assert (env.read_text(), mode(env)) == (NEW, 0o600)
    assert env.stat().st_ino != before
    assert write(env, "") == [NEW]
    assert env.read_bytes() == b""


def test_an_explicit_file_leaves_its_neighbours_alone(private: Path) -> None:
    (private / ".config.lock").write_text("another program's")
    write(private / "mine.env", explicit=True)
    assert names(private) == {".config.lock", "mine.env", lock_of(private / "mine.env").name}
    assert (private / ".config.lock").read_text() == "another program's"
    assert mode(private) == 0o755


def test_a_leaf_others_can_look_into_is_closed(env: Path) -> None:
    env.parent.chmod(0o755)
    write(env)
    assert mode(env.parent) == 0o700


def test_a_link_of_ours_is_followed_and_what_it_leads_to_is_made(private: Path) -> None:
    (private / "dotfiles").mkdir(mode=0o755)
    (private / ".config").symlink_to("dotfiles/config")
    path = private / ".config/agent-coord/env"
    write(path)
    assert (private / "dotfiles/config/agent-coord/env").read_text() == NEW
    assert mode(private / "dotfiles/config") == 0o700
    assert lock_of(path).exists()


# What is refused


def test_a_change_that_is_refused_leaves_nothing_behind(private: Path, env: Path) -> None:
    def refuse(_: str | None) -> str:
        raise UsageError("no")

    missing = private / "x" / "agent-coord" / "env"
    for path in (missing, env):
        with pytest.raises(UsageError, match="no"):
            rewrite_private(str(path), refuse, explicit=False, uid=ME)
    assert not missing.parent.parent.exists()
    assert env.read_text() == OLD
    assert names(env.parent) == {"env", lock_of(env).name}


def link_file(env: Path) -> str:
    env.rename(env.parent / "real")
    env.symlink_to("real")
    return f"user config must be a regular file, not a symlink: {env}"


def link_to_nothing(env: Path) -> str:
    env.unlink()
    env.symlink_to("nothing")
    return f"user config must be a regular file, not a symlink: {env}"


def open_file(env: Path) -> str:
    env.chmod(0o640)
    return f"user config permissions are insecure (expected 0600): {env}"


def directory_file(env: Path) -> str:
    env.unlink()
    env.mkdir()
    return f"user config must be a regular file: {env}"


def pipe_file(env: Path) -> str:
    env.unlink()
    os.mkfifo(env, 0o600)
    return f"user config must be a regular file: {env}"


def binary_file(env: Path) -> str:
    env.write_bytes(b"\xff")
    return f"user config contains invalid UTF-8: {env}"


def link_lock(env: Path) -> str:
    lock_of(env).unlink()
    lock_of(env).symlink_to(env.parent / "elsewhere")
    return f"config lock must not be a symlink: {lock_of(env)}"


def open_lock(env: Path) -> str:
    lock_of(env).chmod(0o604)
    return f"config lock permissions are insecure (expected 0600): {lock_of(env)}"


def directory_lock(env: Path) -> str:
    lock_of(env).unlink()
    lock_of(env).mkdir()
    return f"config lock must be a regular file: {lock_of(env)}"


def pipe_lock(env: Path) -> str:
    lock_of(env).unlink()
    os.mkfifo(lock_of(env), 0o600)
    return f"config lock must be a regular file: {lock_of(env)}"


def open_parent(env: Path) -> str:
    env.parent.parent.chmod(0o777)
    return f"config parent permissions are unsafe: {env.parent.parent}"


def open_leaf(env: Path) -> str:
    env.parent.chmod(0o770)
    return f"config parent leaf permissions are unsafe (expected 0700): {env.parent}"


def unwritable_leaf(env: Path) -> str:
    env.parent.chmod(0o500)
    return f"config parent leaf permissions are unsafe (expected 0700): {env.parent}"


def file_as_parent(env: Path) -> str:
    env.parent.rename(env.parent.parent / "away")
    env.parent.write_text("")
    return f"config parent component is not a directory: {env.parent}"


def given_file(env: Path) -> str:
    os.chown(env, SOMEBODY_ELSE, -1)
    return f"user config is not owned by the current user: {env}"


def given_lock(env: Path) -> str:
    os.chown(lock_of(env), SOMEBODY_ELSE, -1)
    return f"config lock is not owned by the current user: {lock_of(env)}"


def given_leaf(env: Path) -> str:
    os.chown(env.parent, SOMEBODY_ELSE, -1)
    return f"config parent leaf is not owned by the current user: {env.parent}"


def given_parent(env: Path) -> str:
    os.chown(env.parent.parent, SOMEBODY_ELSE, -1)
    return f"config parent component has an unsafe owner: {env.parent.parent}"


def given_link(env: Path) -> str:
    config = env.parent.parent
    config.rename(config.parent / "real")
    config.symlink_to("real")
    os.lchown(config, SOMEBODY_ELSE, -1)
    return f"config parent must not contain a user-controlled symlink: {config}"


SPOILT: list[Callable[[Path], str]] = [
    link_file,
    link_to_nothing,
    open_file,
    directory_file,
    pipe_file,
    binary_file,
    link_lock,
    open_lock,
    directory_lock,
    pipe_lock,
    open_parent,
    open_leaf,
    unwritable_leaf,
    file_as_parent,
]
GIVEN: list[Callable[[Path], str]] = [given_file, given_lock, given_leaf, given_parent, given_link]


def picture(top: Path) -> dict[str, tuple[int, bytes | str]]:
    """Everything below a directory: modes, contents, where links lead."""
    seen: dict[str, tuple[int, bytes | str]] = {}
    for place in sorted(top.rglob("*")):
        found: bytes | str = b""
        if place.is_symlink():
            found = os.readlink(place)
        elif place.is_file():
            found = place.read_bytes()
        seen[str(place.relative_to(top))] = (place.lstat().st_mode, found)
    return seen


@pytest.mark.parametrize(
    "spoil", [*SPOILT, *(pytest.param(one, marks=needs_root) for one in GIVEN)], ids=lambda spoil: spoil.__name__
)
def test_what_is_not_plainly_ours_is_refused_and_left_as_it_is(
    private: Path, env: Path, spoil: Callable[[Path], str]
) -> None:
    said = spoil(env)
    before = picture(private)
    assert refusal(env) == said
    assert picture(private) == before


def test_no_file_has_the_name_of_a_directory(private: Path) -> None:
    for tail in ("", ".", ".."):
        with pytest.raises(ConfigError, match="user config must be a regular file: "):
            rewrite_private(f"{private}/x/{tail}", lambda _: NEW, explicit=True, uid=ME)
    assert not list(private.iterdir())


def test_a_path_no_system_call_takes(private: Path) -> None:
    assert refusal(private / ("n" * 300), explicit=True).startswith("cannot write user config ")
    assert refusal(Path(f"{private}/x\0y")).startswith("cannot write user config ")


@pytest.mark.skipif(ME == 0, reason="root may write anywhere")
def test_a_directory_we_may_not_write_to(private: Path) -> None:
    private.chmod(0o500)
    assert refusal(private / "x" / "env", explicit=True).endswith(": Permission denied")


# What fails


def test_a_file_too_large_to_read_again_is_not_written(env: Path) -> None:
    assert refusal(env, "x" * (MAX_BYTES + 1)) == f"user config is larger than {MAX_BYTES} bytes: {env}"
    assert env.read_text() == OLD
    write(env, "x" * MAX_BYTES)


@contextmanager
def file_size_limit(size: int) -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_ends_halfway_leaves_the_old_file(env: Path) -> None:
    before = env.stat()
    with file_size_limit(100):
        said = refusal(env, "x" * 200)
    assert said == f"cannot write user config {env}: File too large"
    assert env.read_text() == OLD
    assert env.stat().st_ino == before.st_ino
    assert names(env.parent) == {"env", lock_of(env).name}
    write(env)  # the lock was released


@pytest.mark.parametrize("call", ["write", "fsync", "fchmod", "rename"])
@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "full"), SystemExit(143)])
def test_a_step_that_fails_leaves_the_old_file(
    env: Path, monkeypatch: pytest.MonkeyPatch, call: str, fault: BaseException
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise fault

    with monkeypatch.context() as patched:
        patched.setattr(files.os, call, fail)
        with pytest.raises(ConfigError if isinstance(fault, OSError) else SystemExit) as raised:
            write(env)
    if isinstance(fault, OSError):
        assert str(raised.value) == f"cannot write user config {env}: No space left on device"
    assert env.read_text() == OLD
    assert names(env.parent) == {"env", lock_of(env).name}
    write(env)


# Others at the same time


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    @property
    def waiting(self) -> Waiting:
        return Waiting(lambda: self.now, self.sleep)


@contextmanager
def held(lock: Path, operation: int) -> Generator[None]:
    descriptor = os.open(lock, os.O_RDONLY)
    fcntl.flock(descriptor, operation)
    try:
        yield
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("operation", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_a_lock_that_is_never_released_ends_the_wait(env: Path, operation: int) -> None:
    clock = Clock()
    with held(lock_of(env), operation), pytest.raises(ConfigError) as raised:
        write(env, waiting=clock.waiting)
    assert str(raised.value) == f"timed out acquiring config write lock after 30 seconds: {lock_of(env)}"
    assert (round(clock.now - 1000, 6), max(clock.pauses)) == (30, 0.05)
    assert env.read_text() == OLD
    assert names(env.parent) == {"env", lock_of(env).name}


def test_a_writer_reads_what_the_one_before_it_wrote(env: Path) -> None:
    waits, go = Event(), Event()
    seen: list[str | None] = []

    def sleep(_: float) -> None:
        waits.set()
        go.wait()

    with held(lock_of(env), fcntl.LOCK_EX):
        writer = Thread(target=lambda: seen.extend(write(env, waiting=Waiting(sleep=sleep))))
        writer.start()
        waits.wait()
        env.write_text("AGENT_COORD_REF=meanwhile\n")
    go.set()
    writer.join()
    assert seen == ["AGENT_COORD_REF=meanwhile\n"]
    assert env.read_text() == NEW


def test_nobody_reads_while_a_file_is_changed(env: Path) -> None:
    clock = Clock()

    def change(_: str | None) -> str:
        with pytest.raises(ConfigError, match="timed out acquiring config read lock after 2 seconds"):
            read_private(str(env), explicit=False, uid=ME, waiting=clock.waiting)
        return NEW

    rewrite_private(str(env), change, explicit=False, uid=ME)
    assert read_private(str(env), explicit=False, uid=ME) == NEW


@pytest.mark.parametrize("mask", [0o277, 0o377])
def test_the_lock_is_private_whatever_the_umask(env: Path, mask: int) -> None:
    lock_of(env).unlink()
    with umask(mask):
        write(env)
    assert mode(lock_of(env)) == 0o600


def test_the_name_of_a_directory_that_was_made_is_durable(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, synced = os.fsync, set[tuple[int, int]]()

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.add((found.st_dev, found.st_ino))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write(private / "a" / "agent-coord" / "env")
    for directory in (private, private / "a", private / "a" / "agent-coord"):
        assert (directory.stat().st_dev, directory.stat().st_ino) in synced


def test_what_killed_writers_left_is_removed(env: Path) -> None:
    left = [".env.tmp-123-0a1b2c3d4e5f", ".env.tmp-9-00"]
    kept = [".env.tmp-x-0a", ".environment.tmp-1-0a", "env.tmp-1-0a", ".policy.tmp-1-0a"]
    for name in (*left, *kept):
        (env.parent / name).write_text("AGENT_COORD_API_TOKEN=of another time\n")
    (env.parent / ".env.tmp-7-0b").symlink_to(private_of := env.parent / "precious")
    private_of.write_text("precious")
    (env.parent / ".env.tmp-8-0b").mkdir()
    write(env)
    assert names(env.parent) == {"env", lock_of(env).name, *kept, "precious", ".env.tmp-8-0b"}
    assert private_of.read_text() == "precious"
