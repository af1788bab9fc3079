"""The installed command on an HTTP backend."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import PATIENCE, Coord
from tests.e2e.running import CLAIM, MANIFEST, SIGNALS, finish, start, wait_until, waits_in
from tests.stores.http_server import TOKEN, Asked, Reply, Server, State

WAITED_FOR = ("httpx", "httpcore", "anyio", "asyncio", "ssl", "concurrent.futures")


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def server(coord: Coord, state: State) -> Iterator[Server]:
    with Server(state).running() as server:
        del coord.env["AGENT_COORD_STATE_ROOT"]
        coord.env |= {"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN}
        yield server


def test_a_command_asks_and_answers(coord: Coord, state: State, server: Server) -> None:
    answer = coord(*CLAIM, env={"HTTP_PROXY": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1"})
    assert (answer.exit, answer.err) == (0, "")
    assert answer.out.startswith("claimed o/r#7 by a1 until ")
    assert set(state.records) == {"claims/o/r/7.json"}
    refused = coord("claim", "--agent-id", "a2", *CLAIM[3:])
    assert (refused.exit, refused.out) == (3, "")
    assert refused.err.startswith("CLAIM_REFUSED: ")


@pytest.mark.parametrize(("signum", "status"), SIGNALS)
def test_a_command_that_waits_for_an_answer_lets_go_at_once(
    coord: Coord, server: Server, signum: int, status: int
) -> None:
    server.answering = lambda asked: Reply(hangs=True)
    process = start(coord, *CLAIM)
    assert server.came.wait(PATIENCE)
    answer = finish(process, with_=signum)
    assert (answer.exit, answer.out, answer.err) == (status, "", "")


def test_a_signal_after_the_write_was_sent_says_nothing_of_it(coord: Coord, state: State, server: Server) -> None:
    def hanging(asked: Asked) -> Reply:
        answer = state(asked)
        return Reply(hangs=True) if asked.method == "PUT" else answer

    server.answering = hanging
    process = start(coord, *CLAIM)
    wait_until(lambda: bool(state.records), process)
    answer = finish(process, with_=signal.SIGINT)
    assert (answer.exit, answer.out, answer.err) == (130, "", "")
    server.answering = state
    assert coord(*CLAIM).exit == 0


@pytest.mark.skipif(not Path("/proc/self/wchan").exists(), reason="asks /proc where a process is")
def test_a_prompt_typed_by_nobody_is_given_up(coord: Coord, server: Server) -> None:
    (coord.work / "m.json").write_text(MANIFEST)
    process = start(coord, "register-batch", "--file", "m.json", "--launch-prompt", "-", stdin=subprocess.PIPE)
    wait_until(lambda: waits_in(process, "pipe_r"), process)
    answer = finish(process, with_=signal.SIGINT)
    assert (answer.exit, answer.out, answer.err) == (130, "", "")
    assert server.asked == []


def test_commands_on_local_files_load_nothing_that_waits(coord: Coord) -> None:
    """Each of these costs more than the whole command."""
    program = (
        "import sys\n"
        "from agentcoord.__main__ import main\n"
        "status = main(sys.argv[1:])\n"
        f"loaded = [name for name in {WAITED_FOR!r} if name in sys.modules]\n"
        "sys.exit(f'exit {status}, loaded {loaded}')"
    )
    for argv in (CLAIM, ("heartbeat", "--agent-id", "a1"), ("status", "--json"), ("version",)):
        answer = finish(start(coord, program=[sys.executable, "-c", program, *argv]))
        assert answer.err == "exit 0, loaded []\n", argv
