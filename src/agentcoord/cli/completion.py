"""Completion: what may stand next on a command line, from the tables of the grammar and the names of records.

A shell asks at every press of a key and has nowhere to show a fault, so whatever goes wrong, the
answer is that there are no candidates. Records are named, not read, but for the one batch whose
lanes are asked for. Backends across the network are left alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from agentcoord.cli.commands import BY_COMMAND, COMMANDS, GROUPS, named
from agentcoord.cli.completion_scripts import SCRIPTS
from agentcoord.cli.options import BACKEND, BY_NAME, OPTIONS, SELECTORS, Option, find_option, options_of
from agentcoord.cli.output import Invocation
from agentcoord.errors import CoordError, UsageError
from agentcoord.protocol.batches import UNKNOWN, lanes_of
from agentcoord.protocol.documents import is_document
from agentcoord.protocol.events import LIFECYCLE, SIGNALS
from agentcoord.protocol.paths import ARCHIVABLE, FAMILIES, attention_prefix, batch_path, claim_key, stem
from agentcoord.protocol.statuses import CANONICAL
from agentcoord.settings.selection import Flags, Role, role_of
from agentcoord.settings.value import load
from agentcoord.stores.local import LocalStore
from agentcoord.stores.opening import open_local

MOST = 500
"""Candidates given at once; who has more types another letter."""

MOST_RECORDS = 10_000
"""Names of records looked at for candidates."""
MOST_CLAIMS = 1_000_000
"""The same where only their directories matter, since one repository's claims must not hide the next one."""

_PLAIN = frozenset("_-./:@#+=,")
"""Besides letters and digits, what no shell treats specially inside a word."""
_HELP = ("--help", "Show this help")

Candidate = tuple[str, str]
"""A word that may stand there, and what it means; the meaning may be empty."""


def script(shell: str) -> str:
    """Give the completion code of a shell: bash, zsh or fish. Raises KeyError for another one."""
    paths = [f"--{option.name}" for option in OPTIONS if option.kind == "path"]
    return SCRIPTS[shell].replace("@PATH_OPTIONS@", ("|" if shell != "fish" else " ").join(paths)).strip("\n")


def complete(rest: Sequence[str], invocation: Invocation) -> bytes:
    """Give the candidates for one word of a command line, one a line; for zsh and fish with a tab and their meaning.

    `rest` is the shell's name, which word is asked for (the first after the program's name is 0), and
    the words as they stand on the line, quotes included. Never raises for what the line or the state holds.
    """
    try:
        shell, index = rest[0], int(rest[1])
        words = [_unquoted(word) for word in rest[2:]]
        if shell not in SCRIPTS or index < 0:
            return b""
        current = words[index] if index < len(words) else ""
        found = _Line(words[:index], words[index + 1 :], current, invocation).candidates()
        lines = list(_lines(found, current, described=shell != "bash"))
    except (CoordError, OSError, ValueError, IndexError, RecursionError):
        return b""
    return "".join(lines).encode()


def _lines(candidates: Iterable[Candidate], current: str, *, described: bool) -> Iterator[str]:
    given: set[str] = set()
    for word, meaning in candidates:
        if not word.startswith(current) or word in given or not _is_plain(word):
            continue
        given.add(word)
        yield f"{word}\t{meaning}\n" if meaning and described else f"{word}\n"
        if len(given) == MOST:
            return


def _is_plain(word: str) -> bool:
    """Tell whether a shell takes a word as it stands: a record's name must never become a piece of a program."""
    return all(letter.isalnum() or letter in _PLAIN for letter in word)


def _unquoted(word: str) -> str:
    """Take the quoting off a word, also one whose closing quote is yet to come."""
    if not any(sign in word for sign in "\"'\\"):
        return word
    letters: list[str] = []
    quote, rest = "", iter(word)
    for letter in rest:
        if letter == quote:
            quote = ""
        elif letter in "\"'" and not quote:
            quote = letter
        elif letter == "\\" and quote != "'":
            letters.append(next(rest, ""))
        else:
            letters.append(letter)
    return "".join(letters)


