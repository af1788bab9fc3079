"""A server as it is copied: what its answers mean, and what is made of answers that mean nothing."""

from collections.abc import AsyncGenerator, Generator

import pytest

from agentcoord.errors import Rejected, StoreError
from agentcoord.settings.selection import Secret
from agentcoord.stores import httpfeed
from agentcoord.stores.httpexchange import Overlong, Unanswered
from agentcoord.stores.httpfeed import HttpFeed
from tests.stores.http_server import TOKEN, Reply, Server, State, error, reply


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def server(state: State) -> Generator[Server]:
    with Server(state).running() as server:
        yield server


@pytest.fixture
async def feed(server: Server) -> AsyncGenerator[HttpFeed]:
    feed = HttpFeed(server.url, Secret(TOKEN), env={})
    yield feed
    await feed.aclose()


async def test_pages_and_scopes(feed: HttpFeed, state: State, server: Server) -> None:
    for number in range(3):
        state.put(f"claims/o/r/{number}.json", {"n": number})
    page = await feed.page("claims", None, 2)
    assert [entry.path for entry in page.entries] == ["claims/o/r/0.json", "claims/o/r/1.json"]
    assert page.next_cursor == "claims/o/r/1.json"
    assert [entry.path for entry in (await feed.page("claims", page.next_cursor, 2)).entries] == ["claims/o/r/2.json"]
    identity = await feed.whoami()
    assert identity is not None
    assert identity.read_prefixes == ("",)
    assert server.connections == 1


async def test_a_server_without_a_feed_says_so(feed: HttpFeed, server: Server) -> None:
    assert await feed.changes(None, wait=0, limit=1) is None
    server.answering = lambda asked: error(405, "method_not_allowed")
    assert await feed.changes(None, wait=0, limit=1) is None
    server.answering = lambda asked: reply(404, b"<html>not here</html>")  # that was somebody else
    with pytest.raises(Rejected):
        await feed.changes(None, wait=0, limit=1)


async def test_changes_as_they_come(feed: HttpFeed, server: Server) -> None:
    said = {
        "changes": [
            {"path": "claims/o/r/1.json", "version": 2, "at": "x", "updated_by": "m", "data": None},
            {"path": "claims/o/r/2.json", "version": 3, "at": "x", "updated_by": "m"},
            {"path": "claims/o/r/3.json", "version": 4, "at": "x", "updated_by": "m", "deleted": True},
        ],
        "cursor": "f.3",
        "filtered": True,
    }
    server.answering = lambda asked: reply(200, said)
    found = await feed.changes("f.0 &", wait=3, limit=7)
    assert found is not None
    assert [(bytes(change.data), change.deleted) for change in found.changes] == [
        (b"null", False),
        (b"", False),
        (b"", True),
    ]
    assert found.cursor == "f.3"
    assert server.targets("GET") == ["/v1/changes?since=f.0+%26&wait=3&limit=7"]


@pytest.mark.parametrize(
    "body",
    [
        b"<html>log in</html>",
        b"",
        b"[]",
        b'{"changes":[]}',
        b'{"changes":[],"cursor":""}',
        b'{"changes":{},"cursor":"c"}',
        b'{"changes":[{"version":1}],"cursor":"c"}',
        b'{"changes":[{"path":"a","version":1.5}],"cursor":"c"}',
        b'{"changes":[{"path":"a","version":1,"data":{]],"cursor":"c"}',
        b'{"changes":[],"cursor":"c"',
    ],
)
async def test_an_answer_that_is_none(feed: HttpFeed, server: Server, body: bytes) -> None:
    server.answering = lambda asked: reply(200, body)
    with pytest.raises(StoreError, match=r"http backend changes returned malformed"):
        await feed.changes("c", wait=0, limit=1)


async def test_an_answer_that_ends_too_early(feed: HttpFeed, server: Server) -> None:
    whole = reply(200, {"changes": [], "cursor": "c"}).data
    server.answering = lambda asked: Reply(whole[:-3], closes=True)
    with pytest.raises(Unanswered):
        await feed.changes("c", wait=0, limit=1)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("Retry-After: 30", 30.0), ("Retry-After: Mon, 02 Mar 2026 12:00:00 GMT", None), ("X: 1", None)],
)
async def test_a_server_says_when_to_ask_again(
    feed: HttpFeed, server: Server, header: str, seconds: float | None
) -> None:
    server.answering = lambda asked: reply(429, {"error": "slow_down"}, header)
    with pytest.raises(Rejected) as raised:
        await feed.page("claims", None, 1)
    assert (raised.value.status, raised.value.reason, raised.value.retry_after) == (429, "slow_down", seconds)


async def test_more_than_is_taken(feed: HttpFeed, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    state.put("claims/o/r/1.json", "x" * (httpfeed.LARGEST + 1))
    with pytest.raises(Overlong):
        await feed.page("claims", None, 1)


async def test_a_feed_that_never_answers_is_given_up(
    feed: HttpFeed, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httpfeed, "_LATE", 0.05)
    server.answering = lambda asked: Reply(hangs=True)
    with pytest.raises(Unanswered, match="no answer within 0.05 s"):
        await feed.changes("c", wait=0, limit=1)


async def test_a_token_stays_out_of_what_is_said(feed: HttpFeed, server: Server) -> None:
    server.answering = lambda asked: reply(500, {"error": f"bad token {TOKEN}"})
    with pytest.raises(Rejected) as raised:
        await feed.whoami()
    assert TOKEN not in str(raised.value)
