"""The HTTP store where the network and the server are at their worst."""

import gzip
import html
import json
import shutil
import socket
import ssl
import subprocess
import tracemalloc
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest

from agentcoord.errors import (
    ConfigError,
    Conflict,
    Defect,
    Exit,
    Rejected,
    StoreError,
    Undecided,
    Unreadable,
    UsageError,
)
from agentcoord.protocol.documents import decode
from agentcoord.settings.selection import Secret
from agentcoord.stores.base import Stored
from agentcoord.stores.http import HttpStore
from agentcoord.stores.httpexchange import PATIENCE, Patience, Unanswered
from tests.stores.http_server import TOKEN, Answering, Asked, Reply, Server, State, error, reply

CLAIM = "claims/o/r/7.json"
WRITE, DELETE = f"http backend write {CLAIM}", f"http backend delete {CLAIM}"
READ = f"http backend read {CLAIM}"
HASTE = Patience(connect=5.0, read=0.2, write=0.2, answer=0.5, listing=0.7)


class Backend:
    """Servers and stores that are gone when the test is."""

    def __init__(self, opened: ExitStack) -> None:
        self.state = State()
        self._opened = opened
        self._stores: list[HttpStore] = []

    def serve(self, answering: Answering | None = None, tls: ssl.SSLContext | None = None) -> Server:
        return self._opened.enter_context(Server(answering or self.state, tls).running())

    def store(
        self, server: Server | str, *, patience: Patience = PATIENCE, token: str = TOKEN, **more: Any
    ) -> HttpStore:
        url = server if isinstance(server, str) else server.url
        store = HttpStore(url, Secret(token), patience=patience, **more)
        self._stores.append(store)
        return store

    def asking(self, answering: Answering, *, patience: Patience = PATIENCE, **more: Any) -> HttpStore:
        return self.store(self.serve(answering), patience=patience, **more)

    async def aclose(self) -> None:
        for store in self._stores:
            await store.aclose()


@pytest.fixture
async def backend() -> Any:
    with ExitStack() as opened:
        backend = Backend(opened)
        yield backend
        await backend.aclose()


@contextmanager
def failing(message: str, kind: type[StoreError] = StoreError) -> Generator[pytest.ExceptionInfo[StoreError]]:
    with pytest.raises(kind) as raised:
        yield raised
    assert (str(raised.value), raised.value.exit) == (message, Exit.UNKNOWN)


async def entries(store: HttpStore, prefix: str, **more: Any) -> list[Any]:
    return list((await store.list(prefix, **more)).entries)


# What is sent --------------------------------------------------------------------------------------


async def test_a_request_says_what_it_must_and_nothing_of_the_user(backend: Backend) -> None:
    server = backend.serve()
    url = server.url.replace("//", "//me:pa%40ss@")
    store = backend.store(f"{url}/coord/")
    await store.write("claims/o/r/a:b.json", {"ü": 1}, version=None, note="")
    await store.write("claims/o/r/a:b.json", {"ü": 2}, version="1", note="")
    await store.delete("claims/o/r/a:b.json", version="2", note="")
    await entries(store, "claims/o")
    assert [(asked.method, asked.target) for asked in server.asked] == [
        ("PUT", "/coord/v1/state/claims%2Fo%2Fr%2Fa%3Ab.json"),
        ("PUT", "/coord/v1/state/claims%2Fo%2Fr%2Fa%3Ab.json"),
        ("DELETE", "/coord/v1/state/claims%2Fo%2Fr%2Fa%3Ab.json"),
        ("GET", "/coord/v1/state?prefix=claims%2Fo"),
    ]
    create, update, delete, listing = (asked.headers for asked in server.asked)
    assert (create["if-none-match"], create["content-type"]) == ("*", "application/json")
    assert (update["if-match"], delete["if-match"]) == ("1", "2")
    assert "content-type" not in listing
    assert server.asked[0].body == '{"data":{"ü":1}}'.encode()
    assert {asked.headers["authorization"] for asked in server.asked} == {f"Bearer {TOKEN}"}
    assert {asked.headers["host"] for asked in server.asked} == {f"127.0.0.1:{server.port}"}
    assert server.connections == 1
    assert "me" not in repr(store)


@pytest.mark.parametrize("token", ["two words", "end ", "\u00fcber", "a\r\nX: y", "a\0"])
def test_a_token_that_no_header_can_carry_is_not_shown(token: str) -> None:
    with pytest.raises(ConfigError, match=r"^AGENT_COORD_API_TOKEN has a space or a character in it") as refused:
        HttpStore("https://h", Secret(token))
    assert token.strip() not in str(refused.value)


async def test_a_document_that_is_no_text_is_a_mistake_of_the_caller(backend: Backend) -> None:
    server = backend.serve()
    store = backend.store(server)
    with pytest.raises(UsageError, match=f"^state record is not valid UTF-8: {CLAIM}$"):
        await store.write(CLAIM, {"a": "\ud800"}, version=None, note="")
    with pytest.raises(UsageError, match=r"^unsafe state path: "):
        await store.read("claims/o/r/\udcff.json")
    assert server.asked == []


