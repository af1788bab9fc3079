"""Records as files on a branch of a GitHub repository, one commit a change, through the `gh` program.

The legacy backend (spec: cli §17.2). A record's version is the SHA of its git blob, and GitHub
compares it: a change names the blob it replaces. The branch as a whole moves with every commit,
so two writers of different records may get in each other's way; that is tried again here.
"""

import os
from binascii import b2a_base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import sleep
from typing import Any
from urllib.parse import quote

import msgspec

from agentcoord.errors import Conflict, Defect, StoreError, Unreadable, UsageError
from agentcoord.protocol.documents import decode, encode_pretty
from agentcoord.protocol.paths import FAMILIES, is_listed, is_repo, require_safe
from agentcoord.stores.base import Decode, Listing, Stored, Version, require_few
from agentcoord.stores.contents import (
    Blob,
    Change,
    Entry,
    File,
    Repository,
    Tree,
    is_absence,
    is_final,
    parsed,
    refusal,
    says_archived,
)
from agentcoord.stores.gh import Answer, Asking, Call

MAX_RECORD_BYTES = 1024 * 1024
"""What the contents API gives a file's content for; a larger one has none in its answer."""

_TRIES = 4
_TOGETHER = 8  # blobs that are fetched side by side
_LINK = "120000"  # the mode of a symlink in a tree


