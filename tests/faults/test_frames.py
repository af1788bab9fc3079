"""Many callers whose frames arrive in pieces, all mixed, some of them malformed, beside one who is in a hurry."""

import json
import random

from agentcoord.wire import FRAME_BYTES
from tests.daemon.running import Caller, Daemon, until, words
from tests.faults.commands import ITEM, REQUIRED, Machine

CALLERS = 24


def test_frames_in_pieces_from_all_sides_reach_whom_they_are_meant_for(daemon: Daemon, machine: Machine) -> None:
    daemon.start()
    env, order = {"HOME": str(daemon.home)}, random.Random(7)
    left: dict[Caller, bytes] = {}
    for number in range(CALLERS):
        item = ("--repo", "acme/widgets", "--target", str(number))
        params = words("claim", "--agent-id", f"a{number}", *item, env=env)
        frames = [
            {"id": f"first-{number}", "method": "hello", "params": {"version": "v" * number * 50}},
            {"id": 1, "method": "cli.run", "params": params},
        ]
        left[daemon.call()] = b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)
    spoilt = [daemon.call() for _ in range(4)]
    hasty = daemon.call()
    ends = (b"\xff\xfe", b'{"id":1', b"[" * 9999, b"y" * (FRAME_BYTES // 2))  # and no end of any
    left.update(zip(spoilt, ends, strict=True))

    def send() -> None:
        while left:
            caller = order.choice(list(left))
            size = order.choice((7, 100, 4096, 1 << 20))
            caller.raw(left[caller][:size])
            left[caller] = left[caller][size:]
            if not left[caller]:
                del left[caller]
            if order.random() < 0.1:
                assert hasty.ask("hello")["result"]

    send()
    for number, caller in enumerate(daemon.callers[:CALLERS]):
        assert caller.next()["id"] == f"first-{number}"
        assert caller.next()["method"] == "accepted"
        left[caller] = b'{"method":"go","params":{"id":1}}\n'
    send()
    for number, caller in enumerate(daemon.callers[:CALLERS]):
        said = ""
        while (frame := caller.next()).get("method"):
            said += frame["params"].get("data", "")
        assert frame["result"] == {"exit": 0}
        assert said.endswith(f"claimed acme/widgets#{number} by a{number} until 2026-03-01T16:00:00Z\n")
        assert machine.claim(str(number))["agent_id"] == f"a{number}"
    for caller in spoilt:
        caller.raw(b"\n")
        assert caller.next()["error"]["code"] in (-32700, -32600)
        assert caller.ended()
    assert machine("status", *ITEM, env=REQUIRED).exit == 0
    daemon.close_callers()
    until(lambda: daemon.status()["connections"]["used"] == 1)
    assert daemon.status()["errors"] == []
