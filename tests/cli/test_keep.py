"""`--keep` and `lease`: what is asked of the daemon, what is said of its answer, and what stands without one."""

import json
import os
import subprocess
import sys
from collections.abc import Generator

import pytest

from agentcoord import daemonlife
from agentcoord.protocol.claims import fence
from tests.cli.line import Line, said
from tests.fakedaemon import NEXT, PROGRAM, Runtime, runtime
from tests.stores.http_server import Server

ITEM = ("--repo", "acme/shop", "--target", "42")
CLAIM = ("claim", "--agent-id", "ana", *ITEM)
HOLD = ("lease", "hold", "--agent-id", "ana")


@pytest.fixture
def at(line: Line, monkeypatch: pytest.MonkeyPatch) -> Generator[Runtime]:
    monkeypatch.setattr(daemonlife, "program", lambda: PROGRAM)
    with runtime() as made:
        line.env["AGENT_COORD_RUNTIME_DIR"] = str(made.place)
        yield made


class TestClaim:
    def test_it_is_kept_by_a_daemon_that_is_started_for_it(self, at: Runtime, line: Line) -> None:
        output = line.local(*CLAIM, "--keep", "--instance-id", "i1", "--json")
        assert (output.exit, output.stderr) == (0, [])
        answer = json.loads(output.stdout)
        assert list(answer) == ["record", "fence", "renewed", "taken_over_from", "lease"]
        assert answer["record"]["instance_id"] == "i1"
        assert answer["lease"] == {
            "lane": "L1",
            "pid": os.getpid(),
            "program": "claude",
            "chosen": "by the test",
            "next_renewal": NEXT,
        }
        assert at.asked("lease.hold") == [
            {
                "backend": {"kind": "local", "root": str(line.root)},
                "agent_id": "ana",
                "repo": "acme/shop",
                "target": "42",
                "kinds": ["heartbeat", "claim"],
                "ttl": 900,
                "pid": None,
                "from_pid": os.getpid(),
                "instance": "i1",
                "fence": answer["fence"],
            }
        ]

    def test_the_process_is_shown_and_why(self, at: Runtime, line: Line) -> None:
        output = line.local(*CLAIM, "--keep", "--watch-pid", "1", "--ttl", "60")
        assert output.stdout.decode().splitlines()[1] == (
            f"kept as lane L1: watching process 1 (claude), by the test; next renewal {NEXT}"
        )
        (asked,) = at.asked("lease.hold")
        assert (asked["pid"], asked["from_pid"], asked["ttl"]) == (1, None, 60)

    def test_a_relative_root_is_named_whole(self, at: Runtime, line: Line) -> None:
        (line.directory / "state").mkdir()
        assert line(*CLAIM, "--keep", "--state-root", "state").exit == 0
        assert at.asked("lease.hold")[0]["backend"]["root"] == f"{line.directory}/state"

    def test_a_fleet_is_named_by_its_address_without_the_token(self, at: Runtime, line: Line, server: Server) -> None:
        assert line(*CLAIM, "--keep").exit == 0
        assert at.asked("lease.hold")[0]["backend"] == {"kind": "http", "url": server.url}
        assert line.env["AGENT_COORD_API_TOKEN"] not in (at.place / "asked").read_text()

    @pytest.mark.parametrize("json_", [True, False])
    def test_without_a_daemon_the_claim_stands(self, at: Runtime, line: Line, json_: bool) -> None:
        line.env["FAKE_FAILS"] = "no room"
        output = line.local(*CLAIM, "--keep", *(["--json"] if json_ else []))
        mend = f"agent-coord lease hold --agent-id ana --repo acme/shop --target 42 --state-root {line.root}"
        assert output.exit == 2
        assert output.stderr == [
            f"it is written, but nobody keeps it: the daemon did not start: no room; then run: {mend}"
        ]
        if json_:
            assert json.loads(output.stdout)["lease"] is None
        else:
            assert output.stdout.startswith(b"claimed acme/shop#42 by ana until ")
        assert (line.root / "claims/acme/shop/42.json").exists()

    def test_one_that_the_daemon_declines_stands_too(self, at: Runtime, line: Line) -> None:
        line.env["FAKE_DECLINES"] = "this root is not served"
        output = line.local(*CLAIM, "--keep", "--ttl", "60", "--watch-pid", "1")
        assert output.exit == 2
        said = "it is written, but nobody keeps it: the daemon refused lease.hold: this root is not served"
        mend = "agent-coord lease hold --agent-id ana --repo acme/shop --target 42 --ttl 60 --watch-pid 1"
        assert output.stderr == [f"{said}; once that is mended, run: {mend} --state-root {line.root}"]

    @pytest.mark.parametrize("words", [(*CLAIM, "--keep"), ("heartbeat", "--agent-id", "ana", "--keep"), HOLD])
    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            (("--watch-pid", "99999999"), "--watch-pid 99999999: no such process is running; nothing was written"),
            (("--watch-pid", str(1 << 70)), f"--watch-pid {1 << 70}: no such process is running; nothing was written"),
            (("--ttl", "2"), "--ttl must be at least 3 for a lease that is kept"),
        ],
    )
    def test_what_is_not_kept_is_said_before_anything_is_written(
        self, at: Runtime, line: Line, words: tuple[str, ...], wrong: tuple[str, str], said: str
    ) -> None:
        line.root.mkdir()
        output = line.local(*words, *wrong)
        assert (output.exit, output.stdout, output.stderr) == (1, b"", [said])
        assert list(line.root.iterdir()) == []
        assert not at.place.exists()

    def test_a_refused_claim_is_not_kept(self, at: Runtime, line: Line) -> None:
        line.local("claim", "--agent-id", "bob", *ITEM)
        output = line.local(*CLAIM, "--keep")
        assert output.exit == 3
        assert at.asked("lease.hold") == []

    def test_without_keep_nothing_is_asked_or_added(self, at: Runtime, line: Line) -> None:
        output = line.local(*CLAIM, "--json")
        assert list(json.loads(output.stdout)) == ["record", "fence", "renewed", "taken_over_from"]
        assert not at.place.exists()


