"""Running gh as a program: found on the caller's PATH only, ended in time, and told what it may know."""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentcoord.errors import Conflict, StoreError
from agentcoord.stores.gh import Call, Gh
from agentcoord.stores.github import GithubStore
from tests.stores.github_server import REF, REPO, GithubServer, Reply
from tests.stores.layout import CLAIM
from tests.stores.processes import drive

NONE = (
    "the legacy GitHub backend needs the GitHub command line, but there is no gh on the PATH; "
    "install it from https://cli.github.com and run gh auth login"
)


@pytest.fixture
def env(server: GithubServer, tmp_path: Path) -> Iterator[dict[str, str]]:
    with server.serving() as address:
        server.install(tmp_path / "bin", address)
        yield {"PATH": f"{tmp_path / 'bin'}:{os.defpath}"}


def script(directory: Path, text: str) -> dict[str, str]:
    """Put a `gh` of Python into a directory, and give an environment that has it."""
    directory.mkdir()
    (directory / "gh").write_text(f"#!{sys.executable} -IS\nimport os, sys\n{text}\n", encoding="utf-8")
    (directory / "gh").chmod(0o755)
    return {"PATH": str(directory)}


def store(gh: Gh) -> GithubStore:
    return GithubStore(REPO, REF, gh, pause=lambda seconds: None)


def test_records_go_through_a_process_of_each_call(env: dict[str, str], server: GithubServer) -> None:
    github = store(Gh(env))
    version = drive(github.write(CLAIM, {"note": "für →"}, version=None, note="Claim ü"))
    stored = drive(github.read(CLAIM))
    assert stored is not None
    assert (stored.document, stored.version) == ({"note": "für →"}, version)
    assert [entry.path for entry in drive(github.list("claims")).entries] == [CLAIM]
    with pytest.raises(Conflict):
        drive(github.write(CLAIM, {}, version=None, note=""))
    drive(github.delete(CLAIM, version=version, note="Gone"))
    assert drive(github.read(CLAIM)) is None
    drive(github.check(writable=True))
    assert server.messages() == ["Gone", "Claim ü", "Begin"]


def test_a_large_record_passes_both_pipes(env: dict[str, str]) -> None:
    github, document = store(Gh(env)), {"text": "x" * 700_000}
    drive(github.write(CLAIM, document, version=None, note=""))
    stored = drive(github.read(CLAIM))
    assert stored is not None
    assert stored.document == document


def test_many_records_are_fetched_side_by_side(env: dict[str, str], server: GithubServer) -> None:
    paths = [f"heartbeats/{number:02}.json" for number in range(20)]
    for path in paths:
        server.plant(path, f'"{path}"'.encode())
    entries = list(drive(store(Gh(env)).list("heartbeats")).entries)
    assert [(entry.path, getattr(entry, "document", None)) for entry in entries] == [(path, path) for path in paths]


def test_one_of_many_writers_wins(env: dict[str, str]) -> None:
    outcomes: list[str] = []

    def write(number: int) -> None:
        try:
            drive(store(Gh(env)).write(CLAIM, {"n": number}, version=None, note=""))
        except Conflict:
            outcomes.append("conflict")
        else:
            outcomes.append(f"won {number}")

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    *lost, won = sorted(outcomes)
    stored = drive(store(Gh(env)).read(CLAIM))
    assert stored is not None
    assert (lost, stored.document) == (["conflict"] * 3, {"n": int(won.removeprefix("won "))})


def test_gh_is_looked_for_on_the_callers_path_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = script(tmp_path / "bin", "print('here')")
    monkeypatch.setenv("PATH", env["PATH"])
    monkeypatch.chdir(tmp_path)
    for path in ({}, {"PATH": ""}, {"PATH": "/nonexistent"}, {"PATH": "bin:."}):
        with pytest.raises(StoreError) as told:
            Gh(path).ask(Call(("api", "x")))
        assert (str(told.value), told.value.exit) == (NONE, 2)
    (answer,) = Gh({"PATH": f":/nonexistent:{env['PATH']}"}).ask(Call(("api", "x")))
    assert (answer.ok, answer.out) == (True, b"here\n")
    (tmp_path / "bin/gh").chmod(0o644)
    with pytest.raises(StoreError, match="^the legacy GitHub backend needs"):
        Gh(env).ask(Call(("api", "x")))


def test_a_gh_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    env = script(tmp_path / "bin", "")
    (tmp_path / "bin/gh").write_bytes(b"\x7fELF, but not really")
    with pytest.raises(StoreError) as told:
        Gh(env).ask(Call(("api", "x")))
    assert str(told.value) == f"gh cannot be run: {tmp_path}/bin/gh: exec format error"


