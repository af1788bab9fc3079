"""`doctor --explain`: the whole report, the commands it gives carried out, and what it never shows."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcoord.cli.output import Output, Terminal
from agentcoord.operations.doctor.findings import SHOWN_LEFTOVERS
from agentcoord.stores.survey import exposed
from tests.cli.line import Line
from tests.cli.test_answers import golden
from tests.settings.conftest import private_directory

TABLE = b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
TOKEN = "t0ps3cret"
LONG_AGO = 1_000_000.0
PERSON = Terminal(person=True)


@pytest.fixture
def line(tmp_path: Path) -> Line:
    line = Line(tmp_path)
    line.files["/proc/self/mountinfo"] = TABLE
    line.env["AGENT_COORD_MACHINE_ID"] = "m1"
    line.root.mkdir(mode=0o700)
    return line


@pytest.fixture
def private() -> Iterator[Line]:
    """A line whose home is one that a user file can lie in, with a root named by the environment."""
    with private_directory() as directory:
        line = Line(directory)
        line.files["/proc/self/mountinfo"] = TABLE
        line.root.mkdir(mode=0o700)
        line.env["AGENT_COORD_STATE_ROOT"] = str(line.root)
        yield line


def save(line: Line, text: str, mode: int = 0o600) -> Path:
    file = line.home / ".config/agent-coord/env"
    file.parent.mkdir(parents=True, mode=0o700)
    for directory in (line.home, line.home / ".config"):
        directory.chmod(0o755)
    file.write_text(text)
    file.chmod(mode)
    return file


def explained(line: Line, *argv: str) -> tuple[Output, dict[str, Any]]:
    output = line("doctor", "--explain", "--json", *argv)
    return output, json.loads(output.stdout)


def found(line: Line, *argv: str) -> dict[str, Any]:
    """Give the findings by id; of two with one id the first."""
    findings: dict[str, Any] = {}
    for one in explained(line, *argv)[1]["findings"]:
        if one["id"] not in (
            "state_root.parent_open",
            "state_root.parent_owner",
        ):  # where the tests run is not their business
            findings.setdefault(one["id"], one)
    return findings


def mend(finding: dict[str, Any]) -> None:
    """Carry out the command of a finding as a person would."""
    subprocess.run(["sh", "-c", finding["mend"]], check=True, cwd="/", timeout=60)


# The report as a whole


def everything_wrong(line: Line) -> None:
    del line.env["AGENT_COORD_MACHINE_ID"]
    line.root.chmod(0o770)
    line.lay("claims/o/r/7.json", b"{")
    line.lay("claims/o/r/it's.json", b"[]")
    line.lay("batches", b"")
    (line.root / "claims/o/link").symlink_to("r")
    line.lay("events/b/.e.json.tmp-1-0a", b"{")
    os.utime(line.root / "events/b/.e.json.tmp-1-0a", (LONG_AGO, LONG_AGO))


@pytest.fixture
def closed(line: Line) -> Line:
    """A line in a home that is not there, and below directories that others cannot change."""
    opened, foreign = exposed(str(line.root), os.geteuid())
    if opened or foreign:
        pytest.skip("others may change a directory above the temporary one, which the report would say")
    line.env["HOME"] = "/home/you"
    line.env["AGENT_COORD_RUNTIME_DIR"] = "/home/you/run"
    return line


@pytest.mark.parametrize("kind", ["json", "txt"])
def test_everything_at_once(closed: Line, kind: str) -> None:
    everything_wrong(closed)
    options = ["--json"] if kind == "json" else []
    output = closed.local("doctor", "--deep", "--explain", *options)
    assert (output.exit, output.stderr) == (2, ["state layout invalid: batches is not a directory"])
    golden(f"doctor-explain.{kind}", closed, output)


def test_nothing_to_say(closed: Line) -> None:
    golden("doctor-explain-ok.txt", closed, closed.local("doctor", "--explain"))
    golden("doctor-explain-ok.json", closed, closed.local("doctor", "--explain", "--json"))


@pytest.mark.parametrize("options", [[], ["--deep"], ["--doctor-prefix", "claims"]])
def test_the_report_itself_is_what_it_is_without(line: Line, options: list[str]) -> None:
    plain = line.local("doctor", *options).stdout
    assert line.local("doctor", "--explain", *options).stdout.startswith(plain + b"settings\n")
    plain_facts = json.loads(line.local("doctor", "--json", *options).stdout)
    facts = json.loads(line.local("doctor", "--explain", "--json", *options).stdout)
    assert list(facts) == [*plain_facts, "settings", "file_system", "daemon", "findings"]
    assert {key: facts[key] for key in plain_facts} == plain_facts


def test_a_person_is_told_unasked_and_a_program_is_not(line: Line) -> None:
    told = line.local("doctor", "--explain")
    assert line("doctor", "--state-root", str(line.root), terminal=PERSON) == told
    argv = ("doctor", "--json", "--state-root", str(line.root))
    assert line(*argv, terminal=PERSON) == line(*argv)
    assert b"settings\n" not in line.local("doctor").stdout
    stack = ("doctor", "--stack-json", "--state-root", str(line.root))
    assert line(*stack, terminal=PERSON) == line(*stack)


def test_looking_changes_nothing(line: Line) -> None:
    everything_wrong(line)
    before = line.tree()
    line.local("doctor", "--deep", "--explain")
    assert line.tree() == before


@pytest.mark.parametrize("options", [[], ["--deep"]])
@pytest.mark.parametrize("wrong", ["missing", "file", "family", "record", "http", "prefix", "nothing"])
def test_it_ends_as_it_does_without(line: Line, options: list[str], wrong: str) -> None:
    argv = ["--state-root", str(line.root), *options]
    match wrong:
        case "missing":
            line.root.rmdir()
        case "file":
            line.root.rmdir()
            line.root.write_bytes(b"")
        case "family":
            line.lay("claims", b"")
        case "record":
            line.lay("events/b/1.json", b"{")
        case "http":
            line.env["AGENT_COORD_API_TOKEN"] = TOKEN
            argv = ["--api-url", "https://h"]
        case "prefix":
            argv += ["--doctor-prefix", "../x"]
        case _:
            pass
    plain, told = line("doctor", *argv), line("doctor", "--explain", *argv)
    assert (told.exit, told.stderr) == (plain.exit, plain.stderr)
    assert (b"status: ok" in told.stdout) == (plain.exit == 0)


# Mends, carried out


@pytest.mark.parametrize("kind", ["root", "parent"])
def test_what_others_may_change_is_closed(line: Line, kind: str) -> None:
    open_ = line.root if kind == "root" else line.directory
    open_.chmod(0o777)
    id_ = "state_root.open" if kind == "root" else "state_root.parent_open"
    findings = explained(line, "--state-root", str(line.root))[1]["findings"]
    [finding] = [one for one in findings if one["id"] == id_ and one["summary"].endswith(str(open_))]
    assert finding["severity"] == "warning"
    mend(finding)
    findings = explained(line, "--state-root", str(line.root))[1]["findings"]
    assert finding not in findings


@pytest.mark.parametrize("name", ["state", "it's a root", "$HOME;x"])
def test_a_missing_root_is_made_private(line: Line, name: str) -> None:
    root = line.directory / name / "below"
    output, facts = explained(line, "--state-root", str(root))
    assert (output.exit, facts["status"]) == (2, "error")
    mend(found(line, "--state-root", str(root))["state_root.missing"])
    assert root.stat().st_mode & 0o777 == 0o700
    assert explained(line, "--state-root", str(root))[0].exit == 0


@pytest.mark.parametrize(
    ("wrong", "id_"),
    [
        ("a family that is a file", "layout.kind"),
        ("a FIFO", "layout.kind"),
        ("half a record", "records.unreadable"),
        ("no object", "records.unreadable"),
        ("a leftover", "leftovers"),
    ],
)
def test_what_is_wrong_below_the_root_is_mended(line: Line, wrong: str, id_: str) -> None:
    precious = line.directory / "precious.json"
    precious.write_bytes(b"precious")
    line.lay("heartbeats/good.json", {"agent_id": "good"})
    match wrong:
        case "a family that is a file":
            line.lay("claims", b"")
        case "a FIFO":
            os.mkfifo(line.root / "heartbeats/a;b.json")
        case "half a record":
            line.lay("heartbeats/a'b.json", b"{")
        case "no object":
            line.lay("heartbeats/a b.json", b"[]")
        case _:
            for name in (".a.json.tmp-1-ab", ".$b c.json.tmp-20-0f", ".new.json.tmp-1-ab", ".a.json.lock", "x.tmp-1-a"):
                line.lay(f"events/b 1/{name}", b"x")
            for name in (".a.json.tmp-1-ab", ".$b c.json.tmp-20-0f", ".a.json.lock", "x.tmp-1-a"):
                os.utime(line.root / "events/b 1" / name, (LONG_AGO, LONG_AGO))
    argv = ("--deep", "--state-root", str(line.root))
    before = found(line, *argv)
    assert list(before) == [id_]
    mend(before[id_])
    assert found(line, *argv) == {}
    assert precious.read_bytes() == b"precious"
    assert json.loads((line.root / "heartbeats/good.json").read_bytes()) == {"agent_id": "good"}
    if wrong == "a leftover":
        left = sorted(path.name for path in (line.root / "events/b 1").iterdir())
        assert left == [".a.json.lock", ".new.json.tmp-1-ab", "x.tmp-1-a"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
@pytest.mark.parametrize(
    ("place", "id_"),
    [
        (".", "state_root.unreadable"),
        ("heartbeats", "layout.unreadable"),
        ("heartbeats/a.json", "records.unreadable"),
    ],
)
def test_what_may_not_be_read_is_opened(line: Line, place: str, id_: str) -> None:
    line.lay("heartbeats/a.json", {})
    (line.root / place).chmod(0)
    argv = ("--deep", "--state-root", str(line.root))
    mend(found(line, *argv)[id_])
    assert found(line, *argv) == {}


@pytest.mark.parametrize(
    ("text", "mode", "id_"),
    [
        ("AGENT_COORD_REF=a\n", 0o644, "user_file.mode"),
        ("AGENT_COORD_REF=a\n", 0o660, "user_file.mode"),
    ],
)
def test_a_user_file_is_mended(private: Line, text: str, mode: int, id_: str) -> None:
    file = save(private, text, mode)
    plain = private("doctor")
    output, facts = explained(private)
    assert (output.exit, output.stderr, facts["status"]) == (2, plain.stderr, "error")
    assert {one["name"]: one["value"] for one in facts["settings"]}["user_config_use"] == "not_loaded"
    mend(found(private)[id_])
    assert explained(private)[0].exit == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text() == text


@pytest.mark.parametrize(("where", "mode"), [("..", 0o777), (".", 0o777)])
def test_directories_above_a_user_file_are_closed(private: Line, where: str, mode: int) -> None:
    directory = (save(private, "").parent / where).resolve()
    directory.chmod(mode)
    finding = found(private)["user_file.parent_mode"]
    assert finding["summary"].endswith(str(directory))
    mend(finding)
    assert explained(private)[0].exit == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_what_is_somebody_elses_is_not_taken(private: Line) -> None:
    file = save(private, "")
    for place, id_ in ((file, "user_file.owner"), (file.parent, "user_file.parent_owner")):
        os.chown(place, 12345, -1)
        assert found(private)[id_]["mend"] is None
        os.chown(place, os.geteuid(), -1)
    for place, id_ in ((private.root, "state_root.owner"), (private.directory, "state_root.parent_owner")):
        os.chown(place, 12345, -1)
        argv = ("--ignore-user-config", "--state-root", str(private.root))
        findings = explained(private, *argv)[1]["findings"]
        [finding] = [one for one in findings if one["id"] == id_]
        assert (finding["severity"], finding["mend"]) == ("warning", None)
        assert str(place) in finding["summary"]
        os.chown(place, os.geteuid(), -1)


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        ("no assignment\n", "user_file.syntax"),
        (f"AGENT_COORD_API_TOKEN={TOKEN}\nAGENT_COORD_BOGUS=1\n", "user_file.key"),
        ("AGENT_COORD_REF=a\nAGENT_COORD_REF=b\n", "user_file.duplicate"),
        (f"AGENT_COORD_API_TOKEN='{TOKEN}\n", "user_file.value"),
        ("AGENT_COORD_POLICY=sometimes\n", "policy.invalid"),
        (f"AGENT_COORD_API_TOKEN={TOKEN}\n", "selection.refused"),
    ],
)
def test_what_only_a_person_can_decide_has_no_command(private: Line, text: str, id_: str) -> None:
    file = save(private, text)
    if id_ == "selection.refused":
        del private.env["AGENT_COORD_STATE_ROOT"]
    output, facts = explained(private)
    assert (output.exit, facts["status"]) == (2, "error")
    first = facts["findings"][0]
    assert (first["id"], first["mend"]) == (id_, None)
    assert first["summary"].startswith(output.stderr[-1])
    assert output.stderr == private("doctor").stderr
    assert TOKEN not in output.stdout.decode()
    if id_ != "selection.refused":
        assert str(file) in first["summary"]


@pytest.mark.parametrize("kind", ["link", "directory"])
def test_a_user_file_that_is_none(private: Line, kind: str) -> None:
    file = save(private, "")
    file.unlink()
    if kind == "link":
        file.symlink_to("elsewhere")
    else:
        file.mkdir()
    assert next(iter(found(private))) == ("user_file.symlink" if kind == "link" else "user_file.kind")


def test_a_root_is_looked_at_also_without_a_user_file(private: Line) -> None:
    save(private, "", 0o644)
    private.lay("claims", b"")
    assert list(found(private)) == ["user_file.mode", "layout.kind"]
    private.env["AGENT_COORD_ENV_FILE"] = str(private.directory / "absent")
    output, facts = explained(private)
    assert facts["state_root"] == str(private.root)
    assert output.stderr == [f"configured user env file does not exist: {private.directory}/absent"]
    assert facts["settings"][1] == {"name": "user_config_use", "value": "absent", "source": "AGENT_COORD_ENV_FILE"}


def test_a_bypassed_user_file_is_called_so(private: Line) -> None:
    save(private, "no assignment\n", 0o644)
    argv = ("--ignore-user-config", "--state-root", str(private.root))
    for policy, exit_ in (("required", 0), ("sometimes", 2)):
        private.env["AGENT_COORD_POLICY"] = policy
        output, facts = explained(private, *argv)
        assert (output.exit, output.stderr) == (exit_, private("doctor", *argv).stderr)
        assert facts["settings"][1]["value"] == "bypassed"


@pytest.mark.parametrize("node", ["", "localhost", "localhost.localdomain", "a b", "-x", "a/b", "."])
def test_a_machine_without_a_name_of_its_own_is_named_by_a_person(private: Line, node: str) -> None:
    private.node = node
    finding = found(private)["identity.machine_unset"]
    assert finding["mend"] is None
    assert finding["summary"].endswith("choose one and set it")


def test_a_machine_is_named(private: Line) -> None:
    private.node = "m1"
    finding = found(private)["identity.machine_unset"]
    assert finding["mend"] == "agent-coord config set --machine-id m1"
    assert private(*finding["mend"].split()[1:]).exit == 0
    assert "identity.machine_unset" not in found(private)
    file = private.home / ".config/agent-coord/env"
    shown = {one["name"]: one for one in explained(private)[1]["settings"]}
    assert (shown["machine_id"]["value"], shown["machine_id"]["source"]) == ("m1", f"{file}:AGENT_COORD_MACHINE_ID")


def test_a_relative_root_is_made_absolute(line: Line) -> None:
    assert found(line, "--state-root", "state")["state_root.relative"]["mend"] is None
    line.env["AGENT_COORD_STATE_ROOT"] = "state"
    finding = found(line)["state_root.relative"]
    exported = subprocess.run(
        ["sh", "-c", f'{finding["mend"]}; printf %s "$AGENT_COORD_STATE_ROOT"'], capture_output=True, check=True
    )
    line.env["AGENT_COORD_STATE_ROOT"] = exported.stdout.decode()
    assert found(line) == {}


def test_a_split_brain_is_told_with_the_file_to_load(private: Line) -> None:
    del private.env["AGENT_COORD_STATE_ROOT"]
    file = save(private, "").parent / "http-env.sh"
    file.write_text(f"AGENT_COORD_API_URL=https://u:{TOKEN}@h\n")
    file.chmod(0o644)  # so that others may read it, and a command that loads it would be no mend
    assert found(private)["selection.split_brain"]["mend"] is None
    file.chmod(0o600)
    plain = private("doctor", "--json")
    output, facts = explained(private)
    assert (output.exit, output.stderr, facts["status"]) == (2, plain.stderr, "split_brain")
    assert facts["settings"][-1] == {
        "name": "consumer_file",
        "value": str(file),
        "source": "configures AGENT_COORD_API_URL",
    }
    finding = found(private)["selection.split_brain"]
    loaded = subprocess.run(["sh", "-c", f"{finding['mend']}; env"], capture_output=True, check=True, text=True)
    [url] = [row for row in loaded.stdout.splitlines() if row.startswith("AGENT_COORD_API_URL=")]
    private.env |= {"AGENT_COORD_API_URL": url.partition("=")[2], "AGENT_COORD_API_TOKEN": TOKEN}
    output, facts = explained(private)
    assert "selection.split_brain" not in [one["id"] for one in facts["findings"]]
    assert TOKEN not in output.stdout.decode() + "".join(output.stderr)


# File systems


@pytest.mark.parametrize(
    ("kind", "options", "exit_", "ids"),
    [
        ("nfs", "rw,nolock", 2, ["file_system.locks"]),
        ("fuse.sshfs", "rw", 2, ["file_system.locks"]),
        ("nfs4", "rw,local_lock=none", 0, ["file_system.network"]),
        ("fuse.new", "rw", 0, ["file_system.unknown"]),
        ("btrfs", "rw", 0, []),
    ],
)
def test_the_file_system_of_the_root_decides(line: Line, kind: str, options: str, exit_: int, ids: list[str]) -> None:
    line.files["/proc/self/mountinfo"] += f"28 27 0:2 / {line.root} rw - {kind} host:/x {options}\n".encode()
    before = line.tree()
    plain = line.local("doctor")
    output, facts = explained(line, "--state-root", str(line.root))
    assert (plain.exit, output.exit, output.stderr) == (exit_, exit_, plain.stderr)
    assert list(found(line, "--state-root", str(line.root))) == ids
    assert (facts["file_system"]["type"], facts["file_system"]["mount_point"]) == (kind, str(line.root))
    if exit_:
        assert plain.stdout == b""
        assert str(line.root) in plain.stderr[0]
        assert kind in plain.stderr[0]
    assert line.local("status").exit == line.local("doctor", "--stack-json").exit == 0
    assert line.tree() == before


def test_a_system_without_a_table_of_mounts(line: Line) -> None:
    line.files["/proc/self/mountinfo"] = b""
    assert explained(line, "--state-root", str(line.root))[1]["file_system"] is None
    assert b"file_system\n- none\n" in line.local("doctor", "--explain").stdout


# What is never shown


@pytest.mark.parametrize("where", ["process", "file", "both", "flag"])
@pytest.mark.parametrize("options", [[], ["--json"], ["--deep"]])
def test_no_token_is_shown(private: Line, where: str, options: list[str]) -> None:
    url = f"https://me:{TOKEN}@h.example"
    argv: list[str] = []
    del private.env["AGENT_COORD_STATE_ROOT"]
    if where != "file":
        private.env |= {"AGENT_COORD_API_TOKEN": TOKEN}
    if where in ("process", "both"):
        private.env |= {"AGENT_COORD_API_URL": url}
    if where in ("file", "both"):
        save(private, f"AGENT_COORD_API_URL={url}\nAGENT_COORD_API_TOKEN={TOKEN}\n")
    if where == "flag":
        argv = ["--api-url", url]
    for more in ([], ["--state-root", str(private.root)]):
        output = private("doctor", "--explain", *options, *argv, *more)
        assert output.stdout
        assert b"api_token" in output.stdout
        assert TOKEN not in repr(output) + output.stdout.decode()


def test_no_address_is_shown_with_what_may_be_secret_in_it(private: Line) -> None:
    for variable in ("AGENT_COORD_API_URL", "AGENT_COORD_BACKEND"):
        private.env[variable] = f"https://me:{TOKEN}@h/a?token={TOKEN}#{TOKEN}"
        for argv in (["--state-root", str(private.root)], ["--state-root", f"https://me:{TOKEN}@h/"]):
            for options in ([], ["--json"]):
                output = private("doctor", "--explain", *options, *argv)
                assert TOKEN not in output.stdout.decode() + "".join(output.stderr)


USERINFO = f"https://me:{TOKEN}@h.example"


@pytest.mark.parametrize(
    "argv",
    [
        ["doctor", "--backend", USERINFO],
        ["doctor", "--state-root", f"/{USERINFO}"],
        ["doctor", "--json", "--state-root", f"/{USERINFO}"],
        ["doctor", "--explain", "--state-root", USERINFO],
        ["doctor", "--explain", "--json", "--state-root", f"{USERINFO}/a b"],
        ["doctor", "--stack-json", "--backend", USERINFO],
        ["doctor", "--stack-json", "--state-root", f"/{USERINFO}"],
        ["doctor", "--doctor-prefix", f"../{USERINFO}"],
        ["status", "--backend", USERINFO],
        ["demo", USERINFO],
        ["status", USERINFO],
        [USERINFO],
        ["claim", "--agent-id", USERINFO, "--repo", "o/r", "--target", "1"],
        ["config", "set", "--machine-id", USERINFO],
    ],
)
def test_userinfo_does_not_come_back(line: Line, argv: list[str]) -> None:
    output = line(*argv)
    assert TOKEN not in output.stdout.decode() + "".join(output.stderr)
    if argv[0] == "doctor" and output.stdout:
        assert b"https://***@h.example" in output.stdout.replace(b"https:/*", b"https://*")


def test_a_root_that_cannot_be_shown_has_no_command(line: Line) -> None:
    line.env["AGENT_COORD_STATE_ROOT"] = f"{line.directory}/{USERINFO}"
    assert {one["mend"] for one in explained(line)[1]["findings"]} == {None}


@pytest.mark.parametrize(
    "variable", ["MACHINE_ID", "SESSION_ID", "BACKEND", "API_URL", "STATE_ROOT", "REF", "LOCAL", "POLICY", "ENV_FILE"]
)
@pytest.mark.parametrize(
    "options",
    [["--json"], ["--json", "--deep"], ["--explain", "--json", "--deep"], ["--stack-json", "--deep"], ["--explain"]],
)
def test_a_report_can_carry_bytes_that_are_no_text(line: Line, variable: str, options: list[str]) -> None:
    line.env[f"AGENT_COORD_{variable}"] = "/a\udcff"
    line.env["AGENT_COORD_API_TOKEN"] = TOKEN
    for argv in ([], ["--state-root", str(line.root)]):
        output = line("doctor", *options, *argv)
        assert "internal" not in "".join(output.stderr)
        if "--json" in options and output.stdout:
            json.loads(output.stdout)


def test_a_split_brain_in_a_home_that_is_no_text(private: Line) -> None:
    home = private.directory / "h\udcff"
    private.env = {"HOME": str(home)}
    (home / ".config/agent-coord").mkdir(parents=True)
    (home / ".config/agent-coord/http-env.sh").write_text("AGENT_COORD_API_URL=https://h\n")
    for options in (["--json"], ["--explain", "--json"], ["--explain"]):
        output = private("doctor", *options)
        assert output.exit == 2
        if "--json" in options:
            assert "h\ufffd/" in json.loads(output.stdout)["split_brain_env_file"]


# What is opened


_watching: list[list[str]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event == "open" and isinstance(arguments[0], str):
        _watching[-1].append(arguments[0])


sys.addaudithook(_audit)


def opened(line: Line, *argv: str) -> list[str]:
    """Give the paths that a command opens, below whatever directory."""
    _watching.append([])
    try:
        line(*argv)
    finally:
        seen = _watching.pop()
    return seen


def test_a_bypassed_user_file_is_not_opened_at_all(private: Line) -> None:
    file = save(private, "AGENT_COORD_API_URL=https://h\n")
    (file.parent / "http-env.sh").write_text("AGENT_COORD_API_URL=https://h\n")
    for policy in ("required", "none"):
        private.env["AGENT_COORD_POLICY"] = policy
        for options in ([], ["--json"]):
            argv = ("--ignore-user-config", "--state-root", str(private.root))
            seen = opened(private, "doctor", "--explain", *options, *argv)
            assert seen
            assert not [path for path in seen if path.endswith(("env", "http-env.sh", "policy", "agent-coord"))]


@pytest.mark.parametrize(
    ("text", "mode"),
    [("", 0o600), ("AGENT_COORD_BOGUS=1\n", 0o600), ("", 0o640), (f"AGENT_COORD_API_TOKEN={TOKEN}\n", 0o600)],
)
def test_a_user_file_is_opened_once(private: Line, text: str, mode: int) -> None:
    save(private, text, mode)
    for root in (str(private.root), ""):
        private.env["AGENT_COORD_STATE_ROOT"] = root
        assert [path for path in opened(private, "doctor", "--explain") if path.split("/")[-1] == "env"] == ["env"]


# What is known


def settings_of(line: Line, *argv: str) -> dict[str, tuple[str | None, str]]:
    return {one["name"]: (one["value"], one["source"]) for one in explained(line, *argv)[1]["settings"]}


def test_a_policy_that_is_none_does_not_hide_the_user_file(private: Line) -> None:
    file = save(private, "AGENT_COORD_MACHINE_ID=m7\nAGENT_COORD_REF=r\nAGENT_COORD_LOCAL=yes\n")
    private.env["AGENT_COORD_POLICY"] = "sometimes"
    output, facts = explained(private)
    assert output.stderr == private("doctor").stderr
    assert (output.exit, facts["status"]) == (2, "error")
    assert [one["id"] for one in facts["findings"] if one["severity"] == "error"] == ["policy.invalid"]
    shown = settings_of(private)
    assert shown["policy"] == (None, "process environment:AGENT_COORD_POLICY, which is no policy")
    assert shown["machine_id"] == ("m7", f"{file}:AGENT_COORD_MACHINE_ID")
    assert shown["local"] == ("yes", f"{file}:AGENT_COORD_LOCAL")
    assert shown["user_config_use"][0] == "read"
    del private.env["AGENT_COORD_POLICY"]
    (file.parent / "policy").write_text("never")
    (file.parent / "policy").chmod(0o600)
    assert settings_of(private)["policy"] == (None, f"{file.parent}/policy, which is no policy")


def test_what_a_user_file_that_was_not_read_says_is_unknown(private: Line) -> None:
    save(private, "no assignment\n")
    shown = settings_of(private)
    for name in ("api_url", "machine_id", "policy", "local"):
        assert shown[name] == (None, "unknown")
    assert shown["api_token"] == ("unknown", "unknown")
    assert shown["session_id"] == (None, "unset")
    del private.env["AGENT_COORD_STATE_ROOT"]
    shown = settings_of(private)
    assert (shown["backend"], shown["state_root"], shown["ref"]) == ((None, "unknown"),) * 3
    private.env["AGENT_COORD_POLICY"] = "required"
    assert settings_of(private)["policy"] == ("required", "process environment:AGENT_COORD_POLICY")


@pytest.mark.parametrize("length", [300, 5000])
def test_a_root_that_is_too_long_is_one_error(line: Line, length: int) -> None:
    findings = explained(line, "--deep", "--state-root", "/" + "x" * length)[1]["findings"]
    assert [one["id"] for one in findings if one["severity"] == "error"] == ["state_root.unreadable"]


@pytest.mark.parametrize("variable", [True, False])
def test_a_tilde_is_told_and_not_made_true(line: Line, variable: bool) -> None:
    argv = [] if variable else ["--state-root", "~/state"]
    if variable:
        line.env["AGENT_COORD_STATE_ROOT"] = "~/state"
    findings = found(line, *argv)
    assert set(findings) == {"state_root.missing", "state_root.tilde"}
    assert {one["mend"] for one in findings.values()} == {None}
    assert f"{line.directory}/~/state" in findings["state_root.tilde"]["summary"]


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.isdir("/proc/self"), reason="only root may write to /proc")
def test_a_root_that_takes_no_file_is_found_out_by_trying(line: Line) -> None:
    assert line("doctor", "--state-root", "/proc").exit == 0
    output, facts = explained(line, "--state-root", "/proc")
    assert (output.exit, facts["status"]) == (2, "error")
    finding = found(line, "--state-root", "/proc")["state_root.unwritable"]
    assert (finding["severity"], finding["mend"]) == ("error", None)


def test_a_name_that_no_record_can_have(line: Line) -> None:
    (line.root / "claims").mkdir()
    (line.root / "claims/a\udcff.json").write_bytes(b"{}")
    (line.root / "claims/z.json").symlink_to("elsewhere")  # so that the family cannot be listed as a whole
    finding = found(line, "--deep", "--state-root", str(line.root))["records.unreadable"]
    assert "a\ufffd.json" in finding["summary"]
    (line.root / "claims/z.json").unlink()
    assert list(found(line, "--deep", "--state-root", str(line.root))) == ["records.unreadable"]


@pytest.mark.parametrize("kind", ["family", "directory", "record"])
def test_a_link_is_not_removed_by_a_command(line: Line, kind: str) -> None:
    line.lay("heartbeats/good.json", {"agent_id": "good"})
    place = {"family": "claims", "directory": "heartbeats/d", "record": "heartbeats/a.json"}[kind]
    (line.root / place).symlink_to(line.directory)
    finding = found(line, "--deep", "--state-root", str(line.root))["layout.symlink"]
    assert finding["mend"] is None
    assert "; see whether records are where it leads" in finding["summary"]


def test_a_record_is_moved_to_a_name_that_is_free(line: Line) -> None:
    line.lay("heartbeats/a.json", b"{")
    line.lay("heartbeats/a.json.broken", b"an older one")
    (line.root / "heartbeats/a.json.broken.2").symlink_to("nowhere")
    mend(found(line, "--deep", "--state-root", str(line.root))["records.unreadable"])
    assert (line.root / "heartbeats/a.json.broken").read_bytes() == b"an older one"
    assert (line.root / "heartbeats/a.json.broken.3").read_bytes() == b"{"


@pytest.mark.parametrize("wrong", ["a dangling link", "a file above"])
def test_a_root_that_cannot_be_made_has_no_command(line: Line, wrong: str) -> None:
    if wrong == "a dangling link":
        (line.directory / "link").symlink_to("nowhere")
    else:
        (line.directory / "link").mkdir()
        (line.directory / "link/gone").symlink_to("nowhere")
    root = line.directory / ("link" if wrong == "a dangling link" else "link/gone/root")
    assert found(line, "--state-root", str(root))["state_root.missing"]["mend"] is None


@pytest.mark.parametrize("kind", ["root", "parent"])
@pytest.mark.parametrize("mode", [0o2775, 0o1777])
def test_what_is_shared_on_purpose_is_not_closed_by_a_command(line: Line, kind: str, mode: int) -> None:
    place = line.root if kind == "root" else line.directory
    place.chmod(mode)
    findings = explained(line, "--state-root", str(line.root))[1]["findings"]
    mends = [one["mend"] for one in findings if one["summary"].partition("; ")[0].endswith(f": {place}")]
    assert mends == ([] if (kind, mode) == ("parent", 0o1777) else [None])


def test_leftovers_are_removed_by_name_and_not_too_many_at_once(line: Line) -> None:
    for number in range(SHOWN_LEFTOVERS + 1):
        name = f"events/.{number}.json.tmp-1-0a"
        line.lay(name, b"x")
        os.utime(line.root / name, (LONG_AGO, LONG_AGO))
    finding = found(line, "--state-root", str(line.root))["leftovers"]
    assert finding["mend"].startswith("rm -- /")
    line.lay("events/.new.json.tmp-1-0a", b"x")  # of a writer that came after the doctor
    os.utime(line.root / "events/.new.json.tmp-1-0a", (LONG_AGO, LONG_AGO))
    mend(finding)
    assert len(list((line.root / "events").iterdir())) == 2
    assert f"{SHOWN_LEFTOVERS} of them at once" in finding["summary"]
