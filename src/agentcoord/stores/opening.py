"""From a selection to the store it means; every kind of store is known here, and here alone."""

from agentcoord.errors import StoreError
from agentcoord.settings.selection import Selection
from agentcoord.stores.base import Store
from agentcoord.stores.local import LocalStore


def open_store(selection: Selection, cwd: str) -> Store:
    """Open the selected backend. Raises StoreError for one that cannot be opened.

    A relative root is taken from `cwd`, the caller's working directory.
    """
    if (local := open_local(selection, cwd)) is not None:
        return local
    what = "HTTP" if selection.kind == "http" else "legacy GitHub"
    raise StoreError(
        f"the {what} backend is selected, but this release speaks to local state roots only; "
        "pass --state-root PATH for a local one",
        finding="backend.unsupported",
    )


def open_local(selection: Selection, cwd: str) -> LocalStore | None:
    """Open the selected state root for what only files can tell; None when another kind is selected."""
    if selection.kind != "local" or selection.root is None:
        return None
    return open_root(absolute(selection.root, cwd))


def open_root(path: str) -> LocalStore:
    """Open a state root by its absolute path."""
    return LocalStore(path)


def absolute(path: str, cwd: str) -> str:
    """Take a relative path from the caller's working directory. Raises StoreError when there is none."""
    if path.startswith("/"):
        return path
    if not cwd:
        raise StoreError(f"the working directory is gone, so {path} leads nowhere; pass an absolute path")
    return f"{cwd.rstrip('/')}/{path}"
