"""The command that tells a person: a real program, with the event on its standard input."""

import json
import logging
from pathlib import Path

import anyio
import pytest

from agentcoord.errors import UsageError
from agentcoordd.notification import Notification
from tests.daemon.stage import until


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


async def test_each_event_is_told_in_its_turn(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    heard.touch()
    program = script(tmp_path / "tell", f'cat >> {heard}; echo "$@" >> {heard}')
    notification = Notification([program, "--to", "me"])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notification.run)
        notification.post("lease.lost", {"agent_id": "a1"})
        notification.post("process.exited", {"agent_id": "a2"})
        await until(lambda: heard.read_text().count("--to") == 2, "two notifications")
        tasks.cancel_scope.cancel()
    first, words, second, _ = heard.read_text().splitlines()
    assert json.loads(first) == {"topic": "lease.lost", "agent_id": "a1"}
    assert json.loads(second)["agent_id"] == "a2"
    assert words == "--to me"


@pytest.mark.parametrize(
    ("text", "said"),
    [("exec sleep 600", "longer than"), ("exit 3", "exited with 3"), (None, "failed")],
)
async def test_a_bad_program_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None, said: str
) -> None:
    program = str(tmp_path / "missing") if text is None else script(tmp_path / "tell", text)
    notification = Notification([program], limit=0.2 if text == "exec sleep 600" else 60)
    with caplog.at_level(logging.WARNING):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(notification.run)
            notification.post("lease.lost", {})
            await until(lambda: said in caplog.text, said)
            tasks.cancel_scope.cancel()


async def test_a_crowd_of_events_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    notification = Notification(["/bin/true"])
    with caplog.at_level(logging.WARNING):
        for _ in range(300):
            notification.post("lease.lost", {})
    assert "notification dropped" in caplog.text
    with anyio.CancelScope() as scope:
        scope.cancel()
        await notification.run()


@pytest.mark.parametrize("argv", [[], ["notify-send"], ["./tell"]])
def test_a_program_is_never_looked_for(argv: list[str]) -> None:
    with pytest.raises(UsageError, match="absolute path"):
        Notification(argv)
