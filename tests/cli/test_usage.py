"""Wrong invocations: one clear line, the right exit status, and nothing made anywhere."""

import os
from typing import Any

import pytest

from agentcoord.cli.commands import COMMANDS
from tests.cli.line import Line

ITEM = ["--agent-id", "a", "--repo", "o/r", "--target", "7"]
CLOSE = ["record-event", "--batch-id", "b", "--type", "lane_closed"]


def refused(line: Line, *argv: str, exit_: int = 1) -> str:
    """Run what must fail, and give its last line."""
    before = line.tree()
    output = line(*argv)
    assert output.exit == exit_
    assert output.stdout == b""
    assert line.tree() == before, "nothing is written, no directory is made"
    return output.stderr[-1]


@pytest.mark.parametrize(
    ("argv", "fault"),
    [
        (["foo"], "unknown command: foo"),
        (["Claim"], "unknown command: Claim"),
        (["claim ", "x"], "unknown command: claim "),
        (["config set"], "unknown command: config set"),
        (["config-set"], "unknown command: config-set"),
        (["--json"], "unknown command: --json"),
        ([""], "unknown command: "),
        ([os.fsdecode(b"\xff")], "command-line argument must be valid UTF-8: �"),
        (["config", "shew"], "unexpected arguments: shew"),
        (["config", "--json", "set"], "unexpected arguments: set"),
        (["claim", "a", "b"], "unexpected arguments: a b"),
        (["status", "--", "--json"], "unexpected arguments: --json"),
        (["demo", "now"], "unexpected arguments: now"),
        (["demo", "--json"], "unexpected arguments: --json"),
        (["demo", "--ignore-user-config"], "unexpected arguments: --ignore-user-config"),
        (["version", "x"], "unexpected arguments: x"),
        (["claim", "--bogus"], "invalid option: --bogus"),
        (["claim", "--ttl", "abc"], "invalid argument: --ttl abc"),
        (["claim", "--deep"], "--deep is only valid for doctor"),
        (["claim", "--explain"], "--explain is only valid for doctor"),
        (["status", "--expl"], "--explain is only valid for doctor"),
        (["doctor", "--explain=yes"], "needless argument: --explain=yes"),
        (["claim", *ITEM, "--state-root", ""], "--state-root requires a non-empty value"),
        (["claim", *ITEM, "--state-root", "  "], "--state-root requires a non-empty value"),
        (["status", "--api-url="], "--api-url requires a non-empty value"),
        (["status", "--backend", "\t"], "--backend requires a non-empty value"),
        (["status", "--ref", ""], "--ref requires a non-empty value"),
        (["claim", "--launch-prompt", "x"], "--launch-prompt is only valid for register-batch"),
        (["claim", *ITEM, "--terminal", "done"], "--terminal is only valid with terminal closeout"),
        (["heartbeat", "--workspace", "w", "--pr-state", "x"], "--pr-state is only valid with terminal closeout"),
        (["status", "--workspace", ""], "--workspace is only valid with terminal closeout"),
        (["release", *ITEM, "--pr-state", "x"], "--pr-state requires --terminal"),
        (["release", *ITEM, "--workspace", "x", "--evidence-url", "y"], "--evidence-url requires --terminal"),
        (["release", *ITEM, "--workspace", "x", "--terminal", ""], "--workspace requires --terminal"),
        (
            ["record-event", "--batch-id", "b", "--type", "note", "--terminal", "done"],
            "terminal-only options require --type lane_closed",
        ),
        (
            ["record-event", "--batch-id", "b", "--workspace", "w"],
            "terminal-only options require --type lane_closed",
        ),
        (
            ["attention-upsert", "--repo", "o/r"],
            "--repo is not valid for attention-upsert; repo comes from --record-json",
        ),
        (
            ["attention-upsert", "--target", "7", "--workspace", "w"],
            "--workspace is not valid for attention-upsert; workspace comes from --record-json",
        ),
        (["attention-upsert", "--terminal", "done"], "--terminal is only valid with terminal closeout"),
        (["config", "set", "--state-root", "x"], "--state-root is not valid for config set"),
        (["config", "set", "--backend", "o/r"], "--backend is not valid for config set"),
        (["config", "set", "--ref", "x"], "--ref is not valid for config set"),
        (["config", "set", "--policy", "x"], "invalid argument: --policy x"),
        (["status", "--ignore-user-config"], ...),
        (["status", "--ignore-user-config", "--state-root", "a", "--state-root=b"], ...),
        (["status", "--ignore-user-config", "--state-root", "a", "--api-url", "b"], ...),
        (
            ["version", "--ignore-user-config", "--state-root", "x"],
            "--ignore-user-config is only valid for commands that select or report a coordination backend",
        ),
        (["doctor", "--json", "--stack-json", "--bogus"], None),
    ],
)
def test_a_wrong_invocation_is_a_usage_error_before_anything_is_chosen(line: Line, argv: list[str], fault: Any) -> None:
    line.env["AGENT_COORD_STATE_ROOT"] = str(line.root)
    said = refused(line, *argv, exit_=64 if fault is None else 1)
    if fault is ...:
        assert said == (
            "--ignore-user-config requires exactly one explicit backend selector: --state-root, --api-url, or --backend"
        )
    elif fault is not None:
        assert said == fault


