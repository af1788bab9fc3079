"""What may stand next on a command line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.cli.commands import COMMANDS
from agentcoord.cli.completion import MOST, complete, script
from agentcoord.cli.options import OPTIONS, Option
from agentcoord.cli.output import Invocation
from agentcoord.protocol.statuses import CANONICAL
from agentcoord.stores.local import LocalStore
from tests.cli.line import Line, nothing
from tests.operations.stage import Chance, FakeClock


@pytest.fixture
def fleet(line: Line) -> Line:
    """A state root whose records are empty but for one batch: only their names are looked at."""
    line.env["AGENT_COORD_STATE_ROOT"] = str(line.root)
    for claim in ("acme/site/issue:42", "acme/site/issue:57", "acme/site/adhoc:tidy", "acme/tool/9", "beta/x/1"):
        line.lay(f"claims/{claim}.json", b"")
    for agent in ("worker-a", "worker-b", "planner:1"):
        line.lay(f"heartbeats/{agent}.json", b"")
    lanes = [{"name": "build", "owner": "worker-a"}, {"name": "test", "owner": "worker-b"}, "no lane"]
    line.lay("batches/spring.json", {"batch_id": "spring", "lanes": lanes})
    line.lay("batches/broken.json", b"{")
    return line


def offered(line: Line, *words: str, of: str = "bash", at: int | None = None) -> list[str]:
    """Give the candidates for the last of the words, or for the one at a place."""
    output = line("__complete", of, str(len(words) - 1 if at is None else at), *words)
    assert (output.exit, output.stderr) == (0, [])
    return output.stdout.decode().splitlines()


class TestGrammar:
    def test_commands(self, line: Line) -> None:
        assert offered(line, "") == [command.name for command in COMMANDS if not command.hidden]
        assert offered(line, "re") == ["release", "register-batch", "record-event", "resume"]
        assert offered(line) == []  # no word is asked for
        assert offered(line, at=0) == offered(line, "")

    def test_meanings_are_for_shells_that_show_them(self, line: Line) -> None:
        (candidate,) = offered(line, "cl", of="zsh")
        assert candidate == "claim\tTake a work item for an agent, or go on holding it"
        assert offered(line, "cl", of="fish") == [candidate]
        assert offered(line, "cl") == ["claim"]
        assert offered(line, "ve") == ["verify", "version"]

    def test_options_of_a_command_come_before_those_of_all(self, line: Line) -> None:
        options = offered(line, "status", "--")
        assert options[:3] == ["--repo", "--target", "--batch-id"]
        assert "--explain" not in options
        assert offered(line, "doctor", "--e") == ["--explain"]
        assert options[-2:] == ["--json", "--help"]
        assert "--ttl" not in options

    def test_options_are_offered_where_nothing_is_typed_yet(self, line: Line) -> None:
        assert offered(line, "batch-audit", "")[0] == "--batch-id"

    def test_an_option_is_given_once(self, line: Line) -> None:
        assert "--repo" not in offered(line, "status", "--repo", "a/b", "--")
        assert "--repo" not in offered(line, "status", "--", "--repo", "a/b", at=1)
        assert "--repo" in offered(line, "status", "--rep")
        assert "--prefix" in offered(line, "gc", "--prefix", "claims", "--")

    def test_commands_without_a_backend_choose_none(self, line: Line) -> None:
        assert offered(line, "demo", "--") == ["--help"]
        assert offered(line, "version", "--") == ["--json", "--help"]
        assert offered(line, "config", "set", "--") == [
            "--api-url",
            "--token-stdin",
            "--machine-id",
            "--policy",
            "--json",
            "--help",
        ]

    def test_words_that_are_no_options(self, line: Line) -> None:
        assert offered(line, "config", "s") == ["show", "set"]
        assert offered(line, "config", "show", "s") == []
        assert offered(line, "completion", "") == ["bash", "zsh", "fish", "--help"]
        assert offered(line, "completion", "bash", "z") == []

    def test_choices(self, line: Line) -> None:
        assert offered(line, "release", "--terminal", "") == ["done", "abandoned", "superseded"]
        assert offered(line, "config", "set", "--policy", "re") == ["required"]
        assert offered(line, "heartbeat", "--status", "") == list(CANONICAL)
        assert offered(line, "record-event", "--type", "claim.") == ["claim.acquired", "claim.released"]

    def test_a_value_behind_an_equals_sign(self, line: Line) -> None:
        assert offered(line, "heartbeat", "--status=me") == ["--status=merged"]
        assert offered(line, "heartbeat", "--json=") == []
        assert offered(line, "heartbeat", "--nonsense=") == []

    def test_nothing_where_a_value_of_ones_own_is_due(self, line: Line) -> None:
        assert offered(line, "claim", "--branch", "") == []
        assert offered(line, "run", "--on-exit", "") == ["release", "done", "keep"]
        assert offered(line, "run", "--su") == ["--supersede"]
        assert offered(line, "run", "--repo", "acme/site", "--", "--") == []
        assert offered(line, "claim", "--ttl", "") == []

    def test_nothing_after_the_end_of_options(self, line: Line) -> None:
        assert offered(line, "status", "--", "") == []

    @pytest.mark.parametrize("option", [option for option in OPTIONS if option.kind == "path"], ids=lambda o: o.name)
    def test_files_are_left_to_the_shell(self, fleet: Line, option: Option) -> None:
        (command, *_) = (command.name for command in COMMANDS if not option.commands or command.name in option.commands)
        assert offered(fleet, command, f"--{option.name}", "") == []
        assert all(f"--{option.name}" in script(shell) for shell in ("bash", "zsh", "fish"))


class TestValues:
    def test_repositories(self, fleet: Line) -> None:
        assert offered(fleet, "status", "--repo", "") == ["acme/site", "acme/tool", "beta/x"]
        assert offered(fleet, "status", "--repo=acme/s") == ["--repo=acme/site"]

    def test_targets_of_the_repository_on_the_line(self, fleet: Line) -> None:
        assert offered(fleet, "claim", "--repo", "acme/site", "--target", "issue:") == ["issue:42", "issue:57"]
        assert offered(fleet, "claim", "--repo=acme/tool", "--target=") == ["--target=9"]
        assert offered(fleet, "claim", "--target", "", "--repo", "acme/tool", at=2) == ["9"]
        assert offered(fleet, "claim", "--target", "") == ["1", "9", "adhoc:tidy", "issue:42", "issue:57"]

    def test_agents(self, fleet: Line) -> None:
        assert offered(fleet, "claim", "--agent-id", "worker") == ["worker-a", "worker-b"]
        assert offered(fleet, "release", "--handoff-to", "planner:") == ["planner:1"]

    def test_batches_and_their_lanes(self, fleet: Line) -> None:
        assert offered(fleet, "record-event", "--batch-id", "") == ["broken", "spring"]
        assert offered(fleet, "record-event", "--batch-id", "spring", "--lane", "") == ["build", "test"]
        assert offered(fleet, "record-event", "--batch-id", "broken", "--lane", "") == []
        assert offered(fleet, "record-event", "--batch-id", "missing", "--lane", "") == []
        assert offered(fleet, "record-event", "--lane", "") == []

    def test_requests_for_attention(self, fleet: Line) -> None:
        for path in ("w/acme/site/a-1", "w/acme/site/a-2", "w/acme/site/b-1", "w/acme/tool/a-3", "v/acme/site/a-4"):
            fleet.lay(f"attention/{path}.json", b"")
        asked = ("attention-get", "--workspace", "w", "--repo", "acme/site", "--attention-id")
        assert offered(fleet, *asked, "a") == ["a-1", "a-2"]
        assert offered(fleet, "attention-resolve", *asked[1:], "") == ["a-1", "a-2", "b-1"]
        assert offered(fleet, *asked[:3], asked[-1], "") == []
        assert offered(fleet, "attention-get", *asked[3:], "") == []
        assert offered(fleet, "attention-get", "--workspace", "../x", "--repo", "acme/site", asked[-1], "") == []

    def test_work_items(self, fleet: Line) -> None:
        assert offered(fleet, "log", "acme/site#issue:4") == ["acme/site#issue:42"]

    def test_quotes_are_no_part_of_a_value(self, fleet: Line) -> None:
        assert offered(fleet, "claim", "--repo", "'acme/site'", "--target", '"issue:4') == ["issue:42"]
        assert offered(fleet, "claim", "--repo", "acme\\/t") == ["acme/tool"]

    def test_names_that_need_quotes_are_not_offered(self, fleet: Line) -> None:
        for name in ("$(touch x)", "a b", "new\nline", "`x`", "a;b", "\033[31m", "worker-c"):
            fleet.lay(f"heartbeats/{name}.json", b"")
        assert offered(fleet, "claim", "--agent-id", "") == ["planner:1", "worker-a", "worker-b", "worker-c"]

    def test_the_state_root_on_the_line(self, fleet: Line) -> None:
        root = fleet.env.pop("AGENT_COORD_STATE_ROOT")
        assert offered(fleet, "status", "--repo", "") == []
        for chosen in (["--state-root", root], ["--state-root=state"], ["--state-root", root, "--ignore-user-config"]):
            assert offered(fleet, "status", *chosen, "--repo", "beta") == ["beta/x"]
        fleet.root.rename(fleet.directory / "home")
        assert offered(fleet, "status", "--state-root", "~", "--repo", "beta") == ["beta/x"]

    def test_another_backend_is_left_alone(self, fleet: Line) -> None:
        assert offered(fleet, "status", "--api-url", "http://127.0.0.1:1", "--repo", "") == []
        assert offered(fleet, "status", "--backend", "acme/state", "--repo", "") == []

    def test_faults_of_the_surroundings_are_silence(self, fleet: Line) -> None:
        assert offered(fleet, "claim", "--repo", "../..", "--target", "") == []
        assert offered(fleet, "claim", "--repo", "a\0b", "--target", "") == []
        fleet.env["AGENT_COORD_ENV_FILE"] = "/nowhere/at/all"
        assert offered(fleet, "claim", "--repo", "") == []
        fleet.env = {}
        assert offered(fleet, "claim", "--repo", "") == []

    def test_a_broken_tree_has_no_candidates(self, fleet: Line) -> None:
        (fleet.root / "claims/acme/elsewhere").symlink_to(fleet.directory)
        assert offered(fleet, "claim", "--repo", "") == []

    def test_candidates_are_limited(self, fleet: Line) -> None:
        for number in range(MOST + 50):
            fleet.lay(f"heartbeats/many-{number:04}.json", b"")
        assert len(offered(fleet, "claim", "--agent-id", "many")) == MOST
        assert offered(fleet, "claim", "--agent-id", "many-0549") == ["many-0549"]


def test_names_come_without_their_records(tmp_path: Path) -> None:
    for name in ("a/b/1", "a/b/2", "a/c/3"):
        (tmp_path / "claims" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "claims" / f"{name}.json").touch(mode=0o000)
    store = LocalStore(str(tmp_path))
    assert store.names("claims") == ["claims/a/b/1.json", "claims/a/b/2.json", "claims/a/c/3.json"]
    assert store.names("claims", starting="claims/a/c") == ["claims/a/c/3.json"]
    assert store.names("claims", limit=1) == ["claims/a/b/1.json"]
    assert store.names("heartbeats") == []


@pytest.mark.parametrize("rest", [[], ["bash"], ["bash", "x"], ["bash", "-1", "claim"], ["tcsh", "0", ""]])
def test_nonsense_is_answered_with_nothing(line: Line, rest: list[str]) -> None:
    output = line("__complete", *rest)
    assert (output.exit, output.stdout, output.stderr) == (0, b"", [])


WORDS = st.one_of(
    st.sampled_from([command.name for command in COMMANDS] + [f"--{option.name}" for option in OPTIONS]),
    st.sampled_from(["--", "-", "--r", "=", "--repo=", "'", '"', "\\", "\udcff", "../..", "a/b"]),
    st.text(max_size=5),
)


@given(st.lists(WORDS, max_size=5), st.integers(0, 6), st.sampled_from(["bash", "zsh", "fish"]))
def test_any_line_has_an_answer(words: list[str], index: int, shell: str) -> None:
    invocation = Invocation(
        argv=(),
        env={"AGENT_COORD_STATE_ROOT": "/nonexistent"},
        cwd="/",
        now=FakeClock().now,
        random=Chance(),
        read_file=nothing,
        stdin=nothing,
    )
    current = words[index] if index < len(words) else ""
    for candidate in complete([shell, str(index), *words], invocation).decode().splitlines():
        if not any(sign in current for sign in "\"'\\"):
            assert candidate.startswith(current)


def test_completion_does_not_load_what_only_commands_need() -> None:
    program = (
        "import sys; from agentcoord.__main__ import main; main(['__complete', 'bash', '2', 'claim', '--repo', '']);"
        "sys.exit(any(name in sys.modules for name in ('typer', 'asyncio', 'json', 'shlex')))"
    )
    ran = subprocess.run([sys.executable, "-c", program], env={"HOME": "/nonexistent", "PATH": os.defpath}, check=False)
    assert ran.returncode == 0
