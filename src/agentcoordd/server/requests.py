"""What a request says, read strictly: route and path, query, conditions and body (spec: http §1 to §6)."""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from urllib.parse import parse_qsl

from msgspec import Struct

from agentcoord.protocol.documents import decode, encode, is_document
from agentcoord.protocol.paths import ACTIVE_RECORD_BYTES, ARCHIVE_RECORD_BYTES
from agentcoord.protocol.scopes import is_directory_prefix, is_record_path
from agentcoordd.server.answers import Message, Receive, Refusal, Scope

_ENVELOPE = 4096
"""Bytes that a body may have beyond the record in it."""

_REST_SECONDS = 0.5
_REST_BYTES = 64 * 1024
"""How much of a body is still taken in when its request is refused already, and for how long."""

_PATHS = 4096
"""How many paths are remembered: who keeps a lease alive asks for the same ones again and again."""

_SAFE_INTEGER = 2**53 - 1
_LARGEST_PAGE = 1000
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)


class Paging(Struct, frozen=True):
    """Which part of a listing is asked for."""

    limit: int | None
    cursor: str | None


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Give the headers by lower-case name; of one that is repeated, the first."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name, value)
    return headers


def token_of(headers: Mapping[bytes, bytes]) -> str:
    """Read the bearer token. Raises Refusal when there is none."""
    said = headers.get(b"authorization", b"").decode("latin-1").strip()
    found = _BEARER.fullmatch(said)
    if found is None:
        raise Refusal(401, "unauthorized")
    return found.group(1)


def query_of(scope: Scope) -> dict[str, str]:
    """Read the query; of a parameter that is repeated, the first counts."""
    query: dict[str, str] = {}
    for name, value in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="replace"):
        query.setdefault(name, value)
    return query


@lru_cache(_PATHS)
def record_path(raw: bytes) -> str:
    """Decode the path of a record once, and check it. Raises Refusal."""
    if _BROKEN_ESCAPE.search(raw):
        raise Refusal(400, "invalid_path")
    try:
        path = _ESCAPE.sub(lambda found: bytes([int(found.group(1), 16)]), raw).decode()
    except UnicodeDecodeError:
        raise Refusal(400, "invalid_path") from None
    if not is_record_path(path):
        raise Refusal(400, "invalid_path")
    return path


def listed_prefix(query: Mapping[str, str]) -> str:
    """Read the prefix to be listed. Raises Refusal."""
    prefix = query.get("prefix", "")
    if not is_directory_prefix(prefix):
        raise Refusal(400, "invalid_prefix")
    return prefix


def paging_of(query: Mapping[str, str], prefix: str) -> Paging:
    """Read which part of a listing is asked for. Raises Refusal."""
    limit = None
    if "limit" in query:
        limit = bounded(query["limit"], _LARGEST_PAGE)
        if not limit:
            raise Refusal(400, "invalid_limit")
    cursor = query.get("cursor")
    if cursor is not None and not (is_record_path(cursor) and cursor.startswith(prefix + "/")):
        raise Refusal(400, "invalid_cursor")
    return Paging(limit, cursor)


def bounded(text: str, largest: int) -> int | None:
    """Read a plain decimal number up to a bound; None for anything else."""
    if _DIGITS.fullmatch(text) is None or len(text) > 20:
        return None
    return number if (number := int(text)) <= largest else None


def written_version(headers: Mapping[bytes, bytes]) -> int | None:
    """Read what a write demands to find: a version, or None for no record. Raises Refusal (spec: http §5)."""
    none_match = headers.get(b"if-none-match")
    if none_match is not None:
        if none_match.strip() != b"*":
            raise Refusal(400, "invalid_if_none_match")
        return None
    match = headers.get(b"if-match")
    if match is None:
        raise Refusal(400, "precondition_required")
    version = bounded(match.decode("latin-1").strip(), _SAFE_INTEGER)
    if version is None:
        raise Refusal(400, "invalid_if_match")
    return version


def deleted_version(headers: Mapping[bytes, bytes]) -> int:
    """Read which version a deletion demands to find. Raises Refusal (spec: http §5)."""
    match = headers.get(b"if-match", b"").decode("latin-1").strip()
    if _DIGITS.fullmatch(match) is None:
        raise Refusal(400, "precondition_required")
    version = bounded(match, _SAFE_INTEGER)
    if version is None:
        raise Refusal(400, "invalid_if_match")
    return version


async def data_of(path: str, headers: Mapping[bytes, bytes], receive: Receive) -> str:
    """Read the record that a PUT carries, as compact JSON. Raises Refusal (spec: http §5)."""
    cap = ARCHIVE_RECORD_BYTES if path.startswith("archive/") else ACTIVE_RECORD_BYTES
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > cap + _ENVELOPE:
        raise Refusal(413, "payload_too_large", close=True)
    body = await _body(receive, cap + _ENVELOPE)
    try:
        value = decode(body)
    except ValueError:
        raise Refusal(400, "invalid_json") from None
    if not is_document(value) or "data" not in value:
        raise Refusal(400, "missing_data")
    try:
        data = encode(value["data"])
    except (RecursionError, ValueError):
        raise Refusal(400, "invalid_json") from None
    if len(data) > cap:
        raise Refusal(413, "payload_too_large")
    return data.decode()


def require_get(scope: Scope) -> None:
    """Admit nothing but a GET. Raises Refusal."""
    if scope["method"] != "GET":
        raise Refusal(405, "method_not_allowed")


def carries_body(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a request said that a body follows its head."""
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0") != b""


class Body:
    """What is received of a request, and whether all of it is."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self.whole = receive, False

    async def __call__(self) -> Message:
        """Receive the next part."""
        message = await self._receive()
        self.whole = message["type"] == "http.request" and not message.get("more_body", False)
        return message

    async def arrive(self) -> None:
        """Take in a little more: who is refused amid sending might lose the answer with the connection."""
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_REST_SECONDS):
                while not self.whole and size < _REST_BYTES:
                    message = await self()
                    if message["type"] == "http.disconnect":
                        break
                    size += len(message.get("body", b""))


async def _body(receive: Receive, longest: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:  # how long this may take is up to the connection (see `connections`)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(408, "request_timeout", close=True)
        part = message.get("body", b"")
        size += len(part)
        if size > longest:
            raise Refusal(413, "payload_too_large", close=True)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)