@pytest.mark.parametrize(
    ("argv", "fault"),
    [
        (["claim"], "missing required --agent-id"),
        (["claim", "--agent-id", ""], "missing required --agent-id"),
        (["claim", "--agent-id", "a"], "missing required --repo"),
        (["claim", "--agent-id", "a", "--repo", "o/r"], "missing required --target"),
        (["release", "--target", "7"], "missing required --agent-id"),
        (["heartbeat"], "missing required --agent-id"),
        (["register-batch"], "missing required --file"),
        (["record-event"], "missing required --batch-id"),
        (["record-event", "--batch-id", "b"], "missing required --type"),
        (CLOSE, "missing required --terminal"),
        ([*CLOSE, "--terminal", "done"], "missing required --agent-id"),
        ([*CLOSE, "--terminal", "done", "--agent-id", "a"], "missing required --repo"),
        ([*CLOSE, "--terminal", "done", "--agent-id", "a", "--repo", "o/r"], "missing required --target"),
        ([*CLOSE, "--terminal", "gone", *ITEM], "--terminal must be one of: done, abandoned, superseded"),
        ([*CLOSE, "--terminal", "done", *ITEM, "--host", " "], "--host must not be empty for terminal closeout"),
        ([*CLOSE, "--terminal", "done", *ITEM], "batch b not found for terminal closeout"),
        ([*CLOSE, "--terminal", "done", *ITEM, "--lane", ""], "--lane must not be empty"),
        ([*CLOSE, "--terminal", "done", *ITEM, "--lane", "a:b"], "event lane a:b cannot contain ':'"),
        (["record-event", "--batch-id", "a/b", "--type", "lane_closed"], "invalid batch-id: a/b"),
        (["batch-audit"], "missing required --batch-id"),
        (["batch-audit", "--batch-id", ""], "missing required --batch-id"),
        (["status", "--repo", "o/r"], "missing required --target"),
        (["status", "--target", "7"], "missing required --repo"),
        (["status", "--batch-id", "b", "--repo", "o/r"], "--batch-id cannot be combined with --repo or --target"),
        (["status", "--include-archived", "--batch-id", "b"], "--include-archived is only valid for unscoped status"),
        (["claim", *ITEM, "--ttl", "0"], "--ttl must be positive"),
        (["claim", *ITEM, "--ttl=-010"], "--ttl must be positive"),
        (["claim", *ITEM, "--repo", "nowhere"], "invalid target repo: nowhere"),
        (["claim", *ITEM, "--target", "a/b"], "invalid target: a/b"),
        (["claim", *ITEM, "--repo", "../r"], "unsafe state path: claims/../r/7.json"),
        (["heartbeat", "--agent-id", "a/b"], "invalid agent-id: a/b"),
        (["heartbeat", "--agent-id", "a", "--ttl", "0"], "--ttl must be positive"),
        (["release", *ITEM], "no claim exists for o/r#7"),
        (["release", *ITEM, "--terminal", "x"], "--terminal must be one of: done, abandoned, superseded"),
        (["record-event", "--batch-id", "a/b", "--type", "t"], "invalid batch-id: a/b"),
        (["record-event", "--batch-id", "b", "--type", "help_requested"], "missing required --reason"),
        (["doctor", "--doctor-prefix", "../x"], "unsafe state path: ../x"),
        (["doctor", "--doctor-prefix", ""], "unsafe state path: ''"),
    ],
)
def test_what_the_options_ask_for_is_checked_before_anything_is_written(
    line: Line, argv: list[str], fault: str
) -> None:
    assert refused(line, *argv, "--state-root", str(line.root)) == fault


