"""`agent-coord run` with real commands below it: who gets the item, what reaches the command, and what is left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from agentcoord.protocol.instants import parse, stamp
from tests.command import PATIENCE, Answer, Coord
from tests.e2e.running import ITEM, MANIFEST, finish, one_line, start
from tests.stores.http_server import TOKEN, Asked, Reply, Server, State, error

RUN = ("run", *ITEM, "--agent-id", "a1")
HOLD = 'echo "$AGENT_COORD_FENCE" >fence.new; mv fence.new fence; exec 3<>gate; read line <&3; exit 0'
"""A command that says that it runs, and ends when somebody opens the gate."""
SHORT = ("--ttl", "3")
SHORT_OF_PATIENCE = """
import agentcoord.cli.running as running
running.LAST_ATTEMPT = 0.5
from agentcoord.__main__ import main
raise SystemExit(main())
"""
"""The command as it is, but for how long it waits for the answer to a claim once it was interrupted."""


@pytest.fixture(params=["local", "http"])
def backend(coord: Coord, request: pytest.FixtureRequest) -> Iterator[str]:
    """Each kind of backend that a lease can be kept on."""
    if request.param == "local":
        yield "local"
        return
    with Server(State()).running() as server:
        del coord.env["AGENT_COORD_STATE_ROOT"]
        coord.env |= {"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN}
        yield "http"


def shell(script: str) -> tuple[str, ...]:
    return ("--", "sh", "-c", script)


def held(coord: Coord, *words: str, script: str = HOLD, **options: Any) -> subprocess.Popen[bytes]:
    """Start a command under a lease, and wait until it runs."""
    gate = coord.work / "gate"
    if not gate.exists():
        os.mkfifo(gate)
    process = start(coord, *(words or RUN), *shell(script), **options)
    until((coord.work / "fence").exists, process)
    return process


def until(ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until a running process came to a point."""
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert process.poll() is None, f"it ended before: {process.communicate()}"
        assert time.monotonic() < deadline, "it never came to that point"
        time.sleep(0.01)


def gone(pid: int) -> None:
    """Wait for the end of a process that is not our child."""
    deadline = time.monotonic() + PATIENCE
    while alive(pid):
        assert time.monotonic() < deadline, f"{pid} runs on"
        time.sleep(0.01)


def open_gate(coord: Coord) -> None:
    (coord.work / "gate").write_text("go\n")


def item(coord: Coord) -> Any:
    """Give the work item as the status shows it."""
    return coord("status", *ITEM, "--json").json()


def claim_of(coord: Coord) -> Any:
    [claim] = item(coord)["claims"]
    return claim


def beat_of(coord: Coord, agent_id: str = "a1") -> Any:
    return json.loads((coord.state / f"heartbeats/{agent_id}.json").read_text())


