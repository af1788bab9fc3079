"""The stores that the common suite runs against, and the local one alone."""

from pathlib import Path

import pytest

from agentcoord.stores.base import Store
from agentcoord.stores.local import LocalStore
from agentcoord.stores.memory import MemoryStore


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each store in turn, empty."""
    match request.param:
        case "memory":
            return MemoryStore()
        case "local":
            return LocalStore(tmp_path / "state")
        case other:
            raise ValueError(other)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def local(root: Path) -> LocalStore:
    return LocalStore(root)
