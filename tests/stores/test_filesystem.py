"""Which file system a root lies on, and what its locks are worth: lines as real systems print them."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from agentcoord.errors import StoreError
from agentcoord.stores.filesystem import (
    PROBE,
    FileSystem,
    Mount,
    excludes,
    is_near,
    judge,
    look,
    mount_of,
    parse_mac_mounts,
    parse_mount_table,
    require_locks,
    require_room,
    tried,
)
from tests.stores.layout import names

TABLE = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard,resuid=65534
31 27 0:44 / /var/lib/docker/overlay2/ab/merged rw,relatime - overlay overlay rw,lowerdir=/l:/m,upperdir=/u,workdir=/w
40 27 0:34 /@home /home rw,noatime shared:29 - btrfs /dev/nvme0n1p2 rw,ssd,subvolid=257,subvol=/@home
41 40 0:50 / /home/you/fleet rw shared:30 master:3 - nfs4 filer:/export rw,vers=4.2,hard,local_lock=none
42 40 0:51 / /home/you/old rw - nfs filer:/old rw,vers=3,nolock,proto=tcp,local_lock=all,addr=10.0.0.1
43 40 0:52 / /home/you/share rw,relatime - cifs //filer/share rw,vers=3.1,username=you,nobrl,password=t0ps3cret
44 40 0:53 / /home/you/far rw,nosuid,nodev - fuse.sshfs you@far:/srv rw,user_id=1000,group_id=1000
45 27 254:0 /srv/data /bind rw,relatime - ext4 /dev/vda rw,discard
46 27 0:60 / /mnt/with\040space\011tab\134slash rw - xfs /dev/sdb1 rw
47 27 0:61 / /net rw - autofs systemd-1 rw,fd=35
48 27 0:62 / /net rw - nfs4 filer:/net rw,local_lock=flock
49 27 0:63 / /sea rw - tmpfs tmpfs rw
"""
MOUNTS = parse_mount_table(TABLE)


@pytest.mark.parametrize(
    ("path", "point", "kind", "locks", "fault"),
    [
        ("/", "/", "ext4", "shared", None),
        ("/srv/state", "/", "ext4", "shared", None),
        ("/var/lib/docker/overlay2/ab/merged/x", "/var/lib/docker/overlay2/ab/merged", "overlay", "shared", None),
        ("/home/you", "/home", "btrfs", "shared", None),
        ("/home/you/fleet", "/home/you/fleet", "nfs4", "network", None),
        ("/home/you/fleet/state", "/home/you/fleet", "nfs4", "network", None),
        ("/home/you/fleets", "/home", "btrfs", "shared", None),  # a name that only begins the same
        ("/home/you/old/state", "/home/you/old", "nfs", "private", "nolock"),
        ("/home/you/share/a", "/home/you/share", "cifs", "private", "nobrl"),
        ("/home/you/far", "/home/you/far", "fuse.sshfs", "private", "fuse.sshfs"),
        ("/bind/state", "/bind", "ext4", "shared", None),
        ("/mnt/with space\ttab\\slash/s", "/mnt/with space\ttab\\slash", "xfs", "shared", None),
        ("/net/x", "/net", "nfs4", "private", "local_lock=flock"),  # mounted over what mounts it
        ("/seaside", "/", "ext4", "shared", None),
    ],
)
def test_a_path_lies_on_the_longest_mount_above_it(
    path: str, point: str, kind: str, locks: str, fault: str | None
) -> None:
    mount = mount_of(path, MOUNTS)
    assert mount is not None
    found = judge(mount)
    assert (mount.point, mount.type, found.locks, found.fault) == (point, kind, locks, fault)


def test_options_of_the_mount_and_of_the_file_system_count_without_secrets() -> None:
    mount = mount_of("/home/you/share", MOUNTS)
    assert mount is not None
    assert mount.options == ("nobrl",)
    assert "t0ps3cret" not in repr(MOUNTS)
    far = mount_of("/home/you/far", MOUNTS)
    assert far is not None
    assert far.source == "***@far:/srv"