# What an answer means ------------------------------------------------------------------------------

Call = Callable[[HttpStore], Any]
CALLS: dict[str, tuple[Call, str]] = {
    "read": (lambda store: store.read(CLAIM), f"read {CLAIM}"),
    "list": (lambda store: store.list("claims"), "list claims"),
    "write": (lambda store: store.write(CLAIM, {}, version="1", note=""), f"write {CLAIM}"),
    "delete": (lambda store: store.delete(CLAIM, version="1", note=""), f"delete {CLAIM}"),
    "check": (lambda store: store.check(writable=True), "verify readable"),
    "check of a record": (lambda store: store.check(writable=True, prefix=CLAIM), "verify readable"),
    "health": (lambda store: store.check(writable=True, prefix=None), "health"),
    "whoami": (lambda store: store.whoami(), "whoami"),
}


GATEWAY = "<html> <h1>Bad gateway</h1> \ufffd" + "x" * (200 - 29)
"""The first 200 characters of what a proxy says, made one line."""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (error(400, "invalid_path"), "400 invalid_path"),
        (error(401, "unknown_token"), "401 unknown_token"),
        (error(403, "forbidden"), "403 forbidden"),
        (reply(302, b"moved", "Location: /elsewhere"), "302 moved"),
        (error(413, "payload_too_large"), "413 payload_too_large"),
        (error(429, "slow_down"), "429 slow_down"),
        (reply(500, {"error": 7}), '500 {"error": 7}'),
        (reply(502, b"<html>\n\t<h1>Bad\x1b \r\n gateway</h1> \xff" + b"x" * 300), f"502 {GATEWAY}"),
        (reply(503, b""), "503"),
        (reply(206, b"half"), "206 half"),
    ],
)
@pytest.mark.parametrize("call", CALLS)
async def test_any_other_status_is_named_with_its_code(backend: Backend, call: str, answer: Reply, said: str) -> None:
    ask, action = CALLS[call]
    store = backend.asking(lambda asked: answer)
    with pytest.raises(StoreError) as refused:
        await ask(store)
    assert str(refused.value) == f"http backend {action} failed: {said}"
    forbidden = said == "403 forbidden" and action.startswith(("read", "list", "verify"))
    assert isinstance(refused.value, Unreadable if forbidden else Rejected)


@pytest.mark.parametrize("call", ["read", "check of a record"])
async def test_a_record_is_absent_only_where_the_server_says_so(backend: Backend, call: str) -> None:
    ask, action = CALLS[call]
    assert await ask(backend.store(backend.serve())) is None
    with failing(f"http backend {action} failed: 404 route_not_found", Rejected) as refused:
        await ask(backend.asking(lambda asked: error(404, "route_not_found")))
    assert isinstance(refused.value, Rejected)
    assert refused.value.unsupported
    with failing(f"http backend {action} failed: 404 not_found"):
        await ask(backend.asking(lambda asked: reply(404, b"not_found")))


async def test_what_only_one_record_suffers_from_is_told_from_the_rest(backend: Backend) -> None:
    store = backend.asking(lambda asked: error(403, "forbidden"))
    for call, path in (("read", CLAIM), ("list", "claims")):
        with pytest.raises(Unreadable) as refused:
            await CALLS[call][0](store)
        assert (refused.value.path, refused.value.defect) == (path, Defect.FORBIDDEN)
    long = f"claims/o/r/{'x' * 512}.json"
    with pytest.raises(Unreadable, match=r"failed: 400 invalid_path$") as refused:
        await backend.asking(lambda asked: error(400, "invalid_path")).read(long)
    assert refused.value.defect is Defect.PATH_TOO_LONG


async def test_conflicts_say_what_they_contradict(backend: Backend) -> None:
    store = backend.asking(lambda asked: error(409, "whatever"))
    with failing(f"state already exists at {CLAIM}", Conflict):
        await store.write(CLAIM, {}, version=None, note="")
    for ask in (CALLS["write"][0], CALLS["delete"][0]):
        with failing(f"state changed at {CLAIM}", Conflict):
            await ask(store)


async def test_what_a_server_repeats_of_a_token_is_not_repeated(backend: Backend) -> None:
    store = backend.asking(lambda asked: reply(400, f"bad header: {asked.headers['authorization']}".encode()))
    with failing(f"{READ} failed: 400 bad header: Bearer ***"):
        await store.read(CLAIM)
    store = backend.asking(lambda asked: error(400, "see https://me:pw@h/x"))
    with failing(f"{READ} failed: 400 see https://***@h/x"):
        await store.read(CLAIM)


