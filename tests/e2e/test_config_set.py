"""`config set` as a process among others: alone, in crowds, cut off, and never showing a token."""

import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from agentcoord.settings.envfile import POLICIES, parse
from agentcoord.settings.securefile import lock_name
from tests.command import Coord
from tests.e2e.running import CLAIM, finish, start, through_shell, wait_until, waits_in
from tests.settings.conftest import private_directory

WRITERS = 200
KILLS = 40
SET = ("config", "set")
URL = "https://coordination.example"
SECRET = "s3cret-token-value"
ALL = (*SET, "--policy", "required", "--machine-id", "m1", "--api-url", URL, "--token-stdin")


@pytest.fixture
def coord() -> Iterator[Coord]:
    """The command in a home where a user file is trusted, with nothing selected by the environment."""
    with private_directory() as place:
        made = Coord(place.resolve())
        for directory in (made.home, made.tmp, made.work):
            directory.chmod(0o755)
        del made.env["AGENT_COORD_STATE_ROOT"]
        yield made


@pytest.fixture
def file(coord: Coord) -> Path:
    return coord.home / ".config/agent-coord/env"


def left_in(directory: Path) -> list[str]:
    return sorted(place.name for place in directory.iterdir() if not place.name.endswith(".lock"))


# One at a time


def test_a_first_file_and_its_report(coord: Coord, file: Path) -> None:
    answer = coord(*ALL, stdin=SECRET + "\r\n")
    assert (answer.exit, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        f"updated user configuration: {file} ({', '.join(sorted(parse(file.read_text(), '')))})",
        f"updated coordination policy in canonical config: {file}",
    ]
    assert file.read_text() == (
        f"AGENT_COORD_API_URL={URL}\nAGENT_COORD_API_TOKEN={SECRET}\n"
        "AGENT_COORD_MACHINE_ID=m1\nAGENT_COORD_POLICY=required\n"
    )
    lock = file.parent / lock_name(str(file.parent), "env")
    assert [stat.S_IMODE(place.stat().st_mode) for place in (file, lock, file.parent, file.parent.parent)] == [
        0o600,
        0o600,
        0o700,
        0o700,
    ]
    shown = coord("config", "show", "--json")
    assert shown.json()["coordination"]["policy"] == "required"
    assert SECRET not in shown.out + shown.err


def test_comments_and_strangers_go_and_settings_stay(coord: Coord) -> None:
    named = coord.work / "mine"
    named.write_text("# mine\n\nPATH=/x\nexport AGENT_COORD_REF='a b'  # kept\nAGENT_COORD_POLICY=optional\n")
    named.chmod(0o600)
    answer = coord(*SET, "--machine-id", "m5", env={"AGENT_COORD_ENV_FILE": str(named)})
    assert answer.out == f"updated user configuration: {named} (AGENT_COORD_MACHINE_ID)\n"
    assert named.read_text() == "AGENT_COORD_MACHINE_ID=m5\nAGENT_COORD_REF=a\\ b\nAGENT_COORD_POLICY=optional\n"


def test_a_named_file_is_made_where_it_was_named(coord: Coord) -> None:
    named = coord.work / "deep" / "er" / "file"
    env = {"AGENT_COORD_ENV_FILE": str(named)}
    assert coord("config", "show", env=env).err == f"configured user env file does not exist: {named}\n"
    assert coord(*SET, "--policy", "disabled", env=env).exit == 0
    assert named.read_text() == "AGENT_COORD_POLICY=disabled\n"
    assert coord("config", "show", "--json", env=env).json()["coordination"]["policy"] == "disabled"
    assert not (coord.home / ".config").exists()


