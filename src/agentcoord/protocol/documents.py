"""A record as it was read: the raw JSON object is kept, and looked at through lenient accessors.

Both implementations and their consumers may add fields, so nothing here drops one. A field of an
unexpected type is treated as absent by the typed accessors and shown verbatim by projections.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard, cast

import msgspec

Document = dict[str, Any]
"""A JSON object as parsed: unknown fields included, key order kept."""

_parse = msgspec.json.Decoder().decode  # built once: a decoder of its own for each record costs as much as the record

INPUT_DEPTH = 100
"""How deep JSON from a caller may nest: the limit of the reference's parser."""


def is_document(value: object) -> TypeGuard[Document]:
    """Tell whether a stored value is an object, as every record must be."""
    return isinstance(value, dict)


def decode(data: bytes) -> object:
    """Parse strict JSON. Raises ValueError saying what is wrong, never anything else."""
    try:
        return _parse(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(_reason(data, str(error))) from None


def _reason(data: bytes, said: str) -> str:
    if not data.strip():
        return "the file is empty"
    if "truncated" in said and b"\\u" in data:  # what the parser says of a surrogate without its pair as well
        return "it ends too early, or a \\u escape in it stands for half a character"
    return said[:1].lower() + said[1:] if said.startswith(("Input", "Invalid")) else said


def encode(document: object) -> bytes:
    """Serialize without white space, in the document's own key order."""
    return msgspec.json.encode(document)


def pretty(document: object) -> bytes:
    """Serialize for people: two spaces a level, non-ASCII literal, no final newline."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def encode_pretty(document: object) -> bytes:
    """Serialize as stored and printed: `pretty` with its newline."""
    return pretty(document) + b"\n"


def canonical(document: object) -> bytes:
    """Serialize for a digest: keys sorted by code point at every level, no white space."""
    return msgspec.json.encode(document, order="sorted")


def depth(value: object, limit: int = INPUT_DEPTH) -> int:
    """Measure how deep containers nest, giving up one past `limit`."""
    level, frontier = 0, [value]
    while level <= limit:
        inner: list[object] = []
        for item in frontier:
            if isinstance(item, dict):
                inner.extend(cast("dict[str, object]", item).values())
            elif isinstance(item, list):
                inner.extend(cast("list[object]", item))
        if not any(isinstance(item, dict | list) for item in frontier):
            return level
        level, frontier = level + 1, inner
    return level


def text(document: Mapping[str, Any], key: str) -> str | None:
    """Read a field that should be a non-empty string; anything else is None."""
    value = document.get(key)
    return value if isinstance(value, str) and value else None


def stated(document: Mapping[str, Any], keys: Iterable[str]) -> Document:
    """Pick the given fields, in the given order, leaving out absent and null ones."""
    return {key: value for key in keys if (value := document.get(key)) is not None}


def given(fields: Mapping[str, Any]) -> Document:
    """Drop fields that were not given, since records never hold a null."""
    return {key: value for key, value in fields.items() if value is not None}
