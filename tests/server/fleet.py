"""A fleet under a nemesis: several servers over one database, clients that claim, and what goes wrong between them."""

import os
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import anyio
import anyio.to_thread
from msgspec import Struct, field

from agentcoord.errors import StoreError, UsageError
from agentcoord.operations.claims import Claimed, ReleaseRequest, claim, release
from agentcoord.operations.context import Context
from agentcoord.operations.heartbeats import heartbeat
from agentcoord.protocol.claims import Wanted, fence
from agentcoord.protocol.documents import is_document
from agentcoord.protocol.heartbeats import Beat
from agentcoord.protocol.paths import claim_path, heartbeat_path
from agentcoord.protocol.statuses import normalize
from agentcoord.settings.selection import Secret
from agentcoord.stores.http import HttpStore
from agentcoord.stores.httpexchange import Patience
from agentcoordd.server.storage.opening import open_tokens
from agentcoordd.server.tokens import Provision, issue
from tests.server.history import Clock, History
from tests.server.partition import Proxy, Weather
from tests.server.recording import Recording
from tests.server.running import LOG, Running, start

REPO = "example/fleet"
HASTE = Patience(connect=0.5, read=0.5, write=0.5, answer=0.8, listing=2.0)
"""Clients that give up soon, so that many outcomes are unknown and many leases run out."""

BEATING = 4
"""Every so many clients, one has heartbeats: its lease then lasts for as long as it is not dead."""


class Run(Struct):
    """What one run shares: its randomness, its history, until when it goes on, and what was done to it."""

    seed: int
    clock: Clock
    history: History
    until: float = 0.0
    tally: Counter[str] = field(default_factory=Counter[str])

    @property
    def over(self) -> bool:
        """Whether the time is up; a run in which nothing has happened yet goes on, since it would prove nothing."""
        happened = all(self.tally[what] > 0 for what in ("takeovers", "lost leases noticed", "kills", "partitions"))
        return happened and self.clock.monotonic() >= self.until

    def random(self, name: str) -> Random:
        """Give somebody a randomness of his own, so that what he does depends on nobody's pace."""
        return Random(f"{self.seed}:{name}")


async def tokens(db: str, machines: Sequence[str]) -> dict[str, str]:
    """Give each of the machines a token for everything."""
    async with open_tokens(db) as storage:
        return {
            machine: (await issue(storage, Provision(machine, ("",), ("",), rotate=False), os.urandom)).token
            for machine in machines
        }


async def kill(server: Running) -> None:
    """End a server as a crash would; until then it has to have said nothing but its log."""
    await anyio.to_thread.run_sync(server.kill)
    strange = [line for line in server.lines if not LOG.match(line)]
    assert strange == [], strange


class Replica:
    """One server of the fleet, and the proxy before it. It comes back on the port that it had."""

    def __init__(self, server: Running) -> None:
        self.server, self.proxy = server, Proxy(server.port)

    async def crash(self, seconds: float) -> None:
        """Kill it, and start it again after a while."""
        await kill(self.server)
        await anyio.sleep(seconds)
        again = partial(start, self.server.db, "--no-access-log", "--listen", f"127.0.0.1:{self.server.port}")
        self.server = await anyio.to_thread.run_sync(again)


@asynccontextmanager
async def fleet(db: str, size: int) -> AsyncGenerator[list[Replica]]:
    """Run servers behind proxies for a block; they have to end in good order."""
    replicas: list[Replica] = []
    try:
        for _ in range(size):
            server = await anyio.to_thread.run_sync(partial(start, db, "--no-access-log"))
            replicas.append(Replica(server))
        async with anyio.create_task_group() as proxies:
            for replica in replicas:
                await proxies.start(replica.proxy.serve)
            yield replicas
            proxies.cancel_scope.cancel()
        for replica in replicas:
            await anyio.to_thread.run_sync(replica.server.stop)
    finally:
        for replica in replicas:
            if replica.server.process.returncode is None:
                replica.server.kill()


async def haunt(run: Run, replica: Replica, name: str) -> None:
    """Do to one server and its network what happens to servers and networks, until the run is over."""
    random = run.random(name)
    while not run.over:
        await anyio.sleep(random.uniform(0.2, 1.5))
        match random.choice(["crash", "cut", *Weather]):
            case "crash":
                run.tally["kills"] += 1
                await replica.crash(random.uniform(0.0, 0.5))
            case "cut":
                run.tally["cuts"] += 1
                replica.proxy.cut()
            case Weather() as weather if weather is not Weather.CALM:
                run.tally["partitions"] += 1
                run.tally[f"partitions: {weather.value}"] += 1
                replica.proxy.turn(weather)
                await anyio.sleep(random.uniform(0.1, 1.0))
                replica.proxy.turn(Weather.CALM)
            case _:
                pass