@pytest.mark.parametrize(
    ("argv", "stdin", "env", "exit", "said"),
    [
        ((), "", {}, 1, "config set requires at least one setting"),
        (("--json",), "", {}, 1, "config set requires at least one setting"),
        (
            ("--policy", "required"),
            "",
            {"HOME": ""},
            2,
            "cannot persist user config; set XDG_CONFIG_HOME, HOME, or AGENT_COORD_ENV_FILE",
        ),
        (("--machine-id", ".."), "", {"HOME": "x"}, 2, "HOME must be an absolute path"),
        (("--machine-id", ""), "", {}, 1, "invalid machine-id: "),
        (("--api-url", "http://a.example"), "", {}, 1, "--api-url must use https unless it points at localhost"),
        (("--api-url", " "), "", {}, 1, "--api-url requires a non-empty value"),
        (("--policy", "x"), "", {}, 1, "invalid argument: --policy x"),
        (
            ("--policy", "required"),
            "",
            {"AGENT_COORD_POLICY": "x"},
            2,
            f"invalid coordination policy in process environment:AGENT_COORD_POLICY: expected {', '.join(POLICIES)}",
        ),
        (
            ("--token-stdin",),
            SECRET,
            {},
            1,
            "--token-stdin requires a saved API URL or --api-url in the same transaction",
        ),
        (("--api-url", URL, "--token-stdin"), f"{SECRET}\nx", {}, 1, "--token-stdin token must be one line"),
        (("--api-url", URL, "--token-stdin"), "", {}, 1, "--token-stdin requires a non-empty token"),
        (("--api-url", URL, "--token-stdin"), "x" * 65537, {}, 1, "--token-stdin input is too large"),
        (("--api-url", URL, "--token-stdin"), "x" * (9 << 20), {}, 1, "--token-stdin input is too large"),
        (("--token-stdin", "--machine-id", "a/b"), SECRET, {}, 1, "invalid machine-id: a/b"),
    ],
)
def test_what_is_refused_leaves_no_trace(
    coord: Coord, argv: tuple[str, ...], stdin: str, env: dict[str, str], exit: int, said: str
) -> None:
    answer = coord(*SET, *argv, stdin=stdin, env=env)
    assert (answer.exit, answer.out, answer.err) == (exit, "", said + "\n")
    assert not list(coord.home.iterdir())


def test_a_closed_stdin_is_no_token(coord: Coord) -> None:
    answer = through_shell(coord, "<&-", *SET, "--api-url", URL, "--token-stdin")
    assert (answer.exit, answer.out, answer.err) == (2, "", "--token-stdin unreadable: Bad file descriptor\n")


def test_a_saved_token_never_moves_to_another_url(coord: Coord, file: Path) -> None:
    coord(*ALL, stdin=SECRET)
    before = file.read_bytes()
    moved = coord(*SET, "--api-url", "https://other.example")
    assert (moved.exit, moved.out) == (1, "")
    assert moved.err == "--token-stdin is required when changing an API URL that has a saved token\n"
    assert file.read_bytes() == before
    assert coord(*SET, "--api-url", "https://other.example", "--token-stdin", stdin="new").exit == 0
    assert SECRET not in file.read_text()


def test_a_token_typed_while_the_url_changes_is_not_saved(coord: Coord, file: Path) -> None:
    coord(*SET, "--api-url", URL)
    late = start(coord, *SET, "--token-stdin", stdin=subprocess.PIPE)
    wait_until(lambda: waits_in(late, "pipe_read"), late)
    assert coord(*SET, "--api-url", "https://other.example").exit == 0
    out, err = late.communicate(SECRET.encode())
    assert (late.returncode, out) == (1, b"")
    assert err.decode() == (
        "saved API URL changed while reading --token-stdin; retry with --api-url in the same transaction\n"
    )
    assert file.read_text() == "AGENT_COORD_API_URL=https://other.example\n"


def test_a_full_or_limited_disk_leaves_the_old_file(coord: Coord, file: Path) -> None:
    coord(*SET, "--policy", "required")
    before = file.read_bytes()
    script = 'ulimit -f 1; exec "$@"'  # blocks of 512 or 1024 bytes, fewer than the token has
    process = start(
        coord,
        program=["/bin/sh", "-c", script, "sh", sys.executable, "-B", "-m", "agentcoord", *ALL],
        stdin=subprocess.PIPE,
    )
    out, err = process.communicate(b"t" * 60_000)
    assert (process.returncode, out) == (2, b"")
    assert err.decode() == f"cannot write user config {file}: File too large\n"
    assert file.read_bytes() == before
    assert left_in(file.parent) == ["env"]


# Two hundred at a time


