"""Files below a state root: reached through real directories only, and named when they cannot be.

The root is the operator's choice and may be a symlink; below it no symlink is followed. Those are
checks before use, for a tree whose writers cooperate: whoever may rewrite the tree while it is being
read is trusted already.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from agentcoord.errors import Defect, StoreError, Unreadable
from agentcoord.files import (
    DIRECTORY_FLAGS,
    cause_of,
    free_name,
    make_directories,
    make_directory,
    printable,
    shell_line,
)
from agentcoord.marks import Mark, Marks, mark_of_directory, marks_of
from agentcoord.protocol.paths import is_record, may_be_dotted

MAX_RECORD_BYTES = 8 * 1024 * 1024
"""Far above any record's own limit: a stray file below the root must not fill the memory."""

LAYOUT = frozenset({Defect.SYMLINK, Defect.NOT_REGULAR, Defect.SYMLINKED_DIRECTORY, Defect.NOT_IN_DIRECTORY})
"""Defects of the tree rather than of one record: a listing that met one cannot be trusted."""

_BELOW_FLAGS = DIRECTORY_FLAGS | os.O_NOFOLLOW
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # NONBLOCK: a FIFO must not hang us
_USUAL = 4 * 1024  # bytes: nearly every record in one call
_LARGE = 1024 * 1024