def test_with_nothing_configured_the_notice_comes_first_and_nothing_is_made(line: Line) -> None:
    output = line("claim")
    assert output.stderr == [
        f"notice: local mode — single-machine only; state root: {line.home}/.local/state/agent-coordination",
        "missing required --agent-id",
    ]
    assert output.exit == 1
    assert line.tree() == {}


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ([], "doctor --stack-json requires exactly one of --state-root, --api-url, or --backend"),
        (
            ["--state-root", "a", "--state-root", "b"],
            "doctor --stack-json requires exactly one of --state-root, --api-url, or --backend",
        ),
        (["--state-root", "a", "--json"], "doctor --json and --stack-json are mutually exclusive"),
        (["--state-root", "a", "--explain"], "doctor --explain and --stack-json are mutually exclusive"),
        (["--state-root", ""], "--state-root requires a non-empty value"),
        (["--state-root", "a", "b"], "unexpected arguments: b"),
        (["--state-root", "a", "--bogus"], "invalid option: --bogus"),
        (["--state-root"], "missing argument: --state-root"),
        (["--state-root", "a", "--doctor-prefix", "x"], "unknown doctor prefix family: x"),
        (["--state-root", "a", "--doctor-prefix", "claims/a/b/c"], "invalid doctor prefix shape: claims/a/b/c"),
        (["--state-root", "a", "--doctor-prefix", "../x"], "unsafe state path: ../x"),
        (["--state-root", "a", "--launch-prompt", "x"], "--launch-prompt is only valid for register-batch"),
        (["--state-root", "a", "--terminal", "x"], "--terminal is only valid with terminal closeout"),
        (["--state-root", "a", os.fsdecode(b"\xff")], "command-line argument must be valid UTF-8: �"),
        (["--backend", "nowhere"], None),
    ],
)
def test_usage_errors_of_the_stack_report_have_a_status_of_their_own(
    line: Line, options: list[str], fault: str | None
) -> None:
    said = refused(line, "doctor", "--stack-json", *options, exit_=64)
    assert fault is None or said == fault


@pytest.mark.parametrize("command", [command.name.split(" ") for command in COMMANDS], ids=" ".join)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_needs_no_configuration(line: Line, command: list[str], flag: str) -> None:
    line.env |= {"AGENT_COORD_ENV_FILE": "relative", "AGENT_COORD_POLICY": "nonsense", "HOME": "also relative"}
    output = line(*command, flag)
    assert (output.exit, output.stderr) == (0, [])
    called = "config-set" if command == ["config", "set"] else " ".join(command)
    rest = " <word> [options]" if command in (["daemon"], ["lease"], ["outbox"]) else " [options]"
    assert output.stdout.decode().startswith(f"Usage: agent-coord {called}{rest}")
    assert line.tree() == {}


@pytest.mark.parametrize("argv", [[], ["help"], ["-h"], ["--help"]])
def test_the_overview_names_every_command(line: Line, argv: list[str]) -> None:
    line.env["AGENT_COORD_ENV_FILE"] = "relative"
    output = line(*argv)
    assert (output.exit, output.stderr) == (0, [])
    lines = output.stdout.decode().splitlines()
    assert lines[0] == "Usage: agent-coord <command> [options]"
    assert "Commands:" in lines
    assert "Common options:" in lines
    listed = [entry.split()[0] for entry in lines[lines.index("Commands:") + 1 : lines.index("Common options:") - 1]]
    for name in (
        *("claim", "release", "heartbeat", "register-batch", "record-event", "status", "log", "batch-audit"),
        *("attention-upsert", "attention-resolve", "attention-get", "attention-list", "gc", "version", "config"),
        *("doctor", "bootstrap", "demo"),
    ):
        assert name in listed


def test_a_typo_is_told_even_when_the_configuration_is_broken(line: Line) -> None:
    line.env["AGENT_COORD_ENV_FILE"] = "relative"
    assert line("clam").stderr == ["unknown command: clam"]
    output = line("claim", *ITEM)
    assert (output.exit, output.stderr) == (2, ["AGENT_COORD_ENV_FILE must be an absolute path"])