class GithubStore:
    """Keeps records as files on the branch `ref` of `repo`; a record's version is its blob's SHA.

    Methods are coroutines only to keep the promise of a Store: they wait for gh where they stand and
    never suspend, since the in-process command line drives them without an event loop. Each call of
    gh takes a large part of a second. Reading one record is one call, two when it is not there;
    a change is one; a listing is one for the whole tree and one for every record below the prefix.

    `pause` waits that many seconds before a change is tried again.
    """

    def __init__(self, repo: str, ref: str, gh: Asking, *, pause: Callable[[float], None] = sleep) -> None:
        # A dot name would lead elsewhere in a URL, and a dash would be read as an option.
        if not is_repo(repo) or repo.startswith("-") or any(part in (".", "..") for part in repo.split("/")):
            raise UsageError(f"invalid backend repo: {repo}")
        if not ref.isprintable():  # half a surrogate pair is not printable either
            raise UsageError(f"invalid backend ref: {ref!a}")
        self._repo = repo
        self._ref = ref
        self._gh = gh
        self._pause = pause

    async def read(self, path: str) -> Stored | None:
        """Read one record; None when nothing is there and the ref itself is readable.

        Raises Unreadable for the record's own defects, StoreError when GitHub or gh is in doubt.
        """
        _require_spelled(path)
        file = self._file(path)
        return None if file is None else Stored(path, _parse(path, _bytes_of(path, file), decode), file.sha)

    def _file(self, path: str) -> File | None:
        """Ask for the file at a path; None when the ref has none. Raises Unreadable, StoreError."""
        (answer,) = self._gh.ask(_api(f"{self._contents(path)}?ref={quote(self._ref, safe='')}"))
        if not answer.ok:
            if not is_absence(answer):
                raise StoreError(f"state record cannot be read now: {path}: {self._why(answer)}")
            self._require_ref()
            return None
        said = parsed(answer, File)
        if said is None and parsed(answer, list[Any]) is not None:  # what a directory holds
            raise Unreadable(
                f"state layout invalid: {path} is not a regular file", path=path, defect=Defect.NOT_REGULAR
            )
        if said is None:
            raise StoreError(f"state record cannot be read now: {path}: {answer.said}")
        if said.type != "file":
            raise _no_file(path, link=said.type == "symlink")
        return said

    def _require_ref(self) -> None:
        """Tell an absent record from a repository or a branch that is out of reach. Raises StoreError."""
        self._tree(recursive=False)

    def _tree(self, *, recursive: bool) -> list[Entry]:
        where = f"repos/{self._repo}/git/trees/{quote(self._ref, safe='')}"
        (answer,) = self._gh.ask(_api(f"{where}?recursive=1" if recursive else where))
        tree = parsed(answer, Tree) if answer.ok else None
        name = f"{self._repo}@{self._ref}"
        if tree is None:
            raise StoreError(f"backend ref {name} is not readable: {self._why(answer)}")
        if tree.truncated:
            raise StoreError(
                f"backend ref {name} cannot be listed: GitHub cut its recursive tree short, "
                "so records would be missed; remove old records or move to the HTTP backend"
            )
        return tree.tree

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        """Store a record if its path still holds `version`; None: if it holds none. `note` is the commit's message.

        Raises Conflict if something else is there, StoreError when it was not or may not have been written.
        """
        _require_spelled(path)
        data = _render(path, document)
        fields = {"message": note or f"Write {path}", "content": b2a_base64(data, newline=False).decode()}
        return self._change("PUT", path, fields, version=version, data=data) or ""

    async def delete(self, path: str, *, version: Version, note: str) -> None:
        """Remove exactly what was read; `note` is the commit's message. Raises Conflict, StoreError."""
        _require_spelled(path)
        self._change("DELETE", path, {"message": note or f"Delete {path}"}, version=version, data=None)

    def _change(
        self, method: str, path: str, fields: Mapping[str, str], *, version: Version | None, data: bytes | None
    ) -> Version | None:
        """Have a path that holds `version` hold `data`, or learn why not; None stands for no record.

        Gives the version that is there afterwards. Raises Conflict, StoreError.
        """
        held = {} if version is None else {"sha": version}
        call = _api(self._contents(path), method, _body(path, {**fields, "branch": self._ref, **held}))
        why = ""
        for attempt in range(_TRIES):
            if attempt:
                self._pause((0.1 + os.urandom(1)[0] / 1000) * 2**attempt)
            (answer,) = self._gh.ask(call)
            change = parsed(answer, Change) if answer.ok else None
            if change is not None and (change.content is None) == (data is None):
                return change.content.sha if change.content is not None else None
            status, why = refusal(answer), self._why(answer)
            if says_archived(answer):
                raise StoreError(why)
            if is_final(answer, status):
                raise StoreError(f"state record is not writable: {path}: {why}")
            # Everything else is settled by what is there now: never by the answer's wording, nor by hope.
            file = self._file_after(path, why, status)
            now = None if file is None else file.sha
            if status is None and _holds(file, data):
                return now
            if now != version:
                raise Conflict(path, exists=version is None)
            if status is None:
                raise StoreError(f"not known whether the change to {path} was made: {why}")
            if status != 409:  # the record is what it was, and no other commit came in between
                break
        raise StoreError(f"state record is not writable: {path}: {why}")

    def _file_after(self, path: str, why: str, status: int | None) -> File | None:
        """Read back what a path holds, after a change that was not confirmed. Raises StoreError."""
        try:
            return self._file(path)
        except StoreError as error:
            if status is not None:  # the change was turned down, so this is all there is to say
                raise
            told = f"{why}; reading it back failed: {error}"
            raise StoreError(f"not known whether the change to {path} was made: {told}") from error

    async def check(self, *, writable: bool) -> None:
        """Check login, repository, ref and layout. An archived repository is useless even where nothing is written.

        Whether the login may write is not asked. Raises StoreError naming the culprit (spec: cli §14.1).
        """
        (login,) = self._gh.ask(Call(("auth", "status")))
        if not login.ok:
            raise StoreError(f"gh auth status failed: {login.said}")
        (answer,) = self._gh.ask(Call(("repo", "view", self._repo, "--json", "isArchived")))
        repository = parsed(answer, Repository) if answer.ok else None
        if repository is None:
            raise StoreError(f"backend repository {self._repo} is not readable: {self._why(answer)}")
        if repository.isArchived:
            raise StoreError(self._archived())
        for entry in self._tree(recursive=False):
            if entry.path in FAMILIES:
                _require_directory(entry)

    async def list(self, prefix: str, *, decode: Decode = decode, at_most: int | None = None) -> Listing:
        """List the records below a directory prefix: every `*.json` file that no dot name hides.

        All are fetched now and are of one commit; they are decoded as the listing is walked. Raises
        StoreError, also for a tree that GitHub gives in part only, and when a symlink or a file is
        where a directory belongs.
        """
        _require_spelled(prefix)
        entries = [entry for entry in self._tree(recursive=True) if _belongs(prefix, entry)]
        require_few(prefix, len(entries), at_most)
        entries.sort(key=lambda entry: entry.path)
        return Listing(_walk(entries, self._blobs(entries), decode))

    def _blobs(self, entries: Sequence[Entry]) -> dict[Version, bytes]:
        """Fetch the content of each entry that can be a record. Raises StoreError."""
        paths = {entry.sha: entry.path for entry in entries if _is_content(entry)}
        wanted, found = list(paths), dict[Version, bytes]()
        for first in range(0, len(wanted), _TOGETHER):
            shas = wanted[first : first + _TOGETHER]
            where = f"repos/{self._repo}/git/blobs/"
            answers = self._gh.ask(*(_api(where + quote(sha, safe="")) for sha in shas))
            for sha, answer in zip(shas, answers, strict=True):
                blob = parsed(answer, Blob) if answer.ok else None
                data = None if blob is None else blob.decoded()
                if data is None:
                    raise StoreError(f"state record cannot be read now: {paths[sha]}: {self._why(answer)}")
                found[sha] = data
        return found

    def _contents(self, path: str) -> str:
        return f"repos/{self._repo}/contents/{quote(path)}"

    def _why(self, answer: Answer) -> str:
        return self._archived() if says_archived(answer) else answer.said

    def _archived(self) -> str:
        return (
            f"legacy GitHub backend {self._repo} is archived and read-only; configure AGENT_COORD_API_URL and "
            "AGENT_COORD_API_TOKEN for the HTTP backend, or choose an active writable GitHub backend"
        )


