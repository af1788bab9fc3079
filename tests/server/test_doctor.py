"""The doctor of a fleet's backend, over a real server: what a token may see, and whom it belongs to."""

import json
from collections.abc import Generator
from typing import Any

import pytest

from agentcoord.cli.output import Output
from tests.cli.line import Line
from tests.server.calling import Caller, grant, revoke
from tests.server.conftest import KINDS
from tests.server.postgres import Cluster
from tests.server.running import Running, running

FAMILIES = ["claims", "heartbeats", "batches", "events", "attention", "archive"]


class Patient:
    """A command line whose environment selects a server with a token of some scopes."""

    def __init__(self, line: Line, server: Running) -> None:
        self.line, self.server = line, server
        line.env["AGENT_COORD_API_URL"] = server.url

    def token(self, machine: str, *, reads: list[str], writes: list[str] | None = None) -> None:
        """Take a token of a machine."""
        self.line.env["AGENT_COORD_API_TOKEN"] = grant(self.server.db, machine, reads=reads, writes=writes or [])

    def __call__(self, *options: str) -> Output:
        """Ask the doctor."""
        return self.line("doctor", *options)

    def report(self, *options: str) -> Any:
        """Ask for the report as JSON."""
        return json.loads(self("--json", *options).stdout)


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    """A server that no other test puts records into: some that others need would not pass a deep look."""
    cluster: Cluster = request.getfixturevalue("cluster")
    sqlite = f"sqlite:///{tmp_path_factory.mktemp('clinic')}/state.db"
    with running(sqlite if request.param == "sqlite" else cluster.database()) as server:
        yield server


@pytest.fixture
def doctor(tmp_path_factory: pytest.TempPathFactory, server: Running) -> Patient:
    return Patient(Line(tmp_path_factory.mktemp("doctor")), server)


def test_a_backend_that_answers(doctor: Patient, mine: str) -> None:
    doctor.token(mine, reads=["claims"])
    assert doctor.report() == {
        "version": doctor.report()["version"],
        "backend": "http",
        "backend_repo": None,
        "backend_url": doctor.server.url,
        "state_root": None,
        "deep": False,
        "status": "ok",
        "doctor_prefix": "claims",
    }
    assert doctor().stdout.decode().splitlines()[2:] == [
        "backend: http",
        "backend_repo: ",
        f"backend_url: {doctor.server.url}",
        "doctor_prefix: claims",
        "state_root: -",
        "mode: lightweight",
        "status: ok",
    ]


def test_a_token_that_sees_no_claims_names_what_it_sees(doctor: Patient, mine: str) -> None:
    doctor.token(mine, reads=["events/b1", "heartbeats/a.json"])
    output = doctor()
    assert (output.exit, output.stdout) == (2, b"")
    assert "403 forbidden" in output.stderr[0]
    assert doctor("--doctor-prefix", "events/b1").exit == 0
    assert doctor("--doctor-prefix", "heartbeats/a.json").exit == 0
    assert doctor("--doctor-prefix", "batches").exit == 2


def test_a_deep_look_says_what_each_family_showed(doctor: Patient, caller: Caller, mine: str) -> None:
    assert caller.create(f"claims/{mine}/r/7.json", {"agent_id": "a"}).status == 201
    doctor.token(f"{mine}-deep", reads=[f"claims/{mine}", "heartbeats", "archive"], writes=["heartbeats/a.json"])
    report = doctor.report("--deep")
    assert report["resource_checks"] == {
        "claims": "filtered",
        "heartbeats": "ok",
        "batches": "forbidden",
        "events": "forbidden",
        "attention": "forbidden",
        "archive": "ok",
    }
    assert report["identity"] == {
        "machine": f"{mine}-deep",
        "read_prefixes": [f"claims/{mine}", "heartbeats", "archive"],
        "write_prefixes": ["heartbeats/a.json"],
    }
    assert report["degraded"] == list(report["section_notes"].values())
    assert report["section_notes"] == {
        "claims": "claims filtered by scoped token",
        "batches": "batches not readable by scoped token",
        "events": "events not readable by scoped token",
        "attention": "attention not readable by scoped token",
    }
    assert (report["environment_identity"]["token_machine"], report["status"]) == (f"{mine}-deep", "ok")
    text = doctor("--deep").stdout.decode().splitlines()
    assert text[text.index("resource_checks") + 1] == "- claims: filtered"
    assert f"machine: {mine}-deep" in text
    assert f"read_prefixes: claims/{mine},heartbeats,archive" in text
    assert text[-5:] == ["degraded", *(f"- {note}" for note in report["degraded"])]


