"""Archive most events of a state that `make_state.py` made, into the envelopes that retention would make.

Lanes are closed one after the other until their events are enough. Nothing is synced to disk, which is what takes `gc`
its time. Usage: python bench/archive_events.py DIR --events N
"""

import argparse
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from agentcoord.protocol.documents import encode_pretty
from agentcoord.protocol.retention import Event, Policy, plan_compactions

YEAR = timedelta(days=365)


def archive(root: Path, wanted: int) -> tuple[int, int]:
    """Archive whole lanes until `wanted` events are; give how many were, and in how many envelopes."""
    lanes: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for file in sorted((root / "events").rglob("*.json")):
        document: dict[str, Any] = msgspec.json.decode(file.read_bytes())
        lanes[document["batch_id"], document["lane"]].append(Event(str(file.relative_to(root)), document))
    told = envelopes = 0
    for events in lanes.values():
        if told >= wanted:
            break
        closed = [event for event in events if event.document["type"] == "lane_closed"]
        chosen = events if closed else [*events, closing(events[-1])]
        for plan in plan_compactions(chosen, Policy(hot_days=0), datetime.now(UTC) + YEAR):
            place = root / plan.archive_path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(encode_pretty(plan.envelope))
            for path in plan.source_paths:
                (root / path).unlink(missing_ok=True)
            envelopes += 1
        told += len(events)
    return told, envelopes


def closing(last: Event) -> Event:
    """Close a lane at its last event."""
    record = {key: last.document[key] for key in ("batch_id", "lane", "agent_id", "repo", "target", "at")}
    record |= {"schema_version": 2, "event_id": f"lane_closed-{last.document['lane']}", "type": "lane_closed"}
    record |= {
        "terminal": "done",
        "workspace": "default",
        "closed_by": {"agent_id": record["agent_id"], "machine": "m"},
    }
    return Event(f"events/{record['batch_id']}/{record['event_id']}.json", record)


def main() -> None:
    """Read the command line and archive."""
    parser = argparse.ArgumentParser(description="Archive most events of a state.")
    parser.add_argument("root", type=Path)
    parser.add_argument("--events", type=int, required=True)
    given = parser.parse_args()
    told, envelopes = archive(given.root, given.events)
    print(f"{told} events below {given.root} are archived in {envelopes} envelopes")


if __name__ == "__main__":
    main()
