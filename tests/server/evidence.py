"""What stands in a database at the end of a run, and the file that a run leaves behind when it broke a promise."""

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from tests.server.calling import sql
from tests.server.history import Change, Final, History, check, figures

_HISTORIES = Path(__file__).parents[2] / "build/histories"


def seed() -> int:
    """Give what all choices of a run follow from: what AGENT_COORD_HISTORY_SEED says, else anything.

    When the clients meet is up to the machine, so the seed of a failure brings it nearer, but not always back.
    """
    return int(os.environ.get("AGENT_COORD_HISTORY_SEED", secrets.randbelow(1 << 32)))


async def require_kept(history: History, db: str, test: str, seed: int) -> None:
    """Check a history against its database; one that does not hold is kept, and the failure says where."""
    changes, final = await anyio.to_thread.run_sync(_changes, db), await anyio.to_thread.run_sync(_final, db)
    broken = check(history.events, changes, final)
    if broken:
        kept = _keep(history, test, seed, broken=broken, changes=changes, final=final)
        shown = "\n".join(broken[:20])
        pytest.fail(f"{len(broken)} promises broken; seed {seed}, history {kept}:\n{shown}", pytrace=False)


@contextmanager
def witnessed(history: History, test: str, seed: int) -> Generator[None]:
    """Keep the history of a block that fails before there is anything to check."""
    try:
        yield
    except Exception as error:
        error.add_note(f"seed {seed}, history {_keep(history, test, seed, broken=[repr(error)])}")
        raise


def _keep(history: History, test: str, seed: int, **notes: Any) -> Path:
    kept = _HISTORIES / f"{test}-{seed}.jsonl"
    history.save(kept, {"test": test, "seed": seed, "figures": figures(history.events), **notes})
    return kept


def _changes(db: str) -> list[Change]:
    assert sql(db, "SELECT forgotten FROM feed") == [(0,)], "the list of changes is not whole any more"
    rows = sql(db, "SELECT path, version, deleted, updated_by FROM changes ORDER BY seq")
    return [Change(path, version, bool(deleted), by) for path, version, deleted, by in rows]


def _final(db: str) -> dict[str, Final]:
    rows = sql(db, "SELECT path, version, data FROM state")
    return {path: Final(version, msgspec.json.decode(data)) for path, version, data in rows}
