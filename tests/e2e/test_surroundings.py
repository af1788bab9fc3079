"""Where a command may find itself: odd locales, no home, no directory, and roots that are none."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.command import Coord
from tests.e2e.running import CLAIM, ITEM, MANIFEST, finish, one_line, records, start

WRITES = {
    "claim": CLAIM,
    "release": ("release", *CLAIM[1:]),
    "heartbeat": ("heartbeat", "--agent-id", "a1"),
    "register-batch": ("register-batch", "--file", "m.json"),
    "record-event": ("record-event", "--batch-id", "b1", "--type", "note"),
}
READS = {
    "status": ("status",),
    "target": ("status", *ITEM),
    "batch": ("status", "--batch-id", "b1"),
    "doctor": ("doctor", "--deep"),
}


def locales() -> list[str]:
    installed = subprocess.run(["locale", "-a"], capture_output=True, check=False, text=True).stdout.split()
    latin = [name for name in installed if name.lower().replace("-", "").endswith(("iso88591", "iso885915"))]
    return ["C", "POSIX", "xx_YY.nonsense", *latin[:1]]


@pytest.mark.parametrize("locale", locales())
@pytest.mark.parametrize("utf8", [None, "0"])
def test_text_is_utf8_whatever_the_locale_says(coord: Coord, locale: str, utf8: str | None) -> None:
    env = {"LANG": locale, "LC_ALL": locale, "PYTHONUTF8": utf8, "PYTHONCOERCECLOCALE": "0"}
    root = coord.work / "zustände →"
    argv = ("--state-root", str(root), "--branch", "für/→", "--operator", "Zoë")
    claimed = coord("claim", "--agent-id", "ä→", *ITEM, *argv, env=env)
    assert (claimed.exit, claimed.err) == (0, "")
    assert claimed.out.startswith("claimed o/r#7 by ä→ until ")
    record = json.loads((root / "claims/o/r/7.json").read_bytes().decode("utf-8"))
    assert (record["agent_id"], record["branch"], record["operator"]) == ("ä→", "für/→", "Zoë")
    status = coord("status", "--state-root", str(root), "--json", env=env)
    assert status.json()["claims"][0]["operator"] == "Zoë"
    wrong = coord("claim", "--agent-id", b"\xff", *ITEM, env=env)
    assert (wrong.exit, wrong.err) == (1, "command-line argument must be valid UTF-8: �\n")


def test_a_root_of_any_bytes(coord: Coord) -> None:
    root = os.fsencode(coord.work) + b"/\xff\xfe"
    assert coord(*CLAIM, "--state-root", root).exit == 0
    assert json.loads(Path(os.fsdecode(root), "claims/o/r/7.json").read_bytes())["agent_id"] == "a1"
    assert "�" in coord("doctor", "--json", "--state-root", root).json()["state_root"]


def test_without_a_home_a_root_must_be_named(coord: Coord) -> None:
    bare = {"HOME": None, "AGENT_COORD_STATE_ROOT": None}
    answer = coord(*CLAIM, env=bare)
    assert answer.exit == 2
    assert one_line(answer) == (
        "cannot determine local state root; set XDG_STATE_HOME or HOME to an absolute path, or pass --state-root"
    )
    assert coord(*CLAIM, env={"HOME": None}).exit == 0
    assert coord("status", env={"HOME": "relative"}).exit == 2
    assert coord("version", env={"HOME": "relative"}).exit == 0


@pytest.mark.parametrize("argv", [*WRITES.values(), *READS.values()], ids=[*WRITES, *READS])
def test_a_relative_root_leads_nowhere_once_the_directory_is_gone(coord: Coord, argv: tuple[str, ...]) -> None:
    gone = coord.work / "gone"
    gone.mkdir()
    argv = tuple(str(coord.work / "m.json") if word == "m.json" else word for word in argv)
    (coord.work / "m.json").write_text(MANIFEST)
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    for root in ("state", "./state"):
        gone.mkdir(exist_ok=True)
        process = start(
            coord,
            *argv,
            "--state-root",
            root,
            executable="/bin/sh",
        ) if False else subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", str(gone), "python", "-m", "agentcoord", *argv, "--state-root", root],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=coord.env | {"PATH": f"{os.path.dirname(shutil.which('python') or '')}:{os.defpath}"},
        )
        answer = finish(process)
        assert (answer.exit, answer.out) == (2, "")
        assert one_line(answer) == f"the working directory is gone, so {root} leads nowhere; pass an absolute path"
    assert not gone.exists()
