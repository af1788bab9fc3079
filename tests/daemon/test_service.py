"""The daemon is no way out of a sandbox: what only a caller names, it neither reads nor writes nor runs nor calls."""

import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from agentcoordd.api.deeds import PUBLISHED
from agentcoordd.api.service import service_of
from tests.command import PATIENCE
from tests.daemon.running import COMMAND, Daemon, run, words
from tests.settings.conftest import private_directory

MARKER = "forbidden-place"
ELSEWHERE = -32001
ITEM = ("--agent-id", "worker-a", "--repo", "acme/widgets", "--target", "7")

HOOK = """\
import os, sys
log = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
WATCHED = ("open", "os.", "subprocess", "socket.connect", "shutil", "ctypes.dlopen", "import", "exec", "compile")
def hook(event, args):
    if event.startswith(WATCHED):
        os_write(log, f"{event} {args!r}\\n".encode(errors="replace"))
os_write = os.write
sys.addaudithook(hook)
sys.argv[0] = "agentcoordd"
from agentcoordd.__main__ import main
sys.exit(main())
"""


METHODS: dict[str, dict[str, object]] = {
    "claim.acquire": {"agent_id": "a", "repo": "o/r", "target": "7"},
    "claim.release": {"agent_id": "a", "repo": "o/r", "target": "7"},
    "claim.verify": {"repo": "o/r", "target": "7", "fence": "f"},
    "heartbeat.beat": {"agent_id": "a"},
    "event.record": {"batch_id": "b", "type": "note"},
    "batch.register": {"manifest": {"batch_id": "b", "lanes": []}},
    "batch.audit": {"batch_id": "b"},
    "status.target": {"repo": "o/r", "target": "7"},
    "status.batch": {"batch_id": "b"},
    "status.all": {},
    "trail.log": {},
    "attention.upsert": {"record": {}},
    "attention.resolve": {"workspace": "w", "repo": "o/r", "attention_id": "a", "source_generation": 1},
    "attention.get": {"workspace": "w", "repo": "o/r", "attention_id": "a"},
    "attention.list": {"workspace": "w", "repo": "o/r"},
}
NAMES = ("agent_id", "repo", "target", "batch_id", "workspace", "attention_id")
"""What becomes part of a path."""


class Attempt(NamedTuple):
    """A command that names what is not the daemon's, and what the client would have to answer for it."""

    argv: Sequence[str]
    env: Mapping[str, str] = {}
    cwd: str = "/"
    served: bool = False


