"""From a database URL to the storage it means; both kinds are known here, and here alone."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec

from agentcoord.errors import UsageError
from agentcoordd.server.storage.base import Storage
from agentcoordd.server.storage.urls import POSTGRES


@asynccontextmanager
async def open_storage(url: str, *, keep: int) -> AsyncGenerator[Storage]:
    """Open a database for a server. Raises StorageDown, UsageError for what is no database URL."""
    if _is_postgres(url):
        from agentcoordd.server.storage.postgres import open_postgres

        async with open_postgres(url, keep=keep) as storage:
            yield storage
    else:
        from agentcoordd.server.storage.sqlite import open_sqlite

        async with open_sqlite(url, keep=keep) as storage:
            yield storage


@asynccontextmanager
async def open_tokens(url: str, *, make: bool = True) -> AsyncGenerator[Storage]:
    """Open a database to manage its tokens, beside the servers that may be running.

    Raises as `open_storage`; without `make` also StorageDown when there is no such file.
    """
    if _is_postgres(url):
        from agentcoordd.server.storage.postgres import open_postgres_tokens

        async with open_postgres_tokens(url) as storage:
            yield storage
    else:
        from agentcoordd.server.storage.sqlite import open_sqlite_tokens

        async with open_sqlite_tokens(url, make=make) as storage:
            yield storage


def _is_postgres(url: str) -> bool:
    if not url.startswith(POSTGRES):
        return False
    if find_spec("asyncpg") is None:
        raise UsageError("--db is PostgreSQL, which needs the extra: pip install 'agent-coord[postgres]'")
    return True


def absolute(url: str) -> str:
    """Give a database URL with a file's whole path. Raises UsageError."""
    if url.startswith(POSTGRES):
        return url
    from agentcoordd.server.storage.sqlite import path_of

    return f"sqlite:///{path_of(url)}"
