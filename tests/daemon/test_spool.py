"""What the daemon does with a spool whose content it cannot pass on yet."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from agentcoord import spool
from agentcoord.errors import StoreError
from agentcoord.protocol.outbox import Late, LateEvent
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


async def test_a_token_proves_itself_for_one_server_only(place: Path) -> None:
    spool.make_spool(str(place))
    await Spool(str(place), URL, TOKEN).put(event(1))
    with spool.opened_spool(str(place)) as directory:
        [name] = spool.names_in(directory)
        dropped = spool.read_dropped(directory, name)
    assert dropped.proves(TOKEN)
    assert not dropped.proves(Secret("another"))
    elsewhere = spool.Dropped(1, "https://two.example", dropped.salt, dropped.proof, dropped.late)
    assert not elsewhere.proves(TOKEN)