class Agent:
    """A client of the fleet: takes leases at random, and at times oversleeps and goes on as if it still had them."""

    def __init__(self, run: Run, name: str, beats: bool, items: Sequence[str], stores: Sequence[HttpStore]) -> None:
        self.name = name
        self._run, self._beats, self._items = run, beats, items
        self._random = run.random(name)
        self._store = Recording(name, stores, run.history, self._random)
        self._context = Context(self._store, now=run.clock.now, random=os.urandom)
        self._believed: dict[str, str] = {}

    async def live(self) -> None:
        """Act until the run is over; what was begun is brought to its end."""
        try:
            while not self._run.over:
                await anyio.sleep(self._random.uniform(0.0, 0.05))
                await self._act()
        finally:
            await self._store.aclose()

    async def _act(self) -> None:
        if self._beats and self._random.random() < 0.3:
            await self._beat()
        if self._believed and self._random.random() < 0.85:
            item = self._random.choice(list(self._believed))
            await self._random.choices(
                [self._claim, self._release, self._verify, self._oversleep, self._forget], weights=[4, 3, 2, 2, 2]
            )[0](item)
        else:
            await self._claim(self._random.choice(self._items))

    async def _beat(self) -> None:
        call = self._run.history.invoke(self.name, "heartbeat", heartbeat_path(self.name))
        try:
            await heartbeat(self._context, Beat(self.name, self._random.choice([1, 2]), normalize("in_progress")))
        except StoreError as error:
            self._run.history.unknown(call, str(error))
        else:
            self._run.history.ok(call)

    async def _claim(self, item: str) -> None:
        call = self._run.history.invoke(self.name, "claim", claim_path(REPO, item))
        try:
            told = await claim(self._context, Wanted(REPO, item, self.name, ttl=self._random.randint(1, 3)))
        except StoreError as error:  # what became of it is in the history of the store
            self._run.history.unknown(call, str(error))
            return
        if not isinstance(told, Claimed):
            self._believed.pop(item, None)
            self._run.history.fail(call, f"held by {told.refusal.holder}")
            return
        if told.taken_over_from is not None:
            self._run.tally["takeovers"] += 1
        self._believed[item] = told.fence
        self._run.history.ok(call, fence=told.fence, renewed=told.renewed, version=self._store.last)

    async def _release(self, item: str) -> None:
        call = self._run.history.invoke(self.name, "release", claim_path(REPO, item))
        try:
            await release(self._context, ReleaseRequest(self.name, REPO, item))
        except UsageError as error:
            self._run.tally["releases of lost leases"] += 1
            self._run.history.fail(call, str(error))
        except StoreError as error:
            self._run.history.unknown(call, str(error))
            return
        else:
            self._run.history.ok(call)
        del self._believed[item]

    async def _verify(self, item: str) -> None:
        """Compare the fence that was handed out with the record as it is now."""
        call = self._run.history.invoke(self.name, "verify", claim_path(REPO, item))
        try:
            stored = await self._store.read(claim_path(REPO, item))
        except StoreError as error:
            self._run.history.unknown(call, str(error))
            return
        if stored is None or not is_document(stored.document) or fence(stored.document) != self._believed[item]:
            self._run.history.fail(call, "another acquisition")
            self._run.tally["lost leases noticed"] += 1
            del self._believed[item]
        else:
            self._run.history.ok(call, fence=self._believed[item], version=int(stored.version))

    async def _oversleep(self, item: str) -> None:
        await anyio.sleep(self._random.uniform(1.0, 4.0))
        await self._verify(item)
        if item in self._believed:
            await self._release(item)

    async def _forget(self, item: str) -> None:
        """Leave a lease behind as a process does that is gone."""
        del self._believed[item]


def agent(run: Run, number: int, token: str, items: Sequence[str], replicas: Sequence[Replica]) -> Agent:
    """Make one client, with a way to each server."""
    stores = [
        HttpStore(f"http://127.0.0.1:{replica.proxy.port}", Secret(token), patience=HASTE) for replica in replicas
    ]
    return Agent(run, name_of(number), number % BEATING == 0, items, stores)


def name_of(number: int) -> str:
    """Name a client, as agent and as machine."""
    return f"agent-{number:02d}"