class TestInstances:
    def _instance(self, line: Line) -> str:
        return json.loads((line.root / "claims/acme/shop/42.json").read_text())["instance_id"]

    def test_an_acquisition_always_has_one(self, at: Runtime, line: Line) -> None:
        line.local(*CLAIM, "--keep")
        assert self._instance(line)

    def test_it_is_the_session_if_there_is_one(self, at: Runtime, line: Line) -> None:
        line.env["CODEX_THREAD_ID"] = "session-7"
        line.local(*CLAIM, "--keep")
        assert self._instance(line) == "session-7"

    @pytest.mark.skipif(sys.platform != "linux", reason="when a process began is read from /proc")
    def test_it_is_the_process_that_was_named(self, at: Runtime, line: Line) -> None:
        line.env["FAKE_FAILS"] = "down"  # also while nothing is kept
        for _ in range(2):
            line.local(*CLAIM, "--keep", "--watch-pid", str(os.getpid()))
            assert self._instance(line).startswith(f"pid-{os.getpid()}-")

    @pytest.mark.skipif(sys.platform != "linux", reason="ancestors are read from /proc")
    def test_the_same_agent_goes_on_as_the_same_instance(self, at: Runtime, line: Line) -> None:
        """What is kept for an ancestor is the caller's own."""
        lane = {"lane": "L1", "agent_id": "ana", "repo": "acme/shop", "target": "42", "pid": os.getppid()}
        with at.daemon(FAKE_LANES=json.dumps([lane])):
            line.local(*CLAIM, "--keep", "--instance-id", "first")
            line.local("heartbeat", "--agent-id", "ana", "--instance-id", "first")  # as the daemon writes it
            again = line.local(*CLAIM, "--keep", "--json")
            other = line.local(*CLAIM[:-1], "43", "--keep", "--json")
        assert (again.exit, json.loads(again.stdout)["renewed"]) == (0, True)
        assert self._instance(line) == json.loads(other.stdout)["record"]["instance_id"] == "first"

    @pytest.mark.parametrize("dead", [True, False])
    def test_the_heartbeat_goes_over_from_one_that_is_dead_or_superseded(
        self, at: Runtime, line: Line, dead: bool
    ) -> None:
        line.local("heartbeat", "--agent-id", "ana", "--instance-id", "first", "--ttl", "60")
        line.clock.advance(hours=int(dead))
        supersede = [] if dead else ["--supersede"]
        assert line.local(*CLAIM, "--keep", "--instance-id", "second", *supersede).exit == 0
        beat = json.loads((line.root / "heartbeats/ana.json").read_text())
        assert (beat["instance_id"], beat["target"]) == ("second", "42")

    def test_the_heartbeat_of_another_that_lives_stays(self, at: Runtime, line: Line) -> None:
        line.local("heartbeat", "--agent-id", "ana", "--instance-id", "first")
        before = (line.root / "heartbeats/ana.json").read_bytes()
        line.local(*CLAIM, "--keep", "--instance-id", "second")
        assert (line.root / "heartbeats/ana.json").read_bytes() == before

    def test_another_that_lives_is_refused(self, at: Runtime, line: Line) -> None:
        line.local(*CLAIM, "--keep", "--instance-id", "first")
        line.local("heartbeat", "--agent-id", "ana")
        output = line.local(*CLAIM, "--keep", "--instance-id", "second", "--json")
        assert output.exit == 3
        refused, _, why = output.stderr[0].rpartition("; ")
        assert refused == "CLAIM_REFUSED: active claim for acme/shop#42 held by ana; heartbeat live"
        assert why == "by another instance of it (first), which --supersede would displace"
        assert json.loads(output.stdout)["instance_id"] == "first"
        assert self._instance(line) == "first"
        assert len(at.asked("lease.hold")) == 1

    def test_another_is_superseded_when_that_is_said(self, at: Runtime, line: Line) -> None:
        line.local(*CLAIM, "--keep", "--instance-id", "first")
        output = line.local(*CLAIM, "--keep", "--instance-id", "second", "--supersede", "--json")
        answer = json.loads(output.stdout)
        assert (output.exit, answer["renewed"], self._instance(line)) == (0, False, "second")

    def test_another_that_is_dead_is_no_hindrance(self, at: Runtime, line: Line) -> None:
        line.local("heartbeat", "--agent-id", "ana", "--ttl", "1")
        line.local(*CLAIM, "--keep", "--instance-id", "first")
        line.clock.advance(hours=2)
        assert line.local(*CLAIM, "--keep", "--instance-id", "second").exit == 0
        assert self._instance(line) == "second"

    def test_one_without_a_name_may_be_another(self, at: Runtime, line: Line) -> None:
        line.local(*CLAIM)
        assert line.local(*CLAIM, "--keep", "--instance-id", "first").exit == 3
        assert line.local(*CLAIM, "--keep", "--instance-id", "first", "--supersede").exit == 0

    def test_a_plain_claim_still_does_not_look_at_instances(self, at: Runtime, line: Line) -> None:
        line.local(*CLAIM, "--keep", "--instance-id", "first")
        assert line.local(*CLAIM, "--instance-id", "second").exit == 0


