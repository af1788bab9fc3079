"""The methods there are, and what one needs to know of whoever calls it.

A method is a coroutine function of its params and its caller. One that is `quick` never waits for anything: it
is answered where its frame is read, also while everything else is busy.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from agentcoordd.api.messages import Fault, Id

MOST_ERRORS = 16


class Refused(Exception):
    """A request is answered by an error, whose text is one line."""

    def __init__(self, code: Fault, message: str) -> None:
        self.code = code
        super().__init__(message)


class Gone(Exception):
    """Whoever called has hung up, or was dropped."""


class Session(Protocol):
    """The connection of a caller, for methods that say more than one thing."""

    @property
    def congested(self) -> bool:
        """Whether what was said waits for the caller to read it."""
        ...

    def standing(self) -> bool:
        """Tell whether the caller is still there, as the system says at this moment. For any thread."""
        ...

    def notify(self, method: str, params: Struct, following: bytes = b"") -> None:
        """Say something that nobody answers, and bytes after it. Never waits; says nothing once the caller is gone."""
        ...

    async def drained(self) -> None:
        """Wait until the caller has read most of what was said. Raises Gone for one who does not."""
        ...

    def hear(self, request: Id, listener: Callable[[str, Any], None] | None) -> None:
        """Give what the caller notifies about a request to a listener: the method and its params."""
        ...

    def follow(self, drained: Callable[[], None], closed: Callable[[], None]) -> None:
        """Be told whenever there is room again, and once when the caller is gone."""
        ...


class Caller(Struct, frozen=True):
    """Who asks: process and user, from the system; and for methods that need it, where and under which id."""

    pid: int
    uid: int
    session: Session | None = None
    request: Id = 0


class Method(Struct, frozen=True):
    """One method. `params` and `result` are Structs; `call` raises Refused or CoordError for an error.

    `at_once` gives the answer where it is known without waiting, else None: then `call` is asked.
    """

    name: str
    params: type[Any]
    result: type[Any]
    call: Callable[[Any, Caller], Awaitable[Any]]
    quick: bool = False
    at_once: Callable[[Any, Caller], Any | None] | None = None


class Trouble(Struct, frozen=True):
    """An error that was logged; `at` in seconds since the epoch."""

    at: float
    message: str


class Tally(Struct):
    """What is counted, for `daemon.status`."""

    connections: int = 0
    requests: int = 0
    refused: int = 0
    dropped: int = 0
    errors: deque[Trouble] = field(default_factory=lambda: deque(maxlen=MOST_ERRORS))


class Registry:
    """The methods by their names."""

    def __init__(self, methods: Iterable[Method] = ()) -> None:
        self._methods: dict[str, tuple[Method, msgspec.json.Decoder[Any]]] = {}
        self.add(methods)

    def add(self, methods: Iterable[Method]) -> None:
        """Offer more methods. Raises ValueError for a name that is taken."""
        for method in methods:
            if method.name in self._methods:
                raise ValueError(f"two methods are called {method.name}")
            self._methods[method.name] = method, msgspec.json.Decoder(method.params)

    def find(self, name: str) -> tuple[Method, msgspec.json.Decoder[Any]]:
        """Give a method and what decodes its params. Raises Refused."""
        found = self._methods.get(name)
        if found is None:
            raise Refused(Fault.UNKNOWN_METHOD, f"unknown method: {name[:80]}")
        return found

    @property
    def names(self) -> list[str]:
        """The names of all methods."""
        return sorted(self._methods)


@contextmanager
def hearing(caller: Caller, listener: Callable[[str, Any], None]) -> Generator[Session]:
    """Hear what the caller says about its request, for as long as that runs. Raises Refused where nobody can."""
    if caller.session is None:
        raise Refused(Fault.FAILED, "this method needs a connection")
    caller.session.hear(caller.request, listener)
    try:
        yield caller.session
    finally:
        caller.session.hear(caller.request, None)
