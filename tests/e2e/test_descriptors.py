"""Standard streams that are closed, full, gone or slow."""

import fcntl
import json
import os
import signal
from pathlib import Path

import pytest

from tests.command import Coord
from tests.e2e.running import CLAIM, MANIFEST, finish, start, through_shell, wait_until, waits_in


def stored(coord: Coord) -> str:
    return json.loads((coord.state / "claims/o/r/7.json").read_bytes())["agent_id"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_streams_cost_neither_the_claim_nor_a_record(coord: Coord, closed: str) -> None:
    answer = through_shell(coord, closed, *CLAIM, "--json")
    assert answer.exit == 0
    assert stored(coord) == "a1"
    for place in coord.state.rglob("*"):
        if place.is_file():
            data = place.read_bytes()
            assert data == b"" if place.suffix == ".lock" else json.loads(data)["schema_version"] == 1


@pytest.mark.parametrize("argv", [["version"], ["--help"], ["status"], ["doctor"], ["demo"], ["foo"]])
def test_no_command_minds_closed_outputs(coord: Coord, argv: list[str]) -> None:
    coord.state.mkdir()
    assert through_shell(coord, ">&- 2>&-", *argv).exit == (1 if argv == ["foo"] else 0)


def test_a_closed_stdin_is_no_empty_launch_prompt(coord: Coord) -> None:
    (coord.work / "m.json").write_text(MANIFEST)
    answer = through_shell(coord, "<&-", "register-batch", "--file", "m.json", "--launch-prompt", "-")
    assert (answer.exit, answer.err) == (2, "launch prompt unreadable: -: Bad file descriptor\n")
    assert not coord.state.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_an_answer_that_does_not_fit_is_told_and_what_was_done_stands(coord: Coord) -> None:
    answer = through_shell(coord, "> /dev/full", *CLAIM)
    assert answer.exit == 2
    assert answer.err.splitlines() == [
        "cannot write the answer to stdout: No space left on device; what the command did stands"
    ]
    assert stored(coord) == "a1"
    refused = through_shell(coord, "> /dev/full", "claim", "--agent-id", "a2", *CLAIM[3:], "--json")
    assert refused.exit == 3
    assert refused.err.splitlines()[0].startswith("CLAIM_REFUSED: ")
    assert through_shell(coord, "> /dev/full 2> /dev/full", "version").exit == 2


@pytest.mark.parametrize("argv", [["status"], ["version"], ["--help"], ["demo"], [*CLAIM]])
def test_a_reader_that_went_away_is_no_failure(coord: Coord, argv: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = start(coord, *argv, stdout=writer)
    os.close(writer)
    answer = finish(process)
    assert (answer.exit, answer.err) == (0, "")


def test_a_slow_reader_that_does_not_block_gets_everything(coord: Coord) -> None:
    """What Node.js hands down to its children: a pipe that answers EAGAIN when it is full."""
    events = coord.state / "events/b1"
    events.mkdir(parents=True)
    for number in range(40):
        (events / f"{number}.json").write_text(json.dumps({"message": "x" * 10_000}))
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    process = start(coord, "status", "--json", stdout=writer)
    os.close(writer)
    wait_until(lambda: waits_in(process, "select", "poll"), process)
    with open(reader, "rb") as pipe:
        document = json.loads(pipe.read())
    assert len(document["events"]) == 40
    assert finish(process).exit == 0


def test_a_full_pipe_makes_it_wait_and_a_signal_ends_the_wait(coord: Coord) -> None:
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * size)
    process = start(coord, *CLAIM, stdout=writer)
    wait_until(lambda: waits_in(process, "pipe_w"), process)
    answer = finish(process, with_=signal.SIGINT)
    os.close(reader)
    os.close(writer)
    assert (answer.exit, answer.err) == (130, "")
    assert stored(coord) == "a1"
