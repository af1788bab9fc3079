"""Commands on the legacy GitHub backend: the same answers, another place, and each failure on one line."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.line import Line
from tests.command import Coord
from tests.stores.github_server import GithubServer, http

NO_GH = (
    "the legacy GitHub backend needs the GitHub command line, but there is no gh on the PATH; "
    "install it from https://cli.github.com and run gh auth login"
)
ARCHIVED = (
    "legacy GitHub backend acme/state is archived and read-only; configure AGENT_COORD_API_URL and "
    "AGENT_COORD_API_TOKEN for the HTTP backend, or choose an active writable GitHub backend"
)
CLAIM = "claims/acme/shop/42.json"
ITEM = ["--agent-id", "ana", "--repo", "acme/shop", "--target", "42"]
HERE = ["--backend", "acme/state"]


@pytest.fixture
def server(tmp_path: Path) -> GithubServer:
    return GithubServer(tmp_path)


@pytest.fixture
def path(server: GithubServer, tmp_path: Path) -> Iterator[str]:
    with server.serving() as address:
        server.install(tmp_path / "bin", address)
        yield f"{tmp_path / 'bin'}:{os.defpath}"


@pytest.fixture
def hub(line: Line, path: str) -> Line:
    """A command line with a `gh` that knows the repository."""
    line.env["PATH"] = path
    return line


def test_a_claim_is_won_seen_refused_and_released(hub: Line, server: GithubServer) -> None:
    claimed = hub("claim", *ITEM, *HERE)
    assert (claimed.exit, claimed.stderr) == (0, [])
    assert claimed.stdout.startswith(b"claimed acme/shop#42 by ana until ")
    status = hub("status", *HERE)
    assert status.exit == 0
    assert b"- acme/shop#42 active ana branch UNKNOWN" in status.stdout
    assert hub("heartbeat", "--agent-id", "ana", *HERE).exit == 0
    refused = hub("claim", *ITEM, "--agent-id", "ben", *HERE)
    assert (refused.exit, refused.stdout) == (3, b"")
    assert refused.stderr == ["CLAIM_REFUSED: active claim for acme/shop#42 held by ana; heartbeat live"]
    assert hub("release", *ITEM, *HERE).exit == 0
    assert hub("claim", *ITEM, "--agent-id", "ben", *HERE).exit == 0
    assert server.messages() == [
        "Claim acme/shop#42",
        "Release acme/shop#42",
        "Heartbeat ana",
        "Claim acme/shop#42",
        "Begin",
    ]
    assert not hub.root.exists()
    assert not hub.home.exists()


def test_events_and_closeouts_are_commits_too(hub: Line, server: GithubServer) -> None:
    lane = {"name": "a", "owner": "ana", "targets": ["42"]}
    manifest = hub.file("batch.json", {"batch_id": "b1", "repo": "acme/shop", "lanes": [lane]})
    for argv in (
        ["register-batch", "--file", manifest],
        ["claim", *ITEM, "--batch-id", "b1"],
        ["record-event", "--batch-id", "b1", "--type", "note", "--message", "half"],
        ["release", *ITEM, "--terminal", "done"],
    ):
        output = hub(*argv, *HERE)
        assert output.exit == 0, output.stderr
    written = [message for message in server.messages() if "event" not in message]
    assert written == [
        "Close lane in batch b1",
        "Release acme/shop#42",
        "Close lane b1 a",
        "Claim acme/shop#42",
        "Register batch b1",
        "Begin",
    ]
    assert hub("batch-audit", "--batch-id", "b1", *HERE).exit in (0, 1)


def test_the_environment_selects_it_with_its_ref(hub: Line, server: GithubServer) -> None:
    hub.env |= {"AGENT_COORD_BACKEND": "acme/state", "AGENT_COORD_REF": "nowhere"}
    output = hub("claim", *ITEM)
    assert (output.exit, output.stdout) == (2, b"")
    assert output.stderr == ["backend ref acme/state@nowhere is not readable: gh: Not Found (HTTP 404)"]
    assert hub("claim", *ITEM, *HERE, "--ref", "state").exit == 0
    shown = json.loads(hub("config", "show", "--json").stdout)["coordination"]
    assert (shown["backend"], shown["source"]["backend"]) == ("github", "process_env")
    assert hub("config", "show", *HERE).exit == 0


def test_without_gh_nothing_is_done(line: Line) -> None:
    for argv in (["claim", *ITEM], ["status"], ["doctor"]):
        output = line(*argv, *HERE)
        assert (output.exit, output.stdout) == (2, b"")
        assert output.stderr == [NO_GH]
    assert line.tree() == {}


def test_an_invalid_repository_is_a_wrong_call(line: Line) -> None:
    output = line("status", "--backend", "nowhere")
    assert (output.exit, output.stderr) == (1, ["invalid backend repo: nowhere"])


def test_an_archived_repository_says_where_to_go(hub: Line, server: GithubServer) -> None:
    server.archived = True
    for argv in (["claim", *ITEM], ["doctor"]):
        output = hub(*argv, *HERE)
        assert (output.exit, output.stdout, output.stderr) == (2, b"", [ARCHIVED])


def test_a_claim_whose_answer_was_lost_is_a_claim(hub: Line, server: GithubServer) -> None:
    server.fail(f"PUT contents/{CLAIM}", http(504, "Gateway Timeout"), done=True)
    assert hub("claim", *ITEM, *HERE).exit == 0
    server.fail(f"PUT contents/{CLAIM}", http(504, "Gateway Timeout"))
    output = hub("claim", *ITEM, *HERE, "--branch", "new")
    assert (output.exit, output.stdout) == (2, b"")
    assert output.stderr == [f"not known whether the change to {CLAIM} was made: gh: Gateway Timeout (HTTP 504)"]


def test_a_lost_race_is_not_a_refusal(hub: Line, server: GithubServer) -> None:
    server.before_change = lambda: server.plant(CLAIM, b'{"agent_id": "ben"}')
    output = hub("claim", *ITEM, *HERE)
    assert (output.exit, output.stdout) == (2, b"")
    assert output.stderr[-1].startswith("claim write contention for acme/shop#42")


def test_the_doctor_examines_it(hub: Line, server: GithubServer) -> None:
    report = hub("doctor", "--json", *HERE)
    assert report.exit == 0
    found = json.loads(report.stdout)
    assert (found["backend"], found["backend_repo"], found["backend_url"], found["state_root"], found["status"]) == (
        "github",
        "acme/state",
        None,
        None,
        "ok",
    )
    server.plant(CLAIM, b"{half")
    assert hub("doctor", *HERE).exit == 0
    deep = hub("doctor", "--deep", *HERE)
    assert deep.exit == 2
    assert deep.stderr[-1].endswith(f"at {CLAIM}")
    server.logged_in = False
    output = hub("doctor", *HERE)
    assert (output.exit, output.stderr) == (
        2,
        ["gh auth status failed: You are not logged into any GitHub hosts."],
    )


def test_the_component_report_names_it(hub: Line, server: GithubServer) -> None:
    healthy = hub("doctor", "--stack-json", *HERE)
    backend = json.loads(healthy.stdout)["checks"][1]
    assert (healthy.exit, healthy.stderr, backend["status"]) == (0, [], "healthy")
    assert backend["details"] == {
        "backend": "github",
        "backend_repo": "acme/state",
        "backend_url": None,
        "state_root": None,
    }
    server.drop_branch()
    failed = hub("doctor", "--stack-json", "--deep", *HERE)
    backend = json.loads(failed.stdout)["checks"][1]
    assert (failed.exit, failed.stderr, backend["status"]) == (2, [], "failed")
    assert backend["details"]["error"] == "backend ref acme/state@state is not readable: gh: Not Found (HTTP 404)"


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_the_installed_command_says_the_same_in_every_locale(coord: Coord, path: str, locale: str) -> None:
    env = {"PATH": path, "LANG": locale, "LC_ALL": locale, "AGENT_COORD_STATE_ROOT": None}
    claimed = coord("claim", *ITEM, *HERE, "--branch", "zürich", env=env)
    assert (claimed.exit, claimed.err) == (0, "")
    status = coord("status", *HERE, env=env)
    assert (status.exit, status.err) == (0, "")
    assert "branch zürich" in status.out
    env["PATH"] = "/nonexistent"
    assert coord("status", *HERE, env=env).exit == 2
