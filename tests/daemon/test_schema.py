"""The published schema is what the messages say, and every method of the daemon has one."""

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import jsonschema_rs
import msgspec
import pytest

from agentcoord.protocol import topics
from agentcoordd.api.messages import Topic
from agentcoordd.api.schema import DIRECTORY, METHODS, documents
from tests.command import PATIENCE
from tests.daemon.running import Daemon, words

ROOT = Path(__file__).parents[2]


def test_what_is_published_is_what_the_messages_say() -> None:
    published = {path.name: path.read_bytes() for path in (ROOT / DIRECTORY).iterdir()}
    assert published == documents(), "python -m agentcoordd.api.schema writes it anew"


def test_every_method_is_published_and_what_is_said_fits(shared: Daemon) -> None:
    caller = shared.call()
    state: dict[str, object] = {"backend": {"kind": "local", "root": str(shared.directory / "state")}}
    item = {**state, "repo": "o/r", "target": "7"}
    request = {**state, "workspace": "w", "repo": "o/r", "attention_id": "a"}
    asked: dict[str, dict[str, object]] = {
        "hello": {"version": "0", "api": 1},
        "daemon.status": {},
        "subscribe": {"topics": ["changed"]},
        "cli.run": words("doctor", env={}),
        "lease.hold": {
            "backend": {"kind": "local", "root": "/nowhere"},
            "agent_id": "ana",
            "kinds": ["heartbeat"],
            "ttl": 60,
        },
        "lease.list": {},
        "lease.drop": {"lane": "0"},
        "outbox.list": {},
        "outbox.retry": {"all": True},
        "outbox.drop": {"ids": [1]},
        "claim.acquire": {**item, "agent_id": "ana", "batch_id": "b", "identity": {"session_id": "s"}},
        "claim.verify": {**item, "fence": "f"},
        "claim.release": {**item, "agent_id": "ana"},
        "heartbeat.beat": {**state, "agent_id": "ana", "status": "huh"},
        "event.record": {**state, "batch_id": "b", "type": "note"},
        "batch.register": {**state, "manifest": {"batch_id": "b", "lanes": [{"name": "a", "owner": "ana"}]}},
        "batch.audit": {**state, "batch_id": "b"},
        "status.target": item,
        "status.batch": {**state, "batch_id": "b"},
        "status.all": {**state, "include_archived": True},
        "trail.log": {**state, "work_item": "o/r#7"},
        "attention.upsert": {**state, "record": {}},
        "attention.resolve": {**request, "source_generation": 1},
        "attention.get": request,
        "attention.list": {**state, "workspace": "w", "repo": "o/r"},
        "daemon.stop": {"mark": False},
    }
    features: list[str] = caller.ask("hello")["result"]["features"]
    assert set(features) == set(METHODS) == set(asked)
    frames = _validator("frames")
    for name, params in asked.items():
        validator = _validator(name)
        assert validator.is_valid({"params": msgspec.json.decode(msgspec.json.encode(params))}), name
        if name != "daemon.stop":
            answer = caller.ask(name, params)
            assert frames.is_valid(answer)
            assert "result" not in answer or validator.is_valid({"result": answer["result"]}), name


def test_a_field_that_is_not_known_is_an_error_also_where_none_is(shared: Daemon) -> None:
    assert "no_such_field" in shared.call().ask("outbox.list", {"no_such_field": 1})["error"]["message"]


def test_a_topic_has_one_name_at_both_ends() -> None:
    assert set(get_args(Topic)) == {*topics.LEASES, topics.ATTENTION_CHANGED, topics.CHANGED}


def _validator(name: str) -> Any:
    return jsonschema_rs.validator_for(msgspec.json.decode((ROOT / DIRECTORY / f"{name}.schema.json").read_bytes()))


@pytest.mark.parametrize("argv", [("claim", "--agent-id", "a", "--repo", "o/r", "--target", "1"), ("status", "--json")])
def test_a_command_of_a_warm_daemon_loads_nothing(argv: tuple[str, ...], tmp_path: Path) -> None:
    script = (
        "import sys; from agentcoordd import daemon; from agentcoord.cli.run import run_alone\n"
        "from agentcoord.cli.output import Invocation; from datetime import datetime, UTC; import os\n"
        "async def nothing(path='-'): return b''\n"
        "daemon.warm(remote=False); before = set(sys.modules)\n"
        "output = run_alone(Invocation(argv=tuple(sys.argv[2:]), env={'AGENT_COORD_STATE_ROOT': sys.argv[1]},\n"
        "    cwd='/', now=lambda: datetime.now(UTC), random=os.urandom, read_file=nothing, stdin=nothing))\n"
        "list(output.answer); print(output.exit, sorted(set(sys.modules) - before))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (ran.stdout, ran.stderr) == ("0 []\n", "")