def seconds(record: Any) -> float:
    begins, ends = parse(record["updated_at"]), parse(record["expires_at"])
    assert begins is not None
    assert ends is not None
    return (ends - begins).total_seconds()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class TestOneCommand:
    def test_it_runs_under_the_lease_and_gives_it_back(self, coord: Coord, backend: str) -> None:
        verify = f"{sys.executable} -m agentcoord verify {' '.join(ITEM)} --fence $AGENT_COORD_FENCE"
        answer = coord(*RUN, *shell(f"{verify}; exit $?"))
        assert (answer.exit, answer.err) == (0, "")
        assert answer.out == "o/r#7 is held by a1 under this fence; heartbeat live\n"
        assert claim_of(coord)["status"] == "released"

    def test_its_heartbeat_is_dead_for_every_reader_soon_after(self, coord: Coord) -> None:
        assert coord(*RUN, "--", "true") == Answer(0, "", "")
        beat = beat_of(coord)
        assert (seconds(beat), beat["status"], beat["target"]) == (1, "in_progress", "7")

    def test_it_is_told_who_it_works_for(self, coord: Coord) -> None:
        answer = coord(
            *RUN, "--batch-id", "b1", "--instance-id", "i1", *shell("env"), env={"AGENT_COORD_MACHINE_ID": "m1"}
        )
        env = dict(line.split("=", 1) for line in answer.out.splitlines())
        told = {
            name: env.get(f"AGENT_COORD_{name}") for name in ("AGENT_ID", "REPO", "TARGET", "BATCH_ID", "INSTANCE_ID")
        }
        assert list(told.values()) == ["a1", "o/r", "7", "b1", "i1"]
        assert env["AGENT_COORD_MACHINE_ID"] == "m1"
        assert len(env["AGENT_COORD_FENCE"]) == 32

    def test_it_means_the_same_backend_as_the_options(self, coord: Coord) -> None:
        inner = f"{sys.executable} -m agentcoord status --plain"
        answer = coord(*RUN, "--state-root", "other", *shell(f"cd / && {inner}"))
        assert "- o/r#7 active a1" in answer.out
        assert not coord.state.exists()

    def test_an_agent_without_an_id_gets_one_of_its_own(self, coord: Coord) -> None:
        for _ in range(2):
            assert coord("run", *ITEM, *shell("echo $AGENT_COORD_AGENT_ID >>ids")).exit == 0
        first, second = (coord.work / "ids").read_text().split()
        assert first.startswith("run-")
        assert first != second

    def test_input_and_output_are_its_own(self, coord: Coord) -> None:
        answer = coord(*RUN, *shell("cat; echo beside >&2"), stdin=b"one\0two\xff\n".replace(b"\xff", b""))
        assert (answer.out, answer.err) == ("one\0two\n", "beside\n")

    def test_descriptors_that_the_caller_opened_are_its_own_too(self, coord: Coord) -> None:
        (coord.work / "in").write_text("from three\n")
        opened = ["sh", "-c", 'exec 3<in; exec "$@"', "sh", sys.executable, "-m", "agentcoord", *RUN, *shell("cat <&3")]
        assert finish(start(coord, program=opened)) == Answer(0, "from three\n", "")

    def test_its_words_are_not_touched(self, coord: Coord) -> None:
        script = "import os, sys; sys.stdout.buffer.write(b'|'.join(map(os.fsencode, sys.argv[1:])))"
        words = ("--repo", "--", "-h", "--ttl=0", "", "a b", "\u00e9")
        answer = coord(*RUN, "--", sys.executable, "-c", script, *words, b"\xf0\x28".replace(b"\xf0\x28", b"z"))
        assert answer.out == "|".join([*words, "z"])
        raw = start(coord, *RUN, "--", sys.executable, "-c", script.replace("sys.stdout", "sys.stderr"), b"\xff\xfe")
        assert raw.communicate(timeout=PATIENCE)[1] == b"\xff\xfe"

    @pytest.mark.parametrize("status", [0, 1, 2, 3, 64, 255])
    def test_its_exit_status_is_passed_on(self, coord: Coord, status: int) -> None:
        assert coord(*RUN, *shell(f"exit {status}")) == Answer(status, "", "")

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
    def test_a_signal_that_ends_it_is_passed_on_as_a_shell_does(self, coord: Coord, number: int) -> None:
        assert coord(*RUN, *shell(f"ulimit -c 0; kill -{int(number)} $$")) == Answer(128 + number, "", "")

    def test_a_program_that_is_not_there(self, coord: Coord) -> None:
        answer = coord(*RUN, "--", "no-such-program")
        assert answer == Answer(
            127, "", "cannot run no-such-program: No such file or directory; the lease is given back\n"
        )
        assert claim_of(coord)["status"] == "released"
        assert coord(*RUN, "--", str(coord.work)).exit == 126

    def test_nothing_that_it_leaves_running_holds_it_up(self, coord: Coord) -> None:
        answer = coord(*RUN, *shell("sleep 1000 >/dev/null 2>&1 </dev/null & echo $!"))
        left = int(answer.out)
        assert alive(left)
        os.kill(left, signal.SIGKILL)