AWKWARD = "t0k\"en/<a&b>'%=\\+~"
ESCAPES: dict[str, Callable[[str], str]] = {
    "JSON": lambda token: json.dumps(token)[1:-1],
    "JSON in JSON": lambda token: json.dumps(json.dumps(token))[3:-3],
    "JSON with solidus": lambda token: json.dumps(token)[1:-1].replace("/", "\\/"),
    "JSON all through": lambda token: "".join(f"\\u{ord(char):04X}" for char in token),
    "HTML": html.escape,
    "HTML twice": lambda token: html.escape(html.escape(token)),
    "HTML in numbers": lambda token: "".join(f"&#{ord(char)};" for char in token),
    "HTML in JSON": lambda token: json.dumps(html.escape(token))[1:-1],
    "HTML by names": lambda token: token.replace("&", "&amp;").replace("'", "&apos;").replace("/", "&sol;"),
    "URL": lambda token: quote(token, safe=""),
    "URL in part": lambda token: quote(token).lower(),
    "URL twice": lambda token: quote(quote(token, safe=""), safe=""),
}


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("coded", [True, False])
async def test_what_a_server_escapes_of_a_token_is_not_repeated(backend: Backend, escape: str, coded: bool) -> None:
    escaped = ESCAPES[escape](AWKWARD)
    assert escaped != AWKWARD
    body = f"bad token {escaped} &c."
    sent = error(401, body) if coded else reply(401, body.encode())
    with failing(f"{READ} failed: 401 bad token *** &c."):
        await backend.asking(lambda asked: sent, token=AWKWARD).read(CLAIM)


async def test_a_text_made_to_be_searched_forever_is_not(backend: Backend) -> None:
    for text in ("\\" * 60_000, "&amp;" * 12_000, "%25" * 20_000, "&#" + "0" * 60_000):
        store = backend.asking(lambda asked, text=text: reply(401, text.encode()), token="\\" * 40 + '"%&;')
        with pytest.raises(Rejected):
            await store.read(CLAIM)


MISSHAPEN: list[tuple[str, object, str]] = [
    ("read", [], "expected object"),
    ("read", None, "expected object"),
    ("read", {}, "missing data"),
    ("read", {"data": 1}, "missing version"),
    ("read", {"data": 1, "version": None}, "missing version"),
    ("read", {"data": 1, "version": 1.5}, "missing version"),
    ("read", {"data": 1, "version": "a b"}, "missing version"),
    ("read", {"data": 1, "version": 1, "path": 7}, "path is not a string"),
    ("read", {"data": 1, "version": 1, "path": "claims/o/r/8.json"}, "another record's path"),
    ("list", 7, "expected object"),
    ("list", {}, "missing entries"),
    ("list", {"entries": None}, "missing entries"),
    ("list", {"entries": {}}, "entries is not an array"),
    ("list", {"entries": [7]}, "entry is not an object"),
    ("list", {"entries": [{}]}, "missing path"),
    ("list", {"entries": [{"path": 7, "data": 1, "version": 1}]}, "missing path"),
    ("list", {"entries": [{"path": "claims/o/r/7.json", "version": 1}]}, "missing data"),
    ("list", {"entries": [{"path": "claims/o/r/7.json", "data": 1}]}, "missing version"),
    ("list", {"entries": [{"path": "claims/o/r/7.json", "data": 1, "version": True}]}, "missing version"),
    ("list", {"entries": [{"path": "batches/b.json", "data": 1, "version": 1}]}, "entry is not below the prefix"),
    ("list", {"entries": [], "next_cursor": 7}, "next_cursor is not a string"),
    ("list", {"entries": [], "next_cursor": "x"}, "repeated next_cursor"),
    ("write", [], "expected object"),
    ("write", {}, "missing version"),
    ("write", {"version": []}, "missing version"),
    ("whoami", "m1", "expected object"),
    ("whoami", {"machine": "m1", "read_prefixes": []}, "missing write_prefixes"),
]


