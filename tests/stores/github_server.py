"""A GitHub of our own: the contents and git APIs over a bare git repository, and a `gh` that speaks to it.

The state is git's, so blob SHAs, modes and history are real. `GithubServer.ask` answers a call where it
stands; the program that `install` writes sends it over a Unix socket, so that a process is really run.
Only what a GitHub would say is imitated; faults are put in its way one call at a time.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from agentcoord.stores.gh import Answer, Call

REPO = "acme/state"
REF = "state"

GH = """\
#!{python} -IS
import sys, _socket
body = sys.stdin.buffer.read() if "--input" in sys.argv else b""
argv = b"\\0".join(a.encode() for a in sys.argv[1:])
line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
line.connect({address!r})
line.sendall(b"%d %d\\n" % (len(argv), len(body)) + argv + body)
said = b""
while piece := line.recv(65536):
    said += piece
head, _, rest = said.partition(b"\\n")
status, size = map(int, head.split())
try:
    sys.stdout.buffer.write(rest[:size])
    sys.stdout.buffer.flush()
    sys.stderr.buffer.write(rest[size:])
    sys.stderr.buffer.flush()
finally:
    sys.exit(status)
"""


@dataclass(frozen=True)
class Reply:
    """What gh prints, and how it ends."""

    exit: int = 0
    out: bytes = b""
    err: bytes = b""


class Hang(Exception):
    """The server never answers."""


@dataclass(frozen=True)
class Fault:
    """What happens to a call instead of an answer; with `done`, what it asked for is done all the same."""

    what: str
    reply: Reply | None  # None: never
    done: bool


class Refused(Exception):
    """An HTTP error as the API words it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def http(status: int, message: str) -> Reply:
    """What gh makes of an HTTP error: the body on stdout, a line on stderr."""
    body = {"message": message, "documentation_url": "https://docs.github.com/rest", "status": str(status)}
    return Reply(1, json.dumps(body).encode(), f"gh: {message} (HTTP {status})\n".encode())


