"""The methods on records: what a program is told and what is written is what the command line would say and write."""

import fcntl
import json
import os
import random
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentcoordd.api.deeds import PUBLISHED
from agentcoordd.api.records import MOST_AWAY
from tests.command import PATIENCE
from tests.daemon.running import NOW, SEED, Daemon, in_background, run, until, words
from tests.settings.conftest import private_directory
from tests.stores.http_server import TOKEN, Reply, Server, State

ELSEWHERE, BAD_PARAMS, FAILED, CANCELLED = -32001, -32602, -32000, -32003
ITEM = {"repo": "o/r", "target": "7"}
MANIFEST = {
    "batch_id": "b1",
    "repo": "o/r",
    "objective": "x",
    "lanes": [{"name": "a", "owner": "ana", "targets": ["7"]}, {"name": "b", "owner": "bob", "targets": ["8"]}],
}
REQUEST = {"workspace": "w", "repo": "o/r", "attention_id": "q1"}
ATTENTION = {
    "schema_version": 1,
    "workspace": "w",
    "id": "q1",
    "repository": "o/r",
    "target": "7",
    "status": "open",
    "kind": "decision",
    "question": "Ship it?",
    "choices": ["yes", "no"],
    "priority_class": "unblocks-work",
    "priority_reason": "two lanes wait",
    "safe_resume": "rerun the checks",
    "source": {
        "provider": "codex",
        "host_id": "m5",
        "task_id": "t-1",
        "last_seen_at": "2026-03-01T11:00:00Z",
        "capabilities": {"native_open": "available", "prompt_forwarding": "unknown"},
    },
    "source_generation": 1,
    "created_at": "2026-03-01T11:00:00Z",
    "refreshed_at": "2026-03-01T11:00:00Z",
}
LATER = "2026-11-30T00:00:00.000000Z"


class Step(NamedTuple):
    """One method, and the command that does the same; it reads the files /content and /prompt."""

    method: str
    params: Mapping[str, object]
    command: str
    exit: int = 0


