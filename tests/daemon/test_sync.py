"""Copying a server: right after every fault, after being killed at every step, and never newer than it says."""

import logging
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentcoord.errors import Rejected, StoreError, Unreadable
from agentcoord.protocol.replica import FEED_WAIT, LONGEST_REST
from agentcoord.settings.selection import Secret
from agentcoord.stores.base import Stored
from agentcoord.stores.httpexchange import Overlong, Unanswered
from agentcoord.stores.httpwire import Changes, Page
from agentcoord.stores.opening import settle
from agentcoordd.passes import PAGE
from agentcoordd.replica import Replica
from tests.daemon.copied import URL, Backend, Copying, Ticking, furnished, refused

LONG = 1800.0


@pytest.fixture
def backend() -> Backend:
    return furnished(Ticking())


@pytest.fixture
def copying(backend: Backend, tmp_path: Path) -> Copying:
    return Copying(backend, tmp_path / "replica.db")


def passed(copying: Copying, seconds: float) -> Callable[[], bool]:
    end = copying.clock.passed + seconds
    return lambda: copying.clock.passed >= end


async def test_everything_is_copied_and_then_followed(backend: Backend, copying: Copying) -> None:
    await copying.run(copying.equal)
    assert set(copying.content()) == set(backend.records)
    backend.put("claims/o/r/1.json")
    backend.delete("claims/o/r/2.json")
    backend.put("claims/o/r/3.json")
    backend.asked.clear()
    copying.told.events.clear()
    await copying.run(copying.equal)
    assert [asked for asked in backend.asked if asked.startswith("list")] == []  # it went on where it was
    assert copying.told.events[0][0] == "changed"
    assert copying.told.events[0][1] | {"at": ""} == {"backend": URL, "families": ["claims"], "at": ""}


async def test_a_record_made_anew_with_the_version_of_the_one_before(backend: Backend, copying: Copying) -> None:
    await copying.run(copying.equal)
    backend.delete("heartbeats/a1.json")
    backend.put("heartbeats/a1.json", {"another": 1})
    backend.name = "restored"  # so that it is found by the listings, not by the feed
    await copying.run(copying.equal)
    assert copying.content()["heartbeats/a1.json"] == b'{"another":1}'


async def test_a_quiet_copy_is_never_much_older_than_the_servers_patience(backend: Backend, copying: Copying) -> None:
    await copying.run(copying.equal)
    ages: list[float] = []

    def looked() -> bool:
        if copying.state == "current":  # from then on
            with copying.replicas.snapshot(URL) as snapshot:
                ages.append(snapshot.label.age)
        return len(ages) > 500

    async def one_more(request: str) -> None:
        if len(ages) % 100 == 50 and request.startswith("changes"):
            backend.put("events/b1/e2.json")

    backend.before = one_more
    await copying.run(looked)
    assert max(ages) <= FEED_WAIT + 1.5


async def test_a_server_that_does_not_wait_is_not_believed_to_have_waited(backend: Backend, copying: Copying) -> None:
    backend.patience = 0.0
    looks: list[bool] = []

    def looked() -> bool:
        if copying.state == "current":
            with copying.replicas.snapshot(URL) as snapshot:
                looks.append(snapshot.label.as_of <= copying.clock.now())
        return len(looks) > 50

    await copying.run(looked)
    assert all(looks)
    asked = sum(request.startswith("changes") for request in backend.asked)
    assert asked <= 5 * copying.clock.passed + 5


@pytest.mark.parametrize("patience", [0.0, 0.05])
async def test_a_server_that_does_not_wait_is_not_asked_all_the_time(
    backend: Backend, copying: Copying, patience: float
) -> None:
    backend.patience = patience
    await copying.run(copying.equal)
    backend.asked.clear()
    began = copying.clock.passed
    await copying.run(passed(copying, 100))
    assert len([request for request in backend.asked if request.startswith("changes")]) <= 5 * (
        copying.clock.passed - began
    )


# Faults of the backend ------------------------------------------------------------------------------


def _twice(request: str, answer: Any) -> Any:
    if isinstance(answer, Page) and answer.entries:
        return Page([*answer.entries, answer.entries[0]], answer.filtered, answer.next_cursor)
    return answer