@pytest.mark.parametrize("line", ["", "27 1 254:0 / /", "27 1 254:0 / / rw", "27 1 254:0 / / rw - ", "x - ext4 y z"])
def test_a_line_of_another_form_is_passed_over(line: str) -> None:
    assert parse_mount_table(line) == []
    assert parse_mac_mounts(line) == []


def test_a_line_without_source_or_options_is_a_mount() -> None:
    assert parse_mount_table("27 1 254:0 / / rw - ext4") == [Mount("/", "ext4", id=27, parent=1)]


MAC = """/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
devfs on /dev (devfs, local, nobrowse)
/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled, nobrowse, protect)
map auto_home on /System/Volumes/Data/home (autofs, automounted, nobrowse)
//you:pw@filer/share on /Volumes/team share (smbfs, nodev, nosuid, mounted by you)
filer:/export on /Volumes/export (nfs, nodev, nosuid, locallocks, mounted by you)
you@far:/srv on /Volumes/far (macfuse, nodev, nosuid, synchronous, mounted by you)
/dev/disk9 on /Volumes/usb (msdos)
"""


@pytest.mark.parametrize(
    ("path", "point", "kind", "locks", "fault"),
    [
        ("/Users/you/state", "/", "apfs", "shared", None),
        ("/System/Volumes/Data/x", "/System/Volumes/Data", "apfs", "shared", None),
        ("/dev/x", "/dev", "devfs", "shared", None),
        ("/Volumes/team share/s", "/Volumes/team share", "smbfs", "network", None),
        ("/Volumes/export", "/Volumes/export", "nfs", "private", "locallocks"),
        ("/Volumes/far/s", "/Volumes/far", "macfuse", "untested", None),
        ("/Volumes/usb", "/Volumes/usb", "msdos", "shared", None),
    ],
)
def test_macos_prints_mounts_its_own_way(path: str, point: str, kind: str, locks: str, fault: str | None) -> None:
    mount = mount_of(path, parse_mac_mounts(MAC))
    assert mount is not None
    found = judge(mount)
    assert (mount.point, mount.type, found.locks, found.fault) == (point, kind, locks, fault)
    assert "pw" not in mount.source


@pytest.mark.parametrize(
    ("kind", "options", "locks", "fault"),
    [
        ("nfs", ("rw", "local_lock=posix"), "network", None),  # flock still goes to the server
        ("nfs", ("local_lock=flock",), "private", "local_lock=flock"),
        ("nfs4", ("local_lock=all",), "private", "local_lock=all"),
        ("nfs4", ("nobrl",), "network", None),
        ("cifs", (), "network", None),
        ("smb3", ("nobrl",), "private", "nobrl"),
        ("9p", ("trans=virtio",), "network", None),
        ("afs", (), "network", None),
        ("ceph", (), "network", None),
        ("lustre", ("flock",), "network", None),
        ("lustre", ("localflock",), "private", "localflock"),
        ("fuse.rclone", (), "private", "fuse.rclone"),
        ("tmpfs", (), "shared", None),
        ("zfs", (), "shared", None),
        ("fuse.new", (), "untested", None),
        ("", (), "untested", None),
    ],
)
def test_locks_are_judged_by_kind_and_options(
    kind: str, options: tuple[str, ...], locks: str, fault: str | None
) -> None:
    found = judge(Mount("/m", kind, options))
    assert (found.locks, found.fault) == (locks, fault)


@pytest.mark.parametrize(
    ("kind", "fault", "said"),
    [
        (
            "nfs",
            "nolock",
            (
                "/m/s is on nfs: mounted with nolock, which keeps locks on each machine; "
                "mount /m without it, or move the root to a local disk"
            ),
        ),
        (
            "fuse.sshfs",
            "fuse.sshfs",
            "/m/s is on fuse.sshfs: its locks are not seen by other machines; move the root to a local disk",
        ),
        (
            "fuse.new",
            PROBE,
            "/m/s is on fuse.new: a lock held there kept nobody out; move the root to a local disk",
        ),
    ],
)
def test_a_root_without_locks_is_refused_in_one_line(kind: str, fault: str, said: str) -> None:
    with pytest.raises(StoreError) as raised:
        require_locks("/m/s", FileSystem(Mount("/m", kind), "private", fault))
    assert str(raised.value) == f"state root has no working locks: {said}"
    assert (raised.value.exit, raised.value.finding) == (2, "file_system.locks")


