"""Tokens of machines: made, replaced, ended and listed. A token is shown once; its hash is all that stays.

The options, checks and output are those of the reference's provisioning command (spec: http §9).
"""

import re
from collections.abc import Callable, Sequence
from hashlib import sha256

from msgspec import Struct

from agentcoord.errors import UsageError
from agentcoord.protocol.documents import encode
from agentcoord.protocol.scopes import EVERYTHING, is_directory_prefix, is_record_path
from agentcoordd.server.storage.base import Storage

TOKEN_BYTES = 24

USAGE = (
    "usage: agentcoordd token add MACHINE [--db URL] [--database NAME] [--rotate] --all-state",
    "       agentcoordd token add MACHINE [--db URL] [--database NAME] [--rotate] [--read-prefix P] [--write-prefix P]",
    "Give at least one prefix or --all-state; --read-prefix and --write-prefix may be repeated.",
)
_MACHINE = re.compile(r"[A-Za-z0-9._:-]+")
_DATABASE = re.compile(r"[A-Za-z0-9._-]+")
_VALUES = ("--db", "--database", "--read-prefix", "--write-prefix")
_FLAGS = ("--rotate", "--all-state", "--local", "--remote")


class MisusedTokens(UsageError):
    """The call names no machine or an unknown option; the usage is the answer."""

    def __init__(self) -> None:
        super().__init__("\n".join(USAGE))

    @property
    def lines(self) -> Sequence[str]:
        """Give the usage, which is laid out in lines of its own."""
        return USAGE


class Provision(Struct, frozen=True):
    """Which machine is to get a token, and for what. `db` and `database` say where, None if not given."""

    machine: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    rotate: bool
    db: str | None = None
    database: str | None = None


class Issued(Struct, frozen=True):
    """A new token. It is never stored, and never shown but by whoever issued it."""

    provision: Provision
    token: str

    def __repr__(self) -> str:
        """Name the machine only."""
        return f"Issued({self.provision.machine})"


def read_provision(arguments: Sequence[str], *, rotate: bool = False) -> Provision:
    """Read and check what a token is to be made for, or with `rotate` made anew.

    Raises UsageError before anything is done.
    """
    if not arguments or arguments[0].startswith("--"):
        raise MisusedTokens
    machine = require_machine(arguments[0])
    values: dict[str, list[str]] = {option: [] for option in _VALUES}
    flags: set[str] = set()
    rest = iter(arguments[1:])
    for word in rest:
        if word in _FLAGS:
            flags.add(word)
        elif word in _VALUES:
            value = next(rest, None)
            if value is None:
                raise MisusedTokens
            values[word].append(value)
        else:
            raise MisusedTokens
    for database in values["--database"]:
        require_database(database)
    reads, writes = values["--read-prefix"], values["--write-prefix"]
    for option, prefixes in (("read", reads), ("write", writes)):
        for prefix in prefixes:
            _require_prefix(prefix, option)
    if "--all-state" in flags:
        if reads or writes:
            raise UsageError("--all-state cannot be combined with --read-prefix or --write-prefix")
        reads = writes = [EVERYTHING]
    elif not reads and not writes:
        raise UsageError("provide at least one --read-prefix or --write-prefix, or pass --all-state")
    return Provision(
        machine=machine,
        reads=tuple(reads),
        writes=tuple(writes),
        rotate=rotate or "--rotate" in flags,
        db=values["--db"][-1] if values["--db"] else None,
        database=values["--database"][-1] if values["--database"] else None,
    )


def require_machine(machine: str) -> str:
    """Check a machine's name. Raises UsageError."""
    if _MACHINE.fullmatch(machine) is None:
        raise UsageError("machine name may contain only letters, numbers, dots, underscores, colons, and hyphens")
    return machine


def require_database(name: str) -> None:
    """Check a database's name. Raises UsageError."""
    if name.startswith("-"):
        raise UsageError("database name cannot start with a hyphen")
    if _DATABASE.fullmatch(name) is None:
        raise UsageError("database name may contain only letters, numbers, dots, underscores, and hyphens")


def beside(url: str, name: str) -> str:
    """Name another database of the same cluster, or another file in the same directory."""
    scheme, mark, rest = url.partition("://")
    address, question, options = rest.partition("?")
    above, slash, last = address.rpartition("/")
    if scheme != "sqlite" and not slash:
        above, last = address, ""  # a cluster alone: its default database is not named
    suffix = ".db" if scheme == "sqlite" and last.endswith(".db") else ""
    return f"{scheme}{mark}{above}/{name}{suffix}{question}{options}"


def _require_prefix(prefix: str, option: str) -> None:
    if prefix == EVERYTHING:
        raise UsageError("prefix cannot be empty; pass --all-state for all-state access")
    if not is_directory_prefix(prefix) and not is_record_path(prefix):
        raise UsageError(f"invalid {option} prefix: {prefix}")


async def issue(storage: Storage, provision: Provision, random: Callable[[int], bytes]) -> Issued:
    """Make a token and store its hash. Raises UsageError when the machine has one already."""
    token = random(TOKEN_BYTES).hex()
    stored = await storage.grant(
        provision.machine,
        sha256(token.encode()).hexdigest(),
        reads=provision.reads,
        writes=provision.writes,
        rotate=provision.rotate,
    )
    if not stored:
        raise UsageError(f"machine {provision.machine} has a token already; pass --rotate to replace it")
    return Issued(provision, token)


def announcement(issued: Issued) -> str:
    """Say what was issued, with the token, for the one time that it is shown."""
    provision = issued.provision
    return (
        f"machine:  {provision.machine}\n"
        f"reads:    {encode(list(provision.reads)).decode()}\n"
        f"writes:   {encode(list(provision.writes)).decode()}\n"
        f"token:    {issued.token}\n"
        "Set on that machine:\n"
        "  export AGENT_COORD_API_URL=<worker-url>\n"
        f"  export AGENT_COORD_API_TOKEN={issued.token}\n"
        "Keep both in ${AGENT_COORD_ENV_FILE:-~/.config/agent-coord/env} with mode 600, then restart what uses them.\n"
    )
