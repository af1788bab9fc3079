"""The change feed: in order, without a gap, and no further than the caller's scopes, over both databases."""

import contextlib
import http.client
import json
import math
import signal
import threading
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import asyncpg
import pytest

from agentcoord.protocol.scopes import Coverage
from agentcoordd.server.storage.base import CHANGES_BYTES, Change, StorageDown, Write
from agentcoordd.server.storage.opening import open_storage
from agentcoordd.server.storage.postgres import open_postgres
from tests.command import PATIENCE
from tests.server.calling import Caller, calling, grant, revoke, sql
from tests.server.conftest import Calls
from tests.server.postgres import Cluster
from tests.server.running import Running, running

EVERYTHING = Coverage(whole=True)
_ROUNDS = 100_000  # until what never happens fails its test


def _now(caller: Caller) -> str:
    return caller.changes().json()["cursor"]


def _said(changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(change["path"], change["version"], change.get("data", "none")) for change in changes]


def test_changes_come_in_order_each_once(caller: Caller, mine: str) -> None:
    a, b = f"events/{mine}/a.json", f"events/{mine}/b.json"
    since = _now(caller)
    caller.create(a, "first")
    caller.create(b, "other")
    caller.put(a, "second", if_match="1")
    caller.put(a, "refused", if_match="1")
    caller.delete(b, if_match="1")
    answer = caller.changes(since, prefix=f"events/{mine}").json()
    assert list(answer) == ["changes", "cursor"]
    assert _said(answer["changes"]) == [(a, 1, "none"), (b, 1, "none"), (a, 2, "second"), (b, 1, "none")]
    assert [change.get("deleted", False) for change in answer["changes"]] == [False, False, False, True]
    assert {change["updated_by"] for change in answer["changes"]} == {mine}
    assert caller.changes(answer["cursor"], prefix=f"events/{mine}").json()["changes"] == []


def test_a_record_made_anew_does_not_lend_its_data_to_the_one_before(caller: Caller, mine: str) -> None:
    path = f"events/{mine}/a.json"
    since = _now(caller)
    caller.create(path, "old")
    caller.delete(path, if_match="1")
    caller.create(path, "new")
    changes = caller.changes(since, prefix=f"events/{mine}").json()["changes"]
    assert _said(changes)[-1] == (path, 1, "new")
    assert "data" not in changes[1]
    assert "data" not in changes[0]


async def test_also_in_one_transaction_older_changes_borrow_no_data(db: str) -> None:
    path = "events/b/a.json"
    writes = [
        Write("create", path, "m", '"old"'),
        Write("delete", path, "m", version=1),
        Write("create", path, "m", '"new"'),
    ]
    async with open_storage(db, keep=1000) as storage:
        async with anyio.create_task_group() as together:
            for write in writes:
                together.start_soon(storage.write, write)
        changes, _ = await storage.changes(0, "", EVERYTHING, limit=10)
    assert len({change.at for change in changes}) == 1
    assert [(change.version, change.deleted, change.data) for change in changes] == [
        (1, False, None),
        (1, True, None),
        (1, False, '"new"'),
    ]