@pytest.mark.parametrize(("call", "body", "fault"), MISSHAPEN)
async def test_an_answer_of_another_shape_is_named(backend: Backend, call: str, body: object, fault: str) -> None:
    ask, action = CALLS[call]
    with failing(f"http backend {action} returned malformed response: {fault}"):
        await ask(backend.asking(lambda asked: reply(200, body)))


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"entries": [', b'{"a": 1} x', b'{"\xff": 1}', b"[" * 100_000])
@pytest.mark.parametrize("call", ["read", "list", "write", "whoami"])
async def test_an_answer_that_is_no_json_is_named(backend: Backend, call: str, body: bytes) -> None:
    ask, action = CALLS[call]
    # Of JSON that stops in the middle of a wrong shape, the one or the other may be said.
    with pytest.raises(StoreError, match=f"^http backend {action} returned malformed (JSON: .|response: expected)"):
        await ask(backend.asking(lambda asked: reply(200, body)))


async def test_the_version_stays_a_text(backend: Backend) -> None:
    for version, text in ((7, "7"), ("7", "7"), ("v-a", "v-a"), (2**70, str(2**70))):
        store = backend.asking(lambda asked, version=version: reply(200, {"data": None, "version": version}))
        stored = await store.read(CLAIM)
        assert stored is not None
        assert (stored.document, stored.version) == (None, text)


# Listings ------------------------------------------------------------------------------------------


async def test_all_pages_are_read(backend: Backend) -> None:
    for n in range(7):
        backend.state.put(f"claims/o/r/{n}.json", {"n": n}, version=n + 1)
    backend.state.page = 3
    server = backend.serve()
    found = await entries(backend.store(server), "claims")
    assert [(entry.path, entry.document, entry.version) for entry in found] == [
        (f"claims/o/r/{n}.json", {"n": n}, str(n + 1)) for n in range(7)
    ]
    assert server.targets("GET") == [
        "/v1/state?prefix=claims",
        "/v1/state?prefix=claims&cursor=claims%2Fo%2Fr%2F2.json",
        "/v1/state?prefix=claims&cursor=claims%2Fo%2Fr%2F5.json",
    ]


@pytest.mark.parametrize("cursor", [None, ""])
async def test_a_cursor_of_nothing_ends_a_listing(backend: Backend, cursor: str | None) -> None:
    assert (
        await entries(backend.asking(lambda asked: reply(200, {"entries": [], "next_cursor": cursor})), "claims") == []
    )


async def test_a_listing_says_that_it_was_filtered_on_any_page(backend: Backend) -> None:
    def answering(asked: Asked) -> Reply:
        first = "cursor" not in asked.target
        return reply(200, {"entries": [], "next_cursor": "c"} if first else {"entries": [], "filtered": True})

    assert (await backend.asking(answering).list("claims")).filtered
    backend.state.put(CLAIM, {})
    assert not (await backend.store(backend.serve()).list("claims")).filtered


async def test_the_callers_decoder_sees_the_bytes_and_one_bad_record_costs_one_row(backend: Backend) -> None:
    backend.state.put("claims/o/r/1.json", b'{"a" : 1.50}')
    backend.state.put("claims/o/r/2.json", b'"\xff"')
    seen: list[bytes] = []

    def reading(data: bytes) -> object:
        seen.append(data)
        return decode(data)

    good, bad = await entries(backend.store(backend.serve()), "claims", decode=reading)
    assert seen == [b'{"a" : 1.50}', b'"\xff"']
    assert good == Stored("claims/o/r/1.json", {"a": 1.5}, "1")
    assert isinstance(bad, Unreadable)
    assert (bad.path, bad.defect) == ("claims/o/r/2.json", Defect.MALFORMED)
    assert str(bad).endswith(" at claims/o/r/2.json")


async def test_a_bounded_listing_asks_for_no_more_than_is_left(backend: Backend) -> None:
    for n in range(5):
        backend.state.put(f"attention/w/o/r/{n}.json", {})

    def pages_of_two(asked: Asked) -> Reply:
        full = backend.state(Asked(1, "GET", asked.target.partition("&limit")[0], asked.headers, b""))
        assert full.data
        return full

    backend.state.page = 2
    server = backend.serve(pages_of_two)
    assert len(await entries(backend.store(server), "attention", at_most=5)) == 5
    limits = [target.partition("limit=")[2] for target in server.targets("GET")]
    assert limits == ["5", "3", "1"]
    with failing("http backend list attention exceeds scan maximum 4"):
        await entries(backend.asking(pages_of_two), "attention", at_most=4)
    with failing("http backend list attention exceeds scan maximum 1"):
        await entries(backend.asking(pages_of_two), "attention", at_most=1)


async def test_a_listing_without_end_ends(backend: Backend) -> None:
    counted = iter(range(10**9))
    store = backend.asking(
        lambda asked: reply(200, {"entries": [], "next_cursor": f"c{next(counted)}"}), patience=HASTE
    )
    with failing("http backend unreachable: the listing of claims was not complete within 0.7 s", Unanswered):
        await store.list("claims")


# Connections ---------------------------------------------------------------------------------------


def nth(*answers: Callable[[Asked], Reply]) -> Answering:
    """Answer each request in another way, and all that follow as the last."""
    left = list(answers)

    def answering(asked: Asked) -> Reply:
        answer = left.pop(0) if len(left) > 1 else left[0]
        return answer(asked)

    return answering


CUTS = {"ended": Reply(closes=True), "reset": Reply(resets=True)}


@pytest.mark.parametrize("cut", CUTS)
async def test_a_read_is_repeated_once_when_a_kept_connection_was_closed(backend: Backend, cut: str) -> None:
    backend.state.put(CLAIM, {"n": 1})
    server = backend.serve(nth(backend.state, lambda asked: CUTS[cut], backend.state))
    store = backend.store(server)
    for _ in range(2):
        assert await store.read(CLAIM) is not None
    assert [asked.connection for asked in server.asked] == [1, 1, 2]


@pytest.mark.parametrize("cut", CUTS)
async def test_a_read_is_not_repeated_on_a_new_connection_or_a_second_time(backend: Backend, cut: str) -> None:
    server = backend.serve(lambda asked: CUTS[cut])
    with pytest.raises(Unanswered, match=r"^http backend unreachable: "):
        await backend.store(server).read(CLAIM)
    assert len(server.asked) == 1
    server = backend.serve(nth(backend.state, lambda asked: CUTS[cut]))
    store = backend.store(server)
    await store.read(CLAIM)
    with pytest.raises(Unanswered):
        await store.read(CLAIM)
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    "bad",
    [
        Reply(b"220 mail ready\r\n\r\n", closes=True),
        Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", closes=True),
    ],
)
async def test_half_an_answer_is_none_and_is_not_asked_for_again(backend: Backend, bad: Reply) -> None:
    server = backend.serve(nth(backend.state, lambda asked: bad))
    store = backend.store(server)
    await store.read(CLAIM)
    with pytest.raises(Unanswered, match=r"^http backend unreachable: .*\(http://127.0.0.1:\d+\)$"):
        await store.read(CLAIM)
    assert len(server.asked) == 2


