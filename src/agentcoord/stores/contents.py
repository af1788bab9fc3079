"""What GitHub's contents and git APIs say through gh, and what an answer that is no answer proves.

`gh` tells of a failure in words for people: an HTTP status in brackets, usually, and the text of the
API. What is read out of them here decides only what is looked at next (spec: cli §17.2).
"""

import re
from binascii import a2b_base64
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from agentcoord.stores.gh import Answer

_STATUS = re.compile(r"\bHTTP (\d{3})\b")
_ARCHIVED = re.compile(r"repository (?:was|is|has been) archived")
_TELLING = 4000  # characters of each stream; an error is never longer
_NEED_LOGIN = 4  # gh's own exit status: nothing was sent

_Said = TypeVar("_Said")


class Blob(Struct):
    """The content of a file. `encoding` is `none` where it was too large to be given."""

    content: str = ""
    encoding: str = ""

    def decoded(self) -> bytes | None:
        """Give the content; None when it is not there or makes no sense."""
        try:
            return a2b_base64(self.content) if self.encoding == "base64" else None
        except ValueError:
            return None


class File(Blob, kw_only=True):
    """What the contents API says of a path."""

    type: str
    sha: str
    size: int = 0


class Named(Struct):
    """What is there after a change."""

    sha: str


class Entry(Struct):
    """One line of a tree."""

    path: str
    mode: str
    type: str
    sha: str
    size: int = 0


class Tree(Struct):
    """What a commit holds, or its first level."""

    tree: list[Entry]
    truncated: bool = False


class Change(Struct):
    """What a change is answered with. A deletion leaves no content."""

    commit: dict[str, Any]
    content: Named | None = None


class Repository(Struct):
    """What `gh repo view` was asked for."""

    isArchived: bool  # noqa: N815 - as gh spells it


def parsed(answer: Answer, kind: type[_Said]) -> _Said | None:
    """Parse what gh printed; None when it is not of that kind."""
    try:
        return msgspec.json.decode(answer.out, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _http(answer: Answer) -> int | None:
    """Give the HTTP status that gh told; None when it told none or was ended before it was done."""
    if answer.ok or answer.fault is not None:
        return None
    told = _STATUS.search(answer.err)
    if told is not None:
        return int(told.group(1))
    body = parsed(answer, dict[str, Any])
    status = str(body.get("status", "")) if body is not None else ""
    return int(status) if re.fullmatch(r"[0-9]{3}", status) else None


def refusal(answer: Answer) -> int | None:
    """Give the HTTP status of an answer that is a clear no; None when it is not known what was done."""
    status = _http(answer)
    return status if status is not None and 400 <= status < 500 and status != 408 else None


def _words(answer: Answer) -> str:
    """Give what gh said in small letters. What is looked for has a blank in it, so no address can hold it."""
    return f"{answer.err[:_TELLING]}\n{answer.out[:_TELLING].decode(errors='replace')}".lower()


def is_absence(answer: Answer) -> bool:
    """Tell whether a call failed since something is not there; what it is remains to be seen."""
    status = _http(answer)
    return answer.fault is None and (status == 404 if status is not None else "not found" in _words(answer))


def is_final(answer: Answer, status: int | None) -> bool:
    """Tell whether a change was turned down for a reason that has nothing to do with what is stored.

    The statuses that may have to do with it are looked into; the words that stand for them where
    gh gives no status (`sha`, `already exists`, `conflict`) need no list, as everything else is too.
    """
    if answer.ok or answer.fault is not None:
        return False
    return answer.exit == _NEED_LOGIN or (status is not None and status not in (404, 409, 422))


def says_archived(answer: Answer) -> bool:
    """Tell whether a call failed since the repository takes no more changes."""
    return not answer.ok and _ARCHIVED.search(_words(answer)) is not None
