"""Completion in the shells themselves: sourced, asked, and typed at."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import PATIENCE, Coord
from tests.terminal import on_terminal

BIN = Path(sys.executable).parent


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.fixture
def fleet(coord: Coord) -> Coord:
    claims = ("acme/site/issue:42", "acme/site/issue:57", "acme/site/adhoc:tidy", "acme/tool/9")
    for path in (*(f"claims/{claim}" for claim in claims), "heartbeats/worker:1"):
        record = coord.state / f"{path}.json"
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text("{}")  # completion asks for names alone
    coord.env |= {"PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "xterm"}
    return coord


def answer(coord: Coord, *argv: str) -> list[str]:
    ran = subprocess.run(
        argv, cwd=coord.work, env=coord.env, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


# bash, which hands over words in pieces and replaces the last of them --------------------------------------

ASK_BASH = """
set -u
source <(agent-coord completion bash)
COMP_CWORD=$1 COMP_LINE=$2
shift 2
COMP_WORDS=("$@")
_agent_coord
((${#COMPREPLY[@]} == 0)) || printf '%s\\n' "${COMPREPLY[@]}"
"""


def bash(coord: Coord, *words: str, line: str = "", at: int | None = None) -> list[str]:
    index = len(words) if at is None else at
    return answer(coord, "bash", "-c", ASK_BASH, "bash", str(index), line, "agent-coord", *words)


@needs("bash")
class TestBash:
    def test_commands(self, fleet: Coord) -> None:
        assert bash(fleet, "re") == ["release", "register-batch", "record-event", "resume"]

    def test_a_value_in_one_piece(self, fleet: Coord) -> None:
        assert bash(fleet, "claim", "--repo", "acme/t") == ["acme/tool"]

    @pytest.mark.parametrize("line", ["", "agent-coord status --target issue:4"])
    def test_a_value_cut_at_its_colon(self, fleet: Coord, line: str) -> None:
        assert bash(fleet, "status", "--target", "issue", ":", "4", line=line) == ["42"]

    def test_a_value_that_ends_at_its_colon(self, fleet: Coord) -> None:
        assert bash(fleet, "status", "--target", "issue", ":") == ["42", "57"]

    @pytest.mark.parametrize("line", ["", "agent-coord status --target=issue:5"])
    def test_a_value_behind_its_equals_sign(self, fleet: Coord, line: str) -> None:
        assert bash(fleet, "status", "--target", "=", "issue", ":", "5", line=line) == ["57"]

    def test_nothing_but_the_equals_sign(self, fleet: Coord) -> None:
        assert bash(fleet, "status", "--repo", "=") == ["acme/site", "acme/tool"]

    def test_a_value_in_quotes(self, fleet: Coord) -> None:
        assert bash(fleet, "status", "--target", '"issue:4') == ["issue:42"]

    def test_a_repository_given_in_pieces(self, fleet: Coord) -> None:
        assert bash(fleet, "status", "--repo", "=", "acme/tool", "--target", "") == ["9"]

    def test_the_word_under_the_cursor_and_not_the_last(self, fleet: Coord) -> None:
        assert bash(fleet, "status", "--target", "", "--repo", "acme/tool", at=3) == ["9"]

    def test_a_colon_of_its_own_is_no_part_of_its_neighbours(self, fleet: Coord) -> None:
        line = "agent-coord status : --repo acme/t"
        assert bash(fleet, "status", ":", "--repo", "acme/t", line=line) == ["acme/tool"]

    def test_files_are_left_to_the_shell(self, fleet: Coord) -> None:
        (fleet.work / "manifest.json").touch()
        assert bash(fleet, "register-batch", "--file", "man") == []

    def test_silence_without_the_command(self, fleet: Coord) -> None:
        source = ASK_BASH.replace("_agent_coord\n", "PATH=/nowhere\n_agent_coord\n")
        assert answer(fleet, "bash", "-c", source, "bash", "1", "", "agent-coord", "cl") == []


# A person at the keyboard ----------------------------------------------------------------------------------


TYPED = [
    ("status --target=adhoc:", "status --target=adhoc:tidy"),
    ("status --target adh", "status --target adhoc:tidy"),
    ("claim --agent-id worker:", "claim --agent-id worker:1"),
    ("status --target=issue:4", "status --target=issue:42"),
    ("register-batch --file=man", "register-batch --file=manifest.json"),
    ("register-batch --file man", "register-batch --file manifest.json"),
]
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ""),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -D -u; "),
}


@pytest.mark.parametrize("shell", [pytest.param(shell, marks=needs(shell)) for shell in SHELLS])
def test_typed_with_a_tab(fleet: Coord, shell: str) -> None:
    (fleet.work / "manifest.json").touch()
    argv, prepare = SHELLS[shell]
    with on_terminal(argv, env={**fleet.env, "PS1": "ready> "}, cwd=fleet.work, columns=200) as screen:
        screen.until("ready> ")
        screen.type(f"{prepare}source <(agent-coord completion {shell})\n")
        # Completion asks the command itself, and only what is entered goes to this function.
        screen.type('agent-coord() { echo "entered<$*>"; }; PS1="go"; PS1+="> "\n')
        screen.until("go> ")
        for begun, completed in TYPED:
            screen.type(f"agent-coord {begun}\t\n")
            screen.until(f"entered<{completed}>")


# zsh and fish, asked directly ------------------------------------------------------------------------------


ASK_ZSH = """
compset() { : }
_files() { print -r -- files }
compadd() { while [[ $1 != -a ]]; do [[ $1 == -d ]] && print -rl -- "${(@P)2}"; shift; done; print -rl -- "${(@P)2}" }
words=("$@") CURRENT=$#
source <(agent-coord completion zsh)
_agent_coord || true
"""


def zsh(coord: Coord, *words: str) -> list[str]:
    return answer(coord, "zsh", "-f", "-c", ASK_ZSH, "zsh", "agent-coord", *words)


@needs("zsh")
class TestZsh:
    def test_commands_with_their_meaning(self, fleet: Coord) -> None:
        assert zsh(fleet, "cl") == ["claim  -- Take a work item for an agent, or go on holding it", "claim"]

    def test_values_with_colons(self, fleet: Coord) -> None:
        assert zsh(fleet, "status", "--target=iss") == ["--target=issue:42", "--target=issue:57"]
        assert zsh(fleet, "status", "--target", "issue:4") == ["issue:42"]

    def test_files_are_left_to_the_shell(self, fleet: Coord) -> None:
        assert zsh(fleet, "register-batch", "--file", "man") == ["files"]
        assert zsh(fleet, "register-batch", "--file=man") == ["files"]

    def test_nothing_to_offer(self, fleet: Coord) -> None:
        assert zsh(fleet, "nonsense", "") == []


def fish(coord: Coord, line: str) -> list[str]:
    return answer(coord, "fish", "--no-config", "-c", f"agent-coord completion fish | source; complete -C '{line}'")


@needs("fish")
class TestFish:
    def test_commands_with_their_meaning(self, fleet: Coord) -> None:
        assert fish(fleet, "agent-coord cl") == ["claim\tTake a work item for an agent, or go on holding it"]

    def test_values_with_colons(self, fleet: Coord) -> None:
        assert fish(fleet, "agent-coord status --target=iss") == ["--target=issue:42", "--target=issue:57"]
        assert fish(fleet, "agent-coord status --target issue:4") == ["issue:42"]

    def test_options(self, fleet: Coord) -> None:
        assert "--batch-id\tBatch the work belongs to" in fish(fleet, "agent-coord status --")

    def test_files_are_left_to_the_shell(self, fleet: Coord) -> None:
        (fleet.work / "manifest.json").touch()
        assert fish(fleet, "agent-coord register-batch --file man") == ["manifest.json"]
        assert fish(fleet, "agent-coord register-batch --file=man") == ["--file=manifest.json"]
        assert fish(fleet, "agent-coord claim --branch man") == []
