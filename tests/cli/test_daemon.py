"""The life of the daemon as a person asks for it; the daemon is a stand-in, the service manager too."""

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from agentcoord import daemonlife
from agentcoord.cli import services
from agentcoord.cli.output import Output
from agentcoord.errors import StoreError
from agentcoord.version import VERSION
from tests.cli.line import Line, said
from tests.command import PATIENCE
from tests.fakedaemon import PROGRAM, Runtime, runtime

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")


@pytest.fixture
def at(line: Line, monkeypatch: pytest.MonkeyPatch) -> Generator[Runtime]:
    monkeypatch.setattr(daemonlife, "program", lambda: PROGRAM)
    with runtime() as made:
        line.env |= {"AGENT_COORD_RUNTIME_DIR": str(made.place), "PATH": str(line.directory / "bin")}
        (line.directory / "bin").mkdir()
        yield made


class TestStartAndStop:
    def test_it_is_started_once(self, at: Runtime, line: Line) -> None:
        first = line("daemon", "start")
        (pid,) = at.noted("starts")
        assert said(first) == (0, f"started: agentcoordd {VERSION}, process {pid}\n".encode(), [])
        again = line("daemon", "start")
        assert again.stdout == f"running already: agentcoordd {VERSION}, process {pid}\n".encode()
        assert json.loads(line("daemon", "start", "--json").stdout) == {
            "running": True,
            "started": False,
            "pid": pid,
            "version": VERSION,
        }

    def test_a_stop_is_for_good(self, at: Runtime, line: Line) -> None:
        line("daemon", "start")
        (pid,) = at.noted("starts")
        assert line("daemon", "stop").stdout.startswith(f"stopped process {pid}; ".encode())
        assert (at.place / "stopped").exists()
        assert line("daemon", "stop").stdout.startswith(b"no daemon was running; ")
        kept = line.local("heartbeat", "--agent-id", "ana", "--keep")
        assert kept.exit == 2
        assert "nobody keeps it: the daemon was stopped; agent-coord daemon start starts it again" in kept.stderr[0]
        assert line("daemon", "start").exit == 0
        assert not (at.place / "stopped").exists()

    def test_a_restart_leaves_no_mark(self, at: Runtime, line: Line) -> None:
        line("daemon", "start")
        assert line("daemon", "restart").stdout.startswith(b"started: ")
        first, second = at.noted("starts")
        assert first != second
        assert at.asked("daemon.stop") == [{"mark": False}]
        assert line("daemon", "stop", "--json").stdout == b'{\n  "running": false,\n  "stopped": true\n}\n'

    def test_one_that_cannot_start_says_why(self, at: Runtime, line: Line) -> None:
        line.env["FAKE_FAILS"] = "the roster cannot be read"
        assert said(line("daemon", "start")) == (2, b"", ["the daemon did not start: the roster cannot be read"])