class GithubServer:
    """One repository with one branch, which exists and is empty but for a README."""

    def __init__(self, directory: Path) -> None:
        self.git_dir = directory / "github.git"
        self.archived = False
        self.truncated = False
        self.logged_in = True
        self.faults: list[Fault] = []
        self.before_change: Callable[[], None] | None = None
        self.calls: list[Call] = []
        self._lock = threading.Lock()
        self._git("init", "--quiet", "--bare", str(self.git_dir))
        self.commit("README", self._store(b"state\n"), note="Begin")

    # what tests ask of it

    def fail(self, what: str, reply: Reply | None, *, done: bool = False) -> None:
        """Put a fault in the way of the next call that begins so: GET, PUT contents/claims, auth, …."""
        self.faults.append(Fault(what, reply, done))

    def plant(self, path: str, data: bytes, *, mode: str = "100644") -> None:
        """Commit a file as somebody else would."""
        self.commit(path, self._store(data), mode=mode)

    def messages(self) -> list[str]:
        """Give the subjects of all commits, newest first."""
        return self._git("log", "--format=%s", REF).decode().splitlines()

    def asked(self) -> list[str]:
        """Give what was asked for, in short, and forget it."""
        said = [short(call.argv) for call in self.calls]
        self.calls.clear()
        return said

    def drop_branch(self) -> None:
        self._git("update-ref", "-d", f"refs/heads/{REF}")

    # both ways in

    def ask(self, *calls: Call) -> list[Answer]:
        """Answer as `Gh` does, without a process."""
        return [self._answered(call) for call in calls]

    def _answered(self, call: Call) -> Answer:
        try:
            reply = self.reply(call)
        except Hang:
            return Answer(-1, b"", "", "gh did not answer within 30 seconds")
        return Answer(reply.exit, reply.out, reply.err.decode(errors="replace"))

    def install(self, directory: Path, address: str) -> None:
        """Put a `gh` into a directory that speaks to the server at an address."""
        directory.mkdir(exist_ok=True)
        program = directory / "gh"
        program.write_text(GH.format(python=sys.executable, address=address), encoding="utf-8")
        program.chmod(0o755)

    @contextmanager
    def serving(self) -> Generator[str]:
        """Answer at a Unix socket, whose address is given, until left."""
        with tempfile.TemporaryDirectory(prefix="gh-") as directory, socket.socket(socket.AF_UNIX) as listener:
            address = os.path.join(directory, "s")
            listener.bind(address)
            listener.listen(64)
            thread = threading.Thread(target=self._serve, args=(listener,), daemon=True)
            thread.start()
            try:
                yield address
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join()

    def _serve(self, listener: socket.socket) -> None:
        hanging: list[socket.socket] = []
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                break
            with line.makefile("rb") as said:
                size, rest = map(int, said.readline().split())
                argv, body = said.read(size).decode().split("\0"), said.read(rest)
            try:
                reply = self.reply(Call(tuple(argv), body))
            except Hang:
                hanging.append(line)
                continue
            with line:
                try:
                    line.sendall(b"%d %d\n" % (reply.exit, len(reply.out)) + reply.out + reply.err)
                except OSError:
                    continue  # that gh was ended
        for line in hanging:
            line.close()

    # what it does

    def reply(self, call: Call) -> Reply:
        """Answer one call of gh. Raises Hang."""
        with self._lock:
            self.calls.append(call)
            asked = short(call.argv)
            fault = next((fault for fault in self.faults if asked.startswith(fault.what)), None)
            if fault is None:
                return self._do(call)
            self.faults.remove(fault)
            if fault.done:
                self._do(call)
            if fault.reply is None:
                raise Hang
            return fault.reply

    def _do(self, call: Call) -> Reply:
        if call.argv[:2] == ("auth", "status"):
            return Reply() if self.logged_in else Reply(1, b"", b"You are not logged into any GitHub hosts.\n")
        if call.argv[:2] == ("repo", "view"):
            if call.argv[2] != REPO:
                return Reply(1, b"", f"GraphQL: Could not resolve to a Repository '{call.argv[2]}'.".encode())
            return Reply(0, json.dumps({"isArchived": self.archived}).encode())
        try:
            return Reply(0, json.dumps(self._api(call)).encode())
        except Refused as error:
            return http(error.status, str(error))

    def _api(self, call: Call) -> Any:
        url = urlsplit(call.argv[-1])
        _, owner, name, *rest = unquote(url.path).split("/")
        if f"{owner}/{name}" != REPO:
            raise Refused(404, "Not Found")
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        body: dict[str, str] = json.loads(call.body) if call.body else {}
        match (_method(call.argv), *rest):
            case ("GET", "contents", *parts):
                return self._contents("/".join(parts), query.get("ref", "main"))
            case ("GET", "git", "trees", *parts):
                return self._tree("/".join(parts), recursive="recursive" in query)
            case ("GET", "git", "blobs", sha):
                data = self._git("cat-file", "blob", sha)
                return {"sha": sha, "encoding": "base64", "content": _base64(data)}
            case ("PUT" | "DELETE" as method, "contents", *parts):
                return self._change(method, "/".join(parts), body)
            case _:
                raise Refused(404, "Not Found")

    def _contents(self, path: str, ref: str) -> Any:
        self._head(ref)
        found = self.entry(path, ref)
        if found is None:
            raise Refused(404, "Not Found")
        mode, kind, sha = found
        if kind == "tree":
            return [{"type": "file", "name": "whatever", "sha": sha}]
        if mode == "120000" or kind == "commit":
            return {"type": "symlink" if kind == "blob" else "submodule", "sha": sha, "path": path, "size": 0}
        data = self._git("cat-file", "blob", sha)
        small = len(data) <= 1024 * 1024
        content = {"content": _base64(data), "encoding": "base64"} if small else {"content": "", "encoding": "none"}
        return {"type": "file", "path": path, "sha": sha, "size": len(data), **content}

    def _tree(self, ref: str, *, recursive: bool) -> Any:
        self._head(ref)
        entries: list[dict[str, Any]] = []
        for line in self._git("ls-tree", "-z", "-l", *(("-r", "-t") if recursive else ()), ref).split(b"\0")[:-1]:
            facts, _, path = line.partition(b"\t")
            mode, kind, sha, size = facts.decode().split()
            known = {} if size == "-" else {"size": int(size)}
            entries.append({"path": path.decode(), "mode": mode, "type": kind, "sha": sha, **known})
        return {"sha": self._head(ref), "tree": entries, "truncated": self.truncated and recursive}

    def _change(self, method: str, path: str, body: dict[str, str]) -> Any:
        if self.archived:
            raise Refused(403, "Repository was archived so is read-only.")
        if not body["message"]:
            raise Refused(422, 'Invalid request.\n\n"message" can\'t be blank.')
        head = self._head(body["branch"])
        if self.before_change is not None:
            self.before_change()
        if self._head(body["branch"]) != head:
            raise Refused(409, f"{REF} is at {self._head(REF)} but expected {head}")
        found = self.entry(path, REF)
        if found is None and method == "DELETE":
            raise Refused(404, "Not Found")
        if found is not None and "sha" not in body:
            raise Refused(422, 'Invalid request.\n\n"sha" wasn\'t supplied.')
        if "sha" in body and (found is None or body["sha"] != found[2]):
            raise Refused(409, f"{path} does not match {body['sha']}")
        sha = None if method == "DELETE" else self._store(b64decode(body["content"], validate=True))
        commit = self.commit(path, sha, note=body["message"])
        return {"content": None if sha is None else {"path": path, "sha": sha}, "commit": {"sha": commit}}

    # git

    def commit(self, path: str, sha: str | None, *, note: str = "By another", mode: str = "100644") -> str:
        """Commit one path, or its removal, on the branch."""
        head = self._git("for-each-ref", "--format=%(objectname)", f"refs/heads/{REF}").decode().strip()
        if head:
            self._git("read-tree", head)
        removed = "0" * 40
        info = f"{mode if sha else 0} {sha or removed}\t{path}".encode()
        self._git("update-index", "--add", "--replace", "--index-info", stdin=info + b"\n")
        tree = self._git("write-tree").decode().strip()
        parents = ("-p", head) if head else ()
        made = self._git("commit-tree", tree, *parents, stdin=note.encode()).decode().strip()
        self._git("update-ref", f"refs/heads/{REF}", made, head or removed)
        return made

    def entry(self, path: str, ref: str = REF) -> tuple[str, str, str] | None:
        """Give mode, type and SHA of what is at a path."""
        line = self._git("--literal-pathspecs", "ls-tree", "-z", ref, "--", path)
        if not line:
            return None
        mode, kind, sha = line.partition(b"\t")[0].decode().split()
        return mode, kind, sha

    def _head(self, ref: str) -> str:
        found = self._git("for-each-ref", "--format=%(objectname)", f"refs/heads/{ref}").decode().strip()
        if not found:
            raise Refused(404, "Not Found")
        return found

    def _store(self, data: bytes) -> str:
        return self._git("hash-object", "-w", "--stdin", stdin=data).decode().strip()

    def _git(self, *argv: str, stdin: bytes = b"") -> bytes:
        who = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        env = {"PATH": os.defpath, "GIT_DIR": str(self.git_dir), "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"}
        return subprocess.run(["git", *argv], input=stdin, capture_output=True, check=True, env=env | who).stdout


def _method(argv: tuple[str, ...]) -> str:
    return argv[argv.index("--method") + 1] if argv[0] == "api" else argv[0]


def short(argv: tuple[str, ...]) -> str:
    """Say what a call asks for."""
    if argv[0] != "api":
        return " ".join(argv)
    return f"{_method(argv)} {argv[-1].removeprefix(f'repos/{REPO}/')}"


def _base64(data: bytes) -> str:
    """Encode as GitHub does: in lines."""
    text = b64encode(data).decode()
    return "".join(f"{text[first : first + 60]}\n" for first in range(0, len(text), 60))
