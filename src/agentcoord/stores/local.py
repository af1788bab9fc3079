"""Records as files below a state root, shared with any program that knows the same paths and locks."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING

from agentcoord.errors import Conflict, Defect, StoreError, Unreadable, UsageError
from agentcoord.files import LOCK_WAIT, cause_of, printable, release_lock, remove_durably, replace_durably, take_lock
from agentcoord.marks import Marks
from agentcoord.protocol.documents import decode, encode_pretty
from agentcoord.protocol.paths import FAMILIES, require_safe
from agentcoord.stores.base import OWN, Behalf, Decode, Listing, Stored, Version, require_few
from agentcoord.stores.tree import LAYOUT, MAX_RECORD_BYTES, ROOTLESS, Tree, load

if TYPE_CHECKING:
    from agentcoord.stores.survey import Survey


class LocalStore:
    """Keeps records as `<root>/<path>`; a record's version is the SHA-256 of its bytes.

    Methods are coroutines only to keep the promise of a Store: they do their I/O where they stand and
    never suspend, so the in-process command line drives them without an event loop. A write may wait
    up to `lock_wait` seconds for another writer of the same record. Without `settle` a power failure, and
    nothing else, may undo a write: enough for what is written again and again, at half the price. `behalf` is whoever
    has it written.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        lock_wait: float = LOCK_WAIT,
        settle: bool = True,
        behalf: Behalf = OWN,
    ) -> None:
        self._tree = Tree(os.fspath(root), umask=behalf.umask)
        self._behalf = behalf
        self._lock_wait = lock_wait
        self._settle = settle

    @property
    def root(self) -> str:
        """The state root as it was given."""
        return self._tree.root

    async def read(self, path: str) -> Stored | None:
        """Read one record; None when nothing is there.

        Raises Unreadable for the record's own defects, StoreError for those of the root.
        """
        _require_spelled(path)
        data = self._tree.read(path)
        return None if data is None else Stored(path, _parse(path, data), data)

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        """Store a record if its path still holds `version`; None: if it holds none. `note` is not kept.

        The record is durable when this returns. Raises Conflict if something else is there, StoreError
        when it could not be written (the old record stays whole).
        """
        _require_spelled(path)
        data = _render(path, document)
        self._exchange(path, data, version)
        return sha256(data).hexdigest()

    async def delete(self, path: str, *, version: Version, note: str) -> None:
        """Remove exactly what was read, for good. Raises Conflict if it changed or is gone, StoreError."""
        _require_spelled(path)
        self._exchange(path, None, version)

    def _exchange(self, path: str, data: bytes | None, version: Version | None) -> None:
        """Under the record's lock: if its place is as the caller knows it, put `data` there; None empties it."""
        try:
            # Directories are made for a new record only: a version that was read had its directory.
            directory = self._tree.open_above(path, create=version is None)
            if directory is None:
                raise Conflict(path)
            try:
                lock = take_lock(self._tree.base + path, directory=directory, wait=self._lock_wait)
                try:
                    mode = _require_version(path, directory, version)
                    self._behalf.require_wanted()  # the lock may have been waited for, and this process stopped
                    if data is None:
                        remove_durably(path, directory=directory)
                    else:
                        umask = self._behalf.umask
                        replace_durably(path, data, mode=mode, umask=umask, directory=directory, settle=self._settle)
                finally:
                    release_lock(lock)
            finally:
                os.close(directory)
        except OSError as error:
            raise self._not_written(path, error) from error

    def _not_written(self, path: str, error: OSError) -> StoreError:
        """Say why a record was not written: what is in its place, or else what the system said."""
        at_lock = isinstance(error.filename, str) and error.filename.endswith(".lock")
        shown = path + ".lock" if at_lock else path
        if at_lock and error.errno == errno.ELOOP:
            return StoreError(f"state layout invalid: {shown} is a symlink")
        if error.errno == errno.ENAMETOOLONG:
            return StoreError(f"state record path is too long: {path}")
        failure = self._tree.explain(path, error)
        if isinstance(failure, Unreadable) and failure.defect in LAYOUT:
            return failure
        if (os.path.lexists(self.root) or error.errno in ROOTLESS) and not os.path.isdir(self.root):
            return StoreError(f"state root is not a directory: {self.root}")
        return StoreError(f"state record is not writable: {shown}: {cause_of(error)}")

    async def list(self, prefix: str, *, decode: Decode = decode, at_most: int | None = None) -> Listing:
        """List the records below a directory prefix: every `*.json` file that no dot name hides.

        Names are gathered now, contents are read as the listing is walked; a record removed in between
        is not in it. Raises StoreError for a directory that cannot be read, and when a symlink or
        another kind of file is where a directory or a record belongs; and for more than `at_most` records.
        """
        _require_spelled(prefix)
        names = self._tree.names_below(prefix)
        require_few(prefix, len(names), at_most)
        return self.records(names, decode=decode)

    def marks(self, prefix: str, known: Marks) -> Marks:
        """Give the marks of the records below a directory prefix, in no order. Raises StoreError as `list` does."""
        _require_spelled(prefix)
        return self._tree.marks_below(prefix, known)

    def records(self, names: Sequence[str], *, decode: Decode = decode) -> Listing:
        """List some of the records of `marks`, in the order given; contents are read as the listing is walked."""
        return Listing(self._records(names, decode))

    def _records(self, names: Sequence[str], decode: Decode) -> Iterator[Stored | Unreadable]:
        for path, data in self._tree.read_listed(names):
            if isinstance(data, Unreadable):
                yield data
                continue
            try:
                document = decode(data)
            except ValueError as error:
                yield _malformed(path, error)
            else:
                yield Stored(path, document, data)

    def names(self, prefix: str, *, starting: str = "", limit: int = 10_000) -> Sequence[str]:
        """Name the first `limit` records below a directory prefix whose paths start so; none of them is read.

        Raises UsageError and StoreError as `list` does.
        """
        _require_spelled(prefix)
        names = (path for path in self._tree.names_below(prefix) if path.startswith(starting))
        return list(islice(names, limit))

    async def check(self, *, writable: bool) -> None:
        """Check the root and that each family present is a directory. Raises StoreError naming the culprit."""
        self._tree.check_root(writable=writable)
        for family in FAMILIES:
            self._tree.has_directory(family)

    def survey(self, *, before: float, may_write: Callable[[str], bool] | None = None) -> "Survey":
        """Look at all that is there without reading a record; the rest as for `stores.survey.survey`."""
        from agentcoord.stores.survey import survey  # only the doctor asks

        return survey(self._tree, before=before, may_write=may_write)

    def aside(self, path: str) -> str | None:
        """Give the command that takes a file out of the records and keeps it; None where none would."""
        return self._tree.aside(path, ".broken")

    def exists(self) -> bool:
        """Tell whether there is anything at the root."""
        return os.path.exists(self.root)

    def create_root(self) -> None:
        """Create the state root and what is missing above it. Raises StoreError."""
        self._tree.create_root()


