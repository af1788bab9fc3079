"""The keeper with real processes, files and clocks: agents that are killed and stopped, and a keeper that is."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentcoord.operations.claims import Claimed, claim
from agentcoord.operations.context import Context
from agentcoord.protocol.claims import Wanted
from agentcoord.protocol.keeping import Lane
from agentcoord.protocol.liveness import liveness
from agentcoordd.backends import LocalBackend
from agentcoordd.services.keeper import Hold
from tests.command import PATIENCE
from tests.daemon.stage import Heard, MemoryRoster, both, keeping, open_files, sleeping, until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def now() -> datetime:
    return datetime.now(UTC)


async def claims(state: Path, agent_id: str, target: str = "7", ttl: int = 14400, batch: str | None = None) -> bool:
    context = Context(store=open_files(state), now=now, random=os.urandom)
    wanted = Wanted(repo="o/r", target=target, agent_id=agent_id, ttl=ttl, batch_id=batch)
    return isinstance(await claim(context, wanted), Claimed)


def beat(state: Path, agent_id: str = "a1") -> Any:
    return json.loads((state / "heartbeats" / f"{agent_id}.json").read_bytes())


async def test_an_agent_is_killed_and_another_has_its_item_within_seconds(state: Path) -> None:
    heard = Heard()
    with sleeping() as agent:
        await claims(state, "a1")
        async with keeping(state, MemoryRoster(), heard) as keeper:
            await keeper.hold(Hold(lane=both(ttl=900), backend=LocalBackend(str(state)), pid=agent.pid))
            assert liveness(beat(state), now()) == "live"
            assert not await claims(state, "a2")
            agent.kill()
            await until(lambda: "process.exited" in heard.topics, "the exit is told")
            await until(lambda: keeper.list()[0].state != "kept", "the lane ends")
            await until(lambda: liveness(beat(state), now()) == "dead", "the agent is dead to any reader")
            ends = [datetime.fromisoformat(beat(state)[name]) for name in ("updated_at", "expires_at")]
            assert (ends[1] - ends[0]).total_seconds() == 1  # so it was dead four seconds after the exit
            assert await claims(state, "a2")


async def test_a_stopped_agent_is_kept(state: Path) -> None:
    with sleeping() as agent:
        await claims(state, "a1")
        async with keeping(state, MemoryRoster(), Heard()) as keeper:
            view = await keeper.hold(Hold(lane=both(ttl=3), backend=LocalBackend(str(state)), pid=agent.pid))
            os.kill(agent.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, agent.pid, os.WSTOPPED)
            before = keeper.renewals
            await until(lambda: keeper.renewals >= before + 3, "three more renewals")
            assert keeper.list()[0].state == "kept"
            assert view.pid == agent.pid


async def test_a_launcher_exits_and_the_agent_lives_on(state: Path, tmp_path: Path) -> None:
    agent = tmp_path / "claude"
    agent.write_bytes(Path("/bin/sh").read_bytes())
    agent.chmod(0o755)
    # A launcher starts the agent in the background and leaves; the agent runs a command, whose number is told.
    tool = f"{sys.executable} -c 'import sys; sys.stdin.read()' <&3 & echo $$ $!; wait"
    launcher = ["/bin/sh", "-c", f'exec 3<&0; {agent} -c "$0" 3<&3 & read line', tool]
    with subprocess.Popen(launcher, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        pid, command = map(int, child.stdout.readline().split())
        await claims(state, "a1")
        try:
            async with keeping(state, MemoryRoster(), Heard()) as keeper:
                backend = LocalBackend(str(state))
                view = await keeper.hold(Hold(lane=both(ttl=3), backend=backend, from_pid=command))
                assert (view.pid, view.program) == (pid, "claude")
                os.kill(child.pid, signal.SIGKILL)
                child.wait(PATIENCE)
                before = keeper.renewals
                await until(lambda: keeper.renewals >= before + 2, "renewals go on")
                assert keeper.list()[0].state == "kept"
                os.kill(pid, signal.SIGKILL)
                await until(lambda: keeper.list()[0].state == "dead", "the agent's end is noticed")
        finally:
            os.killpg(child.pid, signal.SIGKILL)


@contextmanager
def keeper_process(database: Path) -> Generator["subprocess.Popen[str]"]:
    argv = [sys.executable, "-m", "tests.daemon.keeper_process", str(database)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the keeper ended"
    return line.strip()


async def test_a_keeper_is_killed_again_and_again_and_no_lane_lapses(state: Path, tmp_path: Path) -> None:
    lanes, ttl, kills = 20, 12, 5
    for number in range(lanes):
        await claims(state, f"a{number}", str(number), ttl)
    lapsed: list[str] = []
    over = threading.Event()

    def read_on() -> None:
        while not over.wait(0.05):
            agents = [f"a{number}" for number in range(lanes)]
            lapsed.extend(agent for agent in agents if liveness(beat(state, agent), now()) != "live")

    database = tmp_path / "own" / "daemon.db"
    reader = threading.Thread(target=read_on)
    with sleeping() as agent:
        try:
            for kill in range(kills):
                with keeper_process(database) as process:
                    assert answer(process) == "ready"
                    if kill == 0:
                        for number in range(lanes):
                            ask(process, state, f"a{number}", str(number), ttl, agent.pid)
                        reader.start()
                    seen = {number: beat(state, f"a{number}")["updated_at"] for number in range(lanes)}
                    deadline = time.monotonic() + PATIENCE
                    while kill and any(beat(state, f"a{n}")["updated_at"] == at for n, at in seen.items()):
                        assert time.monotonic() < deadline, "the roster is not taken up"
                        await anyio.sleep(0.05)
                    os.kill(process.pid, signal.SIGKILL)
        finally:
            over.set()
            if reader.ident is not None:
                reader.join()
    assert lapsed == []


def ask(process: "subprocess.Popen[str]", state: Path, agent_id: str, target: str, ttl: int, pid: int) -> None:
    params: dict[str, Any] = {
        "backend": {"kind": "local", "root": str(state)},
        "agent_id": agent_id,
        "repo": "o/r",
        "target": target,
        "kinds": ["heartbeat", "claim"],
        "ttl": ttl,
        "pid": pid,
    }
    assert process.stdin is not None
    process.stdin.write(json.dumps(params) + "\n")
    process.stdin.flush()
    assert answer(process)


async def test_an_agent_that_died_while_no_keeper_ran_is_dead_soon_after_one_does(state: Path, tmp_path: Path) -> None:
    await claims(state, "a1")
    database = tmp_path / "own" / "daemon.db"
    with sleeping() as agent:
        with keeper_process(database) as process:
            assert answer(process) == "ready"
            ask(process, state, "a1", "7", 900, agent.pid)
            await anyio.sleep(1)  # whole seconds are all that a record tells, so let one pass to be told apart
            await until(lambda: alive_after(database, beat(state)["updated_at"]), "the roster notes it is alive")
            os.kill(process.pid, signal.SIGKILL)
        agent.kill()
    assert liveness(beat(state), now()) == "live"
    with keeper_process(database) as process:
        assert answer(process) == "ready"
        deadline = time.monotonic() + PATIENCE
        while not await claims(state, "a2"):
            assert time.monotonic() < deadline
            await anyio.sleep(0.1)


def alive_after(database: Path, beaten: str) -> bool:
    import sqlite3

    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        rows = connection.execute("SELECT value FROM facts").fetchall()
    finally:
        connection.close()
    return bool(rows) and datetime.fromisoformat(rows[0][0]) > datetime.fromisoformat(beaten)


async def test_records_that_cannot_be_written_are_written_later(state: Path) -> None:
    with sleeping() as agent:
        await claims(state, "a1", ttl=3)
        async with keeping(state, MemoryRoster(), Heard()) as keeper:
            backend = LocalBackend(str(state))
            await keeper.hold(Hold(lane=Lane("a1", 3), backend=backend, pid=agent.pid))
            away = state.with_name("away")
            state.rename(away)
            state.write_text("no directory")
            await until(lambda: keeper.list()[0].error is not None, "a failed renewal")
            assert "state root is not a directory" in (keeper.list()[0].error or "")
            state.unlink()
            away.rename(state)
            before = keeper.renewals
            await until(lambda: keeper.renewals > before and keeper.list()[0].state == "kept", "renewed again")