ON_ITEM = "--repo o/r --target 7"
STORY = [
    Step("batch.register", {"manifest": MANIFEST}, "register-batch --file /content"),
    Step("batch.register", {"manifest": {"lanes": 7}}, "register-batch --file /content", 1),
    Step(
        "batch.register",
        {"manifest": MANIFEST, "batch_id": "b2", "synthetic": True, "launch_prompt": "go"},
        "register-batch --file /content --batch-id b2 --synthetic --launch-prompt /prompt",
        1,
    ),
    Step(
        "claim.acquire",
        {**ITEM, "agent_id": "ana", "batch_id": "b1", "branch": "x", "operator": "o", "host": "h", "generation": 3},
        f"claim {ON_ITEM} --agent-id ana --batch-id b1 --branch x --operator o --host h --generation 3",
    ),
    Step("claim.acquire", {**ITEM, "agent_id": "ana", "ttl": 60}, f"claim {ON_ITEM} --agent-id ana --ttl 60"),
    Step("claim.acquire", {**ITEM, "agent_id": "bob"}, f"claim {ON_ITEM} --agent-id bob", 3),
    Step("claim.acquire", {**ITEM, "agent_id": "bob", "ttl": 0}, f"claim {ON_ITEM} --agent-id bob --ttl 0", 1),
    Step("claim.acquire", {**ITEM, "agent_id": ""}, f"claim {ON_ITEM} --agent-id ''", 1),
    Step(
        "heartbeat.beat",
        {"agent_id": "ana", **ITEM, "batch_id": "b1", "status": "huh", "phase": "one", "synthetic": True},
        f"heartbeat --agent-id ana {ON_ITEM} --batch-id b1 --status huh --phase one --synthetic",
    ),
    Step("heartbeat.beat", {"agent_id": "ana", "phase": "two"}, "heartbeat --agent-id ana --phase two"),
    Step("heartbeat.beat", {"agent_id": "../x"}, "heartbeat --agent-id ../x", 1),
    Step(
        "event.record",
        {"batch_id": "b1", "type": "error", "severity": "P1", "category": "c", "message": "m", "agent_id": "ana"},
        "record-event --batch-id b1 --type error --severity P1 --category c --message m --agent-id ana",
    ),
    Step("event.record", {"batch_id": "b1", "type": "error"}, "record-event --batch-id b1 --type error", 1),
    Step("status.target", ITEM, f"status {ON_ITEM}"),
    Step("status.target", {"repo": "o/r", "target": "issue:7"}, "status --repo o/r --target issue:7"),
    Step("status.target", {"repo": "o/r", "target": "9"}, "status --repo o/r --target 9"),
    Step("status.target", {"repo": "o", "target": "9"}, "status --repo o --target 9", 1),
    Step("status.batch", {"batch_id": "b1"}, "status --batch-id b1"),
    Step("status.batch", {"batch_id": "no"}, "status --batch-id no"),
    Step("status.all", {}, "status"),
    Step("status.all", {"include_archived": True}, "status --include-archived"),
    Step("trail.log", {"work_item": "o/r#7"}, "log o/r#7"),
    Step("trail.log", {"type": "error", "limit": 1}, "log --type error --limit 1"),
    Step("trail.log", {"since": "yesterday"}, "log --since yesterday", 1),
    Step("batch.audit", {"batch_id": "b1"}, "batch-audit --batch-id b1", 1),
    Step("batch.audit", {"batch_id": "no"}, "batch-audit --batch-id no", 2),
    Step("claim.verify", {**ITEM, "fence": "no"}, f"verify {ON_ITEM} --fence no", 3),
    Step(
        "event.record",
        {"batch_id": "b1", "type": "lane_closed", "terminal": "nonsense", "agent_id": "bob", **ITEM},
        f"record-event --batch-id b1 --type lane_closed --terminal nonsense --agent-id bob {ON_ITEM}",
        1,
    ),
    Step(
        "event.record",
        {"batch_id": "b1", "type": "lane_closed", "terminal": "done", "agent_id": "bob", "repo": "o/r", "target": "8"}
        | {"host": "h", "evidence_url": "https://x.example/1"},
        "record-event --batch-id b1 --type lane_closed --terminal done --agent-id bob --repo o/r --target 8"
        " --host h --evidence-url https://x.example/1",
    ),
    Step("claim.release", {**ITEM, "agent_id": "bob"}, f"release {ON_ITEM} --agent-id bob", 1),
    Step(
        "claim.release",
        {**ITEM, "agent_id": "ana", "handoff_to": "bob", "handoff_note": "n"},
        f"release {ON_ITEM} --agent-id ana --handoff-to bob --handoff-note n",
    ),
    Step(
        "claim.acquire",
        {**ITEM, "agent_id": "ana", "batch_id": "b1"},
        f"claim {ON_ITEM} --agent-id ana --batch-id b1",
    ),
    Step(
        "claim.release",
        {**ITEM, "agent_id": "ana", "terminal": "done", "pr_url": "https://x.example/2"},
        f"release {ON_ITEM} --agent-id ana --terminal done --pr-url https://x.example/2",
    ),
    Step("attention.upsert", {"record": {"id": 1}}, "attention-upsert --record-json /content", 1),
    Step("attention.upsert", {"record": ATTENTION}, "attention-upsert --record-json /content"),
    Step("attention.list", {"workspace": "w", "repo": "o/r"}, "attention-list --workspace w --repo o/r"),
    Step(
        "attention.get",
        {**REQUEST, "attention_id": "no"},
        "attention-get --workspace w --repo o/r --attention-id no",
        2,
    ),
    Step("attention.get", REQUEST, "attention-get --workspace w --repo o/r --attention-id q1"),
    Step(
        "attention.resolve",
        {**REQUEST, "source_generation": 1},
        "attention-resolve --workspace w --repo o/r --attention-id q1 --source-generation 1",
    ),
]
READERS = ("status.", "trail.", "batch.audit", "claim.verify", "attention.get", "attention.list")


