"""Real processes: found, told from another of the same number, and missed the moment they end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from agentcoordd.processes import SystemProcesses, Watched
from tests.command import PATIENCE
from tests.daemon.stage import sleeping

WATCHERS = [pytest.param(True, id="pidfd"), pytest.param(False, id="polling")]


def required(processes: SystemProcesses, pid: int) -> Watched:
    found = processes.find(pid)
    assert found is not None
    return found


@pytest.mark.parametrize("told", WATCHERS)
async def test_an_end_is_noticed_although_nobody_waited_for_the_child(told: bool) -> None:
    processes = SystemProcesses(poll=0.01, told=told)
    with sleeping() as child:
        watched = required(processes, child.pid)
        assert processes.lives(watched)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(processes.exited, watched)
            os.kill(child.pid, signal.SIGKILL)
            with anyio.fail_after(PATIENCE):
                await processes.exited(watched)
        assert processes.find(child.pid) is None  # a zombie is over
    assert not processes.lives(watched)
    await processes.exited(watched)


@pytest.mark.parametrize("told", WATCHERS)
async def test_a_stopped_process_is_not_over(told: bool) -> None:
    processes = SystemProcesses(poll=0.001, told=told)
    with sleeping() as child:
        watched = required(processes, child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        with anyio.move_on_after(0.05) as waited:
            await processes.exited(watched)
        assert waited.cancelled_caught
        assert processes.lives(watched)
        os.kill(child.pid, signal.SIGCONT)


@pytest.mark.parametrize("told", WATCHERS)
async def test_a_number_that_came_again_is_another_process(told: bool) -> None:
    processes = SystemProcesses(poll=0.01, told=told)
    with sleeping() as child:
        now = required(processes, child.pid)
        before = Watched(child.pid, now.started + "0")
        assert not processes.lives(before)
        with anyio.fail_after(PATIENCE):
            await processes.exited(before)
        assert processes.lives(now)


async def test_without_descriptors_the_process_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(pid: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", none_left, raising=False)
    processes = SystemProcesses(poll=0.01)
    with sleeping() as child:
        watched = required(processes, child.pid)
        child.kill()
        with anyio.fail_after(PATIENCE):
            await processes.exited(watched)


def test_no_process_has_no_name() -> None:
    processes = SystemProcesses()
    assert processes.find(2**22 + 1) is None
    assert processes.name(2**22 + 1) is None
    assert processes.ancestors(2**22 + 1) == []
    assert processes.name(os.getpid()) is not None


def test_ancestors_are_seen_from_the_nearest_up(tmp_path: Path) -> None:
    agent = tmp_path / "claude"
    agent.write_bytes(Path("/bin/sh").read_bytes())
    agent.chmod(0o755)
    inner = f"{sys.executable} -c 'import sys; sys.stdin.read()' & echo $!; wait"
    argv = [str(agent), "-c", '/bin/sh -c "$0"; true', inner]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            assert child.stdout is not None
            pid = int(child.stdout.readline())
            above = SystemProcesses().ancestors(pid)
            assert [process.name for process in above[:2]] == ["sh", "claude"]
            assert above[1].pid == child.pid
            assert above[1].argv[0] == str(agent)
            assert os.getpid() in [process.pid for process in above]
        finally:
            os.killpg(child.pid, signal.SIGKILL)