async def test_a_connection_that_was_closed_at_rest_is_replaced_before_a_write(backend: Backend) -> None:
    server = backend.serve(nth(lambda asked: Reply(backend.state(asked).data, closes=True), backend.state))
    store = backend.store(server)
    await store.read(CLAIM)
    assert server.left.wait(PATIENCE.answer)
    assert await store.write(CLAIM, {}, version=None, note="") == "1"
    assert [(asked.method, asked.connection) for asked in server.asked] == [("GET", 1), ("PUT", 2)]


@pytest.mark.parametrize(
    ("never", "why"),
    [
        (Reply(hangs=True), "timed out: no answer within 0.2 s"),
        (Reply(b"HTTP/1.1 200 OK\r\nX: ", hangs=True), "timed out: no answer within 0.2 s"),
        (Reply(b"HTTP/1.1 100 Continue\r\n\r\n", drips=True), "timed out: no complete answer within 0.5 s"),
    ],
)
async def test_every_wait_has_an_end(backend: Backend, never: Reply, why: str) -> None:
    server = backend.serve(lambda asked: never)
    with failing(f"http backend unreachable: {why} ({server.url})", Unanswered):
        await backend.store(server, patience=HASTE).read(CLAIM)


async def test_who_does_not_listen_was_sent_nothing(backend: Backend) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    for ask, _ in CALLS.values():
        with failing(f"http backend unreachable: Connection refused ({url})", Unanswered) as refused:
            await ask(backend.store(url))
        assert isinstance(refused.value, Unanswered)
        assert not refused.value.sent


@pytest.mark.parametrize("packed", [False, True])
async def test_an_answer_without_end_is_given_up(backend: Backend, packed: bool) -> None:
    body = json.dumps({"data": "x" * 5000, "version": 1}).encode()
    sent = reply(200, gzip.compress(body), "Content-Encoding: gzip") if packed else reply(200, body)
    store = backend.asking(lambda asked: sent, largest=5000)
    with failing("http backend answered with more than 5000 bytes"):
        await store.read(CLAIM)
    assert await backend.asking(lambda asked: sent, largest=6000).read(CLAIM) is not None


async def test_a_body_that_unpacks_to_a_thousand_times_as_much_costs_no_more_than_its_bound(backend: Backend) -> None:
    bomb = reply(200, gzip.compress(bytes(32 * 1024 * 1024)), "Content-Encoding: gzip")
    store = backend.asking(lambda asked: bomb, largest=5000)
    tracemalloc.start()
    try:
        with failing("http backend answered with more than 5000 bytes"):
            await store.read(CLAIM)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 * 1024 * 1024


PACKED = gzip.compress(b'{"data":1,"version":1}')


@pytest.mark.parametrize(
    ("body", "coding", "fault"),
    [
        (gzip.compress(PACKED), "gzip, gzip", "packed as nobody asked for: gzip, gzip"),
        (PACKED, "br", "packed as nobody asked for: br"),
        (PACKED, "identity, gzip, deflate", "packed as nobody asked for: gzip, deflate"),
        (PACKED[:-9], "gzip", "packed wrongly: its end is missing"),
        (PACKED + PACKED, "gzip", "packed wrongly: more follows its end"),
        (b"{}", "gzip", "packed wrongly: Error -3 while decompressing data: incorrect header check"),
    ],
    ids=["twice", "another", "two", "cut", "two members", "not at all"],
)
async def test_a_body_that_is_packed_in_another_way_is_not_read(
    backend: Backend, body: bytes, coding: str, fault: str
) -> None:
    store = backend.asking(lambda asked: reply(200, body, f"Content-Encoding: {coding}"))
    with failing(f"http backend answered with a body {fault}", Unanswered) as refused:
        await store.read(CLAIM)
    assert isinstance(refused.value, Unanswered)
    assert refused.value.sent


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "identity, gzip"])
async def test_a_body_may_be_packed_once(backend: Backend, coding: str) -> None:
    store = backend.asking(lambda asked: reply(200, PACKED, f"Content-Encoding: {coding}"))
    assert await store.read(CLAIM) == Stored(CLAIM, 1, "1")
    plain = backend.asking(lambda asked: reply(200, b'{"data":1,"version":1}', "Content-Encoding: identity"))
    assert await plain.read(CLAIM) == Stored(CLAIM, 1, "1")
    nothing = backend.asking(lambda asked: reply(502, b"", "Content-Encoding: gzip"))
    with failing(f"{READ} failed: 502"):
        await nothing.read(CLAIM)