class TestStatus:
    def test_none_runs(self, at: Runtime, line: Line) -> None:
        output = line("daemon", "status")
        shown = f"agent-coord daemon\nrunning: no\nsocket: {at.place}/daemon.sock\n"
        assert said(output) == (3, shown.encode(), [])
        line("daemon", "stop")
        assert b"running: no, it was stopped" in line("daemon", "status").stdout
        assert json.loads(line("daemon", "status", "--json").stdout) == {
            "running": False,
            "socket": f"{at.place}/daemon.sock",
            "stopped": True,
        }

    def test_what_it_says_is_shown_also_what_nobody_knows_of(self, at: Runtime, line: Line) -> None:
        status = {
            "started_at": "2026-11-29T10:00:00Z",
            "version": "0.1.0",
            "pid": 7,
            "memory_bytes": 50 << 20,
            "descriptors": {"used": 12, "limit": 1024},
            "subscribers": 2,
            "backends": [{"kind": "local", "root": "/srv/state", "error": None}],
            "errors": [{"at": "noon", "message": "oh"}],
            "connections": {"used": 3, "limit": None},
            "requests": {"running": {"used": 1, "limit": 64}, "done": 70},
            "new": True,
            "odd": None,
        }
        lane = {"lane": "L1", "agent_id": "ana", "repo": "a/b", "target": "1", "state": "kept", "pid": 9}
        lane |= {"program": "claude", "chosen": "nearest agent", "next_renewal": "soon", "error": "down"}
        line.clock.instant = line.clock.now().replace(year=2026, month=11, day=29, hour=12, minute=3, second=4)
        with at.daemon(FAKE_STATUS=json.dumps(status), FAKE_LANES=json.dumps([lane])):
            output = line("daemon", "status")
            facts = json.loads(line("daemon", "status", "--json").stdout)
        assert output.stdout.decode().splitlines() == [
            "agent-coord daemon",
            "running: yes",
            f"socket: {at.place}/daemon.sock",
            "version: 0.1.0",
            "pid: 7",
            "started_at: 2026-11-29T10:00:00Z",
            "uptime: 2h 3m",
            "memory: 50.0 MiB",
            "descriptors: 12 of 1024",
            "subscribers: 2",
            "connections: 3",
            "new: yes",
            "odd: -",
            "backends",
            "- kind local, root /srv/state",
            "errors",
            "- noon oh",
            "requests",
            "- running: 1 of 64",
            "- done: 70",
            "lanes",
            "- L1 ana a/b#1 kept; process 9 (claude); nearest agent; next renewal soon; last error: down",
        ]
        assert facts == {"running": True, "socket": f"{at.place}/daemon.sock", "daemon": status, "lanes": [lane]}

    def test_one_that_cannot_list_its_lanes_still_says_the_rest(self, at: Runtime, line: Line) -> None:
        with at.daemon(FAKE_UNKNOWN="lease.list"):
            lines = line("daemon", "status").stdout.decode().splitlines()
            assert json.loads(line("daemon", "status", "--json").stdout)["lanes"] is None
        assert lines[-1] == "- unknown: the daemon refused lease.list: unknown method: lease.list"

    def test_one_that_does_not_answer_is_not_called_absent(self, at: Runtime, line: Line) -> None:
        with at.daemon(FAKE_CUT="daemon.status"):
            output = line("daemon", "status")
        assert (output.exit, output.stdout) == (2, b"")


class TestLogs:
    @pytest.fixture
    def log(self, line: Line) -> Path:
        path = line.home / ".local/state/agentcoordd/daemon.log"
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"line {number}\n" for number in range(1000)))
        return path

    def test_the_last_lines(self, at: Runtime, line: Line, log: Path) -> None:
        assert line("daemon", "logs", "--limit", "2").stdout == b"line 998\nline 999\n"
        assert line("daemon", "logs").stdout.count(b"\n") == 200
        log.write_text("half")
        assert line("daemon", "logs").stdout == b"half\n"
        log.write_text("")
        assert line("daemon", "logs").stdout == b""

    def test_none_yet(self, at: Runtime, line: Line) -> None:
        output = line("daemon", "logs")
        assert output.exit == 2
        assert output.stderr[0].startswith("there is no log yet: ")
        assert line("daemon", "logs", "--limit", "0").stderr == ["--limit must be positive"]

    def test_it_is_followed_into_the_next_file(self, at: Runtime, line: Line, log: Path) -> None:
        answer = iter(line("daemon", "logs", "--limit", "1", "--follow").answer)
        assert next(answer) == b"line 999\n"
        with log.open("a") as file:
            file.write("more\n")
        assert _soon(answer) == b"more\n"
        log.rename(log.with_suffix(".1"))
        log.write_text("anew\n")
        assert _soon(answer) == b"anew\n"

    @LINUX
    def test_the_journal_of_an_installed_unit(self, at: Runtime, line: Line) -> None:
        _program(line, "systemctl", "")
        _program(line, "journalctl", 'echo "$@"')
        assert line("daemon", "install").exit == 0
        assert line("daemon", "logs", "--limit", "3").stdout == (
            b"--user --unit agentcoordd.service --lines 3 --no-pager\n"
        )


def _soon(answer: Iterator[bytes]) -> bytes:
    """Take the next piece, from a thread that is given up if none comes."""
    found: list[bytes] = []
    taking = threading.Thread(target=lambda: found.append(next(answer)), daemon=True)
    taking.start()
    taking.join(PATIENCE)
    assert found, "nothing came"
    return found[0]


def _program(line: Line, name: str, script: str) -> None:
    """Put a program of the test's own on the path, which also writes down how it was called."""
    place = line.directory / "bin" / name
    place.write_text(f'#!/bin/sh\necho "$@" >> "{line.directory}/{name}.called"\n{script}\n')
    place.chmod(0o755)