ROOTLESS = frozenset({errno.ENOTDIR, errno.ELOOP})
"""What the system says of a path below a root that is no directory, or a link in a circle."""
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Failures that say nothing about the record."""


class Tree:
    """The files below one root. Paths are relative to it and safe already."""

    def __init__(self, root: str, *, umask: int | None = None) -> None:
        if not root:
            raise StoreError("state root is empty")
        self.root = root
        self._umask = umask
        self.base = root.rstrip("/") + "/"

    # -- one file

    def read(self, path: str) -> bytes | None:
        """Read a file that should be a record; None when it, or a directory above it, is not there.

        Raises Unreadable for its own defects, StoreError for those of the root.
        """
        base = self.base
        try:
            end = path.find("/")
            while end > 0:
                if not stat.S_ISDIR(os.lstat(base + path[:end]).st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                end = path.find("/", end + 1)
            return load(base + path, path)[0]
        except FileNotFoundError:
            return None
        except OSError as error:
            failure = self.explain(path, error)
            if failure is None:
                return None
            raise failure from error

    def read_listed(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | Unreadable]]:
        """Read files that a listing has just seen to be regular, in fewer calls than `read`; gone ones are left out.

        What stands next to each other is read from one open directory, which spares the walk down to
        it. A file's own defect takes its place. Raises StoreError when the tree is in doubt.
        """
        nearby = _Nearby(self.base)
        try:
            for path in names:
                try:
                    data = nearby.read(path)
                    if not path.isascii():
                        _require_utf8(path)
                except FileNotFoundError:
                    continue
                except Unreadable as defect:
                    yield path, defect
                except OSError as error:
                    failure = self.explain(path, error)
                    if isinstance(failure, Unreadable) and failure.defect not in LAYOUT:
                        yield path, failure
                    elif failure is not None:
                        raise StoreError(str(failure)) from error
                else:
                    yield path, data
        finally:
            nearby.close()

    def explain(self, path: str, error: OSError) -> StoreError | None:
        """Say what stands in the way of reading `path`; None when by now nothing is there."""
        end = path.find("/")
        while end > 0:
            above = path[:end]
            try:
                mode = os.lstat(self.base + above).st_mode
            except OSError as met:
                return self._unreachable(path, met)
            if stat.S_ISLNK(mode):
                return _misplaced(path, f"{above} is a symlink", Defect.SYMLINKED_DIRECTORY)
            if not stat.S_ISDIR(mode):
                return _misplaced(path, f"{above} is not a directory", Defect.NOT_IN_DIRECTORY)
            end = path.find("/", end + 1)
        try:
            found = os.lstat(self.base + path)
        except OSError as met:
            return self._unreachable(path, met)
        mode = found.st_mode
        if stat.S_ISLNK(mode):
            return _misplaced(path, f"{path} is a symlink", Defect.SYMLINK)
        if not stat.S_ISREG(mode):
            return _misplaced(path, f"{path} is not a regular file", Defect.NOT_REGULAR)
        if error.errno in _OURS:
            return StoreError(f"state record cannot be read now: {path}: {cause_of(error)}")
        why = "" if error.errno in _DENIED else f": {cause_of(error)}"
        closed = error.errno in _DENIED and may_change(found) and not mode & stat.S_IRUSR
        mend = shell_line("chmod", "u+r", self.base + path) if closed else None
        message = f"state record is not readable: {path}{why}"
        return Unreadable(message, path=path, defect=Defect.NOT_READABLE, mend=mend)

    def _unreachable(self, path: str, error: OSError) -> StoreError | None:
        if error.errno == errno.ENOENT:
            return None
        if error.errno == errno.ENAMETOOLONG:
            return Unreadable(f"state record path is too long: {path}", path=path, defect=Defect.PATH_TOO_LONG)
        if error.errno in ROOTLESS and not os.path.isdir(self.root):
            return self._no_directory()
        if error.errno in _DENIED:
            message = f"state record path is not readable or searchable: {path}"
            return Unreadable(message, path=path, defect=Defect.NOT_READABLE)
        return StoreError(f"state record cannot be reached: {path}: {cause_of(error)}")

    # -- directories

    def create_root(self) -> None:
        """Create the root and what is missing above it. Raises StoreError."""
        try:
            make_directories(self.root, umask=self._umask)
        except (FileExistsError, NotADirectoryError) as error:
            raise self._no_directory() from error
        except OSError as error:
            raise StoreError(
                f"state root cannot be created: {self.root}: {cause_of(error)}", finding="state_root.missing"
            ) from error

    def check_root(self, *, writable: bool) -> None:
        """Check that the root is a directory we may use. Raises StoreError."""
        try:
            found = os.stat(self.root)
        except FileNotFoundError as error:
            raise StoreError(
                f"state root does not exist: {self.root}",
                finding="state_root.missing",
                mend=self._making(),
            ) from error
        except NotADirectoryError as error:
            raise self._no_directory() from error
        except OSError as error:
            why = "" if error.errno in _DENIED else f": {cause_of(error)}"
            raise StoreError(
                f"state root is not readable: {self.root}{why}", finding="state_root.unreadable"
            ) from error
        if not stat.S_ISDIR(found.st_mode):
            raise self._no_directory()
        if not os.access(self.root, os.R_OK | os.X_OK):
            raise StoreError(
                f"state root is not readable: {self.root}",
                finding="state_root.unreadable",
                mend=self.opening(self.root, found),
            )
        if writable and not os.access(self.root, os.W_OK):
            raise StoreError(
                f"state root is not writable: {self.root}",
                finding="state_root.unwritable",
                mend=self.opening(self.root, found),
            )

    def _no_directory(self) -> StoreError:
        return StoreError(f"state root is not a directory: {self.root}", finding="state_root.kind")

    def opening(self, place: str, found: os.stat_result) -> str | None:
        """Give the command that opens a directory to its owner; None where it would not be ours, or not help."""
        closed = may_change(found) and found.st_mode & stat.S_IRWXU != stat.S_IRWXU
        return shell_line("chmod", "u+rwx", place) if closed else None

    def _making(self) -> str | None:
        """Give the command that makes the root; None where it cannot work, or a `~` shows the name to be a mistake."""
        if any(part.startswith("~") for part in self.root.split("/")):
            return None
        above = self.root.rstrip("/")
        while not os.path.lexists(above or "/"):
            above = os.path.dirname(above)
        can = above != self.root and os.path.isdir(above or "/") and os.access(above or "/", os.W_OK | os.X_OK)
        return shell_line("mkdir", "-p", "-m", "700", self.root) if can else None

    def open_above(self, path: str, *, create: bool) -> int | None:
        """Open the directory of a record, for the caller to close; None when it is missing and not to be created.

        Raises OSError: `explain` then says which part of the path is to blame.
        """
        try:
            directory = os.open(self.root, DIRECTORY_FLAGS)
        except FileNotFoundError:
            if not create:
                return None
            self.create_root()
            directory = os.open(self.root, DIRECTORY_FLAGS)
        try:
            for part in path.split("/")[:-1]:
                try:
                    below = os.open(part, _BELOW_FLAGS, dir_fd=directory)
                except FileNotFoundError:
                    if not create:
                        done, directory = directory, -1
                        os.close(done)
                        return None
                    make_directory(part, directory=directory, umask=self._umask)
                    below = os.open(part, _BELOW_FLAGS, dir_fd=directory)
                # Named anew before it is closed: a signal in between must not make the cleanup close it twice.
                done, directory = directory, below
                os.close(done)
        except BaseException:
            if directory >= 0:
                os.close(directory)
            raise
        return directory

    def has_directory(self, prefix: str) -> bool:
        """Tell whether a prefix is there. Raises StoreError when part of it is a symlink or another kind of file."""
        end = 0
        while end >= 0:
            end = prefix.find("/", end + 1)
            above = prefix if end < 0 else prefix[:end]
            try:
                mode = os.lstat(self.base + above).st_mode
            except FileNotFoundError:
                return False
            except OSError as error:
                raise self.unlistable(prefix, error) from error
            if stat.S_ISLNK(mode):
                raise self._linked(above)
            if not stat.S_ISDIR(mode):
                raise StoreError(
                    f"state layout invalid: {above} is not a directory",
                    finding="layout.kind",
                    mend=self.aside(above, ".aside"),
                )
        return True

    def names_below(self, prefix: str) -> Sequence[str]:
        """Name every `*.json` file below a prefix, sorted; dot names are passed over.

        Directories with a dot name count where repositories name them, or their claims would be held by
        nobody in sight. Raises StoreError for a directory that cannot be read, and when a symlink or
        another kind of file is where a directory or a record belongs: what it hides would silently be
        missing.
        """
        names = [above + entry.name for above, files in self._files_below(prefix) for entry in files]
        names.sort()
        return names

    def marks_below(self, prefix: str, known: Marks) -> Marks:
        """Mark the files that `names_below` names, by directory with its slash and name; raises as that does."""
        own: dict[str, Mark] = {}
        return {
            above: marks_of(files, own[above], known.get(above, {})) for above, files in self._files_below(prefix, own)
        }

    def _files_below(
        self, prefix: str, own: dict[str, Mark] | None = None
    ) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
        pending = [prefix] if self.has_directory(prefix) else []
        while pending:
            directory = pending.pop()
            above = directory + "/"
            try:
                if own is not None:
                    own[above] = mark_of_directory(f"{self.base}{directory}/.")
                files, below = self.entries_of(directory)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self.unlistable(directory, error) from error
            pending += below
            yield above, files

    def entries_of(self, directory: str) -> tuple[list[os.DirEntry[str]], list[str]]:
        """Give the files of one directory that `names_below` names, and the directories it goes on with, unsorted.

        Raises OSError for a directory that cannot be read, StoreError for what hides records.
        """
        files, below, above = list[os.DirEntry[str]](), list[str](), directory + "/"
        # The dot needs search permission too: without it the names could be read, but no record.
        with os.scandir(f"{self.base}{directory}/.") as entries:
            for entry in entries:
                name = entry.name
                if entry.is_file(follow_symlinks=False):  # from the directory entry: no call per file
                    if name.endswith(".json") and not name.startswith("."):
                        files.append(entry)
                elif (name[0] != "." or may_be_dotted(above + name)) and self.is_directory(above + name, entry):
                    below.append(above + name)
        return files, below

    def is_directory(self, path: str, entry: os.DirEntry[str]) -> bool:
        """Tell a directory to descend into from what is nobody's record. Raises StoreError for what hides one."""
        if entry.is_symlink():
            raise self._linked(path)
        if entry.is_dir(follow_symlinks=False) and not is_record(path):
            return True
        # Where the file system does not tell kinds in its directories, a name just removed has none.
        if not entry.name.endswith(".json") or not os.path.lexists(self.base + path):
            return False
        raise StoreError(
            f"state layout invalid: {printable(path)} is not a regular file",
            finding="layout.kind",
            # A directory would go on being one of the tree, whatever it is called.
            mend=None if entry.is_dir(follow_symlinks=False) else self.aside(path, ".aside"),
        )

    def _linked(self, path: str) -> StoreError:
        # Without a mend: where it leads may be where records are that are not here.
        return StoreError(f"state layout invalid: {printable(path)} is a symlink", finding="layout.symlink")

    def aside(self, path: str, ending: str) -> str | None:
        """Give the command that moves a file to a name beside it that is free now; None where it cannot work."""
        place = self.base + path
        if not os.access(os.path.dirname(place), os.W_OK | os.X_OK):
            return None
        return shell_line("mv", "-n", place, free_name(place, ending))

    def unlistable(self, prefix: str, error: OSError) -> StoreError:
        """Say what stands in the way of listing a prefix."""
        if error.errno in ROOTLESS and not os.path.isdir(self.root):
            return self._no_directory()
        if error.errno in _DENIED:
            if not os.access(self.root, os.X_OK):
                return StoreError(f"state root is not readable: {self.root}", finding="state_root.unreadable")
            return StoreError(
                f"state prefix is not readable or searchable: {printable(prefix)}",
                finding="layout.unreadable",
                mend=self._opening_of(prefix),
            )
        return StoreError(f"state prefix cannot be listed: {printable(prefix)}: {cause_of(error)}")

    def _opening_of(self, prefix: str) -> str | None:
        place = self.base + prefix
        try:
            found = os.lstat(place)
        except OSError:
            return None
        return self.opening(place, found) if stat.S_ISDIR(found.st_mode) else None


