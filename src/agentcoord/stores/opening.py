"""From a selection to the store it means; every kind of store is known here, and here alone."""

from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agentcoord.errors import StoreError
from agentcoord.settings.environment import API_TOKEN, Env
from agentcoord.settings.selection import Secret, Selection
from agentcoord.stores.base import OWN, Behalf, Store
from agentcoord.stores.local import LocalStore

if TYPE_CHECKING:
    from agentcoord.stores.httpfeed import HttpFeed

_T = TypeVar("_T")


class Opening(Protocol):
    """Opens a state root by its absolute path, as `open_root` does where nobody has a better way."""

    def __call__(self, path: str, /, *, behalf: Behalf = OWN) -> Store:
        """Give the store of the root; `behalf` is who has the changes made."""
        ...


def takes_waiting(selection: Selection) -> bool:
    """Tell whether answers of the selected backend are waited for, which takes an event loop."""
    return selection.kind == "http"


def settle(steps: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never waits for anything to its end, here and now, without an event loop.

    Work on local files and through gh is such: starting a loop would cost more than a command on files, and gh is
    waited for where it is run. Raises what the steps raise, and StoreError if they wait after all.
    """
    try:
        steps.send(None)
    except StopIteration as done:
        return done.value
    steps.close()
    raise StoreError("internal error: what takes no event loop waited for something")


@asynccontextmanager
async def open_store(
    selection: Selection,
    cwd: str,
    env: Env,
    behalf: Behalf = OWN,
    *,
    roots: Opening | None = None,
    cut_off: StoreError | None = None,
) -> AsyncGenerator[Store]:
    """Open the selected backend, and close it at the end. Raises CoordError for one that cannot be opened.

    A relative root is taken from `cwd`, the caller's working directory, and opened by `roots`; proxies and certificates
    of a remote backend, and the place of gh, come from `env`, the caller's environment. `behalf` is who has the changes
    made; `cut_off` is what each question to a remote backend comes to where none can be asked.
    """
    if selection.kind == "local" and selection.root is not None:
        yield (roots or open_root)(absolute(selection.root, cwd), behalf=behalf)
    elif selection.kind == "http":
        from agentcoord.stores.http import HttpStore  # a library that commands on local files need not wait for

        if selection.token is None:
            raise StoreError(f"{API_TOKEN} is required when using the HTTP backend")
        if cut_off is not None:
            from agentcoord.stores.absent import AbsentStore  # hardly ever

            yield AbsentStore(cut_off)
            return
        store = HttpStore(selection.url or "", selection.token, env=env, behalf=behalf)
        try:
            yield store
        finally:
            await store.aclose()
    else:
        yield _open_github(selection.repo or "", selection.ref, env)


@asynccontextmanager
async def open_feed(url: str, token: Secret | None, env: Env) -> AsyncGenerator["HttpFeed"]:
    """Open a state server for whoever keeps a copy of it, and close it at the end. Raises CoordError."""
    from agentcoord.stores.httpfeed import HttpFeed

    if token is None:
        raise StoreError(f"{API_TOKEN} is required when using the HTTP backend")
    feed = HttpFeed(url, token, env=env)
    try:
        yield feed
    finally:
        await feed.aclose()


def require_address(selection: Selection) -> None:
    """Check the address of a selected HTTP backend. Raises ConfigError, which does not show it."""
    if selection.kind == "http":
        from agentcoord.stores.httpaddress import base_of

        base_of(selection.url or "")


def _open_github(repo: str, ref: str, env: Env) -> Store:
    from agentcoord.stores.gh import Gh  # only here: selectors and subprocess are half of a start-up
    from agentcoord.stores.github import GithubStore

    return GithubStore(repo, ref, Gh(env))


def open_local(selection: Selection, cwd: str, behalf: Behalf = OWN) -> LocalStore | None:
    """Open the selected state root for what only files can tell; None when another kind is selected."""
    if selection.kind != "local" or selection.root is None:
        return None
    return open_root(absolute(selection.root, cwd), behalf=behalf)


def open_root(path: str, *, settle: bool = True, behalf: Behalf = OWN) -> LocalStore:
    """Open a state root by its absolute path; `settle` and `behalf` as for `LocalStore`."""
    return LocalStore(path, settle=settle, behalf=behalf)


def absolute(path: str, cwd: str) -> str:
    """Take a relative path from the caller's working directory. Raises StoreError when there is none."""
    if path.startswith("/"):
        return path
    if not cwd:
        raise StoreError(f"the working directory is gone, so {path} leads nowhere; pass an absolute path")
    return f"{cwd.rstrip('/')}/{path}"
