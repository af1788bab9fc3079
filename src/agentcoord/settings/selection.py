"""Which backend one invocation works on, and everything a person must be told about that choice.

Selectors come in tiers: flags, the process environment, the user file. The first tier that selects
anything decides, whatever it displaced is announced, and what would land where nobody looks is refused.
"""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Literal, Self

from msgspec import Struct
from msgspec.structs import replace

from agentcoord.errors import ConfigError
from agentcoord.settings.environment import (
    API_TOKEN,
    API_URL,
    BACKEND,
    LOCAL,
    REF,
    STATE_ROOT,
    STATUS_STATE_ROOT,
    WHITESPACE,
    Env,
    implicit_root,
    setting,
)

DEFAULT_REF = "state"

_URLS = ("url", "api_url", "saved_url")
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)?.*@", re.DOTALL)

Kind = Literal["local", "http", "github"]
Source = Literal["cli", "process_env", "user_config", "default"]


class Role(Enum):
    """What a command does with a backend, as far as choosing one is concerned (spec: cli §2.1, §2.7, §2.8)."""

    WRITE = "write"
    READ = "read"
    DOCTOR = "doctor"  # reads like READ, but reports a split brain instead of warning of it
    MAINTAIN = "maintain"  # neither uses status roots nor is held back by a split brain
    SHOW = "show"  # says what would be selected, selects nothing
    SET = "set"  # loads the user file to change it
    INDEPENDENT = "independent"  # reads no configuration at all


ROLES: Mapping[str, Role] = {
    "status": Role.READ,
    "log": Role.READ,
    "batch-audit": Role.READ,
    "watch": Role.READ,
    "attention": Role.READ,
    "attention-get": Role.READ,
    "attention-list": Role.READ,
    "doctor": Role.DOCTOR,
    "gc": Role.MAINTAIN,
    "config": Role.SHOW,
    "config set": Role.SET,
    "version": Role.INDEPENDENT,
    "bootstrap": Role.INDEPENDENT,
    "demo": Role.INDEPENDENT,
    "completion": Role.INDEPENDENT,
    "daemon": Role.INDEPENDENT,
    "daemon start": Role.INDEPENDENT,
    "daemon stop": Role.INDEPENDENT,
    "daemon restart": Role.INDEPENDENT,
    "daemon status": Role.INDEPENDENT,
    "daemon logs": Role.INDEPENDENT,
    "daemon install": Role.INDEPENDENT,
    "daemon uninstall": Role.INDEPENDENT,
    "lease": Role.INDEPENDENT,
    "lease list": Role.INDEPENDENT,
    "lease drop": Role.INDEPENDENT,
    "outbox": Role.INDEPENDENT,
    "outbox list": Role.INDEPENDENT,
    "outbox retry": Role.INDEPENDENT,
    "outbox drop": Role.INDEPENDENT,
}


def role_of(command: str) -> Role:
    """Give the role of a command; one that is not listed writes, since refusing too much is the safe mistake."""
    return ROLES.get(command, Role.WRITE)