def tree(root: Path) -> dict[str, bytes]:
    files = sorted(path for path in root.rglob("*.json") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_a_whole_story_is_written_and_told_as_by_commands(shared: Daemon) -> None:
    ours, theirs = shared.directory / "ours", shared.directory / "theirs"
    backend = {"kind": "local", "root": str(ours)}
    caller = shared.call()
    for number, step in enumerate(STORY):
        # What only reads takes no clock: the story lies so far in the past that every instant since shows it alike.
        clock = {"now": LATER if step.method.startswith(READERS) else NOW, "seed": f"{number:064x}"}
        answer = caller.ask(
            step.method,
            {"backend": backend, **step.params} | ({} if step.method.startswith(READERS) else clock),
        )
        files = {"/content": content_of(step.params), "/prompt": b"go"}
        argv = (*shlex.split(step.command), "--json", "--state-root", str(theirs))
        ran = run(caller, words(*argv, env={"HOME": str(shared.home)}) | clock, files)
        assert ran.exit == step.exit, (step, ran.stderr)
        said = ran.stderr.splitlines()
        if ran.stdout:
            result = answer["result"]
            notices: list[str] = result.pop("notices", [])
            assert result == json.loads(ran.stdout), step
            assert said[: len(notices)] == notices, step
        else:
            assert answer["error"] == {"code": FAILED, "message": said[-1], "data": {"exit": step.exit}}, step
        assert tree(ours) == tree(theirs), step
    assert {step.method for step in STORY} == set(PUBLISHED)


def content_of(params: Mapping[str, object]) -> bytes:
    return json.dumps(params.get("manifest", params.get("record"))).encode()


def backend_of(daemon: Daemon) -> dict[str, str]:
    return {"kind": "local", "root": str(daemon.root)}


def test_only_what_is_served_is_served(daemon: Daemon) -> None:
    daemon.start()
    caller = daemon.call()
    place = daemon.directory / "forbidden"
    place.mkdir()
    for name, params in (("claim.acquire", {**ITEM, "agent_id": "a"}), ("status.target", ITEM), ("status.all", {})):
        for backend in (
            {"kind": "local", "root": str(place)},
            {"kind": "local", "root": f"{daemon.root}/../forbidden"},
            {"kind": "local", "root": "forbidden"},
            {"kind": "http", "url": "http://127.0.0.1:1/"},
        ):
            error = caller.ask(name, {"backend": backend, **params})["error"]
            assert error["code"] == ELSEWHERE
            assert error["message"].startswith("the daemon does not serve ")
    assert list(place.iterdir()) == []
    assert caller.ask("status.all", {"backend": backend_of(daemon)})["result"]["claims"] == []


def test_a_root_has_to_be_a_path(shared: Daemon) -> None:
    for root in ("state", "", "/\0"):
        answer = shared.call().ask("status.target", {"backend": {"kind": "local", "root": root}, **ITEM})
        assert (answer["error"]["code"], answer["error"]["data"]) == (FAILED, {"exit": 1})


def test_without_a_backend_it_is_the_daemons_own_as_the_user_file_says_now(daemon: Daemon) -> None:
    with private_directory() as home:
        place = home / ".config/agent-coord/env"
        place.parent.mkdir(parents=True, mode=0o700)
        daemon.start(env={"HOME": str(home)})
        caller = daemon.call()
        for name in ("first", "second"):
            place.write_text(f"AGENT_COORD_STATE_ROOT={daemon.directory}/{name}\nAGENT_COORD_MACHINE_ID=m-{name}\n")
            place.chmod(0o600)
            record = caller.ask("claim.acquire", {**ITEM, "agent_id": "ana"})["result"]["record"]
            assert record["machine_id"] == f"m-{name}"
            assert (daemon.directory / name / "claims/o/r/7.json").exists()
            assert caller.ask("status.target", ITEM)["result"]["claims"][0]["machine_id"] == f"m-{name}"
        place.write_text("AGENT_COORD_STATE_ROOT=relative\n")
        answer = caller.ask("claim.acquire", {**ITEM, "agent_id": "ana"})
        assert answer["error"]["data"] == {"exit": 2}
        assert "AGENT_COORD_STATE_ROOT" in answer["error"]["message"]
        place.write_text("what is this")
        assert caller.ask("claim.acquire", {**ITEM, "agent_id": "ana"})["error"]["data"] == {"exit": 2}
        place.write_text("AGENT_COORD_BACKEND=o/state\n")
        assert caller.ask("status.target", ITEM)["error"]["code"] == ELSEWHERE
        daemon.close_callers()
        daemon.processes[-1].terminate()
        assert daemon.processes[-1].wait(PATIENCE) == 0


def test_a_relative_root_of_its_own_environment_is_refused(daemon: Daemon) -> None:
    daemon.start(env={"AGENT_COORD_STATE_ROOT": "state"})
    for name, params in (("status.target", ITEM), ("claim.acquire", {**ITEM, "agent_id": "ana"})):
        error = daemon.call().ask(name, params)["error"]
        assert error["data"] == {"exit": 2}
        assert "set AGENT_COORD_STATE_ROOT to an absolute path" in error["message"]


def test_a_write_is_the_machines_and_never_of_the_session_that_started_the_daemon(daemon: Daemon) -> None:
    daemon.start(
        env={"AGENT_COORD_MACHINE_ID": "m1", "AGENT_COORD_SESSION_ID": "not-this", "CODEX_THREAD_ID": "nor-this"}
    )
    caller = daemon.call()

    def said(agent: str, **identity: str) -> dict[str, Any]:
        record = caller.ask("heartbeat.beat", {"agent_id": agent, "identity": identity})["result"]["record"]
        return {name: record[name] for name in ("machine_id", "session_id", "session_source") if name in record}

    assert said("a") == {"machine_id": "m1"}
    named = {"machine_id": "m1", "session_id": "s1", "session_source": "agent_coord_session_id"}
    assert said("b", session_id="s1") == named
    assert said("c", machine_id="m2", session_id="s1", session_source="codex_thread_id") == {
        "machine_id": "m2",
        "session_id": "s1",
        "session_source": "codex_thread_id",
    }
    assert said("d", machine_id=" ", session_id="") == {"machine_id": "m1"}


def test_who_asks_again_with_the_same_clock_and_chance_writes_nothing_twice(shared: Daemon) -> None:
    root = shared.directory / "again"
    asked = {"backend": {"kind": "local", "root": str(root)}, "now": NOW, "seed": SEED, "batch_id": "b", "type": "note"}
    first, second = (shared.call().ask("event.record", asked)["result"] for _ in range(2))
    assert first == second
    assert len(tree(root)) == 1
    assert shared.call().ask("event.record", {**asked, "seed": "0" * 64})["result"] != first
    assert len(tree(root)) == 2


def test_an_acquisition_that_is_asked_for_again_makes_up_for_the_event_that_was_lost(shared: Daemon) -> None:
    root = shared.directory / "acquired"
    backend = {"kind": "local", "root": str(root)}
    asked = {**ITEM, "backend": backend, "agent_id": "a", "batch_id": "b", "now": NOW, "seed": SEED}
    first = shared.call().ask("claim.acquire", asked)["result"]
    [event] = (root / "events").rglob("*.json")
    event.unlink()  # the daemon was killed before it was written
    for _ in range(2):
        assert shared.call().ask("claim.acquire", asked)["result"] == first
        assert list((root / "events").rglob("*.json")) == [event]


@pytest.mark.parametrize("now", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_an_instant_that_utc_cannot_spell_is_the_nearest_one_it_can(shared: Daemon, now: str) -> None:
    backend = {"kind": "local", "root": str(shared.directory / "instants")}
    answer = shared.call().ask("event.record", {"backend": backend, "batch_id": "b", "type": "note", "now": now})
    assert answer["result"]["record"]["event_id"][:4] == now[:4]


def test_instances_of_one_agent_are_told_apart_if_that_is_asked_for(shared: Daemon) -> None:
    backend = {"kind": "local", "root": str(shared.directory / "instances")}
    caller = shared.call()
    asked = {"backend": backend, **ITEM, "agent_id": "ana", "exclusive": True}
    assert caller.ask("claim.acquire", asked)["error"]["data"] == {"exit": 1}
    first = caller.ask("claim.acquire", {**asked, "instance_id": "i1"})["result"]
    caller.ask("heartbeat.beat", {"backend": backend, "agent_id": "ana", "instance_id": "i1"})
    second = caller.ask("claim.acquire", {**asked, "instance_id": "i2"})["result"]
    assert (second["refused"], second["instance_id"]) == (True, "i1")
    verified = {"backend": backend, **ITEM, "fence": first["fence"]}
    assert caller.ask("claim.verify", verified)["result"]["held"] is True


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("claim.acquire", {**ITEM}),
        ("claim.acquire", {**ITEM, "agent_id": "a", "tll": 60}),
        ("claim.acquire", {**ITEM, "agent_id": "a", "ttl": "60"}),
        ("claim.acquire", {**ITEM, "agent_id": "a", "generation": 1 << 70}),
        ("claim.acquire", {**ITEM, "agent_id": "a", "backend": {"kind": "github", "repo": "o/r"}}),
        ("claim.acquire", {**ITEM, "agent_id": "a", "keep": True}),
        ("heartbeat.beat", {"agent_id": "a", "seed": "x"}),
        ("status.target", {"repo": "o/r"}),
        ("status.all", {"repo": "o/r"}),
        ("trail.log", {"sync": True}),
        ("batch.register", {}),
    ],
)
def test_params_that_are_none_are_refused(shared: Daemon, method: str, params: Mapping[str, object]) -> None:
    assert shared.call().ask(method, params)["error"]["code"] == BAD_PARAMS


