"""The image can be built and run: what can be seen of that without docker.

The Dockerfile's own commands are carried out in a directory laid out as its build stage is.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import PATIENCE
from tests.deploy.running import ROOT

_LINES = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text("utf-8")).splitlines()
INSTRUCTIONS = [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in _LINES if line and not line.startswith("#")]
FIRST_OF_SECOND = [number for number, (word, _) in enumerate(INSTRUCTIONS) if word == "FROM"][1]
BUILD, FINAL = INSTRUCTIONS[:FIRST_OF_SECOND], INSTRUCTIONS[FIRST_OF_SECOND:]


def _said(stage: list[tuple[str, str]], word: str) -> list[str]:
    return [text for name, text in stage if name == word]


def test_the_base_is_pinned_and_the_same_for_both_stages() -> None:
    (first,), (second,) = _said(BUILD, "FROM"), _said(FINAL, "FROM")
    assert first == f"{second} AS build"  # an environment holds the path of the interpreter it was made with
    assert re.fullmatch(r"python:3\.1[1-4]-slim-\w+(@sha256:[0-9a-f]{64})?", second)


def test_the_server_runs_as_nobody_special_from_a_volume() -> None:
    (user,) = _said(FINAL, "USER")
    uid, _, gid = user.partition(":")
    assert int(uid) >= 1000
    assert gid == uid
    (volume,) = map(json.loads, _said(FINAL, "VOLUME"))
    (environment,) = _said(FINAL, "ENV")
    assert f"AGENT_COORD_SERVER_DB=sqlite:///{volume[0]}/" in environment
    owner = next(json.loads(text) for text in _said(FINAL, "RUN") if volume[0] in text and "install" in text)
    assert owner[-1] == volume[0]
    words = [name for name, _ in FINAL]
    assert words.index("RUN") < words.index("USER") < words.index("VOLUME")


def test_everything_that_is_started_is_started_without_a_shell() -> None:
    for word, text in INSTRUCTIONS:
        if word in ("RUN", "ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(text), list), text
    assert _said(FINAL, "STOPSIGNAL") == ["SIGTERM"]
    (health,) = _said(FINAL, "HEALTHCHECK")
    assert "/v1/health" in json.loads(health.partition("CMD ")[2])[-1]


def test_what_is_copied_exists_and_is_let_through() -> None:
    let_through = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line[:1] == "!"
    }
    sources = [source for text in _said(BUILD, "COPY") for source in text.split()[:-1]]
    assert set(sources) == let_through
    for source in sources:
        assert (ROOT / source).exists(), source


def test_everything_installed_is_named_with_its_hash() -> None:
    fetching = [argv for argv in map(json.loads, _said(BUILD, "RUN")) if "-r" in argv]
    assert fetching
    for argv in fetching:
        assert "--require-hashes" in argv
    for argv in map(json.loads, _said(BUILD, "RUN")):
        if "pip" in argv and "-r" not in argv:
            assert "--no-deps" in argv  # what is built here takes nothing else along
    lock = (ROOT / "requirements/server.txt").read_text("utf-8")
    for package in ("asyncpg", "uvicorn", "uvloop", "httptools", "starlette", "hatchling"):
        assert re.search(rf"^{package}==", lock, re.MULTILINE), package


def test_the_server_is_locked_to_what_is_tested() -> None:
    tested = _pins("dev.txt")
    for package, version in _pins("server.txt").items():
        assert tested[package] == version


def _pins(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / name).read_text("utf-8")
    return dict(re.findall(r"^([a-z0-9._-]+)==([^\s;]+)", text, re.MULTILINE))


def test_the_commands_of_the_image_work(tmp_path: Path) -> None:
    """The wheel is built by the command of the first stage, and the second stage's command knows its options."""
    build, made = tmp_path / "build", tmp_path / "made"
    build.mkdir()
    for text in _said(BUILD, "COPY"):
        *sources, target = text.split()
        for source in sources:
            place = build / target if (ROOT / source).is_dir() else build / target / Path(source).name
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, place)
    wheel, install = (argv for argv in map(json.loads, _said(BUILD, "RUN")) if "--no-deps" in argv)
    for said in (wheel, [*install, "--target", str(made)]):
        argv = [sys.executable if word == "/opt/agent-coord/bin/python" else word for word in said]
        ran = subprocess.run(argv, cwd=build, check=False, capture_output=True, text=True, timeout=2 * PATIENCE)
        assert ran.returncode == 0, ran.stderr
    assert sorted(path.name for path in (made / "agentcoordd/server/storage/migrations/sqlite").glob("*.sql"))
    entry, command = (json.loads(_said(FINAL, word)[0]) for word in ("ENTRYPOINT", "CMD"))
    argv = [sys.executable, "-m", *entry, *command, "--help"]
    ran = subprocess.run(
        argv,
        cwd=made,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": str(made)},
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Serve state over HTTP" in ran.stdout


@pytest.mark.parametrize("status", [200, 503])
def test_the_health_check_tells_a_server_that_answers_from_one_that_does_not(status: int, tmp_path: Path) -> None:
    from tests.stores.http_server import Server, reply

    (health,) = _said(FINAL, "HEALTHCHECK")
    argv = json.loads(health.partition("CMD ")[2])
    with Server(lambda asked: reply(status, {})).running() as server:
        argv = [sys.executable, *(word.replace(":8787", f":{server.port}") for word in argv[1:])]
        ran = subprocess.run(argv, check=False, capture_output=True, timeout=PATIENCE)
        assert [asked.target for asked in server.asked] == ["/v1/health"]
    assert (ran.returncode == 0) == (status == 200)