class TestHeartbeat:
    def test_it_is_kept(self, at: Runtime, line: Line) -> None:
        output = line.local("heartbeat", "--agent-id", "ana", "--keep", "--json")
        assert list(json.loads(output.stdout)) == ["record", "lease"]
        (asked,) = at.asked("lease.hold")
        assert (asked["kinds"], asked["fence"], asked["repo"]) == (["heartbeat"], None, None)

    def test_without_a_daemon_it_stands(self, at: Runtime, line: Line) -> None:
        line.env["FAKE_FAILS"] = "no room"
        output = line.local("heartbeat", "--agent-id", "ana", "--keep")
        assert output.exit == 2
        assert output.stdout.startswith(b"heartbeat ana ")
        assert output.stderr[0].endswith(f"; then run: agent-coord lease hold --agent-id ana --state-root {line.root}")


@pytest.mark.parametrize(
    ("argv", "fault"),
    [
        ([*CLAIM, "--supersede"], "--supersede requires --keep"),
        ([*CLAIM, "--watch-pid", "7"], "--watch-pid requires --keep"),
        ([*CLAIM, "--keep", "--watch-pid", "0"], "--watch-pid must be positive"),
        ([*CLAIM, "--keep", "--ttl", "0"], "--ttl must be positive"),
        (["heartbeat", "--agent-id", "a", "--keep", "--supersede"], "invalid option: --supersede"),
        (["release", "--keep"], "invalid option: --keep"),
        (["claim", "--agent-id", "a/b", *ITEM, "--keep"], "invalid agent-id: a/b"),
        (
            ["lease", "hold", "--agent-id", "a", "--repo", "a/b"],
            "lease hold takes --repo and --target together, or neither",
        ),
        (["lease", "hold"], "missing required --agent-id"),
        (["lease", "hold", "--agent-id", "a", "--ttl", "-1"], "--ttl must be positive"),
        (
            ["lease", "hold", "--agent-id", "ana", *ITEM],
            "ana does not hold acme/shop#42: claim it first, best with --keep",
        ),
        (["lease", "drop"], "lease drop needs the id of a lane, as agent-coord lease list shows it"),
        (["lease", "drop", "a", "b"], "unexpected arguments: b"),
    ],
)
def test_wrong_invocations_write_and_start_nothing(at: Runtime, line: Line, argv: list[str], fault: str) -> None:
    line.root.mkdir()
    line.env["AGENT_COORD_STATE_ROOT"] = str(line.root)
    before = line.tree()
    assert said(line(*argv)) == (1, b"", [fault])
    assert line.tree() == before
    assert not at.place.exists()