def test_two_hundred_writers_lose_nothing_and_show_no_half(coord: Coord, file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.parent.chmod(0o700)
    file.parent.parent.chmod(0o755)
    file.touch(0o600)
    file.write_text("AGENT_COORD_REF=kept\n")
    done, broken = Event(), list[str]()
    watcher = Thread(target=watch, args=(file, done, broken))
    watcher.start()
    try:
        writers = [start(coord, *argv_of(number), stdin=subprocess.PIPE) for number in range(WRITERS)]
        for number, writer in enumerate(writers):
            assert writer.stdin is not None
            if number % 3 == 2:
                writer.stdin.write(f"{SECRET}-{number}\n".encode())
            writer.stdin.close()
            writer.stdin = None
        answers = [finish(writer) for writer in writers]
    finally:
        done.set()
        watcher.join()
    assert {(answer.exit, answer.err) for answer in answers} == {(0, "")}
    assert not [answer for answer in answers if SECRET in answer.out]
    assert not broken
    values = parse(file.read_text(), "env")
    assert set(values) == {f"AGENT_COORD_{name}" for name in ("MACHINE_ID", "POLICY", "API_URL", "API_TOKEN", "REF")}
    assert whole(values)
    assert left_in(file.parent) == ["env"]


def argv_of(number: int) -> tuple[str, ...]:
    match number % 3:
        case 0:
            return (*SET, "--machine-id", f"m{number}")
        case 1:
            return (*SET, "--policy", ("required", "optional", "disabled")[number // 3 % 3])
        case _:
            return (*SET, "--api-url", f"https://h{number}.example", "--token-stdin")


def whole(values: dict[str, str]) -> bool:
    """Tell whether a token stands with the URL it was saved with."""
    url, token = values.get("AGENT_COORD_API_URL"), values.get("AGENT_COORD_API_TOKEN")
    if url is None or token is None:
        return url is None and token is None
    return re.findall(r"\d+", url) == re.findall(r"\d+$", token)


def watch(file: Path, done: Event, broken: list[str]) -> None:
    """Read the file over and over, without its lock: what was once saved never goes away."""
    seen: set[str] = set()
    while not done.is_set():
        text = file.read_text()
        values = parse(text, "env")
        if not whole(values) or not seen <= set(values) or not text.endswith("\n"):
            broken.append(text)
        seen = set(values)


# Cut off


def test_a_writer_that_is_killed_leaves_the_old_file_or_the_new_one(coord: Coord, file: Path) -> None:
    chance = random.Random(7)
    coord(*SET, "--machine-id", "m0")
    begun = time.monotonic()
    coord(*SET, "--machine-id", "m0")
    usual = time.monotonic() - begun
    for number in range(1, KILLS):
        before = file.read_text()
        process = start(coord, *SET, "--machine-id", f"m{number}")
        time.sleep(chance.uniform(0.5, 1.1) * usual)
        process.kill()
        process.communicate()
        assert file.read_text() in (before, f"AGENT_COORD_MACHINE_ID=m{number}\n")
    assert coord(*SET, "--machine-id", "last").exit == 0
    assert file.read_text() == "AGENT_COORD_MACHINE_ID=last\n"


def traced(coord: Coord, *argv: str, options: tuple[str, ...]) -> tuple[int, str]:
    """Run a command under strace; gives its exit status and what was traced."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace here")
    log = coord.tmp / "trace"
    program = [strace, "-f", "-o", str(log), *options, sys.executable, "-m", "agentcoord", *argv]
    process = start(coord, program=program)
    process.communicate(timeout=60)
    trace = log.read_text() if log.exists() else ""
    if "execve" not in trace and "+++" not in trace:
        pytest.skip("processes cannot be traced here")
    return process.returncode, trace


@pytest.mark.parametrize(
    ("call", "after"),
    [("fchmod", False), ("fsync:when=1", False), ("renameat", False), ("renameat2", False), ("fsync:when=2", True)],
)
def test_a_writer_that_is_killed_in_a_certain_call(coord: Coord, file: Path, call: str, after: bool) -> None:
    coord(*SET, "--machine-id", "old")
    name, _, when = call.partition(":")
    inject = f"inject={name}:signal=KILL:retval=0" + (f":{when}" if when else "")
    ended, trace = traced(coord, *SET, "--machine-id", "new", options=("-e", "trace=execve," + name, "-e", inject))
    if name + "(" not in trace:
        pytest.skip(f"{name} is not called here")
    assert ended in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert file.read_text() == f"AGENT_COORD_MACHINE_ID={'new' if after else 'old'}\n"
    assert coord(*SET, "--machine-id", "next").exit == 0
    assert file.read_text() == "AGENT_COORD_MACHINE_ID=next\n"


def test_a_claim_opens_the_user_file_once_and_starts_nothing(coord: Coord, file: Path) -> None:
    coord(*SET, "--machine-id", "m1")
    ended, trace = traced(coord, *CLAIM, options=("-e", "trace=execve,open,openat,openat2"))
    assert ended == 0
    opened = [line for line in trace.splitlines() if re.search(r"open\w*\(.*\"(?:[^\"]*/agent-coord/)?env\"", line)]
    assert len(opened) == 1, opened
    assert "O_NOFOLLOW" in opened[0]
    assert len(re.findall(r"\bexecve\(.*= 0$", trace, re.MULTILINE)) == 1
    assert os.listdir(coord.home / ".local/state/agent-coordination/claims")
