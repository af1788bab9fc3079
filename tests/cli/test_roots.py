"""State roots that are none: every command names the root, exits 2 and touches nothing."""

import os
from pathlib import Path

import pytest

from tests.cli.line import Line

ITEM = ("--repo", "o/r", "--target", "7")
CLAIM = ("claim", "--agent-id", "a1", *ITEM)
COMMANDS = [
    CLAIM,
    ("release", *CLAIM[1:]),
    (*("release", *CLAIM[1:]), "--terminal", "done"),
    ("heartbeat", "--agent-id", "a1"),
    ("register-batch", "--file", "m.json"),
    ("record-event", "--batch-id", "b1", "--type", "note"),
    ("record-event", "--batch-id", "b1", "--type", "lane_closed", "--terminal", "done", *CLAIM[1:]),
    ("status",),
    ("status", *ITEM),
    ("status", "--batch-id", "b1"),
    ("doctor",),
    ("doctor", "--deep"),
]
MANIFEST = {"batch_id": "b1", "lanes": [{"name": "worker", "owner": "a1", "targets": ["7"]}]}


@pytest.mark.parametrize("kind", ["a file", "a FIFO", "a device", "a link to a file", "below a file"])
@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_a_root_that_is_no_directory_is_named(line: Line, kind: str, argv: tuple[str, ...]) -> None:
    line.file("m.json", MANIFEST)
    precious = Path(line.file("precious", b"precious"))
    root = line.directory / "root"
    match kind:
        case "a FIFO":
            os.mkfifo(root)
        case "a device":
            root = Path("/dev/null")
        case "a link to a file":
            root.symlink_to(precious)
        case "below a file":
            root = precious / "below"
        case _:
            root = precious
    before = line.tree()
    output = line(*argv, "--state-root", str(root))
    assert (output.exit, output.stdout) == (2, b"")
    assert output.stderr == [f"state root is not a directory: {root}"]
    assert line.tree() == before


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_a_root_that_leads_round_in_circles_is_named(line: Line, argv: tuple[str, ...]) -> None:
    line.file("m.json", MANIFEST)
    root = line.directory / "root"
    root.symlink_to(root)
    output = line(*argv, "--state-root", str(root))
    assert (output.exit, output.stdout) == (2, b"")
    [said] = output.stderr
    assert str(root) in said


@pytest.mark.parametrize("kind", ["a file", "a device"])
def test_an_audit_on_no_root_at_all_is_unknown(line: Line, kind: str) -> None:
    root = line.file("precious", b"precious") if kind == "a file" else "/dev/null"
    output = line("batch-audit", "--batch-id", "b1", "--state-root", root)
    assert (output.exit, output.stderr) == (2, [])
    assert output.stdout.decode().splitlines() == [
        "batch-audit b1 unknown",
        f"- coordination state unreadable: state root is not a directory: {root}",
    ]