# Writes whose answer is lost -----------------------------------------------------------------------


def lost(state: State, *, applied: bool, how: Reply, method: str = "PUT") -> Answering:
    def answering(asked: Asked) -> Reply:
        if asked.method != method:
            return state(asked)
        if applied:
            state(asked)
        return how

    return answering


LOSSES = {
    "ended": Reply(closes=True),
    "reset": Reply(resets=True),
    "half": Reply(b"HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n{", closes=True),
    "hangs": Reply(hangs=True),
    "500": error(500, "internal"),
    "502": reply(502, b"bad gateway"),
    "504": reply(504, b""),
}


@pytest.mark.parametrize("how", LOSSES)
async def test_a_write_that_happened_is_found_out(backend: Backend, how: str) -> None:
    server = backend.serve(lost(backend.state, applied=True, how=LOSSES[how]))
    store = backend.store(server, patience=HASTE)
    assert await store.write(CLAIM, {"n": 1.0, "a": ["ü"]}, version=None, note="") == "1"
    assert await store.write(CLAIM, {"n": 2}, version="1", note="") == "2"
    assert [asked.method for asked in server.asked] == ["PUT", "GET", "GET", "PUT", "GET"]
    assert server.targets("GET").count("/v1/whoami") == 1


def seen(data: object, version: object, by: object = None, *, who: Reply | None = None) -> Answering:
    """Lose the answers to writes, and show this record to whoever looks after them."""
    shown = {"data": data, "version": version} | ({} if by is None else {"updated_by": by})
    identity = reply(200, {"machine": "m1", "read_prefixes": [], "write_prefixes": []})

    def answering(asked: Asked) -> Reply:
        if asked.method == "PUT":
            return error(503, "storage_unavailable")
        return (who or identity) if asked.target.endswith("whoami") else reply(200, shown)

    return answering


SENT = {"a": 1, "b": [True, 1.0]}
NOBODY = {"none": error(404, "route_not_found"), "broken": error(500, "internal"), "nonsense": reply(200, b"?")}


@pytest.mark.parametrize(
    ("named", "answering"),
    [
        (None, seen(SENT, 1)),
        (None, seen({"b": [True, 1.0], "a": 1}, "1", "m1")),
        ("2", seen(SENT, 3, "m1")),
        ("v-a", seen(SENT, "v-b")),
        ("v-a", seen(SENT, "v-b", "m1")),
        *(("2", seen(SENT, 3, "m2", who=who)) for who in NOBODY.values()),
    ],
)
async def test_what_was_sent_one_version_on_is_a_yes(backend: Backend, named: str | None, answering: Answering) -> None:
    written = await backend.asking(answering).write(CLAIM, SENT, version=named, note="")
    assert written == {None: "1", "2": "3", "v-a": "v-b"}[named]


@pytest.mark.parametrize(
    ("named", "answering"),
    [
        (None, seen(SENT, 2)),
        (None, seen(SENT, 2, "m1")),
        (None, seen(SENT, 1, "m2")),
        (None, seen(SENT, 1, ["m1"])),
        ("2", seen(SENT, 7)),
        ("2", seen(SENT, 4, "m1")),
        ("2", seen(SENT, 3, "m2")),
        ("2", seen(SENT, 1)),
        ("v-a", seen(SENT, "v-b", "m2")),
        *((None, seen(SENT, 2, who=who)) for who in NOBODY.values()),
        (None, seen({"a": True, "b": [True, 1.0]}, 1)),
        (None, seen({"a": 1, "b": [1, 1.0]}, 1)),
        (None, seen({"a": 1, "b": [True, 1]}, 1)),
        ("2", seen({"a": "another's"}, 1)),  # removed and made anew: the version we named may yet come
    ],
)
async def test_what_may_be_anothers_is_no_yes(backend: Backend, named: str | None, answering: Answering) -> None:
    with failing(f"{WRITE} failed: 503 storage_unavailable", Rejected):
        await backend.asking(answering).write(CLAIM, SENT, version=named, note="")


