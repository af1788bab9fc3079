"""An event whose daemon was lost is in the trail once, also where its writer may not look."""

from pathlib import Path

import httpx
import pytest

from tests.client.calling import Client
from tests.client.daemon import Conversation, Daemon
from tests.deploy.running import issue, serving

RECORD = ("record-event", "--batch-id", "spring", "--type", "note", "--message", "hello", "--json")
WRITES = ("--write-prefix", "events")


@pytest.mark.parametrize("scopes", [WRITES, (*WRITES, "--read-prefix", "events")], ids=["write-only", "reading"])
@pytest.mark.parametrize("done", [False, True], ids=["nothing was done", "it was recorded"])
def test_an_event_is_not_doubled(
    client: Client, daemon: Daemon, tmp_path: Path, scopes: tuple[str, ...], done: bool
) -> None:
    def script(told: Conversation) -> None:
        told.accept()
        if done:
            out, err, status = told.perform()
            assert (status, err) == (0, b""), out
        told.die()

    daemon.script = script
    (tmp_path / "server").mkdir()
    with serving(tmp_path / "server") as server:
        token = issue(server.db, "writer", *scopes)
        env = {"AGENT_COORD_STATE_ROOT": None, "AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": token}
        ran = client(*RECORD, env=env)
        assert ran.exit == 0, ran.err
        assert "the daemon broke off the connection" in ran.err
        with server.client() as reader:
            listed: httpx.Response = reader.get("/v1/state", params={"prefix": "events"})
        [entry] = listed.json()["entries"]
    assert entry["path"] == f"events/spring/{ran.json()['record']['event_id']}.json"