def test_what_another_program_wrote_a_moment_ago_is_seen(daemon: Daemon) -> None:
    daemon.start()
    caller = daemon.call()
    asked = {"backend": backend_of(daemon), "repo": "o/r", "target": "7"}
    place = daemon.root / "heartbeats/ana.json"
    caller.ask("claim.acquire", {**ITEM, "agent_id": "ana"})

    def kept() -> bool:
        caller.ask("status.target", asked)
        return daemon.status()["answers"]["used"] == 1

    until(kept)
    for number in range(200):
        phase = f"p{number}"
        if number % 50 == 0:
            argv = [sys.executable, "-m", "agentcoord", "heartbeat", "--agent-id", "ana", "--phase", phase]
            env = daemon.env | {"AGENT_COORD_DAEMON": "off"}
            subprocess.run(argv, env=env, check=True, capture_output=True, timeout=PATIENCE)
            until(kept)
        else:
            record = json.loads(place.read_bytes()) | {"phase": phase}
            (daemon.root / "new").write_text(json.dumps(record))
            os.replace(daemon.root / "new", place)
        assert [row["phase"] for row in caller.ask("status.target", asked)["result"]["heartbeats"]] == [phase]
    status = daemon.status()
    assert status["answers"] == {"used": 1, "limit": 4096} or status["answers"]["used"] == 0
    assert status["answers_memory"]["used"] <= status["answers_memory"]["limit"]