def _from_before(request: str, answer: Any) -> Any:
    """Answer a later page with an earlier one, as a cache might."""
    if isinstance(answer, Page) and answer.next_cursor:
        return Page(answer.entries, answer.filtered, "claims/a")
    return answer


def _stuck(request: str, answer: Any) -> Any:
    if isinstance(answer, Changes) and answer.changes:
        return Changes(answer.changes, "feed.7")
    return answer


async def _fails(error: Exception) -> None:
    raise error


FAULTS: dict[str, Callable[[], Exception]] = {
    "gone": lambda: Unanswered("http backend unreachable: gone", sent=False),
    "cut off": lambda: Unanswered("http backend unreachable: cut off", sent=True),
    "500": lambda: refused(500, "internal"),
    "429": lambda: refused(429, "slow down", 30.0),
    "401": lambda: refused(401, "unknown_token"),
    "HTML": lambda: StoreError("http backend returned malformed JSON: <html>"),
    "302": lambda: refused(302, "login"),
    "a bug": lambda: RuntimeError("nobody expected this"),
}


@pytest.mark.parametrize("feeds", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
async def test_each_request_may_fail_in_any_way(
    backend: Backend, tmp_path: Path, fault: str, feeds: bool, caplog: pytest.LogCaptureFixture
) -> None:
    backend.feeds = feeds
    for step in range(list(FAULTS).index(fault) % 3, 12, 3):  # so each request meets several
        copying = Copying(backend, tmp_path / f"{step}.db")
        numbers = count()
        failed: list[str] = []

        async def before(
            request: str, step: int = step, numbers: "count[int]" = numbers, failed: list[str] = failed
        ) -> None:
            if step <= next(numbers) < step + 3:
                failed.append(request)
                backend.put("claims/o/r/1.json")
                await _fails(FAULTS[fault]())

        backend.before = before
        caplog.clear()
        copying.watched = True

        def done(copying: Copying = copying, failed: Sequence[str] = failed) -> bool:
            copying.require_honest()
            return len(failed) == 3 and copying.equal()

        await copying.run(done)
        told = [
            record for record in caplog.records if record.levelno >= logging.WARNING and "is not copied" in record.msg
        ]
        assert len(told) == 1


@pytest.mark.parametrize("mangle", [_twice, _from_before, _stuck])
async def test_an_answer_that_makes_no_sense_changes_nothing(
    backend: Backend, copying: Copying, mangle: Callable[[str, Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentcoordd.passes.PAGE", 1)
    await copying.run(copying.equal)
    before = copying.content()
    backend.put("claims/o/r/1.json")
    if mangle is not _stuck:
        backend.name = "restored"
    backend.mangle = mangle
    await copying.run(lambda: copying.state == "failing")
    copying.require_honest()
    assert set(copying.content()) == set(before)
    backend.mangle = lambda request, answer: answer
    await copying.run(copying.equal)


async def test_an_answer_that_is_too_large_is_asked_for_in_smaller_ones(backend: Backend, copying: Copying) -> None:
    for number in range(30):
        backend.put(f"events/b2/e{number:02}.json")

    def mangle(request: str, answer: Any) -> Any:
        if isinstance(answer, Page) and len(answer.entries) > 2:
            raise Overlong("http backend answered with more than 16 bytes", sent=True)
        if isinstance(answer, Changes) and len(answer.changes) > 2:
            raise Overlong("http backend answered with more than 16 bytes", sent=True)
        return answer

    backend.mangle = mangle
    await copying.run(copying.equal)
    for number in range(30):
        backend.put(f"events/b2/e{number:02}.json")
    await copying.run(copying.equal)


async def test_a_listing_that_fails_for_hours_is_spoken_of_once(
    backend: Backend, copying: Copying, caplog: pytest.LogCaptureFixture
) -> None:
    async def before(request: str) -> None:
        if request == "list events":
            raise refused(500, "internal")

    backend.before = before
    await copying.run(passed(copying, 150))
    assert [entry.levelno for entry in caplog.records if entry.levelno >= logging.INFO] == [logging.WARNING]


async def test_a_server_that_wants_to_be_left_alone_is(backend: Backend, copying: Copying) -> None:
    await copying.run(copying.equal)

    async def before(request: str) -> None:
        raise refused(429, "slow down", 600.0)

    backend.before = before
    backend.asked.clear()
    await copying.run(passed(copying, 6000))
    assert len(backend.asked) <= 11


async def test_what_comes_back_is_found_soon_and_what_counts_requests_is_not_asked_much(
    backend: Backend, copying: Copying
) -> None:
    async def gone(request: str) -> None:
        raise Unanswered("http backend unreachable: gone", sent=False)

    async def broken(request: str) -> None:
        raise refused(500, "internal")

    backend.before = gone
    await copying.run(passed(copying, 1000))
    assert len(backend.asked) >= 1000 / 2.5  # never more than 2 s apart
    backend.before, backend.feeds = broken, False
    backend.asked.clear()
    await copying.run(passed(copying, LONG))
    assert len(backend.asked) <= LONG / 30


async def test_a_network_that_comes_and_goes_every_second(
    backend: Backend, copying: Copying, caplog: pytest.LogCaptureFixture
) -> None:
    async def before(request: str) -> None:
        if int(backend.clock.passed) % 2:
            raise Unanswered("http backend unreachable: gone", sent=False)
        if request.startswith("changes"):
            backend.put("claims/o/r/1.json")

    backend.before = before
    await copying.run(passed(copying, 130))
    copying.require_honest()
    assert len([entry for entry in caplog.records if entry.levelno >= logging.INFO]) <= 2 * 3
    backend.before = None
    await copying.run(copying.equal)


async def test_a_copy_that_is_cut_off_again_and_again_comes_to_its_end(backend: Backend, copying: Copying) -> None:
    for number in range(4 * PAGE):
        backend.put(f"events/b1/f{number:05}.json", 0)
    asked = count(1)

    async def before(request: str) -> None:
        if next(asked) % 6 == 0:  # so soon that no way through the listings is ever at its end
            backend.put("events/b1/f00000.json")
            backend.put("claims/o/r/1.json")
            raise Unanswered("http backend unreachable: gone", sent=False)

    backend.before = before
    await copying.run(copying.equal)
    copying.require_honest()


async def test_a_copy_is_not_gone_on_with_by_other_eyes(backend: Backend, copying: Copying) -> None:
    asked: list[str] = []

    async def before(request: str) -> None:
        asked.append(request)
        if request == "list events" and asked.count(request) == 1:
            backend.reads = ("events", "batches")
            raise Unanswered("http backend unreachable: gone", sent=False)

    backend.before = before
    await copying.run(copying.equal)
    assert set(copying.content()) == {"batches/b1.json", "events/b1/e1.json"}


async def test_what_was_copied_before_it_was_cut_off_is_told(backend: Backend, copying: Copying) -> None:
    backend.feeds, copying.watched = False, True
    for number in range(PAGE):
        backend.put(f"claims/o/s/{number:05}.json", 0)
    await copying.run(copying.equal)
    copying.told.events.clear()
    backend.put("claims/o/r/1.json")
    asked: list[str] = []

    async def before(request: str) -> None:
        asked.append(request)
        if request.startswith("list claims ") and asked.count(request) == 1:  # the second page
            raise Unanswered("http backend unreachable: gone", sent=False)

    backend.before = before
    await copying.run(lambda: asked.count("list claims") > 1 and copying.equal())
    assert [data["families"] for _, data in copying.told.events] == [["claims"]]


# Killed at every step -------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


async def _story(backend: Backend, number: int) -> None:
    """Change something at each step, so that there is something to be missed."""
    match number % 4:
        case 0:
            backend.put(f"events/b1/n{number}.json")
        case 1:
            backend.put("claims/o/r/1.json")
        case 2 if "claims/o/r/2.json" in backend.records:
            backend.delete("claims/o/r/2.json")
        case _:
            backend.put("claims/o/r/2.json")


class Mortal(Replica):
    """A replica that calls a test before and after each of its transactions."""

    watching: ClassVar[list[Callable[[], None]]] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("begin", "put_page", "put_changes", "settle", "unsettle", "equal"):
            return found

        async def called(*args: Any, **named: Any) -> Any:
            for step in Mortal.watching:
                step()
            answer = await found(*args, **named)
            for step in Mortal.watching:
                step()
            return answer

        return called


@pytest.mark.parametrize(("feeds", "anew"), [(True, False), (True, True), (False, False)])
async def test_a_daemon_that_is_killed_at_any_step_goes_on_right(
    tmp_path: Path, feeds: bool, anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`anew`: not during the first copy, but while one that is there is made anew."""
    monkeypatch.setattr("agentcoordd.passes.PAGE", 2)
    for fatal in count():
        backend = furnished(Ticking(), ["events/b1/e2.json", "events/b1/e3.json"])
        backend.feeds = feeds
        copying = Copying(backend, tmp_path / f"{fatal}.db", Mortal)
        copying.watched = True
        if anew:
            await copying.run(copying.equal)
            backend.name = "restored"
        steps = count(1)
        last = [0]

        def step(fatal: int = fatal, steps: "count[int]" = steps, last: list[int] = last) -> None:
            last[0] = next(steps)
            if last[0] == fatal + 1:
                raise Killed

        async def before(
            request: str, backend: Backend = backend, step: Callable[[], None] = step, last: list[int] = last
        ) -> None:
            step()
            await _story(backend, last[0])

        backend.before = before
        monkeypatch.setattr(Mortal, "watching", [step])
        survived = False
        try:
            await copying.run(lambda last=last: last[0] > 50)
            survived = True
        except* Killed:
            pass
        monkeypatch.setattr(Mortal, "watching", [])
        backend.before = None
        copying.require_honest()
        if anew:
            assert copying.content()  # it stays answerable
        await copying.run(copying.equal)
        copying.require_honest()
        if survived:
            assert fatal > 40
            return


# Tokens and scopes ----------------------------------------------------------------------------------


async def test_a_token_that_was_rotated_is_read_again(backend: Backend, copying: Copying) -> None:
    await copying.run(copying.equal)
    backend.token = "t0ken-2"
    backend.put("claims/o/r/1.json")
    await copying.run(lambda: copying.state == "failing")
    assert copying.content()  # still answerable, with its age
    copying.require_honest()

    def rotate() -> bool:
        copying.token = Secret("t0ken-2")
        return copying.equal()

    await copying.run(lambda: copying.state == "failing")
    backend.asked.clear()
    await copying.run(rotate)


async def test_another_token_in_the_user_file_is_used_though_the_old_one_would_do(
    backend: Backend, copying: Copying
) -> None:
    backend.others["t0ken-2"] = ("claims",)
    seen: set[int] = set()

    def fewer() -> bool:
        seen.add(len(copying.content()))
        if copying.state == "current":
            copying.token = Secret("t0ken-2")
        return len(seen - {0}) > 1 and copying.state == "current"

    await copying.run(fewer)
    assert set(copying.content()) == {"claims/o/r/1.json", "claims/o/r/2.json"}


@pytest.mark.parametrize("feeds", [True, False])
async def test_a_scope_that_becomes_smaller_in_the_middle_and_larger_again(
    backend: Backend, copying: Copying, feeds: bool
) -> None:
    backend.feeds = feeds
    copying.watched = True
    narrow = ("claims", "events/b1/e1.json", "attention/w")
    for step in range(12):
        backend.reads = ("",)
        numbers = count()

        async def before(request: str, step: int = step, numbers: "count[int]" = numbers) -> None:
            if next(numbers) == step:
                backend.reads = narrow

        backend.before = before
        backend.name = f"feed{step}"
        await copying.run(lambda: backend.reads == narrow and copying.equal())
        with copying.replicas.snapshot(URL) as snapshot:
            assert snapshot.label.filtered
            facts = snapshot.label.facts()
            assert (facts["complete"], facts["filtered"]) == (False, True)
            assert settle(snapshot.store.list("events")).filtered
            assert not settle(snapshot.store.list("claims")).filtered
            assert isinstance(settle(snapshot.store.read("events/b1/e1.json")), Stored)
            with pytest.raises(Unreadable, match="http backend read heartbeats/a1.json failed: 403 forbidden"):
                settle(snapshot.store.read("heartbeats/a1.json"))
            with pytest.raises(Unreadable, match="http backend list batches failed: 403 forbidden"):
                settle(snapshot.store.list("batches"))
        backend.before = None
        backend.reads = ("",)
        await copying.run(copying.equal)
        with copying.replicas.snapshot(URL) as snapshot:
            assert not snapshot.label.filtered


async def test_a_server_that_says_only_in_its_listings_that_something_is_missing(
    backend: Backend, copying: Copying
) -> None:
    backend.reads, backend.feeds = None, False

    def mangle(request: str, answer: Any) -> Any:
        if request == "list batches":
            raise refused(403, "forbidden")
        if request == "list attention":
            raise refused(400, "invalid_prefix")
        if isinstance(answer, Page) and request.startswith("list events"):
            return Page(answer.entries, True, answer.next_cursor)
        return answer

    backend.mangle = mangle
    await copying.run(lambda: copying.state == "current")
    with copying.replicas.snapshot(URL) as snapshot:
        assert snapshot.label.filtered
        assert settle(snapshot.store.list("events/b1")).filtered
        assert not settle(snapshot.store.list("claims/o/r")).filtered
        with pytest.raises(Unreadable):
            settle(snapshot.store.list("batches"))
        with pytest.raises(Rejected) as unsupported:
            settle(snapshot.store.list("attention/w/o/r"))
        assert unsupported.value.unsupported


async def test_only_the_daemons_own_token_and_backend_are_answered(copying: Copying) -> None:
    await copying.run(copying.equal)
    with copying.replicas.snapshot(URL, Secret("t0ken-1")):
        pass
    with pytest.raises(StoreError, match="yours is another one"):
        copying.replicas.snapshot(URL, Secret("t0ken-x"))
    with pytest.raises(StoreError, match="none of its own"):
        copying.replicas.snapshot("https://elsewhere.example", Secret("t0ken-1"))


# A server without a feed ----------------------------------------------------------------------------


def passes(backend: Backend) -> int:
    return backend.asked.count("list claims")


async def test_a_server_without_a_feed_is_asked_by_need(backend: Backend, copying: Copying) -> None:
    backend.feeds = False
    await copying.run(copying.equal)
    backend.asked.clear()
    await copying.run(passed(copying, LONG))
    assert 1 <= passes(backend) <= LONG / 800 + 1
    assert len(backend.asked) <= LONG / 10
    backend.asked.clear()
    copying.watched = True
    await copying.run(passed(copying, LONG))
    assert LONG / 65 <= passes(backend) <= LONG / 50  # nothing changes, so it is asked slowly
    backend.asked.clear()

    async def busy(request: str) -> None:
        if request == "list events":
            backend.put("claims/o/r/1.json")

    backend.before = busy
    await copying.run(passed(copying, LONG))
    assert passes(backend) >= LONG / 25
    assert len(backend.asked) <= LONG / 1.5


async def test_a_question_hurries_a_poll(backend: Backend, copying: Copying) -> None:
    backend.feeds = False
    await copying.run(copying.equal)
    backend.put("claims/o/r/1.json")
    began = copying.clock.passed
    await copying.run(copying.equal)  # which asks for a snapshot again and again
    assert copying.clock.passed - began < 30


async def test_a_server_that_gets_a_feed_and_loses_it_again(backend: Backend, copying: Copying) -> None:
    backend.feeds = False
    await copying.run(copying.equal)
    assert copying.replicas.list()[0].by == "polls"

    def by(how: str) -> Callable[[], bool]:
        def holds() -> bool:
            backend.feeds = how == "feed" or copying.replicas.list()[0].by is None
            return copying.replicas.list()[0].by == how and copying.equal()

        return holds

    backend.feeds = True
    await copying.run(by("feed"))
    backend.feeds = False
    await copying.run(lambda: copying.replicas.list()[0].by == "polls" and copying.equal())


def test_no_rest_is_longer_than_it_may_be() -> None:
    assert LONGEST_REST <= 3600
