"""What a clone on this machine has of a branch: its last commit, and the worktree it is checked out in.

Git itself is asked, in the caller's own process and with the caller's own rights. It is told to take no locks and to
start no other program. A clone counts only if one of its remotes is the repository in question.
"""

import re
import subprocess
from collections.abc import Mapping

from msgspec import Struct

SECONDS = 5.0
"""How long git may take for one question."""

_REMOTE_BRANCHES = "refs/remotes"
_QUIET = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_FIELDS = "%(refname)%00%(objectname)%00%(committerdate:iso-strict)%00%(subject)"
_LAST = re.compile(r"([^/:]+/[^/]+?)(?:\.git)?/?$")


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
    return Checkout(ref, head, committed_at, subject, _worktree(git, local))


def _names(ref: str, branch: str) -> bool:
    """Tell a branch from a longer one that ends alike, which the pattern for remote branches lets through."""
    return ref == f"refs/heads/{branch}" or ref.split("/", 3)[3:] == [branch]


def _is_of(url: str, repo: str) -> bool:
    found = _LAST.search(url.strip())
    return found is not None and found[1].lower() == repo.lower()


def _worktree(git: "_Git", ref: str) -> str | None:
    listed = git.ask("worktree", "list", "--porcelain", "-z") or ""
    for entry in listed.split("\0\0"):
        facts = entry.strip("\0").split("\0")
        if f"branch {ref}" in facts and facts[0].startswith("worktree "):
            return facts[0].removeprefix("worktree ")
    return None


class _Git:
    def __init__(self, directory: str, env: Mapping[str, str]) -> None:
        self._directory = directory
        self._env = {**env, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}

    def ask(self, *words: str) -> str | None:
        """Give what git answers; None where it cannot be asked, fails or takes too long."""
        try:
            asked = subprocess.run(
                ["git", "-C", self._directory, *_QUIET, *words],
                env=self._env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None
        return asked.stdout.decode(errors="replace") if asked.returncode == 0 else None