async def test_a_look_at_the_feed_gives_no_more_than_fits_and_leaves_nothing_out(db: str) -> None:
    data = '"' + "x" * (CHANGES_BYTES * 2 // 5) + '"'
    async with open_storage(db, keep=1000) as storage:
        for number in range(7):
            await storage.write(Write("create", f"events/b/{number}.json", "m", data))
            await storage.write(Write("create", f"claims/o/r/{number}.json", "m", "1"))
        looks: list[list[str]] = []
        after, head = 0, (await storage.feed()).head
        while after < head:
            changes, after = await storage.changes(after, "events/b", EVERYTHING, limit=1000)
            looks.append([change.path for change in changes])
            assert all(change.data == data for change in changes)
    assert [len(look) for look in looks] == [3, 3, 1]
    assert [path for look in looks for path in look] == [f"events/b/{number}.json" for number in range(7)]


def test_without_a_cursor_the_feed_begins_now(caller: Caller, mine: str) -> None:
    caller.create(f"events/{mine}/a.json")
    answer = caller.changes(prefix=f"events/{mine}").json()
    assert answer["changes"] == []
    caller.create(f"events/{mine}/b.json")
    [change] = caller.changes(answer["cursor"], prefix=f"events/{mine}").json()["changes"]
    assert change["path"] == f"events/{mine}/b.json"


def test_a_limit_ends_an_answer_and_its_cursor_goes_on(caller: Caller, mine: str) -> None:
    cursor = since = _now(caller)
    paths = [f"events/{mine}/{number}.json" for number in range(5)]
    for path in paths:
        caller.create(path)
    found: list[str] = []
    for size in (2, 2, 1, 0):
        answer = caller.changes(cursor, prefix=f"events/{mine}", limit=2).json()
        assert len(answer["changes"]) == size
        found += [change["path"] for change in answer["changes"]]
        cursor = answer["cursor"]
    assert found == paths
    assert len(caller.changes(since, limit=1000).json()["changes"]) >= 5


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"limit": "0"}, "invalid_limit"),
        ({"limit": "1001"}, "invalid_limit"),
        ({"limit": "x"}, "invalid_limit"),
        ({"wait": "61"}, "invalid_wait"),
        ({"wait": "-1"}, "invalid_wait"),
        ({"wait": ""}, "invalid_wait"),
        ({"wait": "1.5"}, "invalid_wait"),
        ({"prefix": ""}, "invalid_prefix"),
        ({"prefix": "etc"}, "invalid_prefix"),
        ({"since": ""}, "invalid_cursor"),
        ({"since": "1"}, "invalid_cursor"),
        ({"since": "feed."}, "invalid_cursor"),
        ({"since": "feed.-1"}, "invalid_cursor"),
        ({"since": "feed.1x"}, "invalid_cursor"),
        ({"since": f"feed.{2**63}"}, "invalid_cursor"),
    ],
)
def test_what_is_asked_wrongly_is_refused(caller: Caller, query: dict[str, str], code: str) -> None:
    assert caller.changes(**query).refusal == (400, code)


def test_a_cursor_of_another_feed_or_of_the_future_has_expired(caller: Caller) -> None:
    feed, _, number = _now(caller).rpartition(".")
    for cursor in (f"{'0' * len(feed)}.1", f".{number}", f"{feed}.{int(number) + 1000}", f"{feed}.{2**63 - 1}"):
        assert caller.changes(cursor).refusal == (410, "cursor_expired")
    assert caller.changes(cursor, wait=60).refusal == (410, "cursor_expired")


async def test_what_was_forgotten_cannot_be_followed(db: str) -> None:
    async with open_storage(db, keep=5) as storage:

        async def write(number: int) -> None:
            await storage.write(Write("create", f"events/b/{number}.json", "m", "1"))

        async with anyio.create_task_group() as writers:
            for number in range(1000):  # after so many, old ones are forgotten
                writers.start_soon(write, number)
        with anyio.fail_after(PATIENCE):
            while not (feed := await storage.feed()).forgotten:
                await anyio.lowlevel.checkpoint()
    assert 0 < feed.forgotten <= feed.head - 5
    token = await anyio.to_thread.run_sync(lambda: grant(db, "m", reads=[""], writes=[]))

    def ask() -> None:
        with running(db) as server, calling(server, token) as caller:
            assert caller.changes(f"{feed.name}.{feed.forgotten - 1}").refusal == (410, "cursor_expired")
            assert caller.changes(f"{feed.name}.0", wait=60).refusal == (410, "cursor_expired")
            kept = caller.changes(f"{feed.name}.{feed.forgotten}").json()
            assert len(kept["changes"]) == feed.head - feed.forgotten
            with _stream(server, token, since=f"{feed.name}.0") as stream:
                assert stream.status == 410

    await anyio.to_thread.run_sync(ask)


