"""What an HTTP backend's answers mean. Pure: bytes and a status in, values or the error they are out.

An answer of the right shape is read in one pass, each record's JSON left as the bytes it is. Only one
of a wrong shape is looked at again, to say what is wrong with it (spec: http §8).
"""

import re
from collections.abc import Mapping
from typing import cast

import msgspec
from msgspec import Raw, Struct

from agentcoord.errors import Defect, Rejected, StoreError, TooMany, Undecided, Unreadable
from agentcoord.protocol.paths import over_cap
from agentcoord.stores.httpaddress import HEADER_VALUE

LONGEST_REASON = 200
"""Characters that are shown of what a backend says."""


class Entry(Struct, frozen=True):
    """One record of a listing: its JSON as it came, its version as a text or a number."""

    path: str
    data: Raw
    version: int | str


class Found(Struct, frozen=True):
    """One record that was read: its JSON as it came, its version as a text.

    `updated_by` is the machine that wrote it, as the backend says; None when it does not say.
    """

    data: bytes
    version: str
    updated_by: object


class Page(Struct, frozen=True):
    """One page of a listing. Anything but false in `filtered` says that something is missing."""

    entries: list[Entry]
    filtered: object = False
    next_cursor: str | None = None


class Change(Struct, frozen=True):
    """One step of the feed. Without `data` it is a deletion, or else a newer change of the record follows."""

    path: str
    version: int | str
    data: Raw = Raw(b"")
    deleted: bool = False


class Changes(Struct, frozen=True):
    """What came after a cursor, in order, and the cursor to go on from."""

    changes: list[Change]
    cursor: str


class TokenIdentity(Struct, frozen=True):
    """Whom the backend takes the bearer of the token for, and what it lets that machine see and change."""

    machine: str
    read_prefixes: tuple[str, ...]
    write_prefixes: tuple[str, ...]


class _Record(Struct, frozen=True):
    data: Raw
    version: int | str
    path: str | None = None
    updated_by: object = None  # an oddity in it spoils no record, and equals no machine


class _Written(Struct, frozen=True):
    version: int | str


class _Error(Struct, frozen=True):
    error: str


_page = msgspec.json.Decoder(Page)
_changes = msgspec.json.Decoder(Changes)
_record = msgspec.json.Decoder(_Record)
_written = msgspec.json.Decoder(_Written)
_identity = msgspec.json.Decoder(TokenIdentity)
_error = msgspec.json.Decoder(_Error)


def read_page(body: bytes, prefix: str) -> Page:
    """Read one page of a listing. Raises StoreError saying what is wrong with it."""
    action = f"list {prefix}"
    try:
        page = _page.decode(body)
    except msgspec.ValidationError:
        raise _malformed(action, _fault_of_page(_object(body, action))) from None
    except _BROKEN as error:
        raise _not_json(action, error) from error
    for entry in page.entries:
        version_of(entry.version, action)
        if not entry.path.startswith(f"{prefix}/"):
            raise _malformed(action, "entry is not below the prefix")
    return page


def read_changes(body: bytes) -> Changes:
    """Read what changed. Raises StoreError saying what is wrong with the answer."""
    action = "changes"
    try:
        found = _changes.decode(body)
    except msgspec.ValidationError as error:
        raise _malformed(action, str(error)) from None
    except _BROKEN as error:
        raise _not_json(action, error) from error
    for change in found.changes:
        version_of(change.version, action)
    if not found.cursor:
        raise _malformed(action, "missing cursor")
    return found


def read_record(body: bytes, path: str) -> Found:
    """Read one record. Raises StoreError saying what is wrong with the answer."""
    action = f"read {path}"
    try:
        record = _record.decode(body)
    except msgspec.ValidationError:
        raise _malformed(action, _missing(_object(body, action), "data", "version") or "path is not a string") from None
    except _BROKEN as error:
        raise _not_json(action, error) from error
    if record.path not in (None, path):
        raise _malformed(action, "another record's path")
    return Found(bytes(record.data), version_of(record.version, action), record.updated_by)


def read_written(body: bytes, path: str) -> str:
    """Read the version that a write made. Raises StoreError."""
    action = f"write {path}"
    try:
        return version_of(_written.decode(body).version, action)
    except msgspec.ValidationError:
        raise _malformed(action, _missing(_object(body, action), "version") or "missing version") from None
    except _BROKEN as error:
        raise _not_json(action, error) from error


def read_identity(body: bytes) -> TokenIdentity:
    """Read whom the backend takes us for. Raises StoreError."""
    try:
        return _identity.decode(body)
    except msgspec.ValidationError as error:
        fields = _object(body, "whoami")
        missing = _missing(fields, "machine", "read_prefixes", "write_prefixes")
        raise _malformed("whoami", missing or str(error)) from None
    except _BROKEN as error:
        raise _not_json("whoami", error) from error


def version_of(version: int | str, action: str) -> str:
    """Give a version as the text that a later write names. Raises StoreError for one that no header can carry."""
    text = str(version)
    if not HEADER_VALUE.fullmatch(text):
        raise _malformed(action, "missing version")
    return text