def attempts(place: Path, root: Path, port: int) -> list[Attempt]:
    there = str(place)
    claim, state = ("claim", *ITEM), f"{there}/state"
    url = f"http://127.0.0.1:{port}/{MARKER}"
    token = {"AGENT_COORD_API_TOKEN": "token"}
    return [
        Attempt((*claim, "--state-root", state)),
        Attempt(("status", "--json", "--state-root", state)),
        Attempt(("status", f"--state-root={state}")),
        Attempt(("gc", "--execute", "--state-root", state)),
        Attempt(("log", "--sync", "--state-root", state)),
        Attempt((*claim, "--state-root", "state"), cwd=there),
        Attempt((*claim, "--state-root", f"{root}/../../../../{MARKER}/state")),
        Attempt((*claim, "--state-root", f"{there}/link")),
        Attempt(claim, {"AGENT_COORD_STATE_ROOT": state}),
        Attempt(("status",), {"AGENT_COORD_STATUS_STATE_ROOT": state}),
        Attempt(("log", "--sync"), {"AGENT_COORD_STATUS_STATE_ROOT": state}),
        Attempt(("gc", "--execute", "--sync-first"), {"AGENT_COORD_STATUS_STATE_ROOT": state}),
        Attempt(("attention",), {"AGENT_COORD_STATUS_STATE_ROOT": state}),
        Attempt(claim, {"HOME": there}),
        Attempt(claim, {"XDG_CONFIG_HOME": there}),
        Attempt(claim, {"XDG_STATE_HOME": there}),
        Attempt(claim, {"AGENT_COORD_ENV_FILE": f"{there}/env"}),
        Attempt(claim, {"SSL_CERT_FILE": f"{there}/cert"}),
        Attempt(claim, {"SSL_CERT_DIR": there}),
        Attempt(claim, {"https_proxy": url}),
        Attempt(claim, {"HTTP_PROXY": url}),
        Attempt((*claim, "--api-url", url), token),
        Attempt(claim, {"AGENT_COORD_API_URL": url, **token}),
        Attempt((*claim, "--backend", "acme/state"), {"PATH": there}),
        Attempt(claim, {"AGENT_COORD_BACKEND": "acme/state", "PATH": there}),
        Attempt(("bootstrap", "--install-dir", there)),
        Attempt(("config", "set", "--machine-id", "m1"), {"AGENT_COORD_ENV_FILE": f"{there}/env"}),
        Attempt(("config", "show"), {"HOME": there}),
        Attempt(("doctor", "--state-root", state)),
        Attempt(("demo",), {"TMPDIR": there}),
        Attempt(("completion", "bash")),
        Attempt(("__complete", "bash", "1", "claim", "--state-root", state)),
        Attempt(("run", *ITEM, "--", f"{there}/gh")),
        Attempt((f"{there}/gh",)),
        Attempt((*claim, "--keep")),
        Attempt(()),
        Attempt(("register-batch", "--file", f"{there}/secret"), served=True),
        Attempt(("register-batch", "--file", "secret"), cwd=there, served=True),
        Attempt(("attention-upsert", "--record-json", f"{there}/secret"), served=True),
        Attempt(("claim", "--agent-id", f"../../{MARKER}", *ITEM[2:]), served=True),
        Attempt(("claim", *ITEM[:2], "--repo", f"../{MARKER}", "--target", "7"), served=True),
        Attempt(("batch-audit", "--batch-id", f"../../../../../../{there}"), served=True),
        Attempt(("record-event", "--type", "note", "--batch-id", f"/../{MARKER}"), served=True),
    ]


def try_all(daemon: Daemon, before: Sequence[str], options: Sequence[str] = ()) -> None:
    """Start a daemon under watch, and make every attempt."""
    place = daemon.directory / MARKER
    place.mkdir()
    (place / "secret").write_text('{"secret": true}')
    program = place / "gh"
    program.write_text(f"#!/bin/sh\ntouch {place}/ran\n")
    program.chmod(0o755)
    (place / "link").symlink_to(daemon.root)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        found = sorted(place.iterdir())
        daemon.start(*options, before=before)
        caller = daemon.call()
        for attempt in attempts(place, daemon.root, listening.getsockname()[1]):
            env = {"HOME": str(daemon.home), **attempt.env}
            ran = run(
                caller,
                words(*attempt.argv, env=env, cwd=attempt.cwd),
                {f"{place}/secret": b"what the client says"},
            )
            if attempt.served:
                assert ran.error == {}, attempt
                assert '"secret"' not in ran.stdout + ran.stderr
            else:
                assert (ran.error.get("code"), ran.notified) == (ELSEWHERE, []), attempt
        port = listening.getsockname()[1]
        for root in (str(place), f"{place}/state", f"{place}/link", f"{daemon.root}/../../../../{MARKER}"):
            for method, params in METHODS.items():
                answer = caller.ask(method, {"backend": {"kind": "local", "root": root}, **params})
                assert answer["error"]["code"] == ELSEWHERE, method
        for method, params in METHODS.items():
            there = {"kind": "http", "url": f"http://127.0.0.1:{port}/{MARKER}"}
            assert caller.ask(method, {"backend": there, **params})["error"]["code"] == ELSEWHERE, method
            asked = {field: f"../{MARKER}" if field in NAMES else value for field, value in params.items()}
            caller.ask(method, asked)
        assert sorted(place.iterdir()) == found
        with pytest.raises(BlockingIOError):
            listening.accept()
    ran = run(caller, words("claim", *ITEM[:4], "--target", "8", env={"HOME": str(daemon.home)}))
    assert ran.exit == 0, ran.stderr
    process = daemon.processes[-1]
    caller.ask("daemon.stop")
    assert process.wait(PATIENCE) == 0