def test_gh_gets_the_callers_environment_but_nothing_that_disturbs(tmp_path: Path) -> None:
    env = script(
        tmp_path / "bin",
        "for name in sorted(os.environ): print(name, os.environ[name])\n"
        "print(os.getcwd(), os.getsid(0) == os.getpid())",
    )
    env |= {
        "GH_TOKEN": "t0ken",
        "LC_ALL": "C",
        "AGENT_COORD_API_TOKEN": "s3cret",
        "GH_FORCE_TTY": "80",
        "GH_DEBUG": "1",
    }
    (answer,) = Gh(env).ask(Call(("api", "x")))
    assert answer.out.decode().splitlines() == [
        "GH_NO_UPDATE_NOTIFIER 1",
        "GH_PROMPT_DISABLED 1",
        "GH_TOKEN t0ken",
        "LC_ALL C",
        "NO_COLOR 1",
        f"PATH {env['PATH']}",
        "/ True",
    ]


def test_what_gh_says_is_utf8_in_every_locale_and_shows_no_token(tmp_path: Path) -> None:
    env = script(tmp_path / "bin", r"os.write(2, b'f\xc3\xbcr t0ken\n\n \xff!\n'); sys.exit(1)")
    (answer,) = Gh(env | {"LC_ALL": "C", "GH_TOKEN": "t0ken"}).ask(Call(("api", "x")))
    assert answer.said == "für *** \ufffd!"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sys.exit(7)", "gh failed with exit 7"),
        ("os.kill(os.getpid(), 15)", "gh was ended by signal 15"),
        ("os.write(2, b'x' * 5000); sys.exit(1)", "x" * 300 + "…"),
        ("os.write(1, b'only here'); sys.exit(1)", "only here"),
    ],
)
def test_a_failure_is_one_short_line(tmp_path: Path, text: str, said: str) -> None:
    (answer,) = Gh(script(tmp_path / "bin", text)).ask(Call(("api", "x")))
    assert (answer.ok, answer.said) == (False, said)


@pytest.mark.parametrize("stream", [1, 2])
def test_an_endless_answer_is_cut_off(tmp_path: Path, stream: int) -> None:
    env = script(tmp_path / "bin", f"while True: os.write({stream}, b'x' * 65536)")
    (answer,) = Gh(env, limit=200_000).ask(Call(("api", "x")))
    assert (answer.ok, answer.said) == (False, "gh answered more than 200000 bytes")
    assert max(len(answer.out), len(answer.err)) < 300_000


def test_a_gh_that_does_not_answer_is_ended_with_all_it_started(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    env = script(
        tmp_path / "bin",
        f"line = os.open('/proc/{os.getpid()}/fd/{writer}', os.O_WRONLY)\n"
        "child = os.fork()\n"
        "if child: sys.exit(0)\n"  # its child keeps the streams open, as a credential helper may
        "os.read(os.pipe()[0], 1)",
    )
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    (answer,) = Gh(env, timeout=0.3).ask(Call(("api", "x")))
    assert (answer.ok, answer.said) == (False, "gh did not answer within 0.3 seconds")
    os.close(writer)
    with os.fdopen(reader, "rb") as line:
        assert line.read() == b""  # ends only when nobody is left that could write


def test_a_gh_that_reads_nothing_is_no_reason_to_wait(tmp_path: Path) -> None:
    env = script(tmp_path / "bin", "os.close(0); print('done')")
    (answer,) = Gh(env).ask(Call(("api", "--input", "-", "x"), b"x" * 1_000_000))
    assert (answer.ok, answer.out) == (True, b"done\n")


def test_one_slow_call_does_not_take_the_others_with_it(env: dict[str, str], server: GithubServer) -> None:
    server.fail("repo", None)
    slow, quick = Gh(env, timeout=1.5).ask(Call(("repo", "view", REPO)), Call(("auth", "status")))
    assert (slow.said, slow.ok, quick.ok) == ("gh did not answer within 1.5 seconds", False, True)


def test_an_answer_that_never_comes_is_read_back(env: dict[str, str], server: GithubServer) -> None:
    server.fail("PUT", None, done=True)
    version = drive(store(Gh(env, timeout=1.5)).write(CLAIM, {}, version=None, note="once"))
    assert server.entry(CLAIM) == ("100644", "blob", version)
    server.fail("PUT", Reply(0, b"x" * 100_000), done=True)
    version = drive(store(Gh(env, limit=50_000)).write(CLAIM, {"n": 2}, version=version, note="twice"))
    assert server.entry(CLAIM) == ("100644", "blob", version)
    assert server.messages() == ["twice", "once", "Begin"]


def test_nothing_is_left_open(env: dict[str, str], server: GithubServer) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("needs /proc")
    github = store(Gh(env, timeout=1.5))
    drive(github.read(CLAIM))
    before = len(list(descriptors.iterdir()))
    server.fail("GET", None)
    with pytest.raises(StoreError):
        drive(github.read(CLAIM))
    drive(github.read(CLAIM))
    assert len(list(descriptors.iterdir())) <= before + 1  # the server keeps the line that it never answers