class Secret:
    """A value that shows itself only to the one who asks: not in a repr, a log line or an encoded struct."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Give the value, for the one request that needs it."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


class Discreet(Struct, frozen=True):
    """A struct whose repr hides the userinfo of the URLs in it."""

    def __repr__(self) -> str:
        shown = ((name, getattr(self, name)) for name in self.__struct_fields__)
        fields = (f"{name}={redact(value) if name in _URLS and value else value!r}" for name, value in shown)
        return f"{type(self).__name__}({', '.join(fields)})"


class Flags(Discreet, frozen=True, kw_only=True):
    """The selecting options as given, None where one was not given (spec: cli §1.3)."""

    state_root: str | None = None
    api_url: str | None = None
    backend: str | None = None
    ref: str | None = None
    ignore_user_config: bool = False

    def selectors(self) -> dict[str, str]:
        """Map each option that selects a backend to its value."""
        given = {"--state-root": self.state_root, "--api-url": self.api_url, "--backend": self.backend}
        return {option: value for option, value in given.items() if value is not None}


class Selection(Discreet, frozen=True, kw_only=True):
    """The backend of one invocation. Opening it is somebody else's work."""

    kind: Kind
    backend_source: Source
    root: str | None = None  # of a local store, verbatim; None in a mere report of the implicit one
    url: str | None = None  # of an HTTP store, verbatim: show it through `redact`
    repo: str | None = None  # of a GitHub store, verbatim
    ref: str = DEFAULT_REF
    token: Secret | None = None
    implicit: bool = False  # nothing was selected: the zero-config local root, which may be created
    status_root: bool = False  # a local root that serves reads because nothing was selected
    split_brain_file: str | None = None  # set for doctor only: its report is `split_brain`, exit 2
    said: tuple[str, ...] = ()  # warnings and notices, whole lines in the order to print them

    @property
    def configured(self) -> bool:
        """Whether anything selected this backend; if not, it is the implicit root (spec: cli §13)."""
        return self.backend_source != "default"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The lines of `said` that warn."""
        return tuple(line for line in self.said if line.startswith("warning: "))

    def saying(self, *lines: str) -> Self:
        """Add lines to what a person is told."""
        return replace(self, said=(*self.said, *lines))

    def silent(self) -> Self:
        """Tell nobody anything, as the stack report must."""
        return replace(self, said=())


class SelectionError(ConfigError):
    """No backend can be trusted for this invocation.

    `selection` is what had been chosen by then, without a token; its lines are still to be printed.
    """

    topic = "selection.refused"

    def __init__(self, message: str, selection: Selection) -> None:
        self.selection = selection
        super().__init__(message)


PRECEDENCE: tuple[tuple[str, Kind], ...] = (
    ("--state-root", "local"),
    ("--api-url", "http"),
    ("--backend", "github"),
    (API_URL, "http"),
    (STATE_ROOT, "local"),
    (BACKEND, "github"),
)
SELECTING_VARIABLES = (API_URL, STATE_ROOT, BACKEND)
BYPASSED = frozenset({*SELECTING_VARIABLES, REF, STATUS_STATE_ROOT})

_TO_LOCAL = "are both set; using the local backend."
_TO_HTTP = "are both set; using the HTTP backend."
_TO_GITHUB = "are both set; using the legacy GitHub backend."
_OR_LOCAL = " Pass --state-root to force local."
_OR_GITHUB = " Pass --backend to force the legacy GitHub backend."

# For each selector that wins: what it may have displaced, most telling first, and how that is put (spec: cli §2.6).
_DISPLACED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "--state-root": (
        ("--api-url", f"--api-url and --state-root {_TO_LOCAL}"),
        ("--backend", f"--backend and --state-root {_TO_LOCAL}"),
        (API_URL, f"{API_URL} and --state-root {_TO_LOCAL}"),
        (BACKEND, f"{BACKEND} and --state-root {_TO_LOCAL}"),
    ),
    "--api-url": (
        ("--backend", f"--backend and --api-url {_TO_HTTP}"),
        (STATE_ROOT, f"--api-url and {STATE_ROOT} {_TO_HTTP}{_OR_LOCAL}"),
        (BACKEND, f"{BACKEND} and --api-url {_TO_HTTP}"),
    ),
    "--backend": (
        (API_URL, f"{API_URL} and --backend {_TO_GITHUB}"),
        (STATE_ROOT, f"{STATE_ROOT} and --backend {_TO_GITHUB}"),
    ),
    API_URL: (
        (STATE_ROOT, f"{API_URL} and {STATE_ROOT} {_TO_HTTP}{_OR_LOCAL}"),
        (BACKEND, f"{API_URL} and {BACKEND} {_TO_HTTP}{_OR_GITHUB}"),
    ),
    STATE_ROOT: ((BACKEND, f"{STATE_ROOT} and {BACKEND} {_TO_LOCAL}{_OR_GITHUB}"),),
    BACKEND: (),
}


def choose(role: Role, flags: Flags, env: Env, saved: Env, *, install_root: str | None = None) -> Selection:
    """Select the backend from all tiers, with its token.

    `saved` is the user file and empty when it was bypassed; `install_root` is given only when it
    holds state. For Role.SHOW nothing is announced but a bypass, and neither a token nor a root is
    required. Raises SelectionError (spec: cli §2.5 to §2.7, §2.9, §2.10).
    """
    process = {key: value for key, value in env.items() if key not in BYPASSED} if flags.ignore_user_config else env
    tier, source = (process, "process_env") if by_process(env, flags) else (saved, "user_config")
    variables = {key: value for key in SELECTING_VARIABLES if (value := setting(tier, key)) is not None}
    options = flags.selectors()
    present = options | variables
    said: list[str] = []
    if flags.ignore_user_config:
        said.append(
            "warning: canonical user configuration bypassed by --ignore-user-config; "
            f"backend selected explicitly by {next(iter(options), 'nothing')}."
        )
    for selector, kind in PRECEDENCE:
        if selector in present:
            selection = Selection(
                kind=kind,
                backend_source="cli" if selector in options else source,
                root=present[selector] if kind == "local" else None,
                url=present[selector] if kind == "http" else None,
                repo=present[selector] if kind == "github" else None,
                ref=_ref(flags, process, saved, tier),
                said=tuple(said),
            )
            if role is Role.SHOW:
                return selection
            selection = selection.saying(*_displaced(selector, present))
            return _with_token(selection, env, saved) if kind == "http" else selection
    nothing = Selection(kind="local", backend_source="default", ref=_ref(flags, process, saved, tier), said=tuple(said))
    return nothing if role is Role.SHOW else _without_selector(nothing, role, process, saved, install_root)


def concerned_by_split_brain(selection: Selection, role: Role, flags: Flags, env: Env, saved: Env) -> bool:
    """Tell whether a fleet URL in a consumer file would matter, so whether to look for one (spec: cli §2.8)."""
    if selection.kind != "local" or flags.ignore_user_config or setting(env, API_URL) is not None:
        return False
    opt_in = setting(env, LOCAL) or setting(saved, LOCAL) or ""
    if opt_in.strip(WHITESPACE).lower() in ("1", "true", "yes"):
        return False
    return role in (Role.READ, Role.DOCTOR) or (role is Role.WRITE and selection.implicit)


def guard(selection: Selection, role: Role, file: str) -> Selection:
    """Judge a local selection that `concerned_by_split_brain` when `file` configures a fleet URL.

    Writes to the implicit root are refused, a doctor of it reports a split brain, other reads warn.
    Raises SelectionError (spec: cli §2.8).
    """
    if role is Role.WRITE:
        raise SelectionError(split_brain_refusal(file), _without_notices(selection))
    if role is Role.DOCTOR and (selection.implicit or selection.status_root):
        return replace(_without_notices(selection), split_brain_file=file)
    return selection.saying(
        f"warning: split-brain configuration: {file} configures {API_URL}, but this CLI is using the local backend. "
        "Load that env file for fleet reads or remove it if local mode is intended."
    )


def split_brain_refusal(file: str) -> str:
    """Say why an implicit local write is refused, and the three ways out (spec: cli §2.8)."""
    return (
        f"split-brain configuration: {file} configures {API_URL}, but this CLI resolved to the implicit local backend; "
        "refusing writes that would land on the local state root while a fleet API URL is configured. "
        f"Source {file} for fleet writes, pass --state-root PATH to choose a local root explicitly, "
        f"or set {LOCAL}=1 to opt into local mode."
    )


def redact(url: str) -> str:
    """Show a URL without its userinfo.

    Whatever stands before the last `@` is hidden: a password may hold the very characters that end
    an authority, and hiding too much is the safe mistake (spec: cli §2.9).
    """
    return _USERINFO.sub(lambda found: f"{found.group(1) or ''}***@", url, count=1)


def shown_address(url: str) -> str:
    """Show a URL without its userinfo, and without a query or fragment, which may hold a token as well."""
    shown = redact(url)
    end = next((place for place, char in enumerate(shown) if char in "?#"), None)
    return shown if end is None else f"{shown[: end + 1]}***"


def _ref(flags: Flags, process: Env, saved: Env, tier: Env) -> str:
    if flags.ref is not None:
        return flags.ref
    tiers = (process, saved) if flags.backend is not None else (tier,)
    return next((ref for env in tiers if (ref := setting(env, REF)) is not None), DEFAULT_REF)


def by_process(env: Env, flags: Flags) -> bool:
    """Tell whether the process environment selects anything, and so leaves the user file no say in it."""
    return not flags.ignore_user_config and any(setting(env, key) is not None for key in SELECTING_VARIABLES)


def _displaced(selector: str, present: Mapping[str, str]) -> tuple[str, ...]:
    lines = (f"warning: {line}" for other, line in _DISPLACED[selector] if other in present)
    return tuple(lines)[:1]


def _with_token(selection: Selection, env: Env, saved: Env) -> Selection:
    """Bind a token to the selected URL: one that was saved for another URL never goes there."""
    url = selection.url or ""
    if (own := setting(env, API_TOKEN)) is not None:
        bound = replace(selection, token=Secret(own))
        if url == setting(env, API_URL):
            return bound
        return bound.saying(
            f"warning: process-scoped {API_TOKEN} is being used with {redact(url)}, which it was not set alongside; "
            "the process token takes precedence over any saved token."
        )
    if (kept := setting(saved, API_TOKEN)) is None:
        raise SelectionError(f"{API_TOKEN} is required when using the HTTP backend", selection)
    if url != saved.get(API_URL):
        raise SelectionError(
            f"process-scoped {API_TOKEN} is required when the selected API URL differs from user config", selection
        )
    return replace(selection, token=Secret(kept))


def _without_selector(nothing: Selection, role: Role, env: Env, saved: Env, install_root: str | None) -> Selection:
    reads = role in (Role.READ, Role.DOCTOR)
    tiers: tuple[tuple[Env, Source], ...] = ((env, "process_env"), (saved, "user_config"))
    if reads:
        for tier, source in tiers:
            if (root := setting(tier, STATUS_STATE_ROOT)) is not None:
                return replace(nothing, root=root, status_root=True, backend_source=source)
    if any(setting(tier, API_TOKEN) is not None for tier, _ in tiers):
        raise SelectionError(
            f"{API_TOKEN} is set but {API_URL} is missing or empty; set {API_URL} or unset {API_TOKEN}", nothing
        )
    if reads and install_root is not None:
        return replace(nothing, root=install_root, status_root=True)
    root = implicit_root(env)
    if root is None:
        raise SelectionError(
            "cannot determine local state root; set XDG_STATE_HOME or HOME to an absolute path, or pass --state-root",
            nothing,
        )
    local = replace(nothing, root=root, implicit=True)
    return local.saying(f"notice: local mode — single-machine only; state root: {root}")


def _without_notices(selection: Selection) -> Selection:
    return replace(selection, said=selection.warnings)
