"""What there is when a command starts, and what came of it. Values, so that both can travel."""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from msgspec import Struct, field

from agentcoord.errors import Exit, StoreError
from agentcoord.files import discreet
from agentcoord.operations.context import Aside, Outbox, Snapshot, here
from agentcoord.protocol.documents import Document
from agentcoord.settings.selection import Selection
from agentcoord.stores.base import OWN, Behalf
from agentcoord.stores.opening import Opening


class Terminal(Struct, frozen=True):
    """What the caller's stdout is: whether a person reads it, how wide, and whether in colour.

    `notices` tells whether stderr is a terminal too: hints for people go there only then.
    """

    person: bool = False
    columns: int = 80
    colour: bool = False
    notices: bool = False


Recall = Callable[[Selection], AbstractContextManager[Snapshot]]
"""Opens what is known of a backend without asking it. Raises StoreError where that is nothing."""


class Invocation(Struct, frozen=True):
    """One command as it was called. `argv` is without the program's name; bytes that are not UTF-8
    stand in it as surrogates.

    `cwd` is empty when the caller's working directory was removed. `stdin` and `read_file` give
    bytes and raise OSError; `now` answers in UTC; `random` gives that many bytes. `program` is the
    absolute path of the command, for `bootstrap`, and `node` what the machine calls itself. `behalf` is the caller as
    one for whom records are changed.

    Whose command it is may be another process: then reading is waited for. In the caller's own process it never is.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    now: Callable[[], datetime]
    random: Callable[[int], bytes]
    read_file: Callable[[str], Coroutine[Any, Any, bytes]]
    stdin: Callable[[], Coroutine[Any, Any, bytes]]
    program: str = "agent-coord"
    node: str = ""
    terminal: Terminal = Terminal()
    behalf: Behalf = OWN
    aside: Aside = here
    """What does work on files in a process that has others to serve while a backend is waited for."""
    roots: Opening | None = None
    """What opens state roots in a process that knows them from before."""
    again: bool = False
    """Whether a daemon was lost with this command, which so is run with the same clock and chance once more."""
    recall: Recall | None = None
    """What answers a caller who does not want the backend asked; None where nothing does."""
    snapshot: Snapshot | None = None
    """What this command is to be answered from, in place of the backend."""
    own: bool = False
    """Whether this is the caller's own process, all of it for this one command: `run` starts a program in no other."""
    outbox: Callable[[Selection], Outbox | None] | None = None
    """Finds where what cannot be written to a backend may wait for it; None: an error is all that comes of it."""
    cut_off: StoreError | None = None
    """Why no backend can be asked from here, not even in vain."""

    def __repr__(self) -> str:
        """Name the command only: arguments and environment may hold what is nobody's business."""
        return f"Invocation({self.argv[:1]})"


class Output(Struct):
    """What a command says and how it ends. Lines on stderr are whole and in order."""

    answer: Iterable[bytes] = ()
    """What goes to stdout, in pieces. It may be made as it is written: a large one never exists as a whole."""
    stderr: list[str] = field(default_factory=list[str])
    exit: int = Exit.OK
    asked: list[Document] = field(default_factory=list[Document])
    """Requests for attention as the command left them, for whoever runs it on behalf of others and tells them."""

    def say(self, text: str) -> None:
        """Add a line for stdout; one line it stays, whatever a record put into it."""
        self.page(discreet(one_line(text)))

    def page(self, text: str) -> None:
        """Add lines of our own for stdout."""
        self.add(text.encode("utf-8", "surrogateescape"), b"\n")

    def add(self, *chunks: bytes) -> None:
        """Add bytes for stdout."""
        self.answer = [*self.answer, *chunks]

    @property
    def stdout(self) -> bytes:
        """Give all that goes to stdout, put together."""
        self.answer = [b"".join(self.answer)]
        return self.answer[0]


def one_line(text: str) -> str:
    """Keep a line one line that moves no cursor, whatever was put into it."""
    if text.isprintable():
        return text
    import re

    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "", re.sub(r"[\t\n\r]+", " ", text))