def test_keeping_needs_a_daemon_that_may_be_asked(at: Runtime, line: Line) -> None:
    line.env["AGENT_COORD_DAEMON"] = "off"
    output = line.local(*CLAIM, "--keep")
    assert said(output) == (1, b"", ["--keep needs the daemon, which AGENT_COORD_DAEMON=off forbids"])


def test_nothing_is_kept_on_the_github_backend(at: Runtime, line: Line) -> None:
    output = line(*CLAIM, "--keep", "--backend", "acme/state")
    assert said(output) == (
        2,
        b"",
        ["the daemon keeps nothing on the legacy GitHub backend; nothing was written"],
    )


class TestLease:
    def test_list(self, at: Runtime, line: Line) -> None:
        with at.daemon():
            assert line("lease", "list").stdout == b"nothing is kept\n"
            line.local(*CLAIM, "--keep", "--watch-pid", "1")
            shown = f"L1 ana acme/shop#42 kept; process 1 (claude); by the test; next renewal {NEXT}\n"
            assert line("lease", "list").stdout == shown.encode()
            (lane,) = json.loads(line("lease", "list", "--json").stdout)["lanes"]
            assert (lane["lane"], lane["state"]) == ("L1", "kept")

    def test_hold_keeps_a_claim_that_stands(self, at: Runtime, line: Line) -> None:
        line.local(*CLAIM)
        record = json.loads((line.root / "claims/acme/shop/42.json").read_text())
        output = line.local("lease", "hold", "--agent-id", "ana", *ITEM, "--watch-pid", "1")
        assert output.stdout.startswith(b"kept as lane L1: watching process 1 (claude)")
        (asked,) = at.asked("lease.hold")
        assert (asked["kinds"], asked["fence"]) == (["heartbeat", "claim"], fence(record))
        assert json.loads((line.root / "claims/acme/shop/42.json").read_text()) == record
        output = line.local("lease", "hold", "--agent-id", "bob", "--json")
        assert json.loads(output.stdout)["lease"]["lane"] == "L2"

    def test_drop(self, at: Runtime, line: Line) -> None:
        with at.daemon():
            line.local("heartbeat", "--agent-id", "ana", "--keep")
            assert line("lease", "drop", "L1").stdout.startswith(b"dropped lane L1: ")
            output = line("lease", "drop", "L1")
            assert said(output) == (1, b"", ["no lane L1 is kept; agent-coord lease list names those that are"])

    def test_without_a_daemon_none_is_started_to_list_nothing(self, at: Runtime, line: Line) -> None:
        for argv in (["list"], ["drop", "L1"]):
            output = line("lease", *argv)
            assert (output.exit, output.stdout) == (2, b"")
            assert output.stderr[0].startswith("no daemon listens at ")
        assert not at.place.exists()


def test_other_commands_do_not_load_what_keeping_needs() -> None:
    code = "import sys, agentcoord.cli.run, agentcoord.cli.performing; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"socket", "subprocess", "agentcoord.daemonlink", "agentcoord.cli.keeping"} & set(ran.stdout.split())