@pytest.mark.parametrize("locks", ["shared", "network", "tested", "untested"])
def test_any_other_root_is_not(locks: str) -> None:
    require_locks("/m", FileSystem(Mount("/m", "x"), locks))  # pyright: ignore[reportArgumentType]


# The try


def unknown() -> FileSystem:
    return FileSystem(Mount("/", "fuse.new"), "untested")


def test_a_lock_is_tried_on_a_file_that_is_gone_afterwards(tmp_path: Path) -> None:
    assert tried(str(tmp_path), unknown(), os.urandom) == FileSystem(Mount("/", "fuse.new"), "tested")
    assert names(tmp_path) == []


def test_what_cannot_be_tried_stays_untested(tmp_path: Path) -> None:
    assert tried(str(tmp_path / "absent"), unknown(), os.urandom) == unknown()
    assert tried("/no\0where", unknown(), os.urandom) == unknown()


def test_a_lock_that_keeps_nobody_out_is_none(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    with place.open() as first, place.open() as second:
        assert excludes(first.fileno(), second.fileno())
        fcntl.flock(first, fcntl.LOCK_UN)
        assert not excludes(first.fileno(), second.fileno(), lambda descriptor, operation: None)

        def unsupported(descriptor: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        with pytest.raises(OSError, match="No locks available"):
            excludes(first.fileno(), second.fileno(), unsupported)


# Looking


def table_for(root: Path, kind: str, options: str = "rw") -> bytes:
    return f"27 1 0:1 / / rw - ext4 /dev/vda rw\n28 27 0:2 / {root} rw - {kind} x {options}\n".encode()


def test_a_link_is_followed_to_where_the_root_lies(tmp_path: Path) -> None:
    root = tmp_path / "real"
    root.mkdir()
    (tmp_path / "link").symlink_to(root)
    found = look(str(tmp_path / "link" / "state"), lambda _: table_for(root, "nfs", "rw,nolock"), os.urandom, mac=False)
    assert found is not None
    assert (found.mount.point, found.fault) == (str(root), "nolock")


def test_a_local_disk_is_not_written_to(tmp_path: Path) -> None:
    def no_chance(count: int) -> bytes:
        raise AssertionError("a name for a file was asked for")

    found = look(str(tmp_path), lambda _: table_for(tmp_path, "ext4"), no_chance, mac=False)
    assert found is not None
    assert found.locks == "shared"


def test_an_unknown_kind_is_tried(tmp_path: Path) -> None:
    found = look(str(tmp_path), lambda _: table_for(tmp_path, "fuse.new"), os.urandom, mac=False)
    assert found is not None
    assert found.locks == "tested"


def test_where_there_is_no_table_nobody_can_tell(tmp_path: Path) -> None:
    def missing(path: str) -> bytes:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    assert look(str(tmp_path), missing, os.urandom, mac=False) is None
    assert look(str(tmp_path), lambda _: b"", os.urandom, mac=False) is None
    assert look("/no\0where", lambda _: table_for(tmp_path, "ext4"), os.urandom, mac=False) is None


# What hides what

HIDDEN = """27 1 254:0 / / rw - ext4 /dev/vda rw
40 27 0:50 / /home/you/fleet rw - nfs4 filer:/x rw,nolock
41 27 0:51 / /home rw - tmpfs tmpfs rw
"""


def test_a_mount_below_a_later_one_is_hidden() -> None:
    mount = mount_of("/home/you/fleet", parse_mount_table(HIDDEN))
    assert mount is not None
    assert (mount.point, mount.type) == ("/home", "tmpfs")
    again = mount_of("/home/you/fleet", parse_mount_table(HIDDEN + "42 41 0:52 / /home/you/fleet rw - xfs x rw\n"))
    assert again is not None
    assert again.type == "xfs"


def test_where_nobody_tells_what_lies_on_what_the_last_one_counts() -> None:
    table = "/dev/a on / (apfs, local)\nfiler:/x on /home/you (nfs, locallocks)\n/dev/b on /home (apfs, local)\n"
    mount = mount_of("/home/you/s", parse_mac_mounts(table))
    assert mount is not None
    assert mount.point == "/home"


def test_the_kernel_says_which_mount_was_opened(tmp_path: Path) -> None:
    table = (
        f"27 1 0:1 / / rw - ext4 a rw\n28 27 0:2 / {tmp_path} rw - nfs b nolock\n29 27 0:3 / {tmp_path} rw - xfs c rw\n"
    )

    def read_file(path: str) -> bytes:
        return b"pos:\t0\nflags:\t02\nmnt_id:\t28\nino:\t2\n" if "/fdinfo/" in path else table.encode()

    found = look(str(tmp_path), read_file, os.urandom, mac=False)
    assert found is not None
    assert found.fault == "nolock"


@pytest.mark.parametrize("option", ["local", "rw,local"])
def test_local_means_something_on_macos_alone(option: str) -> None:
    [mount] = parse_mount_table(f"27 1 0:1 / / rw - new x {option}\n")
    assert judge(mount).locks == "untested"
    [mount] = parse_mac_mounts("x on / (new, local)")
    assert judge(mount).locks == "shared"
    [mount] = parse_mac_mounts("x on / (macfuse, local)")
    assert judge(mount).locks == "untested"


@pytest.mark.parametrize("option", ["secret=AQB", "token=AQB", "access_key=AQB", "pass=AQB", "x-AQB"])
def test_no_option_is_kept_that_decides_nothing(option: str) -> None:
    for mount in (
        parse_mount_table(f"27 1 0:1 / /{option} rw - ceph x rw,{option},nolock\n")[0],
        parse_mac_mounts(f"x on /m (nfs, {option}, locallocks)")[0],
    ):
        assert "AQB" not in repr((mount.options, mount.source))


def test_the_source_is_shown_without_a_query() -> None:
    [mount] = parse_mount_table("27 1 0:1 / / rw - webdav https://u:AQB@h/d?token=AQB rw\n")
    assert mount.source == "https://***@h/d?***"


# Room


def test_a_root_that_takes_a_file_is_left_as_it_was(tmp_path: Path) -> None:
    require_room(str(tmp_path), os.urandom)
    assert names(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EPERM])
def test_a_root_that_takes_none_is_not_writable(tmp_path: Path, number: int) -> None:
    def refused(descriptor: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    with pytest.raises(StoreError) as raised:
        require_room(str(tmp_path), os.urandom, write=refused)
    assert raised.value.finding == "state_root.unwritable"
    assert os.strerror(number).lower() in str(raised.value).lower()
    assert names(tmp_path) == []


NEAR = """\
20 1 254:0 / / rw - ext4 /dev/vda rw
21 20 0:30 / /net rw - nfs4 server:/ rw
22 21 254:1 / /net/disk rw - ext4 /dev/vdb rw
23 20 0:31 / /tmp rw - tmpfs tmpfs rw
24 20 0:32 / /odd rw - fuse.odd odd rw
"""


@pytest.mark.parametrize(
    ("root", "near"),
    [
        ("/srv/state", True),
        ("/tmp/state", True),  # noqa: S108 - a name in a table
        ("/net/state", False),
        ("/net", False),
        ("/net/disk/state", False),
        ("/odd/state", False),
        ("/", True),
        ("/srv/\0", False),
    ],
)
def test_a_root_is_near_when_no_directory_on_the_way_is_on_another_machine(root: str, near: bool) -> None:
    assert is_near(root, lambda path: NEAR.encode(), mac=False) is near


def test_a_root_is_near_only_if_what_its_name_leads_to_is(tmp_path: Path) -> None:
    table = f"20 1 254:0 / / rw - ext4 /dev/vda rw\n21 20 0:30 / {tmp_path}/net rw - nfs4 server:/ rw\n"
    (tmp_path / "net").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "net")
    assert not is_near(str(tmp_path / "link"), lambda path: table.encode(), mac=False)
    assert is_near(str(tmp_path / "other"), lambda path: table.encode(), mac=False)


def test_nobody_is_near_where_nobody_can_tell() -> None:
    def denied(path: str) -> bytes:
        raise PermissionError(path)

    assert not is_near("/srv/state", denied, mac=False)
