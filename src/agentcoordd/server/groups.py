"""Tasks beside a block of code, which still fails with what it raised and not with a group around it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def open_tasks() -> AsyncGenerator[TaskGroup]:
    """Open a task group. An exception that came alone leaves it as it was raised; several leave as a group."""
    alone: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        alone = _alone(group)
        if alone is None:
            raise
    if alone is not None:  # raised out here, where it does not name the group as its context
        raise alone


def _alone(error: BaseException) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        inner: tuple[BaseException, ...] = error.exceptions  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if len(inner) != 1:
            return None
        error = inner[0]
    return error
