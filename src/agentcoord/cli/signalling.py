"""Signals and the ends of jobs, as things to wait for: one pipe wakes whoever sleeps. Works where sockets do not."""

import os
import select
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals by which somebody asks for the end."""

PASSED_ON = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCONT)

_DONE = 0


class Signals:
    """Takes over signals, those that are passed on unless others are named, and gives them back at the end.

    For the main thread.
    """

    def __init__(self, numbers: Iterable[signal.Signals] = (*PASSED_ON, signal.SIGCHLD)) -> None:
        self._numbers = tuple(numbers)

    def __enter__(self) -> "Signals":
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._kept: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}
        self._wakeup = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in self._numbers:
            before = signal.getsignal(number)
            if before is signal.SIG_IGN and number != signal.SIGCHLD:
                continue  # a caller's wish, as from nohup; the program inherits it
            self._kept[number] = before
            signal.signal(number, _noted)
        return self

    def __exit__(self, *fault: object) -> None:
        for number, before in self._kept.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)
        signal.set_wakeup_fd(self._wakeup)
        # The pipe stays: a job that nobody waits for any more may still write into it, and must not hit another file.

    def wait(self, seconds: float, also: Iterable[int] = (), room: Iterable[int] = ()) -> list[signal.Signals]:
        """Sleep until something happens, at most so long, or one of `also` can be read, or one of `room` written.

        Gives the signals that came, in order.
        """
        select.select([self._reading, *also], [*room], [], max(0.0, seconds))
        try:
            came = os.read(self._reading, 4096)
        except BlockingIOError:
            return []
        return [signal.Signals(number) for number in came if number != _DONE]

    def wake(self) -> None:
        """End the sleep, from any thread."""
        try:
            os.write(self._writing, bytes([_DONE]))
        except BlockingIOError:  # so full that it is awake anyway
            pass


class Job(Generic[_T]):
    """Work in a thread of its own, which may hang as long as it likes: nobody has to wait for it."""

    def __init__(self, work: Callable[[], _T], signals: Signals) -> None:
        self._work, self._signals = work, signals
        self._answer: list[_T] = []
        self._fault: BaseException | None = None
        self.done = False
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._work())
        except BaseException as fault:  # raised again by who asks for the answer
            self._fault = fault
        self.done = True
        self._signals.wake()

    def answer(self) -> _T:
        """Give what came of the work, once it is done. Raises what the work raised."""
        self._thread.join()  # it has only its own end before it
        if self._fault is not None:
            raise self._fault
        return self._answer[0]


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: that the signal came is in the pipe."""
