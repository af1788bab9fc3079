"""What the daemon does with a spool whose content it cannot pass on yet."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import anyio
import pytest

from agentcoord import spool
from agentcoord.errors import StoreError
from agentcoord.protocol.heartbeats import Beat
from agentcoord.protocol.identity import Identity
from agentcoord.protocol.outbox import Late, LateBeat, LateEvent
from agentcoord.protocol.statuses import normalize
from agentcoord.settings.selection import Secret
from agentcoord.spool import Spool
from agentcoordd.services.spool import Pickup
from tests.command import PATIENCE
from tests.daemon.stage import FakeTime

URL, TOKEN = "https://one.example", Secret("t0ken")


class Taking:
    """An outbox that may be full."""

    def __init__(self) -> None:
        self.full = False
        self.taken: list[tuple[Late, str | None]] = []

    async def __call__(self, url: str, late: Late, *, origin: str | None, refused: str | None) -> None:
        assert (url, refused) == (URL, None)
        if self.full:
            raise StoreError("the outbox is full")
        self.taken.append((late, origin))


def event(number: int) -> LateEvent:
    name = f"20260101T000000.{number:06}Z-0a1b2c3d"
    return LateEvent({"event_id": name, "batch_id": "b", "type": "n", "at": "2026-01-01T00:00:00Z"})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "run"
    place.mkdir(mode=0o700)
    return place


async def until(time: FakeTime, holds: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not holds():
            await anyio.sleep(0.002)
            await time.jump(1)


async def test_what_finds_no_room_stays_in_its_order(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    time, taking = FakeTime(), Taking()
    pickup = Pickup(str(place), taking, time, urls={URL}, token_of=lambda url: TOKEN)
    taking.full, names = True, list[str]()
    async with anyio.create_task_group() as tasks:
        await tasks.start(pickup.run)
        for number in range(3):
            await Spool(str(place), URL, TOKEN).put(event(number))
        names += sorted(path.name for path in (place / spool.NAME).glob("*.json"))
        await until(time, lambda: "stays there: the outbox is full" in caplog.text)
        await time.pass_by(5)
        assert sorted(path.name for path in (place / spool.NAME).glob("*.json")) == names
        assert caplog.text.count("the outbox is full") == 1, "it is said once"
        taking.full = False
        await until(time, lambda: not list((place / spool.NAME).glob("*.json")))
        tasks.cancel_scope.cancel()
    assert taking.taken == [(event(number), name) for number, name in enumerate(names)]
    assert list(place.iterdir()) == [], "an empty spool is not left behind"


async def test_a_spool_that_somebody_cleaned_up_is_made_anew(place: Path) -> None:
    time, taking = FakeTime(), Taking()
    pickup = Pickup(str(place), taking, time, urls={URL}, token_of=lambda url: TOKEN)
    async with anyio.create_task_group() as tasks:
        await tasks.start(pickup.run)
        (place / spool.NAME / spool.ASIDE).rmdir()
        (place / spool.NAME).rmdir()
        await until(time, (place / spool.NAME / spool.ASIDE).exists)
        await Spool(str(place), URL, TOKEN).put(event(1))
        await until(time, lambda: len(taking.taken) == 1)
        tasks.cancel_scope.cancel()


def nested(levels: int) -> object:
    found: object = "x"
    for _ in range(levels):
        found = [found]
    return found


def beat(at: str) -> LateBeat:
    said = Beat(agent_id="ana", ttl=60, status=normalize("in_progress"))
    return LateBeat(said, Identity(), datetime.fromisoformat(at), "0a1b2c3d")


@pytest.mark.parametrize(
    ("late", "why"),
    [
        # A thread that reads files has room for more levels than the loop that keeps them.
        (LateEvent(event(1).record | {"x": nested(900)}), "nested deeper than 100 levels"),
        (beat("0001-01-01T00:00:00+14:00"), "of no year that there is"),
        (event(0), "internal error: ZeroDivisionError"),
    ],
)
async def test_no_file_ends_the_daemon_or_holds_up_others(
    place: Path, caplog: pytest.LogCaptureFixture, late: Late, why: str
) -> None:
    time, taken = FakeTime(), list[Late]()

    async def put(url: str, late: Late, *, origin: str | None, refused: str | None) -> None:
        if late == event(0):
            raise ZeroDivisionError
        taken.append(late)

    pickup = Pickup(str(place), put, time, urls={URL}, token_of=lambda url: TOKEN)
    async with anyio.create_task_group() as tasks:
        await tasks.start(pickup.run)
        for each in (late, event(2)):
            await Spool(str(place), URL, TOKEN).put(each)
        await until(time, lambda: len(taken) == 1)
        tasks.cancel_scope.cancel()
    assert taken == [event(2)]
    assert why in caplog.text
    assert len(list((place / spool.NAME / spool.ASIDE).iterdir())) == 1


def _taken(aside: Path, name: str) -> None:
    (aside / name / "deep").mkdir(parents=True)


def _cleaned_up(aside: Path, name: str) -> None:
    aside.rmdir()


def _no_directory(aside: Path, name: str) -> None:
    aside.rmdir()
    aside.touch()


@pytest.mark.parametrize("damage", [_taken, _cleaned_up, _no_directory])
async def test_a_file_that_cannot_be_put_aside_holds_up_nobody(
    place: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path, str], None]
) -> None:
    time, taking = FakeTime(), Taking()
    pickup = Pickup(str(place), taking, time, urls={URL}, token_of=lambda url: TOKEN)
    where, aside, name = place / spool.NAME, place / spool.NAME / spool.ASIDE, "0-before-all"
    async with anyio.create_task_group() as tasks:
        await tasks.start(pickup.run)
        damage(aside, name)
        (where / name).touch()
        await Spool(str(place), URL, TOKEN).put(event(1))
        await until(time, lambda: len(taking.taken) == 1)
        await time.pass_by(5)
        tasks.cancel_scope.cancel()
    if damage is _no_directory:
        assert (where / name).exists()
        assert caplog.text.count("cannot be used") == 1, "it is said once"
    else:
        assert not (where / name).exists()
        assert caplog.text.count("its name is none that a command gives") == 1
        assert len([path for path in aside.iterdir() if path.is_file()]) == 1


async def test_a_token_proves_itself_for_one_server_and_one_record_only(place: Path) -> None:
    spool.make_spool(str(place))
    await Spool(str(place), URL, TOKEN).put(event(1))
    with spool.opened_spool(str(place)) as directory:
        [name] = spool.names_in(directory)
        dropped = spool.read_dropped(directory, name)
    assert dropped.proves(TOKEN)
    assert not dropped.proves(Secret("another"))
    elsewhere = spool.Dropped(1, "https://two.example", dropped.salt, dropped.proof, dropped.late)
    assert not elsewhere.proves(TOKEN)
    forged = spool.Dropped(1, dropped.url, dropped.salt, dropped.proof, event(2))
    assert not forged.proves(TOKEN)