# What is asked ---------------------------------------------------------------------------------------


def _api(where: str, method: str = "GET", body: bytes = b"") -> Call:
    options = ("--method", method, "--input", "-") if body else ("--method", method)
    return Call(("api", *options, "-H", "X-GitHub-Api-Version: 2022-11-28", where), body)


def _require_spelled(path: str) -> None:
    require_safe(path)
    if not path.isascii():
        _utf8(path, UsageError(f"unsafe state path: {path!a}"))


def _utf8(text: str, error: UsageError) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, from a command line that was not UTF-8
        raise error from None


def _render(path: str, document: object) -> bytes:
    """Encode a record. Raises UsageError, StoreError for what could not be read back."""
    try:
        data = encode_pretty(document)
    except UnicodeEncodeError:
        raise UsageError(f"state record is not valid UTF-8: {path}") from None
    except RecursionError:
        raise StoreError(f"state record is nested too deeply to write: {path}") from None
    if len(data) > MAX_RECORD_BYTES:
        raise StoreError(f"state record is too large to write: {path}: {len(data)} bytes")
    return data


def _body(path: str, fields: Mapping[str, str]) -> bytes:
    _utf8(fields["message"], UsageError(f"commit message is not valid UTF-8: {path}"))
    return msgspec.json.encode(fields)


# What is there ---------------------------------------------------------------------------------------


def _bytes_of(path: str, file: File) -> bytes:
    if file.encoding == "none" or file.size > MAX_RECORD_BYTES:
        raise _too_large(path, file.size)
    data = file.decoded()
    if data is None:
        raise StoreError(f"state record cannot be read now: {path}: gh gave an answer that makes no sense")
    return data


def _holds(file: File | None, data: bytes | None) -> bool:
    return data is None if file is None else data is not None and file.decoded() == data


def _parse(path: str, data: bytes, decode: Decode) -> object:
    try:
        return decode(data)
    except ValueError as error:
        raise Unreadable(f"state unreadable: {error} at {path}", path=path, defect=Defect.MALFORMED) from error


def _too_large(path: str, size: int) -> Unreadable:
    why = f"the record has {size} bytes, more than {MAX_RECORD_BYTES}"
    return Unreadable(f"state unreadable: {why} at {path}", path=path, defect=Defect.MALFORMED)


def _no_file(path: str, *, link: bool) -> Unreadable:
    defect = Defect.SYMLINK if link else Defect.NOT_REGULAR
    return Unreadable(f"state layout invalid: {path} {defect}", path=path, defect=defect)


def _require_directory(entry: Entry) -> None:
    if entry.type != "tree":
        what = "is a symlink" if entry.mode == _LINK else "is not a directory"
        raise StoreError(f"state layout invalid: {entry.path} {what}")


def _belongs(prefix: str, entry: Entry) -> bool:
    """Tell whether an entry of the whole tree stands where a listing shows a record. Raises StoreError."""
    if prefix == entry.path or prefix.startswith(f"{entry.path}/"):
        _require_directory(entry)
    if entry.type == "tree" or not entry.path.startswith(f"{prefix}/"):
        return False
    if entry.mode == _LINK and not entry.path.endswith(".json"):
        _require_directory(entry)  # whatever it leads to is not in this tree, and would be missed
    return is_listed(prefix, entry.path)


def _is_content(entry: Entry) -> bool:
    return entry.type == "blob" and entry.mode != _LINK and entry.size <= MAX_RECORD_BYTES


def _walk(entries: Sequence[Entry], blobs: Mapping[Version, bytes], decode: Decode) -> Iterator[Stored | Unreadable]:
    for entry in entries:
        if not _is_content(entry):
            oversized = entry.type == "blob" and entry.mode != _LINK
            yield _too_large(entry.path, entry.size) if oversized else _no_file(entry.path, link=entry.mode == _LINK)
            continue
        try:
            document = _parse(entry.path, blobs[entry.sha], decode)
        except Unreadable as defect:
            yield defect
        else:
            yield Stored(entry.path, document, entry.sha)
