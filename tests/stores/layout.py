"""State roots as another program would lay them out."""

from pathlib import Path

from agentcoord.errors import Unreadable
from agentcoord.stores.base import Stored
from agentcoord.stores.local import LocalStore

CLAIM = "claims/acme/widgets/319.json"
BEAT = "heartbeats/worker-a.json"


def lay(root: Path, path: str, data: bytes = b"{}\n") -> Path:
    """Put a file where a record belongs, as another program would."""
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return place


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def listed(store: LocalStore, prefix: str) -> list[Stored | Unreadable]:
    return list((await store.list(prefix)).entries)
