"""A network that can be broken: a TCP proxy in front of one server."""

from enum import Enum

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream, TaskStatus

_GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class Weather(Enum):
    """What becomes of bytes under way."""

    CALM = "calm"
    REQUESTS_LOST = "requests lost"
    ANSWERS_LOST = "answers lost"
    REQUESTS_LATE = "requests late"  # they arrive once the weather is calm, when their sender has long given up


class Proxy:
    """Stands between clients and the server at `target` on this machine.

    A connection that has lost bytes in one direction loses all that follow in it: no network gives the rest of a
    stream without its middle.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._weather = Weather.CALM
        self._calm = anyio.Event()
        self._connections = set[anyio.CancelScope]()

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        """Pass on connections until cancelled; `port` says where."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
        self.port = listener.extra(SocketAttribute.local_port)
        task_status.started()
        async with listener:
            await listener.serve(self._pass)

    def turn(self, weather: Weather) -> None:
        """Change the weather."""
        self._weather = weather
        if weather is Weather.CALM:
            self._calm.set()
            self._calm = anyio.Event()

    def cut(self) -> None:
        """End every connection at once."""
        for connection in list(self._connections):
            connection.cancel()

    async def _pass(self, client: SocketStream) -> None:
        try:
            async with client:
                server = await anyio.connect_tcp("127.0.0.1", self._target)
                async with server, anyio.create_task_group() as both:
                    self._connections.add(both.cancel_scope)
                    try:
                        both.start_soon(self._answers, server, client, both.cancel_scope)
                        await self._requests(client, server)
                        both.cancel_scope.cancel()
                    finally:
                        self._connections.discard(both.cancel_scope)
        except (OSError, *_GONE):
            pass  # there is no server at the moment: the client sees its connection end

    async def _requests(self, client: ByteStream, server: ByteStream) -> None:
        lost = False
        try:
            while True:
                data = await client.receive()
                lost = lost or self._weather is Weather.REQUESTS_LOST
                if self._weather is Weather.REQUESTS_LATE:
                    await self._calm.wait()
                if not lost:
                    await server.send(data)
        except _GONE:
            return

    async def _answers(self, server: ByteStream, client: ByteStream, connection: anyio.CancelScope) -> None:
        lost = False
        try:
            while True:
                data = await server.receive()
                lost = lost or self._weather is Weather.ANSWERS_LOST
                if not lost:
                    await client.send(data)
        except _GONE:
            connection.cancel()
