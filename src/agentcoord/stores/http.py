"""Records on a server, over HTTP: one connection, one conditional request a write, and no guessing.

A write is sent once. When its answer is lost, or is one that a gateway gives for a server it lost, the
record is read back once. What we sent, one version further than ours and written by this machine as far
as the backend says, is a yes; another's record is a no; everything else stays UNKNOWN, as the caller is
told (spec: http §5, §6, §8).
"""

from collections.abc import Iterator, Sequence
from operator import attrgetter

import anyio

from agentcoord.errors import Conflict, Defect, Rejected, StoreError, Unreadable, UsageError
from agentcoord.protocol.documents import canonical, decode, encode
from agentcoord.protocol.paths import is_record, require_safe
from agentcoord.settings.environment import Env
from agentcoord.settings.selection import Secret
from agentcoord.stores.base import OWN, Behalf, Decode, Listing, Stored, Version
from agentcoord.stores.httpaddress import base_of
from agentcoord.stores.httpexchange import LARGEST_ANSWER, PATIENCE, Answer, Exchange, Patience, Unanswered
from agentcoord.stores.httpwire import (
    Entry,
    TokenIdentity,
    error_code,
    failure,
    failure_of_reading,
    read_identity,
    read_page,
    read_record,
    read_written,
    repeated_cursor,
    too_many,
)

PAGE = 1000
"""Records that a server gives at most when asked for a limit."""

_NO_ENV: Env = {}


