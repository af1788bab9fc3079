"""`status` under a real terminal, and what a pipe gets instead."""

import sys
from pathlib import Path

import pytest

from tests.command import Coord
from tests.terminal import on_terminal

ESCAPE = b"\033"


@pytest.fixture
def fleet(coord: Coord) -> Coord:
    assert coord("heartbeat", "--agent-id", "worker-a", "--repo", "acme/site", "--target", "42").exit == 0
    assert coord("claim", "--agent-id", "worker-a", "--repo", "acme/site", "--target", "42").exit == 0
    return coord


def shown(coord: Coord, *options: str, columns: int = 80, env: dict[str, str] | None = None) -> bytes:
    argv = [sys.executable, "-m", "agentcoord", "status", *options]
    with on_terminal(
        argv, env={"TERM": "xterm", **coord.env, **(env or {})}, cwd=Path(coord.work), columns=columns
    ) as screen:
        status, printed = screen.finished()
    assert status == 0
    return printed


def test_a_terminal_gets_the_board_in_colour(fleet: Coord) -> None:
    printed = shown(fleet)
    assert b"\033[32m\xe2\x97\x8f live\033[0m" in printed
    assert b"1 claim held" in printed


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_can_be_declined(fleet: Coord, env: dict[str, str]) -> None:
    printed = shown(fleet, env=env)
    assert "● live" in printed.decode()
    assert ESCAPE not in printed


@pytest.mark.parametrize("columns", [40, 64])
def test_the_board_fits_the_terminal(fleet: Coord, columns: int) -> None:
    lines = shown(fleet, columns=columns, env={"NO_COLOR": "1"}).decode().splitlines()
    assert max(map(len, lines)) <= columns


def test_a_pipe_gets_what_scripts_read(fleet: Coord) -> None:
    piped = fleet("status")
    assert piped == fleet("status", "--plain")
    assert "●" not in piped.out


def test_scripts_can_be_read_on_a_terminal_too(fleet: Coord) -> None:
    assert shown(fleet, "--plain").decode() == fleet("status").out
    assert shown(fleet, "--json").decode() == fleet("status", "--json").out
