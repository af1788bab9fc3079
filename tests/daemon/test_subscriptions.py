"""Subscribers are told in order, never waited for, and learn how much they missed."""

import socket

import anyio
import pytest

from agentcoordd.api.dispatch import Registry
from agentcoordd.api.subscriptions import MOST_QUEUED, MOST_SUBSCRIBERS, Feed
from tests.command import PATIENCE
from tests.daemon.hosting import hosted
from tests.daemon.running import Daemon


async def test_events_come_in_order_and_of_the_topics_asked_for() -> None:
    async with hosted() as host:
        every, some = await host.subscriber(), await host.subscriber(topics=["lease.lost"])
        assert every.answer["result"] == {"ok": True}
        for number in range(3):
            host.feed.publish("changed", {"n": number})
            host.feed.publish("lease.lost", {"n": number})
        told = [(await every.next())["params"] for _ in range(6)]
        assert [event["seq"] for event in told] == [1, 2, 3, 4, 5, 6]
        assert told[0] == {"seq": 1, "topic": "changed", "data": {"n": 0}}
        assert [(await some.next())["params"]["seq"] for _ in range(3)] == [2, 4, 6]


async def test_whoever_is_too_slow_learns_how_much_it_missed_and_goes_on() -> None:
    async with hosted() as host:
        slow, quick = await host.subscriber(), await host.subscriber(topics=["lease.held"])
        data = {"text": "x" * 8000}
        for _ in range(6000):
            host.feed.publish("changed", data)
            await anyio.lowlevel.checkpoint()
        host.feed.publish("lease.held", {})
        assert (await quick.next())["params"]["topic"] == "lease.held"
        assert host.feed.missed > 0
        seen: list[int] = []
        while (frame := await slow.next())["method"] == "event":
            seen.append(frame["params"]["seq"])
        assert frame["method"] == "gap"
        assert seen == list(range(1, len(seen) + 1))
        assert len(seen) >= MOST_QUEUED
        assert len(seen) + frame["params"]["missed"] == 6001
        host.feed.publish("changed", {})
        assert (await slow.next())["params"]["seq"] == 6002


async def test_who_hangs_up_is_forgotten_and_room_is_limited() -> None:
    async with hosted() as host:
        readers = [await host.subscriber() for _ in range(MOST_SUBSCRIBERS)]
        assert host.feed.subscribers == MOST_SUBSCRIBERS
        assert "subscribers" in (await host.subscriber()).answer["error"]["message"]
        readers[0].end.close()
        with anyio.fail_after(PATIENCE):
            while host.feed.subscribers == MOST_SUBSCRIBERS:
                await anyio.lowlevel.checkpoint()
        host.feed.publish("changed", {})
        assert (await readers[1].next())["method"] == "event"


def test_two_methods_of_one_name_are_a_mistake() -> None:
    feed = Feed()
    with pytest.raises(ValueError, match="subscribe"):
        Registry([*feed.methods(), *feed.methods()])
    assert Registry(feed.methods()).names == ["subscribe"]


def test_a_subscriber_of_the_daemon_is_counted(daemon: Daemon) -> None:
    daemon.start()
    caller = daemon.call()
    assert caller.ask("subscribe", {"topics": ["changed"]})["result"] == {"ok": True}
    assert daemon.status()["subscribers"]["used"] == 1
    caller.socket.shutdown(socket.SHUT_RDWR)
    assert caller.ended()