def _require_version(path: str, directory: int, version: Version | None) -> int | None:
    """Return the permissions of what the caller knows to be there, None of nothing. Raises Conflict, OSError."""
    try:
        found, mode = load(path.rpartition("/")[2], path, directory)
    except FileNotFoundError:
        if version is not None:
            raise Conflict(path) from None
        return None
    if version is None:
        raise Conflict(path, exists=True)
    if sha256(found).hexdigest() != version:
        raise Conflict(path)
    return mode


def _require_spelled(path: str) -> None:
    require_safe(path)
    if not path.isascii():
        try:
            path.encode()
        except UnicodeEncodeError:
            raise UsageError(f"unsafe state path: {path!a}") from None


def _render(path: str, document: object) -> bytes:
    """Encode a record. Raises UsageError, StoreError for what could not be read back."""
    try:
        data = encode_pretty(document)
    except UnicodeEncodeError:  # half a surrogate pair, from a command line that was not UTF-8
        raise UsageError(f"state record is not valid UTF-8: {path}") from None
    except RecursionError:
        raise StoreError(f"state record is nested too deeply to write: {path}") from None
    if len(data) > MAX_RECORD_BYTES:
        raise StoreError(f"state record is too large to write: {path}: {len(data)} bytes")
    return data


def _parse(path: str, data: bytes) -> object:
    try:
        return decode(data)
    except ValueError as error:
        raise _malformed(path, error) from error


def _malformed(path: str, error: ValueError) -> Unreadable:
    shown = printable(path)
    return Unreadable(f"state unreadable: {error} at {shown}", path=path, defect=Defect.MALFORMED)