class TestWhoGetsIt:
    def test_an_item_that_another_agent_holds_is_refused(self, coord: Coord, backend: str) -> None:
        assert coord("claim", "--agent-id", "a2", *ITEM).exit == 0
        answer = coord(*RUN, *shell("touch ran"))
        assert (answer.exit, answer.out) == (3, "")
        assert one_line(answer).startswith("CLAIM_REFUSED: active claim for o/r#7 held by a2; heartbeat missing")
        assert not (coord.work / "ran").exists()
        assert not (coord.state / "heartbeats/a1.json").exists()

    def test_a_refusal_as_json(self, coord: Coord) -> None:
        assert coord("claim", "--agent-id", "a2", *ITEM).exit == 0
        answer = coord(*RUN, "--json", "--", "true")
        assert (answer.exit, answer.json()["holder"]) == (3, "a2")

    def test_the_same_agent_id_is_refused_to_a_second_one(self, coord: Coord, backend: str) -> None:
        first = held(coord)
        second = coord(*RUN, *shell("touch ran"))
        assert second.exit == 3
        assert "held by a1; heartbeat live; by another instance of it" in one_line(second)
        assert "--supersede" in second.err
        assert not (coord.work / "ran").exists()
        assert claim_of(coord)["status"] == "active"
        open_gate(coord)
        assert finish(first) == Answer(0, "", "")

    def test_a_claim_of_the_agent_without_an_instance_is_not_its_own(self, coord: Coord) -> None:
        assert coord("claim", "--agent-id", "a1", *ITEM).exit == 0
        answer = coord(*RUN, "--", "true")
        assert answer.exit == 3
        assert "by another instance of it (without a name)" in one_line(answer)
        assert coord(*RUN, "--supersede", "--", "true").exit == 0

    def test_a_lease_that_was_kept_is_taken_up_by_the_same_instance(self, coord: Coord) -> None:
        words = (*RUN, "--instance-id", "i1")
        assert coord(*words, "--on-exit", "keep", *shell("echo $AGENT_COORD_FENCE >>fences")).exit == 0
        assert claim_of(coord)["status"] == "active"
        assert coord(*RUN, "--", "true").exit == 3
        assert coord(*words, *shell("echo $AGENT_COORD_FENCE >>fences")).exit == 0
        first, second = (coord.work / "fences").read_text().split()
        assert first == second

    def test_one_that_is_superseded_is_stopped(self, coord: Coord) -> None:
        first = held(coord, *RUN, *SHORT)
        os.mkfifo(coord.work / "other")
        second = start(coord, *RUN, "--supersede", *shell("touch second; read line <other"))
        until((coord.work / "second").exists, second)
        lost = finish(first)
        assert lost.exit == 3
        assert one_line(lost) == "FENCE_LOST: o/r#7 is now held by another instance of a1; sh was stopped"
        assert claim_of(coord)["status"] == "active"
        assert seconds(beat_of(coord)) > 1
        (coord.work / "other").write_text("go\n")
        assert finish(second) == Answer(0, "", "")
        assert claim_of(coord)["status"] == "released"

    @pytest.mark.parametrize("same", [False, True], ids=["fifty agents", "one agent"])
    def test_of_fifty_exactly_one_runs(self, coord: Coord, same: bool) -> None:
        os.mkfifo(coord.work / "gate")
        racing = [
            start(
                coord, "run", *ITEM, "--agent-id", "a" if same else f"a{n}", *shell("echo ran >>ran; read line <gate")
            )
            for n in range(50)
        ]
        answers: list[Answer] = []
        while len(racing) > 1:
            ended = [process for process in racing if process.poll() is not None]
            answers += map(finish, ended)
            racing = [process for process in racing if process not in ended]
            time.sleep(0.01)
        assert (coord.work / "ran").read_text() == "ran\n"
        assert {answer.exit for answer in answers} == {3}
        until((coord.work / "ran").exists, racing[0])
        open_gate(coord)
        assert finish(racing[0]) == Answer(0, "", "")
        assert (coord.work / "ran").read_text() == "ran\n"
        assert len(list((coord.state / "heartbeats").glob("*.json"))) == 1


