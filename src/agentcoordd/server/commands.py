"""The command line of the server: its options and the management of tokens, read, done and reported."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, cast

import anyio
import msgspec
import typer

from agentcoord.cli.output import one_line
from agentcoord.errors import Exit, UsageError
from agentcoord.protocol.documents import encode_pretty
from agentcoordd.server import tokens
from agentcoordd.server.serve import Serving, serve
from agentcoordd.server.storage.base import Grant
from agentcoordd.server.storage.opening import absolute, open_tokens
from agentcoordd.server.storage.urls import shown

_DB = "AGENT_COORD_SERVER_DB"
_TOKEN_HELP = """\
Usage: agentcoordd token add MACHINE [--rotate] (--all-state | [--read-prefix P]... [--write-prefix P]...)
       agentcoordd token rotate MACHINE (--all-state | [--read-prefix P]... [--write-prefix P]...)
       agentcoordd token revoke MACHINE
       agentcoordd token list [--json]

Options:
  --db URL              sqlite:///PATH or postgresql://...; else AGENT_COORD_SERVER_DB
  --database NAME       another database beside that one
  --local, --remote     accepted for scripts of the reference; where the database is, its URL says
"""


def server(arguments: Sequence[str]) -> int:
    """Serve until told to end."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(_serve)
    try:
        typer.main.get_command(app)(args=list(arguments), prog_name="agentcoordd server", standalone_mode=False)
    except Exception as error:
        if hasattr(error, "format_message"):  # what typer says of a call that it does not understand
            raise UsageError(cast("Any", error).format_message()) from error
        raise
    return Exit.OK


def _serve(
    db: Annotated[str, typer.Option(envvar=_DB, help="sqlite:///PATH or postgresql://…")],
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one")] = "127.0.0.1:8787",
    tls_cert: Annotated[str | None, typer.Option(help="Certificate chain, to speak HTTPS without a proxy")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Its private key")] = None,
    keep_changes: Annotated[int, typer.Option(help="How many changes the feed remembers", min=1000)] = 100_000,
    access_log: Annotated[bool, typer.Option(help="A line on stderr for each request")] = True,
) -> None:
    """Serve state over HTTP from a database, until SIGTERM or SIGINT."""
    host, port = _address(listen)
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together")
    serving = Serving(db, host, port, keep_changes, access_log, tls_cert, tls_key)
    _say(f"agentcoordd server: {shown(absolute(db))}")
    anyio.run(partial(serve, serving, _say, _notify), backend_options={"use_uvloop": True})


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port[:6]) > 65535:
        raise UsageError(f"--listen must be HOST:PORT: {listen}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _say(line: str) -> None:
    sys.stderr.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {one_line(line)}\n")


def _notify(_: int) -> None:
    """Tell systemd, if it started this process, that requests are accepted."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    import socket

    # Nobody may be there any more, as when the variable came with a shell: no reason not to serve.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as telling:
        telling.settimeout(1)
        telling.sendto(b"READY=1", address.replace("@", "\0", 1) if address.startswith("@") else address)


def token(arguments: Sequence[str]) -> int:
    """Add, rotate, revoke or list tokens."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(_TOKEN_HELP)
        return Exit.OK
    action, rest = arguments[0], list(arguments[1:])
    match action:
        case "add" | "rotate":
            return _issue(tokens.read_provision(rest, rotate=action == "rotate"))
        case "revoke":
            return _revoke(rest)
        case "list":
            return _list(rest)
        case _:
            raise UsageError(f"unknown token command: {action}; see agentcoordd token --help")


def _issue(provision: tokens.Provision) -> int:
    async def run() -> tokens.Issued:
        async with open_tokens(_database(provision.db, provision.database)) as storage:
            return await tokens.issue(storage, provision, os.urandom)

    sys.stdout.write(tokens.announcement(anyio.run(run)))
    return Exit.OK


def _revoke(rest: list[str]) -> int:
    options, words = _where(rest)
    if len(words) != 1:
        raise UsageError("token revoke needs the name of one machine")
    machine = tokens.require_machine(words[0])

    async def run() -> bool:
        async with open_tokens(_database(*options), make=False) as storage:
            return await storage.revoke(machine)

    if not anyio.run(run):
        raise UsageError(f"machine {machine} has no token to revoke")
    sys.stdout.write(f"revoked {machine}\n")
    return Exit.OK


def _list(rest: list[str]) -> int:
    json = "--json" in rest
    options, words = _where([word for word in rest if word != "--json"])
    if words:
        raise UsageError(f"unexpected arguments: {' '.join(words)}")

    async def run() -> list[Grant]:
        async with open_tokens(_database(*options), make=False) as storage:
            return list(await storage.grants())

    grants = anyio.run(run)
    if json:
        sys.stdout.write(encode_pretty({"machines": [_facts(grant) for grant in grants]}).decode())
    else:
        for grant in grants:
            state = f"revoked {grant.revoked_at}" if grant.revoked_at else "active"
            sys.stdout.write(
                f"{grant.machine} {state} created {grant.created_at} "
                f"reads {grant.read_prefixes} writes {grant.write_prefixes}\n"
            )
    return Exit.OK


def _facts(grant: Grant) -> dict[str, Any]:
    facts = msgspec.to_builtins(grant)
    for field in ("read_prefixes", "write_prefixes"):
        try:
            facts[field] = msgspec.json.decode(facts[field])
        except msgspec.MsgspecError:
            facts[field] = None  # not a list of scopes at all: it grants nothing
    return facts


def _where(rest: list[str]) -> tuple[tuple[str | None, str | None], list[str]]:
    found: dict[str, str] = {}
    words: list[str] = []
    arguments = iter(rest)
    for word in arguments:
        if word in ("--db", "--database"):
            value = next(arguments, None)
            if value is None:
                raise UsageError(f"{word} needs a value")
            found[word] = value
        elif word not in ("--local", "--remote"):
            if word.startswith("--"):
                raise UsageError(f"unknown option: {word}; see agentcoordd token --help")
            words.append(word)
    if "--database" in found:
        tokens.require_database(found["--database"])
    return (found.get("--db"), found.get("--database")), words


def _database(url: str | None, name: str | None) -> str:
    chosen = url or os.environ.get(_DB)
    if not chosen:
        raise UsageError(f"--db or {_DB} is required: sqlite:///PATH or postgresql://…")
    return chosen if name is None else tokens.beside(chosen, name)
