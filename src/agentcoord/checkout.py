"""What a clone on this machine has of a branch: its last commit, and the worktree it is checked out in.

Git itself is asked, in the caller's own process and with the caller's own rights. It is told to take no locks, to
start no other program and to fetch nothing. A clone counts only if one of its remotes is the repository in question.
"""

import os
import select
import subprocess
from collections.abc import Mapping
from time import monotonic

from msgspec import Struct

SECONDS = 5.0
"""How long git may take for one question."""
MOST_BYTES = 1024 * 1024
"""What git may say to one question: a line of a repository can be as long as it likes."""

_REMOTE_BRANCHES = "refs/remotes"
_QUIET = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_FIELDS = "%(refname)%00%(objectname)%00%(committerdate:iso-strict)%00%(subject)"
_ELSEWHERE = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_CONFIG",
        "GIT_DIR",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_WORK_TREE",
    }
)
"""Variables by which git would look at another clone than the one around the directory, as those of a hook."""
_SETTINGS = {
    "LC_ALL": "C",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    # A partial clone would start whatever its configuration names to get a commit that it lacks.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",
}


class Checkout(Struct, frozen=True):
    """A branch as a clone has it. `worktree` is None where it is checked out nowhere."""

    ref: str
    head: str
    committed_at: str
    subject: str
    worktree: str | None


def find_checkout(repo: str, branch: str, directory: str, env: Mapping[str, str]) -> Checkout | None:
    """Look for a branch of OWNER/REPO in the clone around a directory; None where there is none, or git cannot tell."""
    if not branch or branch.startswith("-") or not directory:
        return None
    git = _Git(directory, env)
    remotes = git.ask("config", "--get-regexp", r"^remote\..*\.url$")
    if remotes is None or not any(_is_of(line.split(" ", 1)[-1], repo) for line in remotes.splitlines()):
        return None
    local = f"refs/heads/{branch}"
    refs = git.ask("for-each-ref", f"--format={_FIELDS}", local, f"{_REMOTE_BRANCHES}/*/{branch}")
    found = [line.split("\0") for line in (refs or "").splitlines()]
    # The branch of the clone itself says more than what was fetched of somebody's.
    found = [facts for facts in found if len(facts) == 4 and _names(facts[0], branch)]
    if not found:
        return None
    ref, head, committed_at, subject = max(found, key=lambda facts: facts[0] == local)
    worktree = _worktree(git, local)
    return Checkout(ref, head, committed_at, _legible(subject), None if worktree is None else _legible(worktree))


def _names(ref: str, branch: str) -> bool:
    """Tell a branch from a longer one that ends alike, which the pattern for remote branches lets through."""
    return ref == f"refs/heads/{branch}" or ref.split("/", 3)[3:] == [branch]


def _is_of(url: str, repo: str) -> bool:
    path = url.strip().removesuffix("/").removesuffix(".git").lower()
    before = path.removesuffix(repo.lower())
    return before != path and before[-1:] in ("", "/", ":")


def _worktree(git: "_Git", ref: str) -> str | None:
    listed = git.ask("worktree", "list", "--porcelain", "-z") or ""
    for entry in listed.split("\0\0"):
        facts = entry.strip("\0").split("\0")
        path = facts[0].removeprefix("worktree ")
        # Git goes on listing a worktree whose directory somebody removed.
        if f"branch {ref}" in facts and path != facts[0] and os.path.isdir(path):
            return path
    return None


class _Git:
    def __init__(self, directory: str, env: Mapping[str, str]) -> None:
        self._directory = directory
        self._env = {name: value for name, value in env.items() if name not in _ELSEWHERE} | _SETTINGS

    def ask(self, *words: str) -> str | None:
        """Give what git answers; None where it cannot be asked, fails, takes too long or says too much."""
        try:
            with subprocess.Popen(
                ["git", "-C", self._directory, *_QUIET, *words],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ) as git:
                said = None if git.stdout is None else _heard(git, git.stdout.fileno())
        except (OSError, ValueError):
            return None
        return os.fsdecode(said) if said is not None and git.returncode == 0 else None


def _legible(said: str) -> str:
    return os.fsencode(said).decode(errors="replace")


def _heard(git: subprocess.Popen[bytes], output: int) -> bytes | None:
    """Read all that git says within its bounds, else end it."""
    said, until = bytearray(), monotonic() + SECONDS
    try:
        while len(said) <= MOST_BYTES and select.select([output], [], [], max(until - monotonic(), 0.0))[0]:
            piece = os.read(output, MOST_BYTES)
            if not piece:
                git.wait(max(until - monotonic(), 0.0))
                return bytes(said)
            said += piece
    except subprocess.TimeoutExpired:
        pass
    finally:
        git.kill()
    return None
