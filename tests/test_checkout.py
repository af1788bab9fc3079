"""Finding a branch and its worktree with git itself, in clones as people have them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agentcoord import checkout
from agentcoord.checkout import MOST_BYTES, find_checkout

ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    **{f"GIT_{who}_{what}": "t@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(place: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(place), *words], env=ENV, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository of its own with the branches `main` and `topic`, which calls acme/shop its origin."""
    place = tmp_path / "shop"
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    git(place, "remote", "add", "origin", "git@github.com:Acme/Shop.git")
    git(place, "commit", "-q", "--allow-empty", "-m", "first")
    git(place, "branch", "topic")
    return place


@pytest.mark.parametrize(
    "url", ["git@github.com:acme/shop.git", "https://github.com/acme/shop", "ssh://git@host:22/ACME/shop.git/"]
)
def test_the_last_commit_of_a_branch_is_found(clone: Path, url: str) -> None:
    git(clone, "remote", "set-url", "origin", url)
    (clone / "deep").mkdir()
    found = find_checkout("acme/shop", "topic", str(clone / "deep"), ENV)
    assert found is not None
    assert (found.head, found.subject, found.worktree) == (git(clone, "rev-parse", "topic"), "first", None)


def test_the_worktree_is_found_wherever_it_is(clone: Path, tmp_path: Path) -> None:
    place = tmp_path / "work tree\nof topic"
    git(clone, "worktree", "add", "-q", str(place), "topic")
    git(place, "commit", "-q", "--allow-empty", "-m", "second")
    for start in (clone, place):
        found = find_checkout("acme/shop", "topic", str(start), ENV)
        assert found is not None
        assert (found.worktree, found.subject) == (str(place), "second")
    mine = find_checkout("acme/shop", "main", str(place), ENV)
    assert mine is not None
    assert mine.worktree == str(clone)


def test_a_branch_that_was_fetched_is_better_than_none(clone: Path) -> None:
    for ref in ("refs/remotes/origin/far", "refs/remotes/origin/deep/far", "refs/remotes/fork/topic"):
        git(clone, "update-ref", ref, "main")
    found = find_checkout("acme/shop", "far", str(clone), ENV)
    assert found is not None
    assert (found.ref, found.worktree) == ("refs/remotes/origin/far", None)
    mine = find_checkout("acme/shop", "topic", str(clone), ENV)
    assert mine is not None
    assert mine.ref == "refs/heads/topic"


@pytest.mark.parametrize(
    ("repo", "branch"), [("acme/other", "topic"), ("acme/shop", "absent"), ("acme/shop", "--help"), ("acme/shop", "")]
)
def test_what_is_not_there_is_not_found(clone: Path, repo: str, branch: str) -> None:
    assert find_checkout(repo, branch, str(clone), ENV) is None


def test_a_directory_that_is_no_clone_or_not_there_has_nothing(tmp_path: Path, clone: Path) -> None:
    assert find_checkout("acme/shop", "topic", str(tmp_path), ENV) is None
    assert find_checkout("acme/shop", "topic", str(tmp_path / "absent"), ENV) is None
    assert find_checkout("acme/shop", "topic", "", ENV) is None


def test_a_machine_without_git_has_nothing(clone: Path, tmp_path: Path) -> None:
    assert find_checkout("acme/shop", "topic", str(clone), ENV | {"PATH": str(tmp_path)}) is None


def test_the_clone_starts_no_program_of_its_own(clone: Path, tmp_path: Path) -> None:
    """What a repository is configured to run is not run just because somebody looked at it."""
    trace = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho ran >> {trace}\n")
    program.chmod(0o755)
    git(clone, "config", "core.fsmonitor", str(program))
    git(clone, "config", "core.pager", str(program))
    git(clone, "config", "alias.config", f"!{program}")
    assert find_checkout("acme/shop", "topic", str(clone), ENV) is not None
    assert not trace.exists()
    # A partial clone asks its remote for a commit that it lacks, by way of any program.
    git(clone, "config", "extensions.partialClone", "far")
    git(clone, "config", "remote.far.promisor", "true")
    git(clone, "config", "remote.far.url", f"ext::{program} %S acme/shop")
    git(clone, "config", "protocol.ext.allow", "always")
    head = git(clone, "rev-parse", "topic")
    (clone / ".git/objects" / head[:2] / head[2:]).unlink()
    assert find_checkout("acme/shop", "topic", str(clone), ENV) is None
    assert not trace.exists()


def test_a_worktree_that_somebody_removed_is_none(clone: Path, tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"n\xff")
    git(clone, "worktree", "add", "-q", str(place), "topic")
    found = find_checkout("acme/shop", "topic", str(clone), ENV)
    assert found is not None
    assert found.worktree == f"{tmp_path}/n\N{REPLACEMENT CHARACTER}"
    shutil.rmtree(place)
    found = find_checkout("acme/shop", "topic", str(clone), ENV)
    assert found is not None
    assert found.worktree is None


@pytest.mark.parametrize("name", ["GIT_DIR", "GIT_COMMON_DIR", "GIT_CONFIG", "GIT_OBJECT_DIRECTORY"])
def test_another_clone_that_a_hook_is_about_is_not_looked_at(clone: Path, tmp_path: Path, name: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q", "-b", "main")
    found = find_checkout("acme/shop", "topic", str(clone), ENV | {name: str(other / ".git")})
    assert found is not None
    assert found.subject == "first"
    assert find_checkout("acme/shop", "topic", str(other), ENV | {"GIT_DIR": str(clone / ".git")}) is None


def test_what_git_says_has_a_bound(clone: Path) -> None:
    git(clone, "config", "remote.vast.url", "a" * 100_000)
    assert find_checkout("acme/shop", "topic", str(clone), ENV) is not None
    message = clone / "message"
    message.write_text("x" * (MOST_BYTES + 1))
    git(clone, "commit", "-q", "--allow-empty", "-F", str(message))
    assert find_checkout("acme/shop", "main", str(clone), ENV) is None


def test_a_git_that_says_nothing_is_not_waited_for(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may also have closed its output, and go on."""
    monkeypatch.setattr(checkout, "SECONDS", 0.1)
    for said in ("", "exec >&-; "):
        program = tmp_path / "git"
        program.write_text(f"#!/bin/sh\n{said}exec sleep 600\n")
        program.chmod(0o755)
        env = ENV | {"PATH": f"{tmp_path}:{ENV['PATH']}"}
        assert find_checkout("acme/shop", "topic", str(clone), env) is None