def test_no_answer_is_older_than_its_question(daemon: Daemon) -> None:
    daemon.start()
    caller = daemon.call()
    caller.ask("claim.acquire", {**ITEM, "agent_id": "ana"})
    record = caller.ask("heartbeat.beat", {"agent_id": "ana", "phase": "0"})["result"]["record"]
    place, written, over = daemon.root / "heartbeats/ana.json", [0], threading.Event()
    pauses = random.Random(7)

    def write() -> None:
        try:
            for number in range(1, 61):
                (daemon.root / "new").write_text(json.dumps(record | {"phase": str(number)}))
                os.replace(daemon.root / "new", place)
                written[0] = number
                time.sleep(pauses.uniform(0, 0.1))  # in some of the pauses an answer is kept
        finally:
            over.set()

    writer = in_background(write)
    asked = {"backend": backend_of(daemon), **ITEM}
    while not over.is_set():
        before = written[0]
        [row] = caller.ask("status.target", asked)["result"]["heartbeats"]
        assert int(row["phase"]) >= before
    writer.join()
    assert written == [60]


def test_however_many_ask_at_once_all_are_answered(daemon: Daemon) -> None:
    daemon.start()
    callers = [daemon.call() for _ in range(100)]
    asked = {"backend": backend_of(daemon), "repo": "o/r", "target": "7"}
    for round_ in range(5):
        ran = callers[0].ask("claim.acquire", {**ITEM, "agent_id": "ana", "phase": f"p{round_}"})
        assert "result" in ran, ran
        for caller in callers:
            for number in range(8):
                caller.send(id=number, method="status.target", params=asked)
        for caller in callers:
            answers = [caller.next() for _ in range(8)]  # in any order
            assert {answer["id"] for answer in answers} == set(range(8))
            assert {answer["result"]["claims"][0]["phase"] for answer in answers} == {f"p{round_}"}
    for number, caller in enumerate(callers):
        for part in range(4):
            caller.send(id=part, method="heartbeat.beat", params={"agent_id": f"a{number}-{part}"})
    for caller in callers:
        assert all("result" in caller.next() for _ in range(4))
    assert len(tree(daemon.root)) == 401
    until(lambda: daemon.status()["commands"]["used"] == 0)


