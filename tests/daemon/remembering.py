"""What a state root holds and what its mirror remembers, for tests of the daemon's services."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from agentcoord.protocol.documents import encode_pretty
from tests.command import PATIENCE
from tests.daemon.running import Daemon

EVENT = {"schema_version": 1, "batch_id": "b1", "type": "phase.changed", "repo": "o/r", "target": "7"}


def configure(daemon: Daemon, **settings: object) -> None:
    """Write the daemon's settings file."""
    place = daemon.home / ".config/agentcoordd/config.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(settings))
    place.chmod(0o600)


def lay(root: Path, path: str, document: object) -> None:
    """Put a record into a root as any program does: whole, by a rename."""
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f".{place.name}.draft")
    draft.write_bytes(document if isinstance(document, bytes) else encode_pretty(document))
    os.rename(draft, place)


def lay_event(root: Path, name: str, *, batch: str = "b1", **more: Any) -> None:
    record = EVENT | {"event_id": name, "batch_id": batch, "at": "2026-03-01T11:00:00Z"} | more
    lay(root, f"events/{batch}/{name}.json", record)


def remembered(root: Path) -> list[str]:
    """Give the ids of the events in a mirror, in its order; every line of it has to be whole."""
    path = root / "log.tsv"
    if not path.exists():
        return []
    text = path.read_text()
    assert text.endswith("\n")
    rows = [line.split("\t") for line in text.splitlines()]
    assert all(len(row) == 13 for row in rows)
    return [row[10] for row in rows]


def command(daemon: Daemon, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, which asks no daemon unless told to."""
    return subprocess.run(
        [sys.executable, "-m", "agentcoord", *argv],
        env=daemon.env | {"AGENT_COORD_DAEMON": "off"} | env,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def mirror_of(daemon: Daemon, backend: object) -> dict[str, Any]:
    """Give what the daemon says of the mirror of one backend."""
    (found,) = [mirror for mirror in daemon.status()["mirrors"] if mirror["backend"] == str(backend)]
    return found