class _Given(Struct):
    """What the words of a line say, as far as they can be understood."""

    values: dict[str, str] = field(default_factory=dict[str, str])
    selectors: list[str] = field(default_factory=list[str])
    positionals: int = 0
    pending: Option | None = None
    """The option that the next word is the value of."""
    closed: bool = False
    """Whether `--` was met: no option follows."""


class _Line:
    """A command line with a gap in it, and what may fill the gap."""

    def __init__(self, before: Sequence[str], after: Sequence[str], current: str, invocation: Invocation) -> None:
        self._current = current
        self._invocation = invocation
        self._command, skipped = _command_of(before)
        self._known = options_of(self._command)
        self._before = _understood(before[skipped:], self._known)
        everything = _understood(after, self._known)
        everything.values |= self._before.values
        everything.selectors[:0] = self._before.selectors
        self._given = everything
        self._first = not before
        self._group = before[0] if len(before) == 1 and before[0] in GROUPS else ""

    def candidates(self) -> Iterable[Candidate]:
        """Give what may stand in the gap, in the order it is best shown in; the caller picks by prefix."""
        if self._first:
            commands = [(command.name, command.summary) for command in COMMANDS if not command.hidden]
            return [*commands, _HELP] if self._current.startswith("-") else commands
        if self._command not in BY_COMMAND:
            return ()
        before = self._before
        if before.pending is not None:
            return self._values(before.pending, self._current)
        if before.closed:
            return ()
        name, equals, value = self._current.partition("=")
        if equals and name.startswith("--"):
            option = _find(name[2:], self._known)
            if option is None or option.kind == "flag":
                return ()
            return [(f"{name}={word}", meaning) for word, meaning in self._values(option, value)]
        positional = [] if self._current.startswith("-") else self._positionals()
        return [*positional, *self._options()]

    def _positionals(self) -> list[Candidate]:
        if self._group:
            return [(word, BY_COMMAND[named(self._group, word)].summary) for word in GROUPS[self._group]]
        if self._before.positionals:
            return []
        if self._command == "completion":
            return [(shell, "") for shell in SCRIPTS]
        if self._command in ("log", "resume"):
            return [("#".join(claim_key(path)), "") for path in self._records("claims", f"claims/{self._repo_part()}")]
        return []

    def _repo_part(self) -> str:
        return self._current.partition("#")[0]

    def _options(self) -> Iterator[Candidate]:
        for option in _offered(self._command):
            if option.kind == "several" or option.field not in self._given.values:
                yield f"--{option.name}", option.text
        yield _HELP

    # -- values

    def _values(self, option: Option, begun: str) -> Iterable[Candidate]:
        """Give the values of an option that begin so, as far as they can be known."""
        words = option.choices or _VOCABULARIES.get(option.name, ())
        source = _SOURCES.get(option.name)
        if not words and source is not None:
            words = source(self, begun)
        return [(word, "") for word in words if word.startswith(begun)]

    def repositories(self, begun: str) -> Iterable[str]:
        """Name the repositories that somebody ever claimed something of."""
        paths = self._records("claims", f"claims/{begun}", limit=MOST_CLAIMS)
        return dict.fromkeys(claim_key(path)[0] for path in paths)

    def targets(self, begun: str) -> Iterable[str]:
        """Name the targets claimed so far: of the repository on the line, else of all."""
        repo = self._given.values.get("repo")
        if repo:
            return map(stem, self._records(f"claims/{repo}", f"claims/{repo}/{begun}"))
        return sorted({stem(path) for path in self._records("claims")})

    def batches(self, begun: str) -> Iterable[str]:
        """Name the batches."""
        return map(stem, self._records("batches", f"batches/{begun}"))

    def agents(self, begun: str) -> Iterable[str]:
        """Name the agents that were ever heard of."""
        return map(stem, self._records("heartbeats", f"heartbeats/{begun}"))

    def lanes(self, begun: str) -> Iterable[str]:
        """Name the lanes of the batch on the line."""
        from agentcoord.stores.opening import settle

        batch_id, store = self._given.values.get("batch_id"), self._store()
        stored = settle(store.read(batch_path(batch_id))) if store and batch_id else None
        if stored is None or not is_document(stored.document):
            return ()
        return [lane.name for lane in lanes_of(stored.document) if lane.name != UNKNOWN]

    def attention(self, begun: str) -> Iterable[str]:
        """Name the requests for attention of the workspace and repository on the line."""
        workspace, repo = self._given.values.get("workspace"), self._given.values.get("repo")
        if not workspace or not repo:
            return ()
        prefix = attention_prefix(workspace, repo)
        return map(stem, self._records(prefix, f"{prefix}/{begun}"))

    def _records(self, prefix: str, starting: str = "", *, limit: int = MOST_RECORDS) -> Sequence[str]:
        store = self._store()
        return store.names(prefix, starting=starting, limit=limit) if store else []

    def _store(self) -> LocalStore | None:
        """Open the local state root that the line and the environment select; None for another backend."""
        values = self._given.values
        flags = Flags(
            state_root=self._expanded(values.get("state_root")),
            api_url=values.get("api_url"),
            backend=values.get("backend"),
            ref=values.get("ref"),
            ignore_user_config="ignore_user_config" in values,
        )
        # As `status`, which only reads: a line that is not finished must not be refused for what it is about to write.
        settings = load(self._invocation.env, command="status", flags=flags, argv_selectors=self._given.selectors)
        return open_local(settings.selected, self._invocation.cwd)

    def _expanded(self, path: str | None) -> str | None:
        """Put the home directory in place of a leading `~`, as the shell will."""
        home = self._invocation.env.get("HOME")
        return home + path[1:] if path and home and (path == "~" or path.startswith("~/")) else path


