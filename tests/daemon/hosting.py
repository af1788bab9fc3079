"""Connections over real sockets in the loop of the test, with a feed that the test publishes to."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from agentcoordd.api.connections import Connection, Hall
from agentcoordd.api.dispatch import Registry, Tally
from agentcoordd.api.subscriptions import Feed
from agentcoordd.listener import Peer
from tests.command import PATIENCE


class Hosted:
    """A feed with connections over real sockets, in the loop of the test."""

    def __init__(self, hall: Hall, feed: Feed) -> None:
        self.hall, self.feed = hall, feed
        self._open: list[socket.socket] = []

    async def subscriber(self, **params: object) -> "Reader":
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        self._open.append(theirs)
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: Connection(Peer(1, 0), self.hall), ours)
        reader = Reader(theirs)
        await loop.sock_sendall(theirs, json.dumps({"id": 1, "method": "subscribe", "params": params}).encode() + b"\n")
        reader.answer = await reader.next()
        return reader

    def close(self) -> None:
        for end in self._open:
            end.close()


class Reader:
    def __init__(self, end: socket.socket) -> None:
        self.end, self._buffer = end, b""
        self.answer: dict[str, Any] = {}

    async def next(self) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        while b"\n" not in self._buffer:
            with anyio.fail_after(PATIENCE):
                data = await loop.sock_recv(self.end, 1 << 20)
            if not data:
                return {}
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)


@asynccontextmanager
async def hosted() -> AsyncGenerator[Hosted]:
    feed = Feed()
    async with anyio.create_task_group() as tasks:
        host = Hosted(Hall(Registry(feed.methods()), Tally(), tasks), feed)
        yield host
        await host.hall.close()
        host.close()