@pytest.mark.parametrize("argv", [["version"], ["demo"]])
def test_commands_without_configuration_work_while_it_is_broken(line: Line, argv: list[str]) -> None:
    line.env["AGENT_COORD_ENV_FILE"] = "relative"
    output = line(*argv)
    assert (output.exit, output.stderr) == (0, [])


@pytest.mark.parametrize(
    ("file", "prompt", "exit_", "fault"),
    [
        ("gone.json", None, 2, "batch manifest unreadable: gone.json: No such file or directory"),
        (".", None, 2, "batch manifest unreadable: .: Is a directory"),
        ("m.json/x", None, 2, "batch manifest unreadable: m.json/x: Not a directory"),
        ("m.json", "gone", 2, "launch prompt unreadable: gone: No such file or directory"),
        ("m.json", "bytes", 1, "launch prompt must be valid UTF-8"),
        ("bytes", None, 1, None),
    ],
)
def test_files_of_a_registration_are_read_before_anything_is_written(
    line: Line, file: str, prompt: str | None, exit_: int, fault: str | None
) -> None:
    line.file("m.json", {"batch_id": "b", "lanes": [{"name": "n", "owner": "o", "targets": ["7"]}]})
    line.file("bytes", b"\xff\xfe")
    extra = [] if prompt is None else ["--launch-prompt", prompt]
    said = refused(line, "register-batch", "--file", file, *extra, "--state-root", str(line.root), exit_=exit_)
    assert said == fault or (fault is None and said.startswith("batch manifest JSON invalid: "))


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb", "a b"), ("a\r\n\tb", "a b"), ("\x1b[2Ja", "[2Ja"), ("a\x7f\x9bb", "ab"), ("→ ü\u00a0", "→ ü\u00a0")],
)
def test_an_echoed_value_neither_breaks_the_line_nor_moves_the_cursor(line: Line, text: str, shown: str) -> None:
    said = refused(line, "claim", "--agent-id", "a", "--repo", "o/r", "--target", text, "--state-root", str(line.root))
    assert said == f"invalid target: {shown}"


def test_help_names_the_default_of_each_command(line: Line) -> None:
    for command, said in (
        ("claim", b"Seconds until it runs out (default: 14400)\n"),
        ("heartbeat", b"Seconds until it runs out (default: 900)\n"),
        ("run", b"release, done, keep (default: release)\n"),
        ("attention", b"Workspace of the record (default: all of them)\n"),
        ("release", b"Workspace of the record (default: default)\n"),
        ("record-event", b"Workspace of the record (default: default)\n"),
        ("attention-list", b"Workspace of the record\n"),  # it has to be given
    ):
        assert said in line(command, "--help").stdout
    assert line("lease", "drop", "--help").stdout.startswith(b"Usage: agent-coord lease drop [options] LANE\n")


def test_a_choice_of_ours_that_is_none_names_those_that_are(line: Line) -> None:
    said = refused(line, "run", "--repo", "o/r", "--target", "7", "--on-exit", "stay", "--", "true")
    assert said == "invalid argument: --on-exit stay; it is one of release, done, keep"


def test_nothing_but_a_command_is_a_command(line: Line) -> None:
    for word in ("--version", "-V", "--json"):
        output = line(word)
        assert (output.exit, output.stderr, output.stdout) == (1, [f"unknown command: {word}"], b"")
    assert line("help", "claim").stdout == line("help").stdout


@pytest.mark.parametrize(
    ("argv", "exit_", "said"),
    [
        (("\udcff",), 1, "command-line argument must be valid UTF-8: "),
        (("demo", "\udcff"), 1, "command-line argument must be valid UTF-8: "),
        (("demo", "x"), 1, "unexpected arguments: x"),
        (("doctor", "--stack-json=1", "--state-root", "x"), 64, "--stack-json"),
        (("doctor", "--state-root", "--stack-json"), 2, "state root does not exist"),
    ],
)
def test_odd_arguments(line: Line, argv: tuple[str, ...], exit_: int, said: str) -> None:
    output = line(*argv)
    assert output.exit == exit_
    assert any(said in text for text in output.stderr)
    assert output.stdout == b""


@pytest.mark.parametrize("rest", [("-h",), ("x", "--help"), ("--", "-h")])
def test_help_of_the_demo(line: Line, rest: tuple[str, ...]) -> None:
    output = line("demo", *rest)
    assert (output.exit == 0) == (rest[0] != "--")
