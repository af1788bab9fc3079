"""Steps that wait, in a process that has no event loop: one is started for them, and ends with them or at a signal."""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from selectors import DefaultSelector
from types import FrameType
from typing import Any

from agentcoord.errors import Undecided


class NoLoop(Undecided):
    """No event loop can be started here, so nothing was done and no remote backend was asked."""


def wait_for(steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run steps that wait, in an event loop of their own. Raises NoLoop where none can be started.

    From the first time they wait for the loop, a signal ends the steps there, and is handled when the loop is gone:
    raised in the middle of its work, an exit would come out as the fault of some task. What steps read before that, as
    from a terminal, is interrupted as anywhere.
    """
    came: list[int] = []
    kept: dict[int, Callable[[int, FrameType | None], Any]] = {}

    async def watched() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def end(number: int, frame: object) -> None:
            came.append(number)
            if task is not None and not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        def take_over() -> None:
            for number, handler in _handlers().items():
                kept[number] = handler
                signal.signal(number, end)

        taking = loop.call_soon(take_over)
        try:
            await steps()
        finally:
            taking.cancel()

    try:
        _run(watched)
    except asyncio.CancelledError:
        if not came:
            raise
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        for number in came[:1]:
            kept[number](number, None)


def _handlers() -> dict[int, Callable[[int, FrameType | None], Any]]:
    """Find who handles signals here; only one thread may ask to. Python's own way with SIGINT suits a loop already."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    known = ((number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    return {
        number: handler for number, handler in known if callable(handler) and handler is not signal.default_int_handler
    }


def _run(steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        try_wakeups()
    except OSError as error:
        raise NoLoop(f"no remote backend can be asked from here: no event loop: {error.strerror}") from error
    with asyncio.Runner() as runner:
        runner.get_loop().set_default_executor(_Aside(thread_name_prefix="names"))
        runner.run(steps())


def try_wakeups() -> None:
    """Try what a loop is made of: one that fails half-way, as in a sandbox, complains when it is thrown away.

    Raises OSError.
    """
    with DefaultSelector():
        for end in socket.socketpair():
            end.close()


class _Aside(ThreadPoolExecutor):
    """Threads that look up names. Nothing can stop them, so nobody waits for one that is not needed any more."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end when they can."""
        super().shutdown(wait=False, cancel_futures=True)