class HttpStore:
    """Keeps records on a state server; a record's version is the one the server counts.

    `env` is the environment of whoever asks: it names proxies and certificates. Nothing connects before the first
    request. Close it at the end.
    """

    def __init__(
        self,
        url: str,
        token: Secret,
        *,
        env: Env = _NO_ENV,
        patience: Patience = PATIENCE,
        largest: int = LARGEST_ANSWER,
        behalf: Behalf = OWN,
    ) -> None:
        self._behalf = behalf
        self._base = base_of(url)
        self._token = token
        self._patience = patience
        self._machine: str | None = None
        self._exchange = Exchange(self._base, token, env, patience=patience, largest=largest)

    async def read(self, path: str) -> Stored | None:
        """Read one record; None when nothing is there.

        Raises Unreadable for what only this record suffers from, StoreError for everything else.
        """
        seen = await self._find(path, f"read {path}")
        return None if seen is None else seen[0]

    async def _find(self, path: str, action: str) -> tuple[Stored, object] | None:
        """Read one record, and the machine that the backend says wrote it; None where it does not say."""
        _require_spelled(path)
        answer = await self._exchange.ask("GET", self._base.record(path))
        if answer.status == 404 and error_code(answer.body) == "not_found":
            return None
        if answer.status != 200:
            raise failure_of_reading(action, path, self._failure(action, answer))
        found = read_record(answer.body, path)
        return Stored(path, _decoded(path, found.data, decode), found.version), found.updated_by

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        """Store a record if its path still holds `version`; None: if it holds none. `note` is not kept.

        Raises Conflict if something else is there, StoreError when it is not known to be stored: it may
        be, if that is an Unanswered with `sent`.
        """
        _require_spelled(path)
        content = _content(path, document)
        condition = {"If-None-Match": "*"} if version is None else {"If-Match": version}
        headers = condition | {"Content-Type": "application/json"}
        self._behalf.require_wanted()
        try:
            answer = await self._exchange.ask("PUT", self._base.record(path), headers=headers, content=content)
        except Unanswered as error:
            return await self._look_after_write(path, document, version, error)
        if answer.status in (200, 201):
            return read_written(answer.body, path)
        if answer.status == 409:
            raise Conflict(path, exists=version is None)
        error = self._failure(f"write {path}", answer)
        if answer.status >= 500:
            return await self._look_after_write(path, document, version, error)
        raise error

    async def delete(self, path: str, *, version: Version, note: str) -> None:
        """Remove exactly what was read. Raises Conflict if it changed or is gone, StoreError.

        When the answer is lost and the record is gone, it counts as removed, whoever did it.
        """
        _require_spelled(path)
        self._behalf.require_wanted()
        try:
            answer = await self._exchange.ask("DELETE", self._base.record(path), headers={"If-Match": version})
        except Unanswered as error:
            return await self._look_after_delete(path, version, error)
        if answer.status in (200, 204):
            return None
        if answer.status == 409:
            raise Conflict(path)
        error = self._failure(f"delete {path}", answer)
        if answer.status >= 500:
            return await self._look_after_delete(path, version, error)
        raise error

    async def list(self, prefix: str, *, decode: Decode = decode, at_most: int | None = None) -> Listing:
        """List the records below a directory prefix, all pages of it.

        With `at_most`, more records than that are an error before any of them is decoded. Raises
        Unreadable for a prefix that a scoped token may not see, StoreError.
        """
        _require_spelled(prefix)
        with anyio.move_on_after(self._patience.listing):
            entries, filtered = await self._pages(prefix, at_most)
            return Listing(_walk(entries, decode), filtered=filtered)
        raise Unanswered(
            f"http backend unreachable: the listing of {prefix} was not complete within {self._patience.listing:g} s",
            sent=True,
        )

    async def _pages(self, prefix: str, at_most: int | None) -> tuple[Sequence[Entry], bool]:
        entries: list[Entry] = []
        filtered, cursor, cursors = False, None, set[str]()
        while True:
            limit = None if at_most is None else min(PAGE, at_most - len(entries))
            answer = await self._exchange.ask("GET", self._base.listing(prefix, cursor, limit))
            if answer.status != 200:
                action = f"list {prefix}"
                raise failure_of_reading(action, prefix, self._failure(action, answer))
            page = read_page(answer.body, prefix)
            entries += page.entries
            filtered = filtered or bool(page.filtered)
            cursor = page.next_cursor
            if at_most is not None and (len(entries) > at_most or (cursor and len(entries) == at_most)):
                raise too_many(prefix, at_most)
            if not cursor:
                return sorted(entries, key=attrgetter("path")), filtered
            if cursor in cursors:
                raise repeated_cursor(prefix)
            cursors.add(cursor)

    async def check(self, *, writable: bool, prefix: str | None = "claims") -> None:
        """Ask whether the backend answers, and lets this token see a prefix or the record it names.

        None for a caller who reads the state himself. Only a write could tell whether it would let us
        write. Raises StoreError.
        """
        action = "verify readable"
        if prefix is not None and is_record(prefix):
            await self._find(prefix, action)
        elif prefix is not None:
            _require_spelled(prefix)
            answer = await self._exchange.ask("GET", self._base.listing(prefix, None, 1))
            if answer.status != 200:
                raise failure_of_reading(action, prefix, self._failure(action, answer))
            read_page(answer.body, prefix)
        answer = await self._exchange.ask("GET", self._base.route("health"))
        if answer.status != 200:
            raise self._failure("health", answer)

    async def whoami(self) -> TokenIdentity | None:
        """Ask whom the backend takes us for; None when it is one that cannot say. Raises StoreError."""
        answer = await self._exchange.ask("GET", self._base.route("whoami"))
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise self._failure("whoami", answer)
        return read_identity(answer.body)

    async def aclose(self) -> None:
        """Close the connection, if there is one. Nothing can be asked afterwards."""
        await self._exchange.aclose()

    def _failure(self, action: str, answer: Answer) -> Rejected:
        return failure(action, answer.status, answer.body, self._token.reveal(), answer.retry_after)

    # When the answer to a write is lost -----------------------------------------------------------------

    async def _look_after_write(
        self, path: str, document: object, version: Version | None, error: StoreError
    ) -> Version:
        seen = await self._look(path, error)
        if seen is None or seen[0].version == version:
            raise error  # not there, or not yet: what was sent may still be on its way
        found, by = seen
        steps = _steps(version, found.version)
        if canonical(found.document) == canonical(document):
            if steps in (None, 1) and await self._is_this_machine(by):
                return found.version
            raise error  # somebody else may have decided on the very same, before or after us
        if found.document == decode(encode(document)):
            raise error  # 1 and 1.0, say: a backend's own spelling of ours, or another's record
        if steps is not None and steps < 1:
            raise error  # counted anew after a removal, so it may yet come to the version we named
        raise Conflict(path, exists=version is None) from error

    async def _is_this_machine(self, by: object) -> bool:
        """Tell whether a record may be ours: nothing is held against it where nobody says who we are."""
        if by is None:
            return True
        if self._machine is None:
            try:
                identity = await self.whoami()
            except StoreError:
                return True
            self._machine = None if identity is None else identity.machine
        return self._machine in (None, by)

    async def _look_after_delete(self, path: str, version: Version, error: StoreError) -> None:
        seen = await self._look(path, error)
        if seen is None:
            return
        if seen[0].version == version:
            raise error
        raise Conflict(path) from error

    async def _look(self, path: str, error: StoreError) -> tuple[Stored, object] | None:
        """Read back what a write left, once. Raises the write's own error when nothing was sent or nothing is seen."""
        if isinstance(error, Unanswered) and not error.sent:
            raise error
        try:
            return await self._find(path, f"read {path}")
        except StoreError as blind:
            raise error from blind


def _steps(version: Version | None, found: Version) -> int | None:
    """Count the writes from the version a write named to the one found; None where versions do not count."""
    named = "0" if version is None else version
    if not all(text.isascii() and text.isdecimal() for text in (named, found)):
        return None
    return int(found) - int(named)


def _walk(entries: Sequence[Entry], decode: Decode) -> Iterator[Stored | Unreadable]:
    for entry in entries:
        try:
            document = _decoded(entry.path, bytes(entry.data), decode)
        except Unreadable as defect:
            yield defect
        else:
            yield Stored(entry.path, document, str(entry.version))


def _decoded(path: str, data: bytes, decode: Decode) -> object:
    try:
        return decode(data)
    except ValueError as error:
        raise Unreadable(f"state unreadable: {error} at {path}", path=path, defect=Defect.MALFORMED) from error


def _content(path: str, document: object) -> bytes:
    try:
        return b'{"data":' + encode(document) + b"}"
    except UnicodeEncodeError:  # half a surrogate pair, from a command line that was not UTF-8
        raise UsageError(f"state record is not valid UTF-8: {path}") from None
    except RecursionError:
        raise StoreError(f"state record is nested too deeply to write: {path}") from None


def _require_spelled(path: str) -> None:
    require_safe(path)
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(f"unsafe state path: {path!a}") from None
