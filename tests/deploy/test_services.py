"""What service managers are given: the daemon's own files, and a lane's heartbeat for machines without it."""

import plistlib
import re
import shlex
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agentcoord.cli import services
from tests.command import PATIENCE
from tests.deploy.running import ROOT

DAEMON_UNIT = ROOT / "systemd/agentcoordd.service"
DAEMON_AGENT = ROOT / "launchd/com.agent-coord.agentcoordd.plist"
UNIT = ROOT / "systemd/agent-coord-heartbeat.service.example"
AGENT = ROOT / "launchd/com.shakacode.agent-coord-heartbeat.plist.example"

VALUES = {
    "__AGENT_ID__": "worker-a",
    "__TARGET_REPO__": "acme/shop",
    "__TARGET__": "issue:42",
    "__BATCH_ID__": "spring",
    "__BRANCH__": "worker-a/42",
}
BEAT = (
    "heartbeat --agent-id worker-a --repo acme/shop --target issue:42 --batch-id spring "
    "--branch worker-a/42 --status in_progress"
)


def _substituted(template: Path, directory: Path, env_file: Path) -> str:
    """Fill a template as people are told to: with sed."""
    values = VALUES | {"__AGENT_COORD_ENV_FILE__": str(env_file), "__AGENT_COORD_REPO__": str(directory)}
    command = ["sed"]
    for name, value in values.items():
        command += ["-e", f"s#{name}#{value}#g"]
    return subprocess.run([*command, template], capture_output=True, text=True, check=True, timeout=PATIENCE).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose command only writes down how it was called."""
    (tmp_path / "bin").mkdir()
    _script(tmp_path / "bin/agent-coord", f'echo "$AGENT_COORD_MACHINE_ID" "$@" >> "{tmp_path}/called"')
    (tmp_path / "env").write_text(
        "AGENT_COORD_API_URL=http://127.0.0.1:9\nAGENT_COORD_API_TOKEN=x\nAGENT_COORD_MACHINE_ID=m1\n"
    )
    return tmp_path


def _script(place: Path, text: str) -> None:
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(place.stat().st_mode | stat.S_IXUSR)


def _settings(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


class TestTemplates:
    @pytest.mark.parametrize("template", [UNIT, AGENT], ids=lambda path: path.name)
    def test_every_name_to_be_replaced_stands_there_and_no_other(self, template: Path) -> None:
        names = set(re.findall(r"__[A-Z_]+?__", template.read_text()))
        assert names == {*VALUES, "__AGENT_COORD_ENV_FILE__", "__AGENT_COORD_REPO__"}

    @pytest.mark.parametrize("template", [UNIT, AGENT], ids=lambda path: path.name)
    def test_nothing_is_left_to_replace(self, checkout: Path, template: Path) -> None:
        assert "__" not in _substituted(template, checkout, checkout / "env")

    def test_the_unit_is_what_service_managers_were_promised(self, checkout: Path) -> None:
        settings = _settings(_substituted(UNIT, checkout, checkout / "env"))
        assert settings["Description"] == ["ShakaCode agent-coord heartbeat for worker-a"]
        assert settings["After"] == settings["Wants"] == ["network-online.target"]
        assert (settings["Type"], settings["Restart"], settings["RestartSec"]) == (["simple"], ["always"], ["15"])
        assert settings["WantedBy"] == ["default.target"]
        assert settings["EnvironmentFile"] == [str(checkout / "env")]
        assert settings["WorkingDirectory"] == [str(checkout)]
        names = [value.partition("=")[0] for value in settings["Environment"]]
        assert names == ["PATH", "AGENT_ID", "TARGET_REPO", "TARGET", "BATCH_ID", "BRANCH", "AGENT_COORD_STATUS"]
        assert settings["Environment"][0].startswith("PATH=%h/.local/bin:")
        assert settings["Environment"][-1] == "AGENT_COORD_STATUS=in_progress"

    @pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
    def test_the_loop_of_the_unit_beats_for_ever(self, checkout: Path) -> None:
        ran = self._loop(checkout)
        assert ran.stderr == ""
        assert (checkout / "called").read_text() == f"m1 {BEAT}\n" * 3
        assert (checkout / "slept").read_text() == "300\n" * 3

    @pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
    @pytest.mark.parametrize("missing", ["AGENT_COORD_API_URL", "AGENT_COORD_API_TOKEN"])
    def test_the_loop_does_not_begin_without(self, checkout: Path, missing: str) -> None:
        env = (checkout / "env").read_text()
        (checkout / "env").write_text(re.sub(f"^{missing}=.*", "", env, flags=re.MULTILINE))
        ran = self._loop(checkout)
        assert f"{missing}: set in {checkout}/env" in ran.stderr
        assert not (checkout / "called").exists()

    def _loop(self, checkout: Path) -> "subprocess.CompletedProcess[str]":
        """Run the unit's command as systemd would; the third time it sleeps, it is ended."""
        settings = _settings(_substituted(UNIT, checkout, checkout / "env"))
        env = dict(value.split("=", 1) for value in settings["Environment"])
        env |= dict(line.split("=", 1) for line in (checkout / "env").read_text().splitlines() if line)
        env["PATH"] = f"{checkout}/sleep:{env['PATH']}"
        (checkout / "sleep").mkdir()
        count = f'[ "$(wc -l < "{checkout}/slept")" -lt 3 ] || kill $PPID'
        _script(checkout / "sleep/sleep", f'echo "$1" >> "{checkout}/slept"\n{count}')
        argv = shlex.split(settings["ExecStart"][0].replace("$$", "$"))
        return subprocess.run(
            argv, env=env, cwd=checkout, capture_output=True, text=True, check=False, timeout=PATIENCE
        )

    def test_the_agent_is_what_launchd_was_promised(self, checkout: Path) -> None:
        agent = plistlib.loads(_substituted(AGENT, checkout, checkout / "env").encode())
        assert agent["Label"] == "com.shakacode.agent-coord-heartbeat.worker-a"
        assert agent["ProgramArguments"][:2] == ["/bin/zsh", "-lc"]
        assert (agent["StartInterval"], agent["RunAtLoad"]) == (300, True)
        assert agent["StandardOutPath"] == "/tmp/agent-coord-heartbeat.worker-a.out"  # noqa: S108 - as promised
        assert agent["StandardErrorPath"] == "/tmp/agent-coord-heartbeat.worker-a.err"  # noqa: S108 - as promised

    @pytest.mark.skipif(not Path("/bin/zsh").exists(), reason="zsh is not installed")
    @pytest.mark.parametrize("missing", ["", "AGENT_COORD_API_URL", "AGENT_COORD_API_TOKEN"])
    def test_the_agent_beats_once(self, checkout: Path, missing: str) -> None:
        if missing:
            env = (checkout / "env").read_text()
            (checkout / "env").write_text(re.sub(f"^{missing}=.*", "", env, flags=re.MULTILINE))
        argv = plistlib.loads(_substituted(AGENT, checkout, checkout / "env").encode())["ProgramArguments"]
        ran = subprocess.run(
            argv,
            env={"HOME": str(checkout), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        if missing:
            assert f"{missing}: set in {checkout}/env" in ran.stderr
            assert not (checkout / "called").exists()
        else:
            assert (ran.returncode, ran.stderr) == (0, "")
            assert (checkout / "called").read_text() == f"m1 {BEAT}\n"


class TestDaemon:
    @pytest.mark.parametrize("template", [DAEMON_UNIT, DAEMON_AGENT], ids=lambda path: path.name)
    def test_a_template_is_known_as_ours_and_names_its_program_once(self, template: Path) -> None:
        text = template.read_text()
        assert services.MARK in text[:4096]
        assert re.findall(r"__[A-Z_]+?__", text) == [services.PROGRAM]

    def test_the_unit(self) -> None:
        settings = _settings(DAEMON_UNIT.read_text())
        assert settings["Type"] == ["notify"]
        assert settings["Restart"] == ["on-failure"]  # and so not after `agent-coord daemon stop`
        assert settings["UMask"] == ["0077"]
        assert settings["WantedBy"] == ["default.target"]

    def test_the_launch_agent(self) -> None:
        agent = plistlib.loads(DAEMON_AGENT.read_bytes())
        assert agent["Label"] == services.LABEL == DAEMON_AGENT.stem
        assert agent["ProgramArguments"] == [services.PROGRAM, "run", "--log-file"]
        assert agent["KeepAlive"] == {"SuccessfulExit": False}
        assert agent["Umask"] == 0o077

    @pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
    @pytest.mark.parametrize("name", ["agentcoordd", "with blank", "per%cent", "dol$lar", "umläut"])
    def test_systemd_finds_no_fault_in_what_is_installed(self, tmp_path: Path, name: str) -> None:
        program = tmp_path / name
        _script(program, "")
        env = {"AGENT_COORD_STATE_ROOT": f"/srv/{name}", "XDG_STATE_HOME": "/a'\"\\b", "HOME": "/"}
        text = services.filled(services.service_of(env), (str(program), "run"), env)
        assert self._faults(text, tmp_path) == []

    @pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
    def test_systemd_finds_no_fault_in_a_lanes_heartbeat(self, checkout: Path) -> None:
        assert self._faults(_substituted(UNIT, checkout, checkout / "env"), checkout) == []

    def _faults(self, text: str, directory: Path) -> list[str]:
        unit = directory / "tried.service"
        unit.write_text(text)
        ran = subprocess.run(
            ["systemd-analyze", "verify", "--user", "--man=no", "--recursive-errors=no", unit],
            env={"XDG_RUNTIME_DIR": str(directory), "HOME": str(directory), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        if "Failed to initialize manager" in ran.stderr:
            pytest.skip("systemd-analyze cannot look at user units here")
        return [line for line in ran.stderr.splitlines() if unit.name in line]


def test_what_is_installed_from_a_wheel_has_the_templates(tmp_path: Path) -> None:
    """The command fills them in, so they have to be where it looks."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", tmp_path, ROOT], check=True, timeout=PATIENCE)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        for template in (DAEMON_UNIT, DAEMON_AGENT):
            assert opened.read(f"agentcoord/services/{template.name}") == template.read_bytes()
