"""What a caller types is said back on one line that moves no cursor, by every command and on both streams."""

import re

import pytest

from agentcoord.cli.commands import BY_COMMAND
from tests.cli.line import Line

EVIL = "\x1b[31m\a\r\nred\x9b\x7f"
CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
ASKS_DAEMON = {name for name in BY_COMMAND if name.split(" ")[0] in ("daemon", "lease", "run")}
WORDS = [
    [name.split(" "), f"--{option.name}"]
    for name, command in BY_COMMAND.items()
    for option in command.options
    if name not in ASKS_DAEMON and option.kind != "flag"
]


def shown(line: Line, *argv: str) -> bytes:
    output = line(*argv)
    text = output.stdout + b"".join(f"{said}\n".encode() for said in output.stderr)
    assert CONTROL.search(text) is None, text
    return text


@pytest.fixture
def told(line: Line) -> Line:
    """A state root with a trail of which options may leave nothing."""
    record = {"event_id": "e1", "batch_id": "b1", "type": "note", "at": "2026-01-01T00:00:00Z"}
    line.lay("events/b1/e1.json", record | {"repo": "o/r", "target": "7"})
    line.env["AGENT_COORD_STATE_ROOT"] = str(line.root)
    return line


@pytest.mark.parametrize(("command", "option"), WORDS, ids=lambda word: word if isinstance(word, str) else word[-1])
def test_the_value_of_any_option(told: Line, command: list[str], option: str) -> None:
    shown(told, *command, option, EVIL)


@pytest.mark.parametrize("name", sorted({*BY_COMMAND, "demo"} - ASKS_DAEMON))
def test_a_word_in_any_place(told: Line, name: str) -> None:
    shown(told, *name.split(" "), EVIL)
    shown(told, *name.split(" "), f"--{EVIL}")
    shown(told, *name.split(" ")[:-1], EVIL)


@pytest.mark.parametrize("option", ["--machine", "--host", "--type"])
@pytest.mark.parametrize("form", ["text", "tsv"])
def test_what_left_nothing_of_a_trail(told: Line, option: str, form: str) -> None:
    text = shown(told, "log", option, EVIL, "--format", form)
    assert text == f"no events shown for the current filters ({option} [31m red)\n".encode()
    item = shown(told, "log", "O/R#ISSUE:7", option, "\x1b[1m", "--format", form)
    assert item == f"no events shown for O/R#ISSUE:7 ({option} [1m)\n".encode()


@pytest.mark.parametrize(
    "variable", ["AGENT_COORD_STATE_ROOT", "AGENT_COORD_BACKEND", "AGENT_COORD_API_URL", "AGENT_COORD_ENV_FILE"]
)
def test_a_variable(line: Line, variable: str) -> None:
    line.env[variable] = str(line.directory / EVIL)
    for argv in (["status"], ["log", "--sync"], ["gc", "--execute", "--sync-first"], ["doctor"], ["config", "show"]):
        shown(line, *argv)
