"""What our own commands write keeps the published contracts: the program is run, and its files are looked at."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentcoord.protocol.contracts.catalogue import BY_FAMILY
from tests.contracts.published import ROOT, schema_allows, second_schema_allows, types_allow

PROGRAM = Path(sys.executable).with_name("agent-coord")

MANIFEST = {
    "batch_id": "b7",
    "repo": "acme/shop",
    "merge_authority": "ask",
    "lanes": [
        {"name": "api", "owner": "ana", "targets": ["41"], "route": "m-large/high"},
        {"name": "ui", "owner": "ben", "targets": ["42"], "route": {"model": "v/m", "effort": "low"}},
    ],
}
QUESTION = {
    "schema_version": 1,
    "workspace": "default",
    "id": "q-1",
    "repository": "acme/.shop",
    "target": "41",
    "status": "open",
    "kind": "decision",
    "question": "Per line or per invoice?",
    "choices": ["per line", "per invoice"],
    "priority_class": "unblocks-work",
    "priority_reason": "Two lanes wait.",
    "safe_resume": "Go on with the tests.",
    "source": {
        "provider": "codex",
        "host_id": "mill",
        "task_id": "7",
        "last_seen_at": "2026-01-01T00:00:00Z",
        "capabilities": {"native_open": "unknown", "prompt_forwarding": "unknown"},
    },
    "source_generation": 3.0,
    "created_at": "2026-01-01T00:00:00Z",
    "refreshed_at": "2026-01-01T00:00:00.5-01:00",
}
WHO = ("--agent-id", "ana", "--repo", "acme/shop", "--target", "41")

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """Run the program in a state root of its own."""
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "AGENT_COORD_STATE_ROOT": str(tmp_path / "state")}
    env["AGENT_COORD_MACHINE_ID"] = "mill"

    def run(*argv: str, given: object = None, code: int = 0) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(
            [PROGRAM, *argv],
            env=env,
            cwd=tmp_path,
            input=json.dumps(given),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == code, ran.stderr
        return ran

    (tmp_path / "b7.json").write_text(json.dumps(MANIFEST))
    return run


def written(root: Path, pattern: str) -> dict[str, Any]:
    """Read the records below a state root."""
    return {str(path.relative_to(root)): json.loads(path.read_bytes()) for path in sorted(root.glob(pattern))}


def require(family: str, record: Any) -> None:
    contract = BY_FAMILY[family]
    for allows in (schema_allows, second_schema_allows, types_allow):
        assert allows(contract, record), (allows.__name__, record)


def test_closings_and_the_archive_keep_their_contracts(call: Call, tmp_path: Path) -> None:
    root = tmp_path / "state"
    call("register-batch", "--file", "b7.json")
    for batch in written(root, "batches/*.json").values():
        require("merge_authority", batch)
        for lane in batch["lanes"]:
            require("route", lane)
    call("claim", *WHO, "--batch-id", "b7", "--phase", "start", "--branch", "ana/41")
    call("heartbeat", "--agent-id", "ana", "--status", "done")
    evidence = (
        "--pr-url",
        "https://example.org/7?a=%C3%A9#b",
        "--pr-state",
        "merged",
        "--evidence-url",
        "http://[::1]/",
    )
    call("release", *WHO, "--terminal", "done", *evidence)
    ben = ("--agent-id", "ben", "--repo", "acme/shop", "--target", "42", "--batch-id", "b7")
    call("claim", *ben[:-2])
    call("record-event", "--type", "lane_closed", "--terminal", "superseded", "--host", "quern", *ben)

    closings = [each for each in written(root, "events/b7/*.json").values() if each["type"] == "lane_closed"]
    assert {each["terminal"] for each in closings} == {"done", "superseded"}
    for closing in closings:
        require("lane_closed", closing)

    before = len(written(root, "events/b7/*.json"))
    call("gc", "--execute", "--hot-days", "0")
    envelopes = written(root, "archive/**/*.json")
    families = {envelope["record_family"] for envelope in envelopes.values()}
    assert families == {"archived_record", "compacted_events"}
    assert {path.split("/")[1] for path in envelopes} == {"batches", "claims", "events", "heartbeats"}
    for envelope in envelopes.values():
        require("archive", envelope)
    compacted = [each for each in envelopes.values() if each["record_family"] == "compacted_events"]
    assert sum(len(each["source_paths"]) for each in compacted) + len(written(root, "events/b7/*.json")) == before


def test_attention_keeps_its_contract_open_and_settled(call: Call, tmp_path: Path) -> None:
    one = ("--workspace", "default", "--repo", "acme/.shop", "--attention-id", "q-1")
    call("attention-upsert", "--record-json", "-", given=QUESTION)
    for status in ("open", "resolved"):
        ((path, record),) = written(tmp_path / "state", "attention/**/*.json").items()
        assert record["status"] == status
        assert path == BY_FAMILY["attention"].path(record)
        require("attention", record)
        call("attention-resolve", *one, "--source-generation", "4")


def test_the_example_of_the_documentation_tells_a_good_closing_from_a_bad_one() -> None:
    page = (ROOT / "docs/contracts.md").read_text("utf-8")
    example = page.partition("```python\n")[2].partition("```")[0]
    good = (ROOT / "contracts/fixtures/v2/lane_closed.json").read_bytes()
    bad = (ROOT / "contracts/fixtures/v2/invalid/lane_closed_at_local.json").read_bytes()
    for event, code in ((good, 0), (bad, 1)):
        ran = subprocess.run([sys.executable, "-c", example], cwd=ROOT, input=event, capture_output=True, check=False)
        assert ran.returncode == code, ran.stderr
