"""Which file system a state root lies on, and whether its locks keep writers on other machines out.

Two writers of a record meet at an flock. A network file system may be told to keep such locks on the
machine that takes them: each side then believes to be alone, and one overwrites the other.
"""

import fcntl
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from agentcoord.errors import StoreError
from agentcoord.files import cause_of, printable
from agentcoord.settings.selection import redact, shown_address

MOUNT_TABLE = "/proc/self/mountinfo"
OPENED = "/proc/self/fdinfo/{}"
_MAC_MOUNT = "/sbin/mount"
_MAC_SECONDS = 5.0

Locks = Literal["shared", "network", "untested", "tested", "private"]
"""What flock is worth: `shared` on a local disk, `network` where the server has to keep it, `untested` and
`tested` on a kind of file system that is not known here, `private` where others do not see it."""

_LOCAL = frozenset(
    [
        "apfs",
        "aufs",
        "bcachefs",
        "btrfs",
        "ecryptfs",
        "erofs",
        "exfat",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "hfs",
        "hfsplus",
        "jfs",
        "minix",
        "msdos",
        "nilfs2",
        "ntfs",
        "ntfs3",
        "overlay",
        "overlayfs",
        "ramfs",
        "reiserfs",
        "rootfs",
        "tmpfs",
        "ubifs",
        "udf",
        "ufs",
        "vfat",
        "xfs",
        "zfs",
    ]
)
_NETWORK = frozenset(
    [
        "9p",
        "afpfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "fuse.ceph",
        "fuse.glusterfs",
        "glusterfs",
        "gfs2",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "smb2",
        "smb3",
        "smbfs",
        "webdav",
    ]
)
_PRIVATE = frozenset(["fuse.gcsfuse", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "fuse.goofys"])
"""Kinds whose locks never leave the machine."""
_NFS = ("nolock", "nolocks", "locallocks", "local_lock=flock", "local_lock=all")
_SMB = ("nobrl", "nolock")
_KEEPS_LOCKS = {
    "nfs": _NFS,
    "nfs4": _NFS,
    "cifs": _SMB,
    "smb2": _SMB,
    "smb3": _SMB,
    "lustre": ("localflock", "noflock"),
    "gfs2": ("localflocks",),
    "ocfs2": ("localflocks",),
}
"""Options by which a file system keeps flock on the machine."""

_MAC_LOCAL = "local"
_TELLING = frozenset({_MAC_LOCAL}.union(*_KEEPS_LOCKS.values()))
"""The options that decide anything; of the others, any may be a secret."""

PROBE = "flock"
"""The fault of a file system whose locks were tried and do not work."""

_MOUNT_ID = re.compile(r"^mnt_id:\s*([0-9]+)$", re.MULTILINE)
_ESCAPED = re.compile(r"\\([0-7]{3})")
_MAC_LINE = re.compile(r"(?P<source>.+?) on (?P<point>/.*) \((?P<type>[^,()]+)(?:, (?P<options>[^()]*))?\)")
_LEAST_FIELDS = 6


class Mount(Struct, frozen=True):
    """A mounted file system. `source` comes without what may be secret, and of `options` only those that decide.

    `id` and the `parent` it is mounted on are the kernel's, 0 where they are not told.
    """

    point: str
    type: str
    options: tuple[str, ...] = ()
    source: str = ""
    id: int = 0
    parent: int = 0


class FileSystem(Struct, frozen=True):
    """Where a state root lies, what its locks are worth, and the option (or kind) that makes them private."""

    mount: Mount
    locks: Locks
    fault: str | None = None


def parse_mount_table(text: str) -> list[Mount]:
    """Read the kernel's table of mounts, in its order; a line of another form is passed over."""
    mounts: list[Mount] = []
    for line in text.split("\n"):
        placed, _, kept = line.partition(" - ")
        left, right = placed.split(" "), kept.split(" ")
        if len(left) < _LEAST_FIELDS or not right[0] or not (left[0].isdecimal() and left[1].isdecimal()):
            continue
        source = _unescaped(right[1]) if len(right) > 1 else ""
        options = [*left[5].split(","), *(right[2].split(",") if len(right) > 2 else ())]
        # A network file system may be mounted with an option of that name, which means something else.
        telling = (option for option in map(_unescaped, options) if option != _MAC_LOCAL)
        mount = _mount(_unescaped(left[4]), _unescaped(right[0]), telling, source)
        mounts.append(replace(mount, id=int(left[0]), parent=int(left[1])))
    return mounts


def parse_mac_mounts(text: str) -> list[Mount]:
    """Read what `/sbin/mount` prints on macOS, in its order; a line of another form is passed over."""
    return [
        _mount(
            found["point"],
            found["type"],
            # What is mounted through FUSE may call itself local, and often does.
            [o for o in (found["options"] or "").split(", ") if o != _MAC_LOCAL or "fuse" not in found["type"]],
            found["source"],
        )
        for line in text.split("\n")
        if (found := _MAC_LINE.fullmatch(line))
    ]


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """Give the mount that a real absolute path lies on, as the kernel walks to it.

    A mount may be hidden by a later one over a shorter path: what counts is what is mounted on the mount
    that was reached so far. Where nobody tells what is mounted on what, the last one above the path counts.
    """
    above = [mount for mount in mounts if (path.rstrip("/") + "/").startswith(mount.point.rstrip("/") + "/")]
    known = {mount.id for mount in above}
    here = next((mount for mount in reversed(above) if mount.point == "/" and mount.parent not in known), None)
    if here is None or not here.id:
        return above[-1] if above else None
    ahead = above
    while ahead := [mount for mount in ahead if mount is not here and len(mount.point) >= len(here.point)]:
        nearest = min((len(mount.point) for mount in ahead if mount.parent == here.id), default=None)
        if nearest is None:
            break
        here = next(m for m in reversed(ahead) if m.parent == here.id and len(m.point) == nearest)
    return here