_SOURCES: dict[str, Callable[[_Line, str], Iterable[str]]] = {
    "repo": _Line.repositories,
    "target": _Line.targets,
    "batch-id": _Line.batches,
    "agent-id": _Line.agents,
    "handoff-to": _Line.agents,
    "lane": _Line.lanes,
    "attention-id": _Line.attention,
}


def _command_of(words: Sequence[str]) -> tuple[str, int]:
    """Name the command of a line, and how many words that took."""
    if not words:
        return "", 0
    if len(words) > 1 and words[1] in GROUPS.get(words[0], ()):
        return named(words[0], words[1]), 2
    return words[0], 1


def _offered(command: str) -> list[Option]:
    """List the options a command has a use for: its own first, then those that choose a backend, where it has one."""
    role, own = role_of(command), BY_COMMAND[command].options
    if role is Role.INDEPENDENT and command != "version":
        return list(own)
    common = BACKEND if role not in (Role.INDEPENDENT, Role.SET) else (BY_NAME["json"],)
    return [*own, *(option for option in common if option not in own)]


def _understood(words: Sequence[str], known: Sequence[Option]) -> _Given:
    """Read words by the grammar, passing over what it does not allow."""
    given = _Given()
    for word in words:
        option, equals, value = None, "", ""
        if given.pending is not None:
            given.values[given.pending.field] = word
            given.pending = None
        elif given.closed or not word.startswith("-") or word == "-":
            given.positionals += 1
        elif word == "--":
            given.closed = True
        else:
            name, equals, value = word[2:].partition("=")
            option = _find(name, known) if word.startswith("--") else None
        if option is None:
            continue
        if f"--{option.name}" in SELECTORS:
            given.selectors.append(f"--{option.name}")
        if option.kind == "flag" or equals:
            given.values[option.field] = value
        else:
            given.pending = option
    return given


def _find(name: str, known: Sequence[Option]) -> Option | None:
    """Find the option a line means; None for what the grammar would refuse."""
    try:
        return find_option(name, known)
    except UsageError:
        return None


_VOCABULARIES: Mapping[str, Sequence[str]] = {
    "status": CANONICAL,
    "type": (*LIFECYCLE, *SIGNALS),
    "doctor-prefix": FAMILIES,
    "prefix": ARCHIVABLE,
}
"""Where an option's values usually come from, though others are allowed too."""
