"""Which process is the agent, among those above a command.

A lease lives as long as the agent does, so what is watched must be the agent itself: a shell between it and us ends
long before it, and a terminal multiplexer or an editor above it long after. Processes come in as they were seen, the
nearest first; a choice with its reason goes out.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

Role = Literal["agent", "shell", "launcher", "server", "other"]
"""What a process is to a lease: only an agent, or failing that an `other`, may be watched."""

AGENTS: frozenset[str] = frozenset(
    {
        "aider",
        "amp",
        "auggie",
        "claude",
        "cline",
        "codex",
        "copilot",
        "crush",
        "cursor-agent",
        "droid",
        "gemini",
        "goose",
        "kilocode",
        "kiro-cli",
        "opencode",
        "openhands",
        "plandex",
        "q",
        "qwen",
        "vibe",
    }
)
"""Programs that are coding agents, by the name they run under."""

PACKAGES: Mapping[str, str] = MappingProxyType(
    {
        "@anthropic-ai/claude-code": "claude",
        "@augmentcode/auggie": "auggie",
        "@charmland/crush": "crush",
        "@github/copilot": "copilot",
        "@google/gemini-cli": "gemini",
        "@openai/codex": "codex",
        "@qwen-code/qwen-code": "qwen",
        "@sourcegraph/amp": "amp",
        "aider": "aider",
        "aider_chat": "aider",
        "cursor-agent": "cursor-agent",
        "opencode-ai": "opencode",
        "openhands": "openhands",
    }
)
"""Agents that an interpreter runs, by the package their script lies in or the module that is named."""

SHELLS: frozenset[str] = frozenset(
    {"ash", "bash", "csh", "dash", "elvish", "fish", "ksh", "mksh", "nu", "pwsh", "rbash", "sh", "tcsh", "xonsh", "zsh"}
)

LAUNCHERS: frozenset[str] = frozenset(
    {
        "agent-coord",
        "bunx",
        "bwrap",
        "caffeinate",
        "chroot",
        "chrt",
        "corepack",
        "direnv",
        "doas",
        "env",
        "expect",
        "find",
        "firejail",
        "flock",
        "git",
        "hatch",
        "ionice",
        "just",
        "make",
        "mise",
        "nice",
        "nohup",
        "npm",
        "npx",
        "parallel",
        "pdm",
        "pipenv",
        "pipx",
        "pnpm",
        "pnpx",
        "poetry",
        "rtk",
        "run-parts",
        "sandbox-exec",
        "script",
        "setpriv",
        "setsid",
        "ssh",
        "stdbuf",
        "strace",
        "su",
        "sudo",
        "systemd-run",
        "task",
        "time",
        "timeout",
        "tox",
        "unbuffer",
        "uv",
        "uvx",
        "watch",
        "xargs",
        "yarn",
    }
)
"""Programs that start another and end with it, or before it."""

SERVERS: frozenset[str] = frozenset(
    {
        "abduco",
        "agentcoordd",
        "alacritty",
        "code",
        "code-insiders",
        "code-server",
        "containerd-shim",
        "cron",
        "crond",
        "cursor",
        "dockerd",
        "docker-init",
        "dtach",
        "dumb-init",
        "emacs",
        "foot",
        "ghostty",
        "gnome-terminal-server",
        "idea",
        "init",
        "iterm2",
        "kitty",
        "konsole",
        "launchd",
        "login",
        "mosh-server",
        "node-pty",
        "nvim",
        "pm2",
        "s6-svscan",
        "screen",
        "sshd",
        "supervisord",
        "systemd",
        "terminal",
        "tilix",
        "tini",
        "tmux",
        "vim",
        "wezterm-gui",
        "windsurf",
        "xterm",
        "zed",
        "zellij",
    }
)
"""What many agents share: it outlives each of them, and what is above it says nothing of any."""

INTERPRETERS: frozenset[str] = frozenset({"bun", "deno", "node", "nodejs", "perl", "pypy", "python", "ruby", "tsx"})

_SCRIPT_ENDINGS = (".cjs", ".js", ".mjs", ".py", ".ts")
_COMM_BYTES = 15  # the system cuts a process's own name off here


class Process(Struct, frozen=True):
    """A process as it was seen: its number, its own name, and the words it was started with."""

    pid: int
    name: str
    argv: tuple[str, ...] = ()


class Chosen(Struct, frozen=True):
    """The process to watch, the program it runs, and why it is this one."""

    pid: int
    program: str
    why: str


def role_of(process: Process) -> tuple[Role, str]:
    """Tell what a process is, and the program it runs: an interpreter is what its script is."""
    for program in _names(process):
        if program in AGENTS:
            return "agent", program
        if program in INTERPRETERS:
            return _role_of_script(process, program)
        if program in SERVERS:
            return "server", program
        if program in SHELLS:
            return "shell", program
        if program in LAUNCHERS:
            return "launcher", program
    return "other", next(iter(_names(process)), "?")


def choose(ancestors: Sequence[Process]) -> Chosen | None:
    """Choose the agent among the ancestors of a command, nearest first; None when none may be watched.

    The nearest known agent is taken. Where there is none, it is the nearest program that is no shell, launcher or
    shared server. Nothing is looked for above a shared server.
    """
    other: Chosen | None = None
    passed: list[str] = []
    for process in ancestors:
        role, program = role_of(process)
        if role == "server":
            break
        if role == "agent":
            return Chosen(process.pid, program, f"{program} is the nearest known agent{_past(passed)}")
        if role == "other" and other is None:
            why = f"{program} is the nearest program that is no shell, launcher or shared server{_past(passed)}"
            other = Chosen(process.pid, program, why)
        passed.append(program)
    return other


def refusal(ancestors: Sequence[Process]) -> str:
    """Say that nothing may be watched, what was looked at, and what to do."""
    seen = ", ".join(f"{role_of(process)[1]} ({process.pid})" for process in ancestors) or "nothing"
    return f"no agent among the processes above this command: {seen}; name the one to watch with --watch-pid"


def _past(passed: Sequence[str]) -> str:
    return f", past {', '.join(passed)}" if passed else ""


def _names(process: Process) -> Sequence[str]:
    """The names a process goes by: what it calls itself, then what it was started as."""
    own = _plain(process.name)
    started = _plain(process.argv[0]) if process.argv else ""
    if own and started.startswith(own) and len(own.encode()) >= _COMM_BYTES:
        return (started,)
    # A name with a colon is a title, such as "tmux: server" or "sshd: user@pts/0".
    return tuple(dict.fromkeys(name for name in (own, started) if name))


def _plain(word: str) -> str:
    """The program a word names: no directory, title, leading dash of a login shell or version of an interpreter."""
    program = word.split(":", 1)[0].strip().rpartition("/")[2].removeprefix("-").lower()
    program = program.removesuffix(".exe")
    stripped = program.rstrip("0123456789.")
    return stripped if stripped in INTERPRETERS else program


def _role_of_script(process: Process, interpreter: str) -> tuple[Role, str]:
    words = process.argv[1:]
    if "-m" in words[:-1]:
        script = words[words.index("-m") + 1]
        program = PACKAGES.get(script.split(".")[0], script)
    else:
        script = next((word for word in words if not word.startswith("-")), "")
        if not script or any(word in ("-c", "-e", "--eval", "-p") for word in words[: words.index(script)]):
            return "launcher", interpreter  # a line of code: it starts something, or is gone in a moment
        program = _package(script) or _plain(script)
        for ending in _SCRIPT_ENDINGS:
            program = program.removesuffix(ending)
    if program in AGENTS:
        return "agent", program
    if program in SERVERS:
        return "server", program
    if program in LAUNCHERS or program in ("npm-cli", "npx-cli", "agentcoord"):
        return "launcher", program
    return "other", program or interpreter


def _package(script: str) -> str | None:
    """The agent whose package a script lies in, by the directories of its path."""
    parts = script.split("/")
    installed = "site-packages" in parts or "node_modules" in parts
    for at in range(len(parts) - 1, -1, -1):
        for name in ("/".join(parts[at : at + 2]), parts[at]):
            if (name.startswith("@") or installed) and name in PACKAGES:
                return PACKAGES[name]
    return None