# --- scopes -------------------------------------------------------------------------------------------------------


def test_a_scoped_token_sees_its_part_of_the_feed(caller: Caller, scoped: Calls, mine: str) -> None:
    since = _now(caller)
    seen, exact, hidden = f"events/{mine}/a.json", f"claims/{mine}/r/1.json", f"claims/{mine}/r/2.json"
    for path in (hidden, seen, exact):
        caller.create(path)
    reader = scoped(reads=[f"events/{mine}", exact], writes=[])
    part = reader.changes(since).json()
    assert ([change["path"] for change in part["changes"]], part["filtered"]) == ([seen, exact], True)
    whole = reader.changes(since, prefix=f"events/{mine}").json()
    assert ([change["path"] for change in whole["changes"]], "filtered" in whole) == ([seen], False)
    below = reader.changes(since, prefix=f"claims/{mine}").json()
    assert [change["path"] for change in below["changes"]] == [exact]
    assert reader.changes(since, prefix="heartbeats").refusal == (403, "forbidden")
    assert scoped(reads=[], writes=[""]).changes().refusal == (403, "forbidden")
    # The cursor passed what was hidden: nothing of it is looked at again.
    assert reader.changes(part["cursor"]).json() == {"changes": [], "cursor": part["cursor"], "filtered": True}


def test_a_revoked_token_hears_no_more_while_it_waits(server: Running, caller: Caller, mine: str) -> None:
    reader = f"{mine}-reader"
    token = grant(server.db, reader, reads=[""], writes=[])
    since = _now(caller)
    with calling(server, token) as waiting, ThreadPoolExecutor(1) as pool:
        reply = pool.submit(waiting.changes, since, prefix=f"events/{mine}", wait=60)
        revoke(server.db, reader)
        caller.create(f"events/{mine}/a.json", "secret")
        assert reply.result().refusal == (401, "unknown_token")


# --- waiting ------------------------------------------------------------------------------------------------------


def test_who_waits_is_woken_by_a_write(server: Running, caller: Caller, mine: str) -> None:
    with calling(server, caller.token) as waiting, ThreadPoolExecutor(1) as pool:
        for number in range(5):
            since = _now(caller)
            reply = pool.submit(waiting.changes, since, prefix=f"events/{mine}", wait=60)
            caller.create(f"claims/{mine}/r/{number}.json")  # not what is waited for
            caller.create(f"events/{mine}/{number}.json")
            [change] = reply.result().json()["changes"]  # a wait that ran out would bring none
            assert change["path"] == f"events/{mine}/{number}.json"


def test_a_wait_that_runs_out_is_an_empty_answer(caller: Caller, mine: str) -> None:
    since = _now(caller)
    answer = caller.changes(since, prefix=f"events/{mine}", wait=1)
    assert (answer.status, answer.json()) == (200, {"changes": [], "cursor": since})


def test_who_waits_is_answered_when_the_server_ends(db: str) -> None:
    token = grant(db, "m", reads=[""], writes=[""])
    with running(db) as server, calling(server, token) as waiting, ThreadPoolExecutor(1) as pool:
        since = _now(waiting)
        reply = pool.submit(waiting.changes, since, wait=60)
        _until_open(server, token, 2)
        server.stop()
        assert reply.result().json() == {"changes": [], "cursor": since}