def test_a_token_for_everything(doctor: Patient, mine: str) -> None:
    doctor.token(mine, reads=[""], writes=[""])
    doctor.line.env["AGENT_COORD_MACHINE_ID"] = mine
    text = doctor("--deep", "--doctor-prefix", "archive").stdout.decode().splitlines()
    assert "read_prefixes: all-state" in text
    assert "machine_match: match" in text
    assert text[text.index("resource_checks") + 1 :][:2] == ["- archive: ok", f"machine: {mine}"]


def test_a_record_that_is_asked_for(doctor: Patient, caller: Caller, mine: str) -> None:
    doctor.token(f"{mine}-d", reads=["heartbeats"])
    path = f"heartbeats/{mine}.json"
    report = doctor.report("--deep", "--doctor-prefix", path)
    assert (report["resource_checks"], report["degraded"]) == ({path: "missing"}, [f"{path} does not exist"])
    caller.create(path, {"agent_id": mine})
    assert doctor.report("--deep", "--doctor-prefix", path)["resource_checks"] == {path: "ok"}


def test_a_record_that_is_no_object_is_named(doctor: Patient, caller: Caller, mine: str) -> None:
    path = f"claims/{mine}/r/7.json"
    caller.create(path, [1])
    doctor.token(f"{mine}-d", reads=[f"claims/{mine}"])
    output = doctor("--deep", "--doctor-prefix", f"claims/{mine}")
    assert output.exit == 2
    assert path in output.stderr[0]
    assert caller.delete(path, If_Match="1").status == 200


def test_another_machines_token_is_reported_and_refused(doctor: Patient, mine: str) -> None:
    doctor.token(mine, reads=[""])
    doctor.line.env["AGENT_COORD_MACHINE_ID"] = "another"
    output = doctor("--deep", "--json", "--doctor-prefix", "archive")
    report = json.loads(output.stdout)
    assert (output.exit, report["status"]) == (2, "error")
    assert report["environment_identity"]["machine_match"] == "mismatch"
    assert output.stderr[-1].startswith(
        f"machine identity mismatch: AGENT_COORD_MACHINE_ID=another does not match the authenticated backend token "
        f"machine {mine}; "
    )
    explained = doctor("--deep", "--explain", "--doctor-prefix", "archive")
    assert (explained.exit, explained.stderr) == (output.exit, output.stderr)


@pytest.mark.parametrize("options", [[], ["--deep"], ["--explain"]])
def test_a_token_that_was_revoked_comes_with_the_way_to_another(doctor: Patient, mine: str, options: list[str]) -> None:
    doctor.token(mine, reads=[""])
    revoke(doctor.server.db, mine)
    output = doctor(*options)
    assert output.exit == 2
    assert "401 unknown_token" in output.stderr[-1]
    assert "worker/bin/provision-token <machine-name> --local --database <database-name> --rotate" in output.stderr[-1]


def test_the_component_report(doctor: Patient, mine: str) -> None:
    doctor.token(mine, reads=["claims", "heartbeats"])
    doctor.line.env["AGENT_COORD_MACHINE_ID"] = mine
    output = doctor("--stack-json", "--deep", "--api-url", doctor.server.url)
    report = json.loads(output.stdout)
    _, backend, resources, identity = report["checks"]
    assert (output.exit, report["status"], output.stderr) == (1, "degraded", [])
    assert backend["details"] == {
        "backend": "http",
        "backend_repo": None,
        "backend_url": doctor.server.url,
        "state_root": None,
    }
    assert list(resources["details"]) == ["mode", "prefixes", "resource_checks", "identity", "notes"]
    assert resources["details"]["resource_checks"]["batches"] == "forbidden"
    assert identity["status"] == "healthy"
    doctor.line.env["AGENT_COORD_MACHINE_ID"] = "another"
    output = doctor("--stack-json", "--deep", "--doctor-prefix", "claims", "--api-url", doctor.server.url)
    *_, resources, identity = json.loads(output.stdout)["checks"]
    assert (output.exit, resources["status"], identity["status"]) == (2, "healthy", "failed")
    assert resources["details"]["unprobed_prefixes"] == FAMILIES[1:]


def test_a_backend_that_is_gone_is_a_failed_component(doctor: Patient, mine: str) -> None:
    doctor.token(mine, reads=[""])
    output = doctor("--stack-json", "--deep", "--api-url", "http://127.0.0.1:9")
    report = json.loads(output.stdout)
    assert (output.exit, report["status"]) == (2, "failed")
    assert "http backend unreachable" in report["checks"][1]["details"]["error"]
    assert report["checks"][2]["details"] == {"mode": "deep", "reason": "backend_unavailable"}
