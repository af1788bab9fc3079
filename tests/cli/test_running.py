"""The command lines of `run` and `verify`; what `run` does with a command is tested with real ones in tests/e2e."""

import os

import pytest

from agentcoord.cli.options import Words, read_words
from agentcoord.protocol.documents import decode, is_document
from tests.cli.line import Line, said

ITEM = ("--repo", "o/r", "--target", "7")
NEEDED = ("run", *ITEM)


@pytest.fixture
def fence(line: Line) -> str:
    answer = decode(line.local("claim", *ITEM, "--agent-id", "a1", "--json").stdout)
    assert is_document(answer)
    return str(answer["fence"])


class TestVerify:
    def test_a_fence_that_holds(self, line: Line, fence: str) -> None:
        output = line.local("verify", *ITEM, "--fence", fence)
        assert said(output) == (0, b"o/r#7 is held by a1 under this fence; heartbeat missing\n", [])

    def test_one_that_does_not(self, line: Line, fence: str) -> None:
        assert said(line.local("verify", *ITEM, "--fence", "f" * 32)) == (
            3,
            b"",
            ["FENCE_LOST: o/r#7 is held by a1 under another fence"],
        )
        line.clock.advance(hours=4)
        [late] = line.local("verify", *ITEM, "--fence", fence).stderr
        assert late == (
            "FENCE_LOST: anybody may take o/r#7 from a1; heartbeat missing, lease until 2026-01-01T04:00:00Z"
        )

    def test_as_json(self, line: Line, fence: str) -> None:
        held = line.local("verify", *ITEM, "--fence", fence, "--json")
        assert (held.exit, held.stderr) == (0, [])
        assert decode(held.stdout) == {
            "held": True,
            "repo": "o/r",
            "target": "7",
            "holder": "a1",
            "reason": "held",
            "liveness": "missing",
            "expires_at": "2026-01-01T04:00:00Z",
        }
        line.local("release", *ITEM, "--agent-id", "a1")
        free = line.local("verify", *ITEM, "--fence", fence, "--json")
        assert (free.exit, free.stderr) == (3, ["FENCE_LOST: nobody holds o/r#7; it was released"])
        answer = decode(free.stdout)
        assert is_document(answer)
        assert (answer["held"], answer["holder"], answer["reason"]) == (False, None, "released")

    def test_a_backend_that_cannot_tell(self, line: Line, fence: str) -> None:
        line.lay("claims/o/r/7.json", b"{")
        output = line.local("verify", *ITEM, "--fence", fence, "--json")
        assert (output.exit, output.stdout) == (2, b"")

    @pytest.mark.parametrize(
        ("words", "fault"),
        [
            ((), "missing required --repo"),
            (ITEM, "missing required --fence"),
            ((*ITEM, "--fence", ""), "missing required --fence"),
            (("--repo", "o", "--target", "7", "--fence", "f"), "invalid target repo: o"),
        ],
    )
    def test_a_wrong_call(self, line: Line, words: tuple[str, ...], fault: str) -> None:
        output = line.local("verify", *words)
        assert (output.exit, output.stdout) == (1, b"")
        assert output.stderr[0].startswith(fault)

    def test_nothing_is_written(self, line: Line, fence: str) -> None:
        before = line.tree()
        line.local("verify", *ITEM, "--fence", fence)
        line.local("verify", *ITEM, "--fence", "other")
        assert line.tree() == before


class TestRun:
    @pytest.mark.parametrize(
        ("words", "fault"),
        [
            (("run",), "run needs a command to run after --"),
            ((*NEEDED, "--"), "run needs a command to run after --"),
            ((*NEEDED, "make", "-j"), "invalid option: -j"),
            ((*NEEDED, "make"), "unexpected arguments: make; -- goes before the command to run"),
            ((*NEEDED, "make", "--", "test"), "unexpected arguments: make; -- goes before the command to run"),
            (("run", "--repo", "o/r", "--", "make"), "missing required --target"),
            ((*NEEDED, "--on-exit", "explode", "--", "make"), "invalid argument: --on-exit explode"),
            ((*NEEDED, "--grace", "-1", "--", "make"), "--grace must be zero or greater"),
            ((*NEEDED, "--on-exit", "done", "--", "make"), "--on-exit done closes the lane of a batch"),
            ((*NEEDED, "--lane", "x", "--", "make"), "--lane is only valid for run with --on-exit done"),
            ((*NEEDED, "--agent-id", "", "--", "make"), "--agent-id requires a non-empty value"),
            (("release", "--supersede"), "invalid option: --supersede"),
        ],
    )
    def test_a_wrong_call(self, line: Line, words: tuple[str, ...], fault: str) -> None:
        line.env["AGENT_COORD_STATE_ROOT"] = str(line.root)
        output = line(*words)
        assert (output.exit, output.stdout) == (1, b"")
        assert output.stderr[-1].startswith(fault)

    def test_no_process_but_the_callers_own_starts_a_program(self, line: Line) -> None:
        output = line("run", *ITEM, "--state-root", str(line.root), "--", "touch", "ran")
        assert output.exit == 2
        assert output.stderr == ["run starts a program, and so does its work in the caller's own process only"]
        assert not line.root.exists()

    @pytest.mark.parametrize(
        ("words", "values", "tail"),
        [
            (("--", "a", "--", "-h", "--ttl=x"), {}, ["a", "--", "-h", "--ttl=x"]),
            (("--repo", "--", "--", "a"), {"repo": "--"}, ["a"]),
            (("--repo=--", "--", "a"), {"repo": "--"}, ["a"]),
            (("--supersede", "--", "a"), {"supersede": True}, ["a"]),
            (("--", os.fsdecode(b"\xff")), {}, [os.fsdecode(b"\xff")]),
            (("--repo", "o/r"), {"repo": "o/r"}, []),
        ],
    )
    def test_what_follows_the_dashes_is_not_ours(
        self, words: tuple[str, ...], values: dict[str, object], tail: list[str]
    ) -> None:
        found = read_words("run", words)
        assert isinstance(found, Words)
        assert (found.values, found.tail, found.positionals, found.help) == (values, tail, [], False)

    def test_help(self, line: Line) -> None:
        text = line("run", "--help").stdout.decode()
        assert text.startswith("Usage: agent-coord run [options] -- COMMAND...\n")
        for word in ("--on-exit WHAT", "--supersede", "--grace SECONDS", "Required: --repo, --target"):
            assert word in text