def test_python_is_never_asked_for_what_a_caller_named(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = daemon.directory / "trace"
    monkeypatch.setattr("tests.daemon.running.COMMAND", [sys.executable, "-c", HOOK, str(trace), "run"])
    try_all(daemon, [])
    seen = trace.read_text()
    assert str(daemon.root) in seen, "the trace shows what is served"
    assert [line for line in seen.splitlines() if MARKER in line] == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_the_system_is_never_asked_for_what_a_caller_named(daemon: Daemon) -> None:
    trace = daemon.directory / "trace"
    try_all(daemon, ["strace", "-f", "-qq", "-s", "4096", "-e", "trace=%file,%process,connect", "-o", str(trace)])
    seen = trace.read_text()
    assert str(daemon.root) in seen
    assert [line for line in seen.splitlines() if MARKER in line] == []
    begun = seen[seen.index("daemon.sock") :]
    assert "execve" not in begun, "no program is run"


def test_its_own_roots_are_served(daemon: Daemon) -> None:
    more, selected, shown = (str(daemon.directory / name) for name in ("more", "selected", "shown"))
    place = daemon.home / ".config/agentcoordd/config.json"
    place.parent.mkdir(parents=True, mode=0o700)
    place.write_text(f'{{"serve_roots": ["{more}"]}}')
    place.chmod(0o600)
    daemon.start(env={"AGENT_COORD_STATE_ROOT": selected, "AGENT_COORD_STATUS_STATE_ROOT": shown})
    assert daemon.status()["roots"] == sorted([more, selected, shown, str(daemon.root)])
    caller = daemon.call()
    home = {"HOME": str(daemon.home)}
    for root in (more, selected, shown):
        assert run(caller, words("claim", *ITEM, "--state-root", root, env=home)).exit == 0
        assert Path(root, "claims/acme/widgets/7.json").exists()
    assert run(caller, words("claim", *ITEM, env=home)).exit == 0
    relative = words("status", "--state-root", "more", env=home, cwd=str(daemon.directory))
    assert run(caller, relative).exit == 0
    assert caller.ask("cli.run", words("status", "--state-root", f"{more}/../selected", env=home))["error"]


def test_what_the_user_file_selects_is_served_also_when_it_changes(daemon: Daemon) -> None:
    with private_directory() as home:
        env = {"HOME": str(home)}
        place = home / ".config/agent-coord/env"
        place.parent.mkdir(parents=True, mode=0o700)
        daemon.start(env=env)
        caller = daemon.call()
        for name in ("first", "second"):
            place.write_text(f"AGENT_COORD_STATE_ROOT={daemon.directory}/{name}\n")
            place.chmod(0o600)
            ran = run(caller, words("claim", *ITEM, env=env))
            assert ran.exit == 0, ran.stderr or ran.error
            assert (daemon.directory / name / "claims/acme/widgets/7.json").exists()
        daemon.processes[-1].terminate()
        assert daemon.processes[-1].wait(PATIENCE) == 0


def test_an_address_is_shown_without_its_secrets() -> None:
    service = service_of({"AGENT_COORD_API_URL": "https://user:s3cret@fleet.example/"}, [], any_root=False)
    assert service.shown_backends() == ["https://***@fleet.example/"]


def test_github_is_left_to_the_caller_whatever_is_served(daemon: Daemon) -> None:
    daemon.start("--serve-any-root")
    error = daemon.call().ask("cli.run", words("status", "--backend", "acme/state", env={"HOME": "/nowhere"}))["error"]
    assert error["code"] == ELSEWHERE


def test_these_are_all_methods_that_take_a_backend_for_one_deed() -> None:
    assert set(METHODS) == set(PUBLISHED)


def test_the_command_of_these_tests_is_the_product() -> None:
    assert COMMAND[1:] == ["-m", "agentcoordd", "run"]