class TestKeeping:
    def test_lease_and_heartbeat_go_on_for_as_long_as_it_runs(self, coord: Coord, backend: str) -> None:
        process = held(coord, *RUN, *SHORT)
        begun = claim_of(coord)
        until(lambda: claim_of(coord)["expires_at"] > begun["expires_at"], process)
        fence = (coord.work / "fence").read_text().strip()
        assert coord("verify", *ITEM, "--fence", fence).exit == 0
        open_gate(coord)
        assert finish(process) == Answer(0, "", "")

    def test_what_the_agent_says_meanwhile_stays(self, coord: Coord) -> None:
        process = held(coord, *RUN, *SHORT)
        assert (
            coord("heartbeat", "--agent-id", "a1", "--phase", "testing", "--status", "blocked", "--ttl", "3").exit == 0
        )
        said = beat_of(coord)
        until(lambda: beat_of(coord)["updated_at"] > said["updated_at"], process)
        later = beat_of(coord)
        assert {name: later[name] for name in said if not name.endswith("_at")} == {
            name: said[name] for name in said if not name.endswith("_at")
        }
        assert (later["phase"], later["status"]) == ("testing", "blocked")
        open_gate(coord)
        assert finish(process).exit == 0

    def test_an_agent_that_lives_besides_is_not_declared_dead(self, coord: Coord) -> None:
        assert coord("heartbeat", "--agent-id", "a1", "--repo", "o/r", "--target", "8").exit == 0
        before = beat_of(coord)
        assert coord(*RUN, "--", "true").exit == 0
        after = beat_of(coord)
        assert (after["target"], after["expires_at"] >= before["expires_at"]) == ("8", True)

    def test_a_heartbeat_that_another_instance_takes_is_prolonged_and_left(self, coord: Coord) -> None:
        process = held(coord, *RUN, *SHORT)
        soon = datetime.now(UTC) + timedelta(seconds=2)  # later, too, than anything that the run writes meanwhile
        taken = beat_of(coord) | {"instance_id": "i9", "updated_at": stamp(soon)}
        taken["expires_at"] = stamp(soon + timedelta(seconds=3))
        (coord.work / "beat").write_text(json.dumps(taken))
        (coord.work / "beat").rename(coord.state / "heartbeats/a1.json")
        until(lambda: beat_of(coord)["updated_at"] > taken["updated_at"], process)
        open_gate(coord)
        assert finish(process) == Answer(0, "", "")
        last = beat_of(coord)
        assert (last["instance_id"], seconds(last)) == ("i9", 3)

    def test_an_agent_that_is_done_is_not_kept_alive_and_its_command_goes_on(self, coord: Coord) -> None:
        process = held(coord, *RUN, *SHORT)
        assert coord("heartbeat", "--agent-id", "a1", "--status", "done", "--ttl", "3").exit == 0
        said, ends = beat_of(coord), parse(claim_of(coord)["expires_at"])
        assert ends is not None
        until(lambda: datetime.now(UTC) > ends, process)
        assert beat_of(coord) == said
        open_gate(coord)
        assert finish(process) == Answer(0, "", "")

    def test_an_item_that_changes_hands_stops_it(self, coord: Coord, backend: str) -> None:
        script = f"echo $$ >pid; sleep 1000 >/dev/null 2>&1 & echo $! >helper; {HOLD}"
        process = held(coord, *RUN, *SHORT, script=script)
        process.send_signal(signal.SIGSTOP)  # so that it does not see the item free in between
        assert coord("release", "--agent-id", "a1", *ITEM).exit == 0
        assert coord("claim", "--agent-id", "a2", *ITEM).exit == 0
        process.send_signal(signal.SIGCONT)
        answer = finish(process)
        assert (answer.exit, answer.out) == (3, "")
        assert one_line(answer) == "FENCE_LOST: o/r#7 is now held by a2; sh was stopped"
        assert claim_of(coord)["agent_id"] == "a2"
        assert claim_of(coord)["status"] == "active"
        for name in ("pid", "helper"):
            assert not alive(int((coord.work / name).read_text()))

    def test_one_that_does_not_listen_is_killed_after_the_grace(self, coord: Coord) -> None:
        script = f"trap '' TERM; echo $$ >pid; {HOLD}"
        process = held(coord, *RUN, *SHORT, "--grace", "0", script=script)
        assert coord("release", "--agent-id", "a1", *ITEM).exit == 0
        answer = finish(process)
        assert (answer.exit, one_line(answer)) == (3, "FENCE_LOST: the claim on o/r#7 was released; sh was stopped")
        assert not alive(int((coord.work / "pid").read_text()))

    def test_one_that_cleans_up_within_the_grace_may(self, coord: Coord) -> None:
        process = held(coord, *RUN, *SHORT, script=f"trap 'echo cleaned; exit 0' TERM; {HOLD}")
        assert coord("release", "--agent-id", "a1", *ITEM).exit == 0
        answer = finish(process)
        assert (answer.exit, answer.out) == (3, "cleaned\n")

    def test_files_that_went_away_stop_it_when_the_lease_is_over(self, coord: Coord) -> None:
        process = held(coord, *RUN, *SHORT)
        coord.state.rename(coord.state.with_name("away"))
        coord.state.write_text("no directory")
        answer = finish(process)
        assert answer.exit == 3
        assert one_line(answer).startswith("the lease on o/r#7 ran out: ")
        assert answer.err.endswith("; sh was stopped\n")

    @pytest.mark.parametrize("hangs", [False, True])
    def test_a_server_that_went_away_stops_it_when_the_lease_is_over(self, coord: Coord, hangs: bool) -> None:
        state = State()
        with Server(state).running() as server:
            del coord.env["AGENT_COORD_STATE_ROOT"]
            coord.env |= {"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN}
            process = held(coord, *RUN, *SHORT)
            server.answering = lambda asked: Reply(hangs=True) if hangs else error(503, "unavailable")
            answer = finish(process)
        assert answer.exit == 3
        assert one_line(answer).startswith("the lease on o/r#7 ran out: ")
        assert TOKEN not in answer.err

    def test_a_server_that_comes_back_in_time_is_forgiven(self, coord: Coord) -> None:
        state, failed, back = State(), list[str](), Event()
        with Server(state).running() as server:
            del coord.env["AGENT_COORD_STATE_ROOT"]
            coord.env |= {"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN}
            process = held(coord, *RUN, "--ttl", "15")

            def failing(asked: Asked) -> Reply:
                failed.append(asked.method)
                back.set() if len(failed) > 4 and "PUT" in failed else None
                return error(503, "unavailable") if len(failed) < 4 else state(asked)

            server.answering = failing
            assert back.wait(PATIENCE)
            open_gate(coord)
            assert finish(process) == Answer(0, "", "")

    def test_one_that_stood_still_past_the_end_goes_on_if_nobody_came(self, coord: Coord) -> None:
        process = held(coord, *RUN, *SHORT)
        process.send_signal(signal.SIGSTOP)
        ends = parse(claim_of(coord)["expires_at"])
        assert ends is not None
        until(lambda: datetime.now(UTC) > ends, process)
        process.send_signal(signal.SIGCONT)
        until(lambda: claim_of(coord)["expires_at"] > stamp(ends), process)
        assert coord("verify", *ITEM, "--fence", (coord.work / "fence").read_text().strip()).exit == 0
        open_gate(coord)
        assert finish(process) == Answer(0, "", "")

    def test_a_record_that_is_gone_is_a_lease_that_is_lost(self, coord: Coord) -> None:
        process = held(coord, *RUN, *SHORT)
        (coord.state / "claims/o/r/7.json").unlink()
        answer = finish(process)
        assert (answer.exit, one_line(answer)) == (
            3,
            "FENCE_LOST: the claim on o/r#7 is gone; sh was stopped",
        )


class TestAtTheEnd:
    def test_done_closes_the_lane(self, coord: Coord) -> None:
        (coord.work / "m.json").write_text(MANIFEST)
        assert coord("register-batch", "--file", "m.json").exit == 0
        words = (*RUN, "--batch-id", "b1", "--on-exit", "done")
        assert coord(*words, "--", "false") == Answer(1, "", "")
        assert (claim_of(coord)["status"], claim_of(coord).get("terminal")) == ("released", None)
        assert coord(*words, "--", "true") == Answer(0, "", "")
        assert (claim_of(coord)["status"], claim_of(coord)["terminal"]) == ("released", "done")
        [lane] = coord("status", "--batch-id", "b1", "--json").json()["batches"][0]["lanes"]
        assert lane["terminal"] == "done"

    def test_a_lane_that_cannot_be_closed_costs_a_line_and_not_the_status(self, coord: Coord) -> None:
        answer = coord(*RUN, "--batch-id", "b9", "--on-exit", "done", "--", "true")
        assert answer.exit == 0
        assert one_line(answer) == (
            "the lease on o/r#7 was not given back: batch b9 not found for terminal closeout; do it yourself: "
            "agent-coord release --agent-id a1 --repo o/r --target 7 --terminal done"
        )

    @pytest.mark.parametrize("status", [0, 5])
    def test_a_release_that_fails_costs_a_line_and_not_the_status(self, coord: Coord, status: int) -> None:
        answer = coord(*RUN, *shell(f"mv {coord.state} {coord.state}.away; echo no >{coord.state}; exit {status}"))
        assert answer.exit == status
        assert one_line(answer).startswith("the lease on o/r#7 was not given back: ")
        assert answer.err.endswith("; do it yourself: agent-coord release --agent-id a1 --repo o/r --target 7\n")

    def test_keep_leaves_the_lease_protected(self, coord: Coord) -> None:
        assert coord(*RUN, "--on-exit", "keep", *shell("exit 4")) == Answer(4, "", "")
        assert claim_of(coord)["status"] == "active"
        assert coord("claim", "--agent-id", "a2", *ITEM).exit == 3

    def test_what_the_command_gave_back_itself_is_left_so(self, coord: Coord) -> None:
        release = (
            f"{sys.executable} -m agentcoord release --agent-id a1 {' '.join(ITEM)} --handoff-note later >/dev/null"
        )
        assert coord(*RUN, *shell(release)) == Answer(0, "", "")
        assert claim_of(coord)["handoff_note"] == "later"

    def test_an_item_that_was_lost_shortly_before_the_end_is_no_success(self, coord: Coord) -> None:
        agentcoord = f"{sys.executable} -m agentcoord"
        lose = (
            f"{agentcoord} release --agent-id a1 {' '.join(ITEM)} && {agentcoord} claim --agent-id a2 {' '.join(ITEM)}"
        )
        answer = coord(*RUN, *shell(f"({lose}) >/dev/null"))
        assert answer.exit == 3
        assert one_line(answer) == "FENCE_LOST: o/r#7 is now held by a2; the command had ended"


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
    def test_what_ends_it_reaches_the_command_and_all_it_started(self, coord: Coord, number: int) -> None:
        script = f"ulimit -c 0; sleep 1000 >/dev/null 2>&1 & echo $! >helper; echo $$ >pid; {HOLD}"
        process = held(coord, script=script)
        answer = finish(process, with_=number)
        assert answer == Answer(128 + number, "", "")
        assert claim_of(coord)["status"] == "released"
        assert not alive(int((coord.work / "pid").read_text()))
        helper = int((coord.work / "helper").read_text())
        if number in (signal.SIGINT, signal.SIGQUIT):  # which a shell has its background commands ignore
            os.kill(helper, signal.SIGKILL)
        gone(helper)

    def test_a_command_that_handles_it_decides_how_it_ends(self, coord: Coord) -> None:
        process = held(coord, script=f"trap 'echo bye; exit 9' TERM; {HOLD}")
        assert finish(process, with_=signal.SIGTERM) == Answer(9, "bye\n", "")

    @pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
    def test_users_signals_reach_the_command(self, coord: Coord, number: int) -> None:
        script = f"trap 'echo told; exit 0' {int(number)}; {HOLD}"
        assert finish(held(coord, script=script), with_=number) == Answer(0, "told\n", "")

    def test_a_signal_that_the_caller_ignores_stays_ignored(self, coord: Coord) -> None:
        nohup = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-m", "agentcoord", *RUN, *shell(HOLD)]
        os.mkfifo(coord.work / "gate")
        process = start(coord, program=nohup)
        until((coord.work / "fence").exists, process)
        process.send_signal(signal.SIGHUP)
        open_gate(coord)
        assert finish(process) == Answer(0, "", "")

    def test_stopped_and_continued_it_goes_on(self, coord: Coord) -> None:
        process = held(coord, script=f"echo $$ >pid; {HOLD}")
        pid = int((coord.work / "pid").read_text())
        process.send_signal(signal.SIGTSTP)
        until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", process)
        process.send_signal(signal.SIGCONT)
        open_gate(coord)
        assert finish(process) == Answer(0, "", "")

    def test_before_the_command_runs_nothing_is_left(self, coord: Coord) -> None:
        with Server(State()).running() as server:
            del coord.env["AGENT_COORD_STATE_ROOT"]
            coord.env |= {"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN}
            server.answering = lambda asked: Reply(hangs=True)
            process = start(coord, program=[sys.executable, "-c", SHORT_OF_PATIENCE, *RUN, *shell("touch ran")])
            assert server.came.wait(PATIENCE)
            answer = finish(process, with_=signal.SIGTERM)
        assert answer.exit == 143
        assert one_line(answer).startswith("interrupted while claiming, nothing was run; ")
        assert not (coord.work / "ran").exists()

    @pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell a process that its parent died")
    def test_killed_itself_it_takes_the_command_with_it(self, coord: Coord) -> None:
        process = held(coord, script=f"echo $$ >pid; {HOLD}")
        pid = int((coord.work / "pid").read_text())
        process.kill()
        process.communicate(timeout=PATIENCE)
        gone(pid)
        assert claim_of(coord)["status"] == "active"
