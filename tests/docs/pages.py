"""The examples in the documentation: what a page tells its reader to type, and what it says comes of it.

A fenced block takes part by the words after its fence; any other block is only shown.

    ```console          a transcript: `$ ` before a command, `> ` before its further lines, then what it prints
    ```console jq curl  the same, where these programs are installed
    ```sh run           to be pasted as a whole; a block ```text printed right below it says what it prints
    ```json file=NAME   a file that the page works with: it is put into the home directory, executable

One shell plays a whole page, in a home of its own, and ends at the first command that fails: an example of a
failure says so, as in `agent-coord status --bogus || echo "exit $?"`. What it started in the background ends with it,
and the port that pages call 8787 is another one each time. To write what is really printed into pages
whose text was changed: `.venv/bin/python -m tests.docs.pages README.md docs/*.md`.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tests.command import PATIENCE

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

HOME = "/home/you"
"""What pages call the home directory."""

PORT = ":8787"
"""What pages call a port of this machine that is free."""

_FENCE = re.compile(r"```(.*)")
_MARK = re.compile(r"\n?@@ step (\d+)\n")
_CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z"), "<time>"),
    (re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{8}"), "<event>"),
    (re.compile(r"\b[0-9a-f]{32}(?:[0-9a-f]{16}|[0-9a-f]{32})?\b"), "<hash>"),
    (re.compile(r"\b[0-9a-f]{16}\.(?=\d)"), "<feed>."),
    (re.compile(r"\b\d+\.\d ms\b"), "<some> ms"),
    (re.compile(r"^- (mount_point|type|locks): .*$", re.MULTILINE), r"- \1: <system>"),
    (re.compile(r"(/tmp)/tmp\.\w+"), r"\1/<made>"),
    (re.compile(r"\b\d+\.\d+\.\d+\b"), "<version>"),
)


@dataclass(frozen=True)
class Step:
    """A command, and the lines of the page (from, to) that show what it prints; None: they show nothing of it."""

    command: str
    shown: tuple[int, int] | None = None
    needs: tuple[str, ...] = ()


def steps_of(lines: list[str]) -> list[Step]:
    """Find what a page tells its reader to type, in order."""
    steps: list[Step] = []
    for words, first, last in _blocks(lines):
        _, _, name = words.partition(" file=")
        if words.split(" ")[0] == "console":
            needs = tuple(words.split(" ")[1:])
            steps += (replace(step, needs=needs) for step in _transcript(lines, first, last))
        elif words == "sh run":
            steps.append(Step("\n".join(lines[first:last])))
        elif words == "text printed":
            steps[-1] = replace(steps[-1], shown=(first, last))
        elif name:
            text = "\n".join(lines[first:last])
            steps.append(Step(f"cat > ~/{name} <<'END OF FILE'\n{text}\nEND OF FILE\nchmod +x ~/{name}"))
    return steps


def _blocks(lines: list[str]) -> Iterator[tuple[str, int, int]]:
    words, first = "", -1
    for number, line in enumerate(lines):
        found = _FENCE.fullmatch(line)
        if found is None:
            continue
        if first < 0:
            words, first = found.group(1), number + 1
        else:
            yield words, first, number
            first = -1


def _transcript(lines: list[str], first: int, last: int) -> Iterator[Step]:
    starts = [number for number in range(first, last) if lines[number].startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], last], strict=True):
        command, number = [lines[start][2:]], start + 1
        while number < end and lines[number].startswith(">"):
            command.append(lines[number][2:])
            number += 1
        yield Step("\n".join(command), shown=(number, end))


def played(steps: list[Step], directory: Path) -> list[str | None]:
    """Play steps in a new directory: what each printed on both streams, None for one that was not reached."""
    home, tmp = directory / "home", directory / "tmp"
    home.mkdir(parents=True)
    tmp.mkdir()
    script = directory / "page.sh"
    port = _free_port()
    commands = "".join(f"printf '\\n@@ step {n}\\n'\n{step.command}\n" for n, step in enumerate(steps))
    script.write_text(commands.replace(PORT, port), "utf-8")
    # Into a file: a pipe would be waited for until what still runs in the background has let go of it.
    with (directory / "printed").open("wb") as printing:
        shell = subprocess.Popen(
            ["bash", "-e", script],
            stdin=subprocess.DEVNULL,
            stdout=printing,
            stderr=subprocess.STDOUT,
            cwd=home,
            env={
                "HOME": str(home),
                "LANG": "C.UTF-8",
                "LC_ALL": "C.UTF-8",
                "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
                "TMPDIR": str(tmp),
            },
            start_new_session=True,
        )
        try:
            shell.wait(PATIENCE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    said = (directory / "printed").read_text("utf-8").replace(port, PORT)
    said = said.replace(str(home), HOME).replace(str(tmp), "/tmp")  # noqa: S108 - as pages call it
    parts = _MARK.split(said)
    printed = dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))
    if shell.returncode:
        stopped = max(printed)
        printed[stopped] += f"\n(exit status {shell.returncode}: the page ends here)"
    return [printed.get(number) for number in range(len(steps))]


def _free_port() -> str:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return f":{probe.getsockname()[1]}"


def steady(text: str) -> str:
    """Put a word in place of everything that is another in every run, and drop blank lines at the end."""
    for pattern, word in _CHANGING:
        text = pattern.sub(word, text)
    return text.rstrip("\n")


@dataclass(frozen=True)
class Page:
    """A page as it is written, and what its steps printed when they were played."""

    lines: list[str]
    steps: list[Step]
    printed: list[str | None]

    @classmethod
    def played(cls, path: Path, directory: Path) -> "Page":
        """Read a page and play what can be played here, in a new directory."""
        lines = path.read_text(encoding="utf-8").split("\n")
        steps = [step for step in steps_of(lines) if all(map(shutil.which, step.needs))]
        return cls(lines, steps, played(steps, directory))

    def shown(self, step: Step) -> str | None:
        """Give what the page shows of a step; None where it shows nothing."""
        return None if step.shown is None else "\n".join(self.lines[slice(*step.shown)])

    def rewritten(self) -> str:
        """Give the page with what was really printed, where that is not what it says."""
        lines = list(self.lines)
        for step, printed in reversed(list(zip(self.steps, self.printed, strict=True))):
            shown = self.shown(step)
            if step.shown and printed is not None and shown is not None and steady(shown) != steady(printed):
                lines[slice(*step.shown)] = printed.rstrip("\n").split("\n") if printed.strip() else []
        return "\n".join(lines)


def _rewrite(path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=Path.home(), prefix="agent-coord-docs-") as directory:
        page = Page.played(path, Path(directory) / "page")
    text = page.rewritten()
    if text != "\n".join(page.lines):
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for named in sys.argv[1:]:
        _rewrite(Path(named))