@pytest.mark.parametrize(("named", "version"), [(None, 1), (None, 4), ("2", 3), ("2", 9), ("v-a", "v-b")])
async def test_another_record_in_its_place_is_a_conflict(backend: Backend, named: str | None, version: object) -> None:
    server = backend.serve(seen({"a": "another's"}, version, "m1"))
    with pytest.raises(Conflict):
        await backend.store(server).write(CLAIM, SENT, version=named, note="")
    assert [asked.method for asked in server.asked] == ["PUT", "GET"]


@pytest.mark.parametrize("how", LOSSES)
async def test_a_write_that_cannot_be_seen_stays_unknown(backend: Backend, how: str) -> None:
    server = backend.serve(lost(backend.state, applied=False, how=LOSSES[how]))
    store = backend.store(server, patience=HASTE)
    for version in (None, "5"):
        with pytest.raises(StoreError, match=rf"^(http backend unreachable: |{WRITE} failed: 50)") as unknown:
            await store.write(CLAIM, {"n": 1}, version=version, note="")
        assert not isinstance(unknown.value, Conflict)
    backend.state.put(CLAIM, {"n": 1}, version=5)
    with pytest.raises(StoreError, match=rf"^(http backend unreachable: |{WRITE} failed: 50)") as unknown:
        await store.write(CLAIM, {"n": 1}, version="5", note="")  # the very document, but not written by this call
    assert not isinstance(unknown.value, Conflict)
    assert server.targets("PUT") == ["/v1/state/claims%2Fo%2Fr%2F7.json"] * 3


@pytest.mark.parametrize("how", LOSSES)
async def test_a_write_that_another_has_beaten_is_a_conflict(backend: Backend, how: str) -> None:
    store = backend.store(backend.serve(lost(backend.state, applied=False, how=LOSSES[how])), patience=HASTE)
    backend.state.put(CLAIM, {"n": "another's"}, version=6)
    with failing(f"state already exists at {CLAIM}", Conflict) as beaten:
        await store.write(CLAIM, {"n": 1}, version=None, note="")
    assert isinstance(beaten.value.__cause__, StoreError)
    with failing(f"state changed at {CLAIM}", Conflict):
        await store.write(CLAIM, {"n": 1}, version="5", note="")


async def test_who_may_not_look_does_not_know(backend: Backend) -> None:
    def answering(asked: Asked) -> Reply:
        return error(403, "forbidden") if asked.method == "GET" else reply(502, b"gone")

    with failing(f"{WRITE} failed: 502 gone", Rejected):
        await backend.asking(answering).write(CLAIM, {}, version=None, note="")
    with failing(f"{DELETE} failed: 502 gone", Rejected):
        await backend.asking(answering).delete(CLAIM, version="1", note="")


DATE = "Date: Mon, 30 Nov 2026 06:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "retry_after"),
    [
        ((), None),
        (("Retry-After:  120 ",), 120.0),
        ((DATE, "Retry-After: Mon, 30 Nov 2026 06:01:30 GMT"), 90.0),
        ((DATE, "Retry-After: Mon, 30 Nov 2026 05:00:00 GMT"), 0.0),
        (("Retry-After: Mon, 30 Nov 2026 06:01:30 GMT",), None),
        ((DATE, "Retry-After: soon"), None),
        (("Retry-After: -1",), None),
        ((f"Retry-After: {'9' * 400}",), 999_999_999.0),
    ],
)
async def test_how_long_a_backend_asks_to_be_left_alone(
    backend: Backend, headers: tuple[str, ...], retry_after: float | None
) -> None:
    for body, worded in (({"error": "slow_down"}, True), (b"<html>", False)):
        answer = reply(429, body, *headers)
        with pytest.raises(Rejected) as refused:
            await backend.asking(lambda asked, answer=answer: answer).write(CLAIM, {}, version=None, note="")
        assert (refused.value.worded, refused.value.retry_after) == (worded, retry_after)


@pytest.mark.parametrize("body", [b"<html>accept our terms</html>", b"{}", b"[]", b"", b"{"])
async def test_an_answer_that_nobody_can_read_is_neither_yes_nor_no(backend: Backend, body: bytes) -> None:
    store = backend.asking(lambda asked: reply(200, body))
    with pytest.raises(Undecided):
        await store.write(CLAIM, {}, version=None, note="")
    with pytest.raises(Undecided):
        await store.read(CLAIM)


@pytest.mark.parametrize("status", [400, 401, 403, 408, 413, 425, 429])
async def test_a_refused_write_is_not_looked_after(backend: Backend, status: int) -> None:
    server = backend.serve(lambda asked: error(status, "no"))
    with failing(f"{WRITE} failed: {status} no"):
        await backend.store(server).write(CLAIM, {}, version="1", note="")
    assert [asked.method for asked in server.asked] == ["PUT"]


