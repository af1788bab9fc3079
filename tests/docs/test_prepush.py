"""The git hook of docs/run.md, in a real repository: pushes go through while the fence holds, and no longer."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import PATIENCE, Answer, Coord
from tests.docs.pages import ROOT

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
ITEM = ("--repo", "o/r", "--target", "7")


@pytest.fixture
def clone(coord: Coord) -> Path:
    """A repository with one commit, the hook, and a remote that it can push to."""
    bin_, clone = coord.home / "bin", coord.work / "clone"
    bin_.mkdir()
    (bin_ / "agent-coord").write_text(f'#!/bin/sh\nexec {sys.executable} -m agentcoord "$@"\n')
    (bin_ / "agent-coord").chmod(0o755)
    coord.env |= {
        "PATH": f"{bin_}:{os.defpath}",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "ana",
        "GIT_AUTHOR_EMAIL": "ana@example.org",
        "GIT_COMMITTER_NAME": "ana",
        "GIT_COMMITTER_EMAIL": "ana@example.org",
    }
    git(coord, coord.work, "init", "-q", "--bare", "shared.git")
    git(coord, coord.work, "init", "-q", "-b", "main", "clone")
    git(coord, clone, "remote", "add", "origin", "../shared.git")
    git(coord, clone, "commit", "-q", "--allow-empty", "-m", "work")
    page = (ROOT / "docs/run.md").read_text("utf-8")
    [hook] = re.findall(r"```sh file=pre-push\n(.*?)```", page, re.DOTALL)
    place = clone / ".git/hooks/pre-push"
    place.parent.mkdir(exist_ok=True)
    place.write_text(hook)
    place.chmod(0o755)
    return clone


def git(coord: Coord, place: Path, *words: str, **env: str) -> Answer:
    ran = subprocess.run(
        ["git", *words], cwd=place, env=coord.env | env, capture_output=True, check=False, text=True, timeout=PATIENCE
    )
    return Answer(ran.returncode, ran.stdout, ran.stderr)


def branches(coord: Coord) -> list[str]:
    return git(coord, coord.work / "shared.git", "branch", "--format=%(refname:short)").out.split()


def test_under_the_lease_and_after_it(coord: Coord, clone: Path) -> None:
    push = f"cd {clone} && env >env && git push -q origin main"
    ran = coord("run", *ITEM, "--agent-id", "a1", "--", "sh", "-c", push)
    assert ran.exit == 0, ran
    assert branches(coord) == ["main"]
    told = dict(line.split("=", 1) for line in (clone / "env").read_text().splitlines() if "=" in line)
    late = {name: value for name, value in told.items() if name.startswith("AGENT_COORD_")}
    answer = git(coord, clone, "push", "-q", "origin", "main:late", **late)
    assert answer.exit != 0
    assert "FENCE_LOST: nobody holds o/r#7; it was released" in answer.err
    assert branches(coord) == ["main"]


def test_when_somebody_else_has_the_item(coord: Coord, clone: Path) -> None:
    script = (
        f"agent-coord release --agent-id a1 {' '.join(ITEM)} && agent-coord claim --agent-id a2 {' '.join(ITEM)} && "
        f"cd {clone} && git push -q origin main"
    )
    answer = coord("run", *ITEM, "--agent-id", "a1", "--", "sh", "-c", script)
    assert answer.exit != 0
    assert "FENCE_LOST: o/r#7 is held by a2 under another fence" in answer.err
    assert branches(coord) == []


def test_when_nobody_can_tell(coord: Coord, clone: Path) -> None:
    script = f"mv {coord.state} {coord.state}.away && echo no >{coord.state}; cd {clone} && git push -q origin main"
    answer = coord("run", *ITEM, "--agent-id", "a1", "--", "sh", "-c", script)
    assert answer.exit != 0
    assert branches(coord) == []


def test_without_a_lease(coord: Coord, clone: Path) -> None:
    answer = git(coord, clone, "push", "-q", "origin", "main")
    assert answer.exit != 0
    assert "not under a lease; start the agent with agent-coord run" in answer.err
    assert git(coord, clone, "push", "-q", "--no-verify", "origin", "main").exit == 0
