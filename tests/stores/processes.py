"""Running a piece of a test in a process of its own, also as somebody whom permissions bind."""

import os
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn, TypeVar

NOBODY = 65534

Result = TypeVar("Result")


def drive(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine of a local store without an event loop, as the command line does."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a local store suspended")


def in_child(act: Callable[[], str]) -> str:
    """Return what `act` says in a forked process of its own; an exception speaks as `Class: text`."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _tell(act, writer)
    os.close(writer)
    with open(reader, "rb") as said:
        text = said.read().decode()
    os.waitpid(child, 0)
    return text


def _tell(act: Callable[[], str], writer: int) -> NoReturn:
    try:
        try:
            text = act()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def spawn(act: Callable[[], None]) -> int:
    """Do something in a forked process, for the caller to wait for: it exits 0 when done, 70 on an exception."""
    child = os.fork()
    if child == 0:
        _leave(act)
    return child


def _leave(act: Callable[[], None]) -> NoReturn:
    try:
        act()
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def as_nobody(act: Callable[[], str], *, within: Path) -> str:
    """Do the same as an unprivileged user, with `within` as working directory: it may lie where only we can go."""
    within.chmod(0o755)

    def step_down() -> str:
        os.chdir(within)
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return act()

    return in_child(step_down)