def _until_open(server: Running, token: str, number: int) -> None:
    """Wait until so many requests are being answered, this one among them."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE)
    with contextlib.closing(connection):
        for _ in range(_ROUNDS):
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
            if f"agent_coord_open_requests {number}.0\n".encode() in connection.getresponse().read():
                return
    raise AssertionError("it never came to that point")


def test_waiting_works_across_servers_of_one_database(cluster: Cluster) -> None:
    db = cluster.database()
    token = grant(db, "m", reads=[""], writes=[""])
    with (
        running(db) as one,
        running(db) as two,
        calling(one, token) as reader,
        calling(two, token) as writer,
        ThreadPoolExecutor(1) as pool,
    ):
        for number in range(5):
            reply = pool.submit(reader.changes, _now(reader), wait=60)
            _until_open(one, token, 2)
            writer.create(f"events/b/{number}.json")
            [change] = reply.result().json()["changes"]
            assert change["path"] == f"events/b/{number}.json"


async def test_a_waiter_is_woken_by_the_notification_alone(cluster: Cluster) -> None:
    """Neither server looks for itself here: a waiter that missed a notification would wait for ever."""
    db = await anyio.to_thread.run_sync(cluster.database)
    async with (
        open_postgres(db, keep=1000, poll=math.inf) as one,
        open_postgres(db, keep=1000, poll=math.inf) as two,
    ):
        for number in range(20):
            head = (await one.feed()).head
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as waiting:
                    waiting.start_soon(lambda head=head: one.changed(head, seconds=math.inf))
                    await anyio.wait_all_tasks_blocked()
                    assert await two.write(Write("create", f"events/b/{number}.json", "m", "1")) == 1


async def test_listening_survives_the_loss_of_its_connection(cluster: Cluster) -> None:
    db = await anyio.to_thread.run_sync(cluster.database)
    async with open_postgres(db, keep=1000, poll=math.inf) as storage, _connected(db) as other:
        head = (await storage.feed()).head

        async def wait() -> None:
            while True:
                try:
                    await storage.changed(head, seconds=math.inf)
                except StorageDown:
                    continue  # its own look at the head was what the loss cut off
                return

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                await other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                await other.execute(_APPLY, *_created("events/b/a.json"))


async def test_a_write_does_not_fail_for_a_connection_that_was_lost_before(cluster: Cluster) -> None:
    db = await anyio.to_thread.run_sync(cluster.database)
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    async with open_postgres(db, keep=1000) as storage, _connected(db) as other:
        assert await storage.write(Write("create", "events/b/1.json", "m", "1")) == 1
        old = await other.fetch(f"SELECT pid {others}")
        await other.execute(f"SELECT pg_terminate_backend(pid) {others}")
        while await other.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1)", [row[0] for row in old]
        ):
            await anyio.lowlevel.checkpoint()
        await storage.check()
        assert await storage.write(Write("create", "events/b/2.json", "m", "1")) == 1


async def test_nothing_waits_behind_listings(cluster: Cluster) -> None:
    db = await anyio.to_thread.run_sync(cluster.database)
    async with open_postgres(db, keep=1000) as storage, _connected(db) as holder, _connected(db) as watcher:
        held = holder.transaction()
        await held.start()
        await holder.execute("LOCK TABLE state IN ACCESS EXCLUSIVE MODE")
        async with anyio.create_task_group() as listings:
            for _ in range(20):
                listings.start_soon(lambda: storage.page("events", EVERYTHING, after=None, limit=None))
            for _ in range(_ROUNDS):
                query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'state'::regclass"
                if await watcher.fetchval(query) >= 3:
                    break
            else:
                raise AssertionError("no listing is under way")
            with anyio.fail_after(5):
                await storage.check()
                assert await storage.machine("0" * 64) is None
            await held.rollback()


# --- the order of commits on PostgreSQL ---------------------------------------------------------------------------

_APPLY = "SELECT apply_writes($1, $2, $3, $4, $5)"


def _created(path: str) -> tuple[list[str], list[str], list[int], list[str], list[str]]:
    return ["create"], [path], [0], ["1"], ["m"]


@asynccontextmanager
async def _connected(db: str) -> AsyncGenerator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(db)
    try:
        yield connection
    finally:
        await connection.close()


async def _until_one_waits(connection: "asyncpg.Connection[Any]") -> None:
    query = (
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database "
        "WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()"
    )
    for _ in range(_ROUNDS):
        if await connection.fetchval(query):
            return
    raise AssertionError("nobody waits for the lock of the writers")


@pytest.mark.parametrize("first_commits", [True, False], ids=["commit", "rollback"])
async def test_a_change_with_a_higher_number_is_never_seen_before_a_lower_one(
    cluster: Cluster, *, first_commits: bool
) -> None:
    db = await anyio.to_thread.run_sync(cluster.database)
    async with (
        open_storage(db, keep=1000) as storage,
        _connected(db) as one,
        _connected(db) as two,
        _connected(db) as watcher,
    ):
        since = (await storage.feed()).head

        async def followed(since: int) -> tuple[list[str], int]:
            changes, after = await storage.changes(since, "", EVERYTHING, limit=1000)
            return [change.path for change in changes], after

        first, second = one.transaction(), two.transaction()
        await first.start()
        assert await one.fetchval(_APPLY, *_created("events/b/1.json")) == [1]  # it has its number now
        await second.start()
        done = anyio.Event()

        async def overtake() -> None:
            assert await two.fetchval(_APPLY, *_created("events/b/2.json")) == [1]
            done.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(overtake)
            await _until_one_waits(watcher)
            assert not done.is_set()
            assert await followed(since) == ([], since)
            await (first.commit() if first_commits else first.rollback())
            await done.wait()
        seen, after = await followed(since)
        assert seen == (["events/b/1.json"] if first_commits else [])
        await second.commit()
        later, end = await followed(after)
        assert later == ["events/b/2.json"]
        assert end > after >= since


@pytest.mark.parametrize("kind", ["one server on SQLite", "three servers on PostgreSQL"])
def test_a_follower_misses_nothing_that_was_acknowledged(
    kind: str, sqlite: str, request: pytest.FixtureRequest
) -> None:
    if "SQLite" in kind:
        db, number = sqlite, 1
    else:
        cluster: Cluster = request.getfixturevalue("cluster")
        db, number = cluster.database(), 3
    token = grant(db, "m", reads=[""], writes=[""])
    with ExitStack() as stack:
        servers = [stack.enter_context(running(db)) for _ in range(number)]
        caller = stack.enter_context(calling(servers[0], token))
        since, ended = _now(caller), threading.Event()

        def write(writer: int) -> list[tuple[str, int]]:
            """Write records of its own and contended ones, and give what was acknowledged."""
            done: list[tuple[str, int]] = []
            with calling(servers[writer % number], token) as own:
                for step in range(12):
                    path = f"events/own/{writer}-{step % 4}.json"
                    version = step // 4
                    condition = {"if_match": str(version)} if version else {"if_none_match": "*"}
                    written = own.put(path, step, **condition)
                    assert written.status in (200, 201)
                    done.append((path, written.json()["version"]))
                    shared = own.get("events/all/one.json")
                    known = (
                        {"if_none_match": "*"} if shared.status == 404 else {"if_match": str(shared.json()["version"])}
                    )
                    contended = own.put("events/all/one.json", writer, **known)
                    if contended.status in (200, 201):
                        done.append(("events/all/one.json", contended.json()["version"]))
            return done

        def follow(server: Running) -> list[tuple[str, int]]:
            """Collect from the start until nothing comes after the writers have ended."""
            cursor, found = since, list[tuple[str, int]]()
            with calling(server, token) as own:
                while True:
                    last = ended.is_set()
                    answer = own.changes(cursor, limit=7, wait=0 if last else 1).json()
                    found += [(change["path"], change["version"]) for change in answer["changes"]]
                    cursor = answer["cursor"]
                    if last and not answer["changes"]:
                        return found

        with ThreadPoolExecutor(8) as pool, ThreadPoolExecutor(number) as followers:
            followed = [followers.submit(follow, server) for server in servers]
            try:
                acknowledged = [one for done in pool.map(write, range(8)) for one in done]
            finally:
                ended.set()
            for found in (future.result() for future in followed):
                assert sorted(found) == sorted(acknowledged)
                for path in {path for path, _ in found}:
                    versions = [version for one, version in found if one == path]
                    assert versions == list(range(1, len(versions) + 1))


async def test_changes_and_their_head_are_of_one_moment(db: str) -> None:
    """However writers and followers interleave: what a follower is told to go on from leaves nothing behind."""
    async with open_storage(db, keep=100_000) as storage:
        found: list[Change] = []

        async def write(writer: int) -> None:
            for step in range(25):
                assert await storage.write(Write("create", f"events/b/{writer}-{step}.json", "m", "1")) == 1

        async def follow() -> None:
            after = 0
            while len(found) < 200:
                await storage.changed(after, seconds=PATIENCE)
                changes, after = await storage.changes(after, "events/b", EVERYTHING, limit=9)
                found.extend(changes)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                for writer in range(8):
                    tasks.start_soon(write, writer)
    assert len({change.path for change in found}) == 200
    assert [change.seq for change in found] == sorted({change.seq for change in found})


# --- streams ------------------------------------------------------------------------------------------------------


@contextmanager
def _stream(
    server: Running, token: str | None, *, last: str | None = None, **query: str
) -> Generator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE)
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    if last is not None:
        headers["Last-Event-ID"] = last
    with contextlib.closing(connection):
        connection.request(
            "GET", "/v1/changes?" + "&".join(f"{name}={value}" for name, value in query.items()), headers=headers
        )
        with connection.getresponse() as response:
            yield response


def _block(stream: http.client.HTTPResponse) -> dict[str, str]:
    """Read one event or comment, up to its blank line; {} at the end."""
    fields: dict[str, str] = {}
    while (line := stream.readline().decode()) not in ("\n", ""):
        assert line.endswith("\n")
        name, _, value = line[:-1].partition(": ")
        assert name not in fields
        fields[name] = value
    return fields


def test_a_stream_tells_each_change_with_the_cursor_after_it(server: Running, caller: Caller, mine: str) -> None:
    prefix = f"events/{mine}"
    since = _now(caller)
    with _stream(server, caller.token, prefix=prefix) as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream")
        assert stream.headers["cache-control"] == "no-store"
        assert _block(stream) == {"event": "cursor", "id": since, "data": "{}"}
        caller.create(f"{prefix}/a.json", "a\nb")
        first = _block(stream)
        caller.put(f"{prefix}/a.json", 2, if_match="1")
        second = _block(stream)
    assert (first["event"], second["event"]) == ("change", "change")
    told = json.loads(first["data"])
    assert (told["path"], told["version"], told["data"]) == (f"{prefix}/a.json", 1, "a\nb")
    assert set(told) == {"path", "version", "at", "updated_by", "data"}
    with _stream(server, caller.token, last=first["id"], prefix=prefix) as stream:
        assert _block(stream) == second
    with _stream(server, caller.token, last=first["id"], since=second["id"], prefix=prefix) as stream:
        assert _block(stream) == second  # a returning caller's own word is newer than the address it kept
    assert caller.changes(first["id"], prefix=prefix).json()["cursor"] == second["id"]


def test_a_stream_ends_when_the_token_does(server: Running, caller: Caller, mine: str) -> None:
    reader = f"{mine}-reader"
    token = grant(server.db, reader, reads=[""], writes=[])
    with _stream(server, token, prefix=f"events/{mine}") as stream:
        assert _block(stream)["event"] == "cursor"
        revoke(server.db, reader)
        caller.create(f"events/{mine}/a.json", "secret")
        last = _block(stream)
        assert (last["event"], json.loads(last["data"])) == ("error", {"error": "unknown_token"})
        assert stream.read() == b""


def test_a_stream_ends_when_the_scope_does(server: Running, caller: Caller, mine: str) -> None:
    reader = f"{mine}-reader"
    token = grant(server.db, reader, reads=["events"], writes=[])
    with _stream(server, token, prefix=f"events/{mine}") as stream:
        assert _block(stream)["event"] == "cursor"
        sql(server.db, "UPDATE machines SET read_prefixes = '[\"claims\"]' WHERE machine = $1", reader)
        with calling(server, token) as follower:  # what is done past the commands, the server sees in its own time
            while follower.ask("GET", "/v1/whoami").json()["read_prefixes"] != ["claims"]:
                pass
        caller.create(f"events/{mine}/a.json", "secret")
        assert json.loads(_block(stream)["data"]) == {"error": "forbidden"}
        assert stream.read() == b""


def test_refusals_come_before_a_stream_does(server: Running, caller: Caller, scoped: Calls) -> None:
    for token, query, status in (
        ("0" * 48, {}, 401),
        (scoped(reads=[], writes=[]).token, {}, 403),
        (caller.token, {"prefix": "etc"}, 400),
        (caller.token, {"since": "x.1"}, 410),
    ):
        with _stream(server, token, **query) as stream:
            assert (stream.status, stream.headers["content-type"]) == (status, "application/json")


def test_a_stream_without_news_says_that_it_is_there_and_where(db: str) -> None:
    token = grant(db, "m", reads=["claims"], writes=[""])
    with (
        running(db, silence=0.05) as server,
        calling(server, token) as caller,
        _stream(server, token, prefix="claims") as stream,
    ):
        begun = _block(stream)["id"]
        assert _block(stream) == {"": "still here", "id": begun}
        caller.create("events/b/hidden.json")
        while (later := _block(stream)["id"]) == begun:
            pass
        # It has passed what it may not tell, so that the cursor does not grow old with it.
        caller.create("claims/o/r/7.json")
        while "event" not in (told := _block(stream)):
            assert told == {"": "still here", "id": later}
        assert json.loads(told["data"])["path"] == "claims/o/r/7.json"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stream_ends_in_good_order_when_the_server_does(db: str, signum: signal.Signals) -> None:
    token = grant(db, "m", reads=[""], writes=[""])
    with running(db) as server, _stream(server, token) as stream:
        assert _block(stream)["event"] == "cursor"
        server.process.send_signal(signum)
        assert stream.read() == b""  # a chunked body that was cut off would raise
        server.ended()
    assert any(" GET /v1/changes 200 " in line for line in server.lines)


def test_streams_tell_when_the_database_is_gone(cluster_of_its_own: Cluster) -> None:
    db = cluster_of_its_own.database()
    token = grant(db, "m", reads=[""], writes=[""])
    with (
        running(db) as server,
        calling(server, token) as caller,
        ThreadPoolExecutor(1) as pool,
        _stream(server, token) as stream,
    ):
        since = _block(stream)["id"]
        waiting = pool.submit(caller.changes, since, wait=60)
        _until_open(server, token, 3)
        cluster_of_its_own.stop()
        assert json.loads(_block(stream)["data"]) == {"error": "storage_unavailable"}
        assert stream.read() == b""
        assert waiting.result().refusal == (503, "storage_unavailable")
        for path in ("/v1/health", "/v1/whoami", "/v1/state/claims/o/r/7.json", "/v1/state?prefix=claims"):
            assert caller.ask("GET", path).refusal == (503, "storage_unavailable")
        assert caller.put("claims/o/r/7.json", 1, if_none_match="*").refusal == (503, "storage_unavailable")
        cluster_of_its_own.start()
        assert caller.ask("GET", "/v1/health").status == 200
        assert caller.put("claims/o/r/7.json", 1, if_none_match="*").status == 201
        [change] = caller.changes(since).json()["changes"]
        assert change["path"] == "claims/o/r/7.json"
