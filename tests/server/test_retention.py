"""Retention over a real server: what a token of few scopes can do, and what it cannot."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agentcoord.cli.output import Output
from agentcoord.protocol.documents import Document
from agentcoord.protocol.instants import stamp
from tests.cli.line import Line
from tests.operations.stage import START
from tests.server.calling import Caller, grant
from tests.server.running import Running

OLD = stamp(START - timedelta(days=8))
RELEASED: Document = {"status": "released", "updated_at": OLD}

Janitor = Callable[..., Output]


@pytest.fixture
def janitor(tmp_path: Path, server: Running, mine: str) -> Janitor:
    """A maker of runs, each with a token of the scopes that it is given for reading and for writing."""
    line = Line(tmp_path)
    line.env["AGENT_COORD_API_URL"] = server.url

    def run(*argv: str, reads: list[str], writes: list[str] | None = None) -> Output:
        machine = f"{mine}-janitor"
        token = grant(server.db, machine, reads=reads, writes=reads if writes is None else writes, rotate=True)
        line.env["AGENT_COORD_API_TOKEN"] = token
        return line("gc", *argv, "--json")

    return run


def actions(output: Output) -> list[str]:
    assert output.exit == 0, output.stderr
    found: Any = json.loads(output.stdout)
    return [action["source_path"] for action in found["actions"]]


def test_a_token_of_one_owner_is_enough_for_that_owner(caller: Caller, janitor: Janitor, mine: str) -> None:
    own, other = f"claims/{mine}/r/7.json", f"claims/{mine}-other/r/7.json"
    caller.create(own, RELEASED)
    caller.create(other, RELEASED)
    scopes = [f"claims/{mine}", f"archive/claims/{mine}"]
    output = janitor("--execute", "--prefix", "claims", reads=scopes)
    assert actions(output) == [own]
    assert output.stderr == ["notice: this token sees only a part of claims; the rest was not looked at"]
    assert caller.get(own).status == 404
    assert caller.get(f"archive/{own}").json()["data"]["data"] == RELEASED
    assert caller.get(other).status == 200
    assert actions(janitor("--execute", "--prefix", "claims", reads=scopes)) == []


def test_a_lane_is_compacted_with_a_token_of_its_batch(caller: Caller, janitor: Janitor, mine: str) -> None:
    event = {"batch_id": mine, "repo": "o/r", "target": "7", "at": OLD, "synthetic": True}
    for name in ("1", "2", "3"):
        caller.create(f"events/{mine}/{name}.json", event | {"event_id": name})
    output = janitor("--execute", "--prefix", "events", reads=[f"events/{mine}", f"archive/events/{mine}"])
    (action,) = json.loads(output.stdout)["actions"]
    assert action["source_paths"] == [f"events/{mine}/{name}.json" for name in ("1", "2", "3")]
    assert caller.list(f"events/{mine}").json()["entries"] == []
    (envelope,) = caller.list(f"archive/events/{mine}").json()["entries"]
    assert envelope["path"] == action["archive_path"]
    assert [record["event_id"] for record in envelope["data"]["records"]] == ["1", "3"]


def test_a_lane_that_a_token_sees_in_part_stays_whole(caller: Caller, janitor: Janitor, mine: str) -> None:
    lane: Document = {"batch_id": mine, "repo": "o/r", "target": "7", "at": OLD, "lane": "qa"}
    closing = {"schema_version": 2, "event_id": "z", "type": "lane_closed", "terminal": "done", "workspace": "w"}
    caller.create(f"events/{mine}/1.json", lane | {"event_id": "1"})
    caller.create(f"events/{mine}/z.json", lane | closing | {"closed_by": {"agent_id": "a1", "machine": "m1"}})
    caller.create(f"events/{mine}-own/1.json", lane | {"event_id": "2", "batch_id": f"{mine}-own", "synthetic": True})
    archive = f"archive/events/{mine}"
    reads = [f"events/{mine}/z.json", archive, f"events/{mine}-own", f"{archive}-own"]
    output = janitor("--execute", "--prefix", "events", reads=reads)
    (action,) = json.loads(output.stdout)["actions"]
    assert action["source_paths"] == [f"events/{mine}-own/1.json"], "what it sees whole goes"
    assert output.stderr[-1] == f"notice: this token sees only a part of events/{mine}; its lanes were left"
    assert caller.get(f"events/{mine}/z.json").status == 200
    assert caller.list(archive).json()["entries"] == []
    output = janitor("--execute", "--prefix", "events", reads=[f"events/{mine}", archive])
    (action,) = json.loads(output.stdout)["actions"]
    assert len(action["source_paths"]) == 2


def test_a_family_that_a_token_may_not_see_stops_the_plan(caller: Caller, janitor: Janitor, mine: str) -> None:
    own = f"claims/{mine}/r/7.json"
    caller.create(own, RELEASED)
    scopes = [f"claims/{mine}", f"archive/claims/{mine}"]
    for argv, refused in ((("--prefix", "claims", "--prefix", "heartbeats"), "heartbeats"), ((), "heartbeats")):
        output = janitor("--execute", *argv, reads=scopes)
        assert (output.exit, output.stdout) == (2, b"")
        assert output.stderr[-1] == f"http backend list {refused} failed: 403 forbidden"
    output = janitor("--execute", "--prefix", "claims", reads=[f"claims/{mine}"], writes=scopes)
    assert (output.exit, output.stderr[-1]) == (2, "http backend list archive failed: 403 forbidden")
    assert caller.get(own).json()["version"] == 1


def test_what_a_token_may_copy_but_not_remove_is_removed_by_another(
    caller: Caller, janitor: Janitor, mine: str
) -> None:
    own = f"claims/{mine}/r/7.json"
    caller.create(own, RELEASED)
    scopes = [f"claims/{mine}", f"archive/claims/{mine}"]
    output = janitor("--execute", "--prefix", "claims", reads=scopes, writes=scopes[:1])
    assert output.exit == 2
    assert output.stderr[-1] == f"http backend write archive/{own} failed: 403 forbidden"
    output = janitor("--execute", "--prefix", "claims", reads=scopes, writes=scopes[1:])
    assert output.exit == 2
    assert output.stderr[-1] == f"http backend delete {own} failed: 403 forbidden"
    assert caller.get(own).status == caller.get(f"archive/{own}").status == 200
    assert actions(janitor("--execute", "--prefix", "claims", reads=scopes)) == [own]
    assert caller.get(own).status == 404
    assert caller.get(f"archive/{own}").json()["version"] == 1