def error_code(body: bytes) -> str | None:
    """Give the backend's own word for an error; None for an answer that has none, as from a proxy."""
    try:
        return _error.decode(body).error
    except _BROKEN:
        return None


def failure(action: str, status: int, body: bytes, secret: str, retry_after: float | None = None) -> Rejected:
    """Say that the backend answered with a status nobody asked for; the token is left out wherever it comes from."""
    said = error_code(body)
    text = body.decode(errors="replace") if said is None else said
    reason = one_line(_without(secret, text))[:LONGEST_REASON]
    return Rejected(
        f"http backend {action} failed: {status} {reason}".rstrip(),
        status=status,
        reason=reason,
        worded=said is not None,
        retry_after=retry_after,
    )


def pause_of(value: str | None, at: str | None) -> float | None:
    """Read a Retry-After, in seconds: a number of them, or an instant, seen from that of the answer (its Date)."""
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdecimal():
        return float(value.strip()[:9])
    from email.utils import parsedate_to_datetime  # only here: hardly any backend ever says it

    try:
        return max(0.0, (parsedate_to_datetime(value) - parsedate_to_datetime(at or "")).total_seconds())
    except (TypeError, ValueError):  # no instant, or one without a zone beside one that has it
        return None


def failure_of_reading(action: str, path: str, error: Rejected) -> StoreError:
    """Tell what only this record or prefix suffers from, such as a scoped token, from what the backend does."""
    if error.status == 403 and error.reason == "forbidden":
        return Unreadable(str(error), path=path, defect=Defect.FORBIDDEN)
    if error.status == 400 and error.reason == "invalid_path" and over_cap(path, 0) is not None:
        return Unreadable(str(error), path=path, defect=Defect.PATH_TOO_LONG)
    return error


def too_many(prefix: str, maximum: int) -> TooMany:
    """Say that a prefix holds more records than its reader may look at."""
    return TooMany(f"http backend list {prefix} exceeds scan maximum {maximum}")


def repeated_cursor(prefix: str) -> StoreError:
    """Say that a listing runs in a circle."""
    return _malformed(f"list {prefix}", "repeated next_cursor")


def one_line(text: str) -> str:
    """Make one line of what somebody else said, without the userinfo of the URLs in it."""
    line = re.sub(r"[\x00-\x1f\x7f-\x9f\s]+", " ", text).strip()
    return re.sub(r"://[^\s/]*@", "://***@", line)


def _without(secret: str, text: str) -> str:
    """Take a secret out of a text, also where it was escaped for JSON, HTML or a URL, and a few times over."""
    text = text.replace(secret, "***")
    if not any(mark in text for mark in "\\%&"):
        return text  # nothing is escaped in it, as in nearly all that a backend says
    spelled = {char: _spellings(char) for char in set(secret)}
    return re.sub("".join(spelled[char] for char in secret), "***", text)


def _spellings(char: str) -> str:
    """Give a pattern for all that a character of a secret may be spelled as."""
    from html.entities import html5  # only here: hardly any command meets a text that needs it

    code = ord(char)
    names = "|".join(name.rstrip(";") for name, meant in html5.items() if meant == char)
    named = f"|{names}" if names else ""
    literal = r"\\\\|\\" if char == "\\" else rf"\\{{0,3}}+{re.escape(char)}"
    # Atomic and bounded: a text made for it would otherwise take forever.
    return (
        rf"(?>\\{{1,3}}(?i:u00{code:02x}|x{code:02x})|\\{{0,3}}+(?i:%(?:25)*{code:02x})"
        rf"|\\{{0,3}}+&(?:amp;)*(?:(?i:#0*{code}|#x0*{code:x}){named});?|{literal})"
    )


_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def _object(body: bytes, action: str) -> Mapping[str, object]:
    try:
        value: object = msgspec.json.decode(body)
    except _BROKEN as error:
        raise _not_json(action, error) from error
    if not isinstance(value, dict):
        raise _malformed(action, "expected object")
    return cast("dict[str, object]", value)


def _fault_of_page(page: Mapping[str, object]) -> str:
    if page.get("entries") is None:
        return "missing entries"
    entries = page["entries"]
    if not isinstance(entries, list):
        return "entries is not an array"
    for entry in cast("list[object]", entries):
        if not isinstance(entry, dict):
            return "entry is not an object"
        fields = cast("dict[str, object]", entry)
        if missing := _missing(fields, "path", "data", "version"):
            return missing
        if not isinstance(fields["path"], str):
            return "missing path"
        if isinstance(fields["version"], bool) or not isinstance(fields["version"], int | str):
            return "missing version"
    return "next_cursor is not a string"


def _missing(fields: Mapping[str, object], *names: str) -> str | None:
    for name in names:
        # Null is a record like any other, and nothing else's value.
        if name not in fields or (fields[name] is None and name != "data"):
            return f"missing {name}"
    version = fields.get("version", 0)
    if "version" in names and (isinstance(version, bool) or not isinstance(version, int | str)):
        return "missing version"
    return None


def _malformed(action: str, why: str) -> Undecided:
    return Undecided(f"http backend {action} returned malformed response: {why}")


def _not_json(action: str, error: Exception) -> Undecided:
    why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return Undecided(f"http backend {action} returned malformed JSON: {why}")
