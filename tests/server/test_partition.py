"""The broken network itself: what each weather does to bytes, without which the runs in it would show nothing."""

from collections.abc import AsyncGenerator

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from tests.command import PATIENCE
from tests.server.partition import Proxy, Weather

pytestmark = pytest.mark.usefixtures("patience")


class Echo:
    """Answers with what it gets, in capitals, and keeps what each connection brought until its end."""

    def __init__(self) -> None:
        self.got: dict[bytes, bytes] = {}
        self.heard = anyio.Event()
        self.ended = anyio.Event()

    async def serve(self, connection: SocketStream) -> None:
        got = b""
        try:
            async with connection:
                async for data in connection:
                    got += data
                    self.heard.set()
                    await connection.send(data.upper())
        except anyio.BrokenResourceError:
            pass  # nobody is left to hear the answer
        self.got[got[:1]] = got
        self.ended.set()


@pytest.fixture
async def patience() -> AsyncGenerator[None]:
    with anyio.fail_after(PATIENCE):
        yield


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncGenerator[Proxy]:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo.serve)
        proxy = Proxy(listener.extra(SocketAttribute.local_port))
        await tasks.start(proxy.serve)
        yield proxy
        tasks.cancel_scope.cancel()


async def connected(proxy: Proxy) -> SocketStream:
    return await anyio.connect_tcp("127.0.0.1", proxy.port)


async def test_calm(proxy: Proxy) -> None:
    async with await connected(proxy) as client:
        for word in (b"one", b"two"):
            await client.send(word)
            assert await client.receive() == word.upper()


async def test_a_connection_that_lost_a_request_carries_none_ever_after(proxy: Proxy, echo: Echo) -> None:
    async with await connected(proxy) as client:
        await client.send(b"a")
        assert await client.receive() == b"A"
        proxy.turn(Weather.REQUESTS_LOST)
        await client.send(b"lost")
        async with await connected(proxy) as other:  # which proves that the proxy has been at work since
            await other.send(b"lost as well")
        await echo.ended.wait()
        proxy.turn(Weather.CALM)
        echo.ended = anyio.Event()
        await client.send(b"more")
    await echo.ended.wait()
    assert echo.got == {b"": b"", b"a": b"a"}


async def test_a_lost_answer_was_given_for_a_request_that_arrived(proxy: Proxy, echo: Echo) -> None:
    proxy.turn(Weather.ANSWERS_LOST)
    async with await connected(proxy) as client:
        await client.send(b"asked")
        await echo.heard.wait()
        await client.send_eof()
        with pytest.raises(anyio.EndOfStream):
            await client.receive()
    await echo.ended.wait()
    assert echo.got == {b"a": b"asked"}


async def test_a_late_request_arrives_although_its_sender_is_gone(proxy: Proxy, echo: Echo) -> None:
    proxy.turn(Weather.REQUESTS_LATE)
    async with await connected(proxy) as client:
        await client.send(b"late")
    async with await connected(proxy):
        pass  # which proves that the proxy has been at work since
    await echo.ended.wait()
    assert echo.got == {b"": b""}
    echo.ended = anyio.Event()
    proxy.turn(Weather.CALM)
    await echo.ended.wait()
    assert echo.got == {b"": b"", b"l": b"late"}


async def test_a_cut_ends_what_is_there_and_nothing_else(proxy: Proxy) -> None:
    async with await connected(proxy) as client:
        await client.send(b"one")
        assert await client.receive() == b"ONE"
        proxy.cut()
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await client.receive()
    async with await connected(proxy) as client:
        await client.send(b"two")
        assert await client.receive() == b"TWO"


async def test_where_no_server_is_the_connection_ends() -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    closed: int = listener.extra(SocketAttribute.local_port)
    await listener.aclose()
    async with anyio.create_task_group() as tasks:
        proxy = Proxy(closed)
        await tasks.start(proxy.serve)
        async with await connected(proxy) as client:
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await client.receive()
        tasks.cancel_scope.cancel()