def may_change(found: os.stat_result) -> bool:
    """Tell whether the permissions of a file are this process's to change."""
    return os.geteuid() in (0, found.st_uid)


class _Nearby:
    """Reads files one after the other; those of one directory through that directory, opened once."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._above, self._directory = "", -1

    def read(self, path: str) -> bytes:
        """Read one file. Raises Unreadable when it is too large, OSError."""
        above, _, name = path.rpartition("/")
        if above != self._above:
            self.close()
            self._directory = os.open(self._base + above, _BELOW_FLAGS)
            self._above = above
        fd = os.open(name, _READ_FLAGS, dir_fd=self._directory)
        try:
            data = os.read(fd, _USUAL)
            # A regular file comes up short only at its end.
            return data if len(data) < _USUAL else _drained(fd, path, data)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let go of the directory that was read last."""
        if self._directory >= 0:
            os.close(self._directory)
        self._above, self._directory = "", -1


def load(name: str, path: str, directory: int | None = None) -> tuple[bytes, int]:
    """Read a regular file and its permissions; `name` is where it is, `path` what an error calls it.

    Raises OSError, also for another kind of file, and Unreadable when it is too large.
    """
    fd = os.open(name, _READ_FLAGS, dir_fd=directory)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return _drain(fd, path, min(status.st_size + 1, _LARGE)), stat.S_IMODE(status.st_mode)
    finally:
        os.close(fd)


def _drain(fd: int, path: str, enough: int) -> bytes:
    """Read to the end, first as many bytes as are `enough` for most. Raises Unreadable if too large, OSError."""
    data = os.read(fd, enough)
    return data if len(data) < enough else _drained(fd, path, data)


def _drained(fd: int, path: str, data: bytes) -> bytes:
    """Read what is left after `data`. Raises Unreadable if it is too large, OSError."""
    chunks, size = [data], len(data)
    while chunk := os.read(fd, _LARGE):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_RECORD_BYTES:
            why = f"larger than {MAX_RECORD_BYTES >> 20} MiB"
            raise Unreadable(f"state unreadable: {why} at {path}", path=path, defect=Defect.MALFORMED)
    return b"".join(chunks)


def _require_utf8(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = printable(path)
        message = f"state record path is not valid UTF-8: {shown}"
        raise Unreadable(message, path=shown, defect=Defect.NOT_READABLE) from None


def _misplaced(path: str, what: str, defect: Defect) -> Unreadable:
    return Unreadable(f"state layout invalid: {what}", path=path, defect=defect)
