"""Which process is taken for the agent: a table of what stands above real commands."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.agents import AGENTS, LAUNCHERS, PACKAGES, SERVERS, SHELLS, Process, choose, refusal, role_of

ROOT = Path(__file__).parents[2]


def chain(*commands: str) -> list[Process]:
    """Processes from the nearest up, each as `name: words` or its words alone."""
    seen: list[Process] = []
    for pid, command in enumerate(commands, 100):
        words = command.split()
        seen.append(Process(pid, words[0].rpartition("/")[2][:15], tuple(words)))
    return seen


@pytest.mark.parametrize(
    ("commands", "pid", "program"),
    [
        (["/bin/bash -c agent-coord", "claude", "-zsh", "tmux: server", "/sbin/init"], 101, "claude"),
        (["sh -c x", "node /usr/lib/node_modules/@anthropic-ai/claude-code/cli.js", "bash"], 101, "claude"),
        (["bash -lc x", "/opt/codex/codex exec", "node /opt/node_modules/@openai/codex/bin/codex.js"], 101, "codex"),
        (["zsh", "timeout 60 x", "python3 /home/x/.local/bin/aider --yes", "fish"], 102, "aider"),
        (["sh", "python3.12 -m aider --model x", "bash"], 101, "aider"),
        (["sh", "node --no-warnings /home/u/.nvm/lib/node_modules/@google/gemini-cli/dist/index.js"], 101, "gemini"),
        (["bash", "opencode", "bun run dev"], 101, "opencode"),
        (["bash", "goose session"], 101, "goose"),
        (["bash", "cursor-agent", "cursor"], 101, "cursor-agent"),
        (["make agents", "uv run x", "sudo -u me env", "amp"], 103, "amp"),
        (["bash", "my-build", "claude"], 102, "claude"),  # a tool that the agent runs is not the agent
        (["bash", "codex", "bash", "claude"], 101, "codex"),  # one agent started another
        (["bash", "python3 my_agent.py", "bash", "sshd: me@pts/0"], 101, "my_agent"),
        (["xargs", "agent-coord run --repo r", "worker", "systemd"], 102, "worker"),
    ],
)
def test_the_nearest_agent_is_chosen(commands: list[str], pid: int, program: str) -> None:
    found = choose(chain(*commands))
    assert found is not None
    assert (found.pid, found.program) == (pid, program)
    assert program in found.why


@pytest.mark.parametrize(
    "commands",
    [
        [],
        ["bash", "sshd: me@pts/0", "sshd: /usr/sbin/sshd", "systemd"],
        ["-zsh", "tmux: server", "claude"],  # what started the server long ago is nobody's parent here
        ["sh", "npm exec x", "node /usr/bin/npx x", "screen", "init"],
        ["bash", "code --type=utility", "claude"],
        ["bash", "cron -f"],
        ["python3 -c pass", "systemd"],
    ],
)
def test_none_is_chosen_where_all_are_shells_launchers_or_shared(commands: list[str]) -> None:
    assert choose(chain(*commands)) is None
    assert "--watch-pid" in refusal(chain(*commands))


def test_a_reason_names_what_was_passed() -> None:
    found = choose(chain("/bin/sh -c x", "timeout 5 x", "claude"))
    assert found is not None
    assert found.why == "claude is the nearest known agent, past sh, timeout"


@given(st.lists(st.sampled_from(sorted(SHELLS | LAUNCHERS)), max_size=6), st.sampled_from(sorted(AGENTS)))
def test_no_shell_or_launcher_hides_an_agent(between: list[str], agent: str) -> None:
    found = choose(chain(*between, agent, "systemd"))
    assert found is not None
    assert found.program == agent


@given(st.lists(st.text(min_size=1, max_size=20), max_size=5), st.text(max_size=15))
def test_no_words_are_too_strange(argv: list[str], name: str) -> None:
    role, _ = role_of(Process(1, name, tuple(argv)))
    assert role in ("agent", "shell", "launcher", "server", "other")


def test_a_program_is_one_thing() -> None:
    kinds = [AGENTS, SHELLS, LAUNCHERS, SERVERS]
    for at, kind in enumerate(kinds):
        for other in kinds[at + 1 :]:
            assert not kind & other
    assert set(PACKAGES.values()) <= AGENTS


def test_the_table_in_the_docs_is_the_one_in_the_code() -> None:
    page = (ROOT / "docs" / "keeping.md").read_text(encoding="utf-8")
    for kind in (AGENTS, SHELLS, LAUNCHERS, SERVERS):
        assert ", ".join(f"`{name}`" for name in sorted(kind)) in page