def _called(line: Line, name: str) -> list[str]:
    path = line.directory / f"{name}.called"
    return path.read_text().splitlines() if path.exists() else []


@LINUX
class TestInstalling:
    @pytest.fixture(autouse=True)
    def _manager(self, at: Runtime, line: Line) -> None:
        # As a manager does, it runs what the unit names, with the environment that the unit gives.
        unit = line.home / ".config/systemd/user/agentcoordd.service"
        start = f"import shlex,subprocess as s; t=open({str(unit)!r}).read().splitlines(); "
        start += "e=dict(shlex.split(l[12:])[0].split('=',1) for l in t if l.startswith('Environment=')); "
        start += "c=[shlex.split(l[10:]) for l in t if l.startswith('ExecStart=')][0]; "
        start += "s.Popen(c,env=e,stdin=-3,stdout=-3,stderr=-3,start_new_session=True)"
        _program(line, "systemctl", f'case "$*" in *" start "*) {sys.executable} -c "{start}";; esac')

    def _unit(self, line: Line) -> Path:
        return line.home / ".config/systemd/user/agentcoordd.service"

    def test_it_is_written_enabled_and_started(self, at: Runtime, line: Line) -> None:
        line.env["AGENT_COORD_API_TOKEN"] = "s3cret"
        line("daemon", "start")
        output = line("daemon", "install")
        assert (output.exit, output.stderr) == (0, [])
        assert output.stdout.decode().splitlines()[:2] == [
            f"installed {self._unit(line)}",
            "enabled and started: the daemon starts when you log in",
        ]
        assert _called(line, "systemctl") == [
            "--user daemon-reload",
            "--user enable agentcoordd.service",
            "--user start agentcoordd.service",
        ]
        text = self._unit(line).read_text()
        assert f"ExecStart={' '.join(PROGRAM)}\n" in text
        assert f"Environment=AGENT_COORD_RUNTIME_DIR={at.place}\n" in text
        assert "s3cret" not in text
        assert "__" not in text
        assert stat.S_IMODE(self._unit(line).stat().st_mode) == 0o644
        assert at.asked("daemon.stop") == [{"mark": False}]  # the one that was started by hand

    def test_what_is_installed_starts_it(self, at: Runtime, line: Line) -> None:
        line("daemon", "install")
        line("daemon", "stop")
        output = line("daemon", "start")
        assert output.stdout.startswith(b"started: ")
        assert _called(line, "systemctl").count("--user start agentcoordd.service") == 2

    def test_installing_again_renews_it(self, at: Runtime, line: Line) -> None:
        line("daemon", "install")
        self._unit(line).write_text(self._unit(line).read_text().replace("RestartSec=5", "RestartSec=7"))
        assert line("daemon", "install").exit == 0
        assert "RestartSec=5" in self._unit(line).read_text()

    def test_somebody_elses_unit_is_left_alone(self, at: Runtime, line: Line) -> None:
        self._unit(line).parent.mkdir(parents=True)
        self._unit(line).write_text("[Service]\n")
        for word in ("install", "uninstall"):
            assert said(line("daemon", word)) == (2, b"", [f"{self._unit(line)} is not ours; move it away first"])
        self._unit(line).unlink()
        self._unit(line).symlink_to(line.directory / "elsewhere")
        assert line("daemon", "install").exit == 2
        assert _called(line, "systemctl") == []

    def test_a_manager_that_refuses_leaves_nothing_behind(self, at: Runtime, line: Line) -> None:
        _program(line, "systemctl", "echo warned >&2; echo 'Failed to connect to bus' >&2; exit 1")
        fault = "systemctl --user daemon-reload failed: Failed to connect to bus"
        mend = "nothing was installed; agent-coord daemon start needs no service"
        assert said(line("daemon", "install")) == (2, b"", [f"{fault}; {mend}"])
        assert not self._unit(line).exists()

    def test_no_manager_is_one_line(self, at: Runtime, line: Line) -> None:
        (line.directory / "bin/systemctl").unlink()
        output = line("daemon", "install")
        assert (output.exit, len(output.stderr)) == (2, 1)
        assert output.stderr[0].startswith("there is no systemctl on this machine, so nothing was changed; ")
        assert not self._unit(line).exists()

    def test_no_home_is_one_line(self, at: Runtime, line: Line) -> None:
        line.env["HOME"] = "relative"
        assert line("daemon", "install").stderr == [
            "HOME is not an absolute path, so there is no place for a service of yours; set it"
        ]

    def test_a_rehearsal_changes_nothing(self, at: Runtime, line: Line) -> None:
        before = line.tree()
        for word in ("install", "uninstall"):
            output = line("daemon", word, "--dry-run")
            assert output.exit == 0
        assert b"would run: systemctl --user enable" in line("daemon", "install", "--dry-run").stdout
        assert line.tree() == before

    def test_uninstalling_undoes_it(self, at: Runtime, line: Line) -> None:
        assert line("daemon", "uninstall").stdout.startswith(b"nothing is installed: ")
        line("daemon", "install")
        assert b"would remove" in line("daemon", "uninstall", "--dry-run").stdout
        output = line("daemon", "uninstall")
        assert said(output) == (0, f"removed {self._unit(line)}\n".encode(), [])
        assert not self._unit(line).exists()
        assert _called(line, "systemctl")[-2:] == ["--user disable --now agentcoordd.service", "--user daemon-reload"]

    @pytest.mark.parametrize("name", ["with blank", "per%cent", "dol$lar"])
    def test_unusual_paths_are_spelled_for_systemd(self, line: Line, name: str) -> None:
        service = services.service_of(line.env)
        text = services.filled(service, (f"/opt/{name}/agentcoordd", "run"), {})
        file = line.directory / "unit.service"
        file.write_text(text)
        assert services.installed_program(str(file)) == f"/opt/{name}/agentcoordd"

    @pytest.mark.parametrize("name", ['quo"te', "back\\slash", "apo'strophe"])
    def test_a_program_that_systemd_would_not_start_is_refused(self, line: Line, name: str) -> None:
        with pytest.raises(StoreError, match="systemd starts no program of such a name"):
            services.filled(services.service_of(line.env), (f"/opt/{name}/agentcoordd", "run"), {})

    def test_a_path_that_no_unit_can_hold_is_refused(self, at: Runtime, line: Line) -> None:
        line.env["AGENT_COORD_STATE_ROOT"] = "/srv/a\nExecStartPre=/bin/x"
        output = line("daemon", "install")
        assert output.exit == 2
        assert output.stderr[0].startswith("a service's file cannot name ")

    def test_no_cli_is_needed_to_see_the_hint_on_lingering(
        self, at: Runtime, line: Line, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(services, "lingers", _no)
        assert b"loginctl enable-linger" in line("daemon", "install").stdout


def _no(env: object) -> bool:
    return False


class TestLaunchd:
    def test_the_agent_is_written_and_loaded(self, at: Runtime, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
        import plistlib

        monkeypatch.setattr(sys, "platform", "darwin")
        service = services.service_of(line.env)
        assert service.file == str(line.home / "Library/LaunchAgents/com.agent-coord.agentcoordd.plist")
        command = ("/opt/<a> & b/agentcoordd", "run")
        text = services.filled(service, command, {"AGENT_COORD_RUNTIME_DIR": "/run/<x>", "HOME": "/h"})
        read = plistlib.loads(text.encode())
        assert read["ProgramArguments"] == [*command, "--log-file"]
        assert read["EnvironmentVariables"] == {"AGENT_COORD_RUNTIME_DIR": "/run/<x>"}
        Path(line.directory / "a.plist").write_text(text)
        assert services.installed_program(str(line.directory / "a.plist")) == command[0]
        output = Output()
        services.install(line.env, output, dry_run=True)
        assert f"would run: launchctl bootstrap gui/{os.geteuid()} {service.file}" in output.stdout.decode()


class TestWords:
    def test_a_word_is_needed(self, line: Line) -> None:
        words = "start, stop, restart, status, logs, install, uninstall"
        for argv in (["daemon"], ["daemon", "dance"], ["daemon", "--json", "start"]):
            assert said(line(*argv)) == (1, b"", [f"daemon needs one of these words: {words}"])
        assert line("lease").stderr == ["lease needs one of these words: list, hold, drop"]
        assert line("daemon start").stderr == ["unknown command: daemon start"]

    def test_help_names_the_words(self, line: Line) -> None:
        page = line("daemon", "--help").stdout.decode()
        assert page.startswith("Usage: agent-coord daemon <word> [options]\n")
        assert "\n  uninstall  Undo daemon install" in page
        assert line("daemon", "logs", "-h").stdout.startswith(b"Usage: agent-coord daemon logs [options]\n")

    def test_words_are_completed(self, line: Line) -> None:
        def offered(*words: str) -> list[str]:
            return line("__complete", "bash", str(len(words) - 1), *words).stdout.decode().splitlines()

        assert offered("daemon", "st") == ["start", "stop", "status"]
        assert offered("lease", "") == ["list", "hold", "drop", "--help"]
        assert offered("daemon", "logs", "--") == ["--limit", "--follow", "--help"]
        assert offered("claim", "--k") == ["--keep"]

    def test_nothing_is_read_of_the_configuration(self, at: Runtime, line: Line) -> None:
        line.env |= {"AGENT_COORD_ENV_FILE": "relative", "AGENT_COORD_POLICY": "nonsense"}
        assert line("daemon", "status").exit == 3


def test_a_process_of_its_own_starts_nothing_to_look_or_to_stop(at: Runtime, line: Line) -> None:
    run = [sys.executable, "-m", "agentcoord", "daemon"]
    env = {**line.env, "HOME": str(line.home)}
    for word, exit_ in (("status", 3), ("stop", 0), ("status", 3)):
        ran = subprocess.run([*run, word], env=env, capture_output=True, check=False, timeout=PATIENCE)
        assert (ran.returncode, ran.stderr) == (exit_, b"")


class TestDoctor:
    def _found(self, line: Line) -> list[str]:
        line.root.mkdir(exist_ok=True)
        line.env["AGENT_COORD_MACHINE_ID"] = "m"
        output = line.local("doctor", "--explain", "--json")
        assert output.exit == 0
        return [finding["id"] for finding in json.loads(output.stdout)["findings"] if "daemon" in finding["id"]]

    def test_no_daemon_is_nothing_to_warn_of(self, at: Runtime, line: Line) -> None:
        assert self._found(line) == []
        assert not at.place.exists()

    def test_one_of_this_version_neither(self, at: Runtime, line: Line) -> None:
        with at.daemon():
            assert self._found(line) == []

    def test_what_is_seen_of_it_is_shown(self, at: Runtime, line: Line) -> None:
        def seen() -> dict[str, object]:
            return json.loads(line.local("doctor", "--explain", "--json").stdout)["daemon"]

        line.root.mkdir()
        socket = f"{at.place}/daemon.sock"
        none = {"running": False, "version": None, "socket": socket, "service": None, "program": None, "lingers": None}
        assert seen() == none
        with at.daemon(FAKE_VERSION="0.0.1"):
            assert seen() == none | {"running": True, "version": "0.0.1"}
            assert b"daemon\n- running: yes\n- version: 0.0.1\n" in line.local("doctor", "--explain").stdout
            at.place.chmod(0o755)
            assert seen() == none | {"running": None}
        at.place.chmod(0o700)

    def test_what_is_wrong_is_found(self, at: Runtime, line: Line) -> None:
        with at.daemon(FAKE_VERSION="0.0.1", FAKE_API="7"):
            assert self._found(line) == ["daemon.version"]
            at.place.chmod(0o755)
            assert self._found(line) == ["daemon.untrusted"]
        line.env["AGENT_COORD_DAEMON"] = "require"
        at.place.chmod(0o700)
        assert self._found(line) == ["daemon.down"]

    @LINUX
    def test_a_unit_whose_program_is_gone(self, at: Runtime, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
        _program(line, "systemctl", "")
        assert line("daemon", "install").exit == 0
        monkeypatch.setattr(services, "lingers", _no)
        assert self._found(line) == ["daemon.down", "daemon.lingering"]
        unit = line.home / ".config/systemd/user/agentcoordd.service"
        unit.write_text(unit.read_text().replace("ExecStart=/", "ExecStart=/gone/"))
        assert "daemon.unit_target" in self._found(line)

    def test_the_plain_doctor_says_nothing_of_it(self, at: Runtime, line: Line) -> None:
        line.root.mkdir()
        before = line.local("doctor", "--json").stdout
        line.env["AGENT_COORD_DAEMON"] = "require"
        assert line.local("doctor", "--json").stdout == before