@pytest.mark.parametrize("how", LOSSES)
async def test_a_deletion_whose_answer_is_lost(backend: Backend, how: str) -> None:
    for applied in (True, False):
        backend.state.put(CLAIM, {}, version=3)
        answering = lost(backend.state, applied=applied, how=LOSSES[how], method="DELETE")
        store = backend.store(backend.serve(answering), patience=HASTE)
        if applied:
            await store.delete(CLAIM, version="3", note="")
            continue
        with pytest.raises(StoreError, match=rf"^(http backend unreachable: |{DELETE} failed: 50)") as unknown:
            await store.delete(CLAIM, version="3", note="")
        assert not isinstance(unknown.value, Conflict)
        with failing(f"state changed at {CLAIM}", Conflict):
            await store.delete(CLAIM, version="2", note="")


# The doctor ----------------------------------------------------------------------------------------


async def test_a_check_looks_at_one_prefix_and_then_at_the_health(backend: Backend) -> None:
    server = backend.serve()
    store = backend.store(server)
    await store.check(writable=True)
    await store.check(writable=False, prefix="events/b1")
    await store.check(writable=False, prefix=CLAIM)
    await store.check(writable=False, prefix=None)
    assert server.targets("GET") == [
        "/v1/state?prefix=claims&limit=1",
        "/v1/health",
        "/v1/state?prefix=events%2Fb1&limit=1",
        "/v1/health",
        "/v1/state/claims%2Fo%2Fr%2F7.json",
        "/v1/health",
        "/v1/health",
    ]


async def test_whoami(backend: Backend) -> None:
    identity = await backend.store(backend.serve()).whoami()
    assert identity is not None
    assert (identity.machine, identity.read_prefixes, identity.write_prefixes) == ("m1", ("",), ("claims",))
    assert await backend.asking(lambda asked: error(404, "route_not_found")).whoami() is None


# Proxies and certificates --------------------------------------------------------------------------


async def test_this_machine_is_never_reached_through_a_proxy(backend: Backend) -> None:
    proxy, server = backend.serve(lambda asked: error(500, "proxy")), backend.serve()
    env = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"), proxy.url)
    assert await backend.store(server, env=env).read(CLAIM) is None
    assert proxy.connections == 0


async def test_another_machine_is_reached_through_the_proxy_that_sees_no_token(backend: Backend) -> None:
    proxy = backend.serve(lambda asked: reply(407, b""))
    env = {"HTTPS_PROXY": proxy.url.replace("//", "//me:s3cret@")}
    store = backend.store("https://fleet.invalid", env=env)
    with pytest.raises(Unanswered, match=r"^http backend unreachable: 407 .*\(https://fleet.invalid\)$") as refused:
        await store.write(CLAIM, {}, version=None, note="")
    assert not refused.value.sent
    [asked] = proxy.asked
    assert (asked.method, asked.target) == ("CONNECT", "fleet.invalid:443")
    assert "authorization" not in asked.headers
    assert "s3cret" not in str(refused.value)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, and its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with openssl")
    pem = tmp_path_factory.mktemp("authority") / "both.pem"
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=agent-coord tests")
    more = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{pem}.key", "-out", f"{pem}.crt")
    subprocess.run([*made, *more], check=True, capture_output=True)
    pem.write_text(Path(f"{pem}.key").read_text() + Path(f"{pem}.crt").read_text())
    return pem


@pytest.fixture
def tls(authority: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority)
    return context


async def test_a_certificate_is_checked_against_the_authorities_that_the_caller_names(
    backend: Backend, tls: ssl.SSLContext, authority: Path
) -> None:
    server = backend.serve(tls=tls)
    named = backend.store(server, env={"SSL_CERT_FILE": f"{authority}.crt"})
    assert await named.write(CLAIM, {}, version=None, note="") == "1"
    with failing(f"http backend unreachable: certificate verify failed: self-signed certificate ({server.url})"):
        await backend.store(server).read(CLAIM)
    other = server.url.replace("127.0.0.1", "localhost")
    with pytest.raises(Unanswered, match=r"certificate verify failed: .*[Hh]ostname mismatch"):
        await backend.store(other, env={"SSL_CERT_FILE": f"{authority}.crt"}).read(CLAIM)
    assert len(server.asked) == 1
    with pytest.raises(ConfigError, match=r"^SSL_CERT_FILE names no certificates that can be read: /nowhere$"):
        await backend.store(server, env={"SSL_CERT_FILE": "/nowhere"}).read(CLAIM)


async def test_a_server_without_tls_is_not_spoken_to_in_the_clear(backend: Backend) -> None:
    server = backend.serve()
    with pytest.raises(Unanswered, match=r"^http backend unreachable: ") as refused:
        await backend.store(server.url.replace("http:", "https:"), patience=HASTE).write(
            CLAIM, {}, version=None, note=""
        )
    assert not refused.value.sent


async def test_several_may_ask_at_a_time(backend: Backend) -> None:
    backend.state.put(CLAIM, {})
    store = backend.store(backend.serve())
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(store.read, CLAIM)
