"""Backends that are opened once, used beside an event loop, and given a new token when the old one is turned down."""

import threading
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from agentcoord.errors import Rejected, StoreError, Unreadable, UsageError
from agentcoord.settings.selection import Secret
from agentcoord.stores.base import Store, Stored
from agentcoordd.backends import HttpBackend, LocalBackend, OpenBackends, shown
from tests.command import PATIENCE
from tests.daemon.running import until
from tests.stores.http_server import TOKEN, Asked, Reply, Server, State, error


def opened(*tokens: str | None, serves: bool = True) -> OpenBackends:
    left = list(tokens)

    def token_of(url: str) -> Secret | None:
        token = left.pop(0)
        return None if token is None else Secret(token)

    return OpenBackends({}, serves=lambda _: serves, token_of=token_of)


async def read(store: Store) -> Stored | None:
    return await store.read("claims/o/r/7.json")


async def test_local_files_are_read_and_written(tmp_path: Path) -> None:
    backend = LocalBackend(str(tmp_path))

    async def write(store: Store) -> str:
        return await store.write("claims/o/r/7.json", {"a": 1}, version=None, note="")

    async with opened() as backends:
        backends.require(backend)
        version = await backends.perform(backend, write)
        stored = await backends.perform(backend, read)
    assert stored is not None
    assert stored.version == version


async def test_long_work_on_files_that_hang_is_left_behind_and_changes_no_record_later(tmp_path: Path) -> None:
    backend, let_go, over = LocalBackend(str(tmp_path)), threading.Event(), list[str]()

    async def hangs(store: Store) -> None:
        started.set()
        let_go.wait(PATIENCE)
        try:
            await store.write("claims/o/r/7.json", {"a": 1}, version=None, note="")
        except StoreError as error:
            over.append(str(error))

    async with opened() as backends:
        for _ in range(4):
            started = threading.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(backends.perform_aside, backend, hangs)
                await anyio.to_thread.run_sync(started.wait)
                tasks.cancel_scope.cancel()
        with pytest.raises(StoreError, match=f"state root does not answer: {tmp_path}"):
            await backends.perform_aside(backend, read)
        assert await backends.perform(backend, read) is None
        assert await backends.perform_aside(LocalBackend(str(tmp_path / "other")), read) is None
        let_go.set()
        await anyio.to_thread.run_sync(lambda: until(lambda: len(over) == 4))
        assert over == ["nothing more was written: it took too long"] * 4
        assert await backends.perform_aside(backend, read) is None


class Pause:
    def __await__(self) -> Generator[None]:
        yield


async def test_work_on_local_files_that_waits_is_a_fault(tmp_path: Path) -> None:
    async def waits(store: Store) -> None:
        await Pause()

    async with opened() as backends:
        with pytest.raises(StoreError, match="internal error"):
            await backends.perform(LocalBackend(str(tmp_path)), waits)


async def test_a_token_that_is_turned_down_is_asked_for_again() -> None:
    with Server(State()).running() as server:
        backend = HttpBackend(server.url)
        async with opened(None, "old-one", TOKEN) as backends:
            with pytest.raises(StoreError, match="AGENT_COORD_API_TOKEN is required"):
                await backends.perform(backend, read)
            with pytest.raises(Rejected):
                await backends.perform(backend, read)
            assert await backends.perform(backend, read) is None
            assert await backends.perform(backend, read) is None


async def test_a_token_that_may_do_less_than_the_one_that_took_its_place_is_asked_for_again() -> None:
    """It is valid still, so that nobody turns it down as a whole."""
    state, tokens = State(), ["narrow"]

    def answer(asked: Asked) -> Reply:
        return error(403, "forbidden") if asked.headers["authorization"] == "Bearer narrow" else state(asked)

    async def write(store: Store) -> str:
        return await store.write("claims/o/r/7.json", {"a": 1}, version=None, note="")

    deeds: list[tuple[Callable[[Store], Coroutine[Any, Any, object]], type[StoreError]]]
    deeds = [(write, Rejected), (read, Unreadable)]
    with Server(answer).running() as server:
        backend = HttpBackend(server.url)
        for deed, refused in deeds:
            tokens[:] = ["narrow"]
            async with OpenBackends({}, serves=lambda _: True, token_of=lambda _: Secret(tokens[0])) as backends:
                with pytest.raises(refused):
                    await backends.perform(backend, deed)
                tokens[:] = [TOKEN]
                with pytest.raises(
                    StoreError, match="403 forbidden; the token was changed, and is read anew"
                ) as raised:
                    await backends.perform(backend, deed)
                assert not isinstance(raised.value, refused), "nothing is given up for the old token's sake"
                await backends.perform(backend, deed)


def test_only_what_is_served_is_opened() -> None:
    with pytest.raises(UsageError, match="absolute"):
        opened().require(LocalBackend("state"))
    with pytest.raises(UsageError, match="absolute"):
        opened().require(LocalBackend("/state\0"))
    with pytest.raises(UsageError, match="does not serve /state: name it in serve_roots of agentcoordd/config.json"):
        opened(serves=False).require(LocalBackend("/state"))
    with pytest.raises(UsageError, match=r"does not serve https://host/x: .*config set --api-url, then run"):
        opened(serves=False).require(HttpBackend("https://host/x"))
    assert "s3cret" not in shown(HttpBackend("https://me:s3cret@host/x"))