def judge(mount: Mount) -> FileSystem:
    """Tell what the locks of a mount are worth by its kind and options alone."""
    if mount.type in _PRIVATE:
        return FileSystem(mount, "private", mount.type)
    if mount.type in _NETWORK:
        fault = next((option for option in mount.options if option in _KEEPS_LOCKS.get(mount.type, ())), None)
        return FileSystem(mount, "network" if fault is None else "private", fault)
    return FileSystem(mount, "shared" if mount.type in _LOCAL or _MAC_LOCAL in mount.options else "untested")


def require_locks(root: str, found: FileSystem) -> None:
    """Check that writers of a root keep each other out. Raises StoreError naming root, kind and option."""
    if found.locks != "private":
        return
    kind, way_out = found.mount.type, "move the root to a local disk"
    if found.fault == PROBE:
        why = "a lock held there kept nobody out"
    elif found.fault == kind:
        why = "its locks are not seen by other machines"
    else:
        why = f"mounted with {found.fault}, which keeps locks on each machine"
        way_out = f"mount {found.mount.point} without it, or {way_out}"
    raise StoreError(
        f"state root has no working locks: {root} is on {kind}: {printable(why)}; {printable(way_out)}",
        finding="file_system.locks",
    )


def look(
    root: str, read_file: Callable[[str], bytes], random: Callable[[int], bytes], *, mac: bool
) -> FileSystem | None:
    """Find out where a root lies; None where nobody can tell. A kind that is not known is tried (see `tried`).

    `read_file` raises OSError, `random` gives that many bytes.
    """
    try:
        mounts = _mac_mounts() if mac else parse_mount_table(os.fsdecode(read_file(MOUNT_TABLE)))
        mount = _opened(root, mounts, read_file) or mount_of(os.path.realpath(root), mounts)
    except (OSError, ValueError):  # ValueError: a path no system call accepts
        return None
    if mount is None:
        return None
    found = judge(mount)
    return tried(root, found, random) if found.locks == "untested" else found


def is_near(root: str, read_file: Callable[[str], bytes], *, mac: bool) -> bool:
    """Tell whether all directories on the way to a root lie on this machine: then looking there waits for no other.

    False also where nobody can tell. Nothing is tried. `read_file` raises OSError.
    """
    try:
        mounts = _mac_mounts() if mac else parse_mount_table(os.fsdecode(read_file(MOUNT_TABLE)))
        real = os.path.realpath(root)
    except (OSError, ValueError):
        return False
    on_the_way = {path[:end] or "/" for path in (root, f"{real}/") for end, sign in enumerate(path) if sign == "/"}
    found = (mount_of(path, mounts) for path in on_the_way)
    return all(mount is not None and judge(mount).locks == "shared" for mount in found)


def _opened(root: str, mounts: Iterable[Mount], read_file: Callable[[str], bytes]) -> Mount | None:
    """Ask the kernel which mount a root was opened on; None where it does not say, or there is no root."""
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            told = os.fsdecode(read_file(OPENED.format(descriptor)))
        finally:
            os.close(descriptor)
    except OSError:
        return None
    found = _MOUNT_ID.search(told)
    return None if found is None else next((mount for mount in mounts if mount.id == int(found.group(1))), None)


def require_room(root: str, random: Callable[[int], bytes], *, write: Callable[[int, bytes], int] = os.write) -> None:
    """Check by writing a file, which is removed again, that a root takes one. Raises StoreError.

    Permissions alone do not tell: a disk may be full or read-only, and root may write where nothing can be.
    """
    place = f"{root.rstrip('/')}/.write-probe-{os.getpid()}-{random(6).hex()}"
    try:
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            write(descriptor, b"\n")
            os.fsync(descriptor)  # where a disk that allocates late says that it is full
        finally:
            os.close(descriptor)
            os.unlink(place)
    except (OSError, ValueError) as error:
        why = cause_of(error) if isinstance(error, OSError) else str(error)
        raise StoreError(f"state root is not writable: {root}: {why}", finding="state_root.unwritable") from error


def tried(root: str, found: FileSystem, random: Callable[[int], bytes]) -> FileSystem:
    """Try whether a lock keeps a second taker out, on a file of that purpose which is removed again.

    Where no file can be made it stays `untested`; that the root is not writable is somebody else's finding.
    """
    place = f"{root.rstrip('/')}/.lock-probe-{os.getpid()}-{random(6).hex()}"
    try:
        first = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (OSError, ValueError):
        return found
    try:
        second = os.open(place, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            works = excludes(first, second)
        finally:
            os.close(second)
    except OSError:
        works = False
    finally:
        os.close(first)
        with suppress(OSError):
            os.unlink(place)
    return FileSystem(found.mount, "tested") if works else FileSystem(found.mount, "private", PROBE)


def excludes(first: int, second: int, flock: Callable[[int, int], object] = fcntl.flock) -> bool:
    """Tell whether a lock held through one descriptor is refused to another. Raises OSError where there are none."""
    flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _mac_mounts() -> list[Mount]:
    from subprocess import SubprocessError, run  # a dear import, for one system alone

    try:
        ran = run([_MAC_MOUNT], capture_output=True, check=False, timeout=_MAC_SECONDS)
    except SubprocessError as error:
        raise OSError(str(error)) from error
    return parse_mac_mounts(os.fsdecode(ran.stdout))


def _mount(point: str, kind: str, options: Iterable[str], source: str) -> Mount:
    telling = dict.fromkeys(option for option in options if option in _TELLING)
    return Mount(point, kind, tuple(telling), shown_address(source) if "://" in source else redact(source))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found.group(1), 8)), text)