def test_an_answer_that_no_line_holds_is_refused(shared: Daemon) -> None:
    root = shared.directory / "vast"
    events = root / "events/b"
    events.mkdir(parents=True)
    for number in range(1100):
        (events / f"e{number}.json").write_text(json.dumps({"type": "note", "message": "x" * 4096}))
    caller = shared.call()
    for name, params in (("status.all", {}), ("status.batch", {"batch_id": "b"}), ("trail.log", {})):
        error = caller.ask(name, {"backend": {"kind": "local", "root": str(root)}, **params})["error"]
        assert error["data"] == {"exit": 2}
        assert "a line at most" in error["message"]
    assert caller.ask("hello")["result"]


def test_a_state_server_is_asked_with_the_daemons_own_token(daemon: Daemon) -> None:
    state = State()
    with Server(state).running() as server:
        daemon.start(env={"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN})
        caller = daemon.call()
        for backend in ({"kind": "http", "url": server.url}, None):
            answer = caller.ask("claim.acquire", {"backend": backend, **ITEM, "agent_id": "ana"})
            assert answer["result"]["record"]["agent_id"] == "ana", answer
        assert set(state.records) == {"claims/o/r/7.json"}
        assert caller.ask("claim.acquire", {**ITEM, "agent_id": "bob"})["result"]["refused"] is True
        assert caller.ask("status.target", ITEM)["result"]["claims"][0]["agent_id"] == "ana"
        server.answering = lambda asked: Reply(hangs=True)
        caller.send(id="hung", method="status.target", params=ITEM)
        until(lambda: daemon.status()["commands"]["used"] == 1)
        caller.send(method="cancel", params={"id": "hung"})
        assert caller.answer("hung")["error"]["code"] == CANCELLED
        until(lambda: daemon.status()["commands"]["used"] == 0)
        assert TOKEN not in daemon.said()
        daemon.close_callers()


def test_a_state_server_that_hangs_holds_up_nobody_on_files(daemon: Daemon) -> None:
    with Server(lambda asked: Reply(hangs=True)).running() as server:
        daemon.start("--serve-any-root", env={"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN})
        callers = [daemon.call() for _ in range(4)]
        for number in range(4 * MOST_AWAY):
            backend = {"kind": "http", "url": server.url} if number % 2 else None
            params = {**ITEM, "backend": backend}
            callers[number % 4].send(id=number, method="status.target", params=params)
        until(lambda: daemon.status()["commands"]["used"] == MOST_AWAY)
        here = {"kind": "local", "root": str(daemon.root)}
        for target in range(8):
            asked = {"backend": here, "repo": "o/r", "target": str(target), "agent_id": "ana"}
            assert daemon.call().ask("claim.acquire", asked)["result"]["record"]
        assert daemon.status()["commands"]["used"] == MOST_AWAY  # they are at it still
        daemon.close_callers()


def test_one_line_is_enough_to_try_it(daemon: Daemon) -> None:
    daemon.start()
    caller = daemon.call()
    caller.raw(b'{"jsonrpc":"2.0","id":1,"method":"status.target","params":{"repo":"o/r","target":"7"}}\n')
    caller.socket.shutdown(1)
    assert caller.answer()["result"]["claims"] == []
    assert caller.next() == {}


def test_what_is_being_written_when_the_daemon_is_told_to_end_is_written_and_told(daemon: Daemon) -> None:
    daemon.start()
    caller, other = daemon.call(), daemon.call()
    caller.ask("claim.acquire", {**ITEM, "agent_id": "ana"})
    lock = daemon.root / "claims/o/r/7.json.lock"
    with lock.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        caller.send(id="write", method="claim.acquire", params={**ITEM, "agent_id": "ana", "phase": "last"})
        until(lambda: daemon.status()["commands"]["used"] == 1)
        asked = {"backend": backend_of(daemon), **ITEM}
        assert "phase" not in other.ask("status.target", asked)["result"]["claims"][0], "others need not wait"
        other.ask("daemon.stop")
        until(lambda: other.ask("claim.acquire", {**ITEM, "agent_id": "bob"}).get("error", {}).get("code") == FAILED)
    assert caller.answer("write")["result"]["record"]["phase"] == "last"
    assert daemon.processes[-1].wait(PATIENCE) == 0
    assert json.loads((daemon.root / "claims/o/r/7.json").read_bytes())["phase"] == "last"
