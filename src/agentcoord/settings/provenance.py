"""Where each setting of one invocation came from: what a person asks when a command used another one.

Nothing is read here. A token takes part by being set or not; its value is never looked at.
"""

from collections.abc import Collection
from posixpath import join

from msgspec import Struct

from agentcoord.files import discreet, printable
from agentcoord.settings.environment import (
    API_TOKEN,
    API_URL,
    CODEX_THREAD_ID,
    LOCAL,
    MACHINE_ID,
    POLICY,
    REF,
    SESSION_ID,
    STATUS_STATE_ROOT,
    Env,
    implicit_root_variable,
    named_user_file,
    setting,
)
from agentcoord.settings.selection import BYPASSED, PRECEDENCE, Flags, Selection, by_process, shown_address
from agentcoord.settings.value import Settings

UNSET = "unset"
UNKNOWN = "unknown"
"""The source of what only a user file could say that was not loaded."""
_OF_KIND = {kind: selector for selector, kind in PRECEDENCE if not selector.startswith("--")}
_FLAG_OF_KIND = {kind: selector for selector, kind in PRECEDENCE if selector.startswith("--")}


class Origin(Struct, frozen=True):
    """One setting in force, None where it has no value, and what it was taken from."""

    name: str
    value: str | None
    source: str


def provenance(
    env: Env, saved: Collection[str], flags: Flags, settings: Settings, *, cwd: str, fleet_file: str | None = None
) -> tuple[Origin, ...]:
    """List where the settings come from; `saved` names what is set in the user file, empty when it was bypassed.

    `cwd` is what a relative root is taken from, `fleet_file` a consumer file that configures a fleet URL.
    """
    places = _Places(env, frozenset(saved), flags, settings)
    origins = [
        *_user_file(env, settings),
        places.kind(),
        places.state_root(cwd),
        places.api_url(),
        places.api_token(),
        places.ref(),
        Origin("local", settings.local, places.of(LOCAL)),
        Origin("machine_id", settings.identity.machine_id, places.of(MACHINE_ID)),
        Origin("session_id", settings.identity.session_id, places.of(SESSION_ID, CODEX_THREAD_ID, saved=False)),
        places.policy(),
    ]
    if fleet_file is not None:
        origins.append(Origin("consumer_file", fleet_file, f"configures {API_URL}"))
    return tuple(
        Origin(origin.name, None if origin.value is None else _shown(origin.value), _shown(origin.source))
        for origin in origins
    )


def _user_file(env: Env, settings: Settings) -> tuple[Origin, Origin]:
    """Say where the user file is, also when it was bypassed or refused, and what was done with it."""
    file = named_user_file(env)
    place, variable = (None, UNSET) if file is None else (file.path, file.variable)
    use = settings.user_file_use
    why = "--ignore-user-config" if use == "bypassed" else variable
    return Origin("user_config", place, variable), Origin("user_config_use", use, why)


def _shown(text: str) -> str:
    return discreet(printable(text))


class _Places:
    """The places a setting may come from, in the words of the report."""

    def __init__(self, env: Env, saved: frozenset[str], flags: Flags, settings: Settings) -> None:
        self._env = env
        self._saved = saved
        self._flags = flags
        self._settings = settings
        self._selection: Selection = settings.selected
        file = settings.user_file
        self._file = "user file" if file is None else file.path
        self._blind = settings.user_file_use == "not_loaded"

    def of(self, *variables: str, saved: bool = True) -> str:
        """Say where the first variable that is set is set: in the process before the user file."""
        for variable in variables:
            if self._in_process(variable):
                return _process(variable)
        if not saved:
            return UNSET
        return self._saved_at(*variables)

    def _saved_at(self, *variables: str) -> str:
        kept = next((variable for variable in variables if variable in self._saved), None)
        if kept is not None:
            return f"{self._file}:{kept}"
        return UNKNOWN if self._blind else UNSET

    def _in_process(self, variable: str) -> bool:
        bypassed = self._flags.ignore_user_config and variable in BYPASSED
        return not bypassed and setting(self._env, variable) is not None

    def kind(self) -> Origin:
        """Give the kind of backend in force, where that is known."""
        source = self.backend()
        return Origin("backend", None if source == UNKNOWN else self._selection.kind, source)

    def backend(self) -> str:
        """Say what selected the backend."""
        selection = self._selection
        match selection.backend_source:
            case "cli":
                return _FLAG_OF_KIND[selection.kind]
            case "process_env":
                return _process(self._selecting())
            case "user_config":
                return f"{self._file}:{self._selecting()}"
            case "default":
                return UNKNOWN if self._blind else "default"

    def _selecting(self) -> str:
        return STATUS_STATE_ROOT if self._selection.status_root else _OF_KIND[self._selection.kind]

    def state_root(self, cwd: str) -> Origin:
        """Give the root in force as an absolute path, and what it was before."""
        selection, source = self._selection, self.backend()
        if source == UNKNOWN or selection.kind != "local" or selection.root is None:
            return Origin("state_root", None, UNKNOWN if source == UNKNOWN else UNSET)
        if selection.implicit:
            source = f"default below {implicit_root_variable(self._env)}"
        elif selection.status_root and source == "default":
            source = "state beside the installed program"
        if selection.root.startswith("/"):
            return Origin("state_root", selection.root, source)
        if not cwd:
            return Origin("state_root", selection.root, f"{source}, relative to a directory that is gone")
        return Origin("state_root", join(cwd, selection.root), f"{source}, relative to {cwd}")

    def api_url(self) -> Origin:
        """Give the fleet's address without what may be secret in it, also where another backend was selected."""
        given = self._flags.api_url
        if given is not None:
            return Origin("api_url", shown_address(given), "--api-url")
        source = self.of(API_URL)
        if source in (UNSET, UNKNOWN):
            return Origin("api_url", None, source)
        url = setting(self._env, API_URL) if source == _process(API_URL) else self._settings.saved_url
        return Origin("api_url", None if url is None else shown_address(url), source)

    def api_token(self) -> Origin:
        """Say whether there is a token."""
        source = self.of(API_TOKEN)
        return Origin("api_token", {UNSET: "not set", UNKNOWN: UNKNOWN}.get(source, "set"), source)

    def ref(self) -> Origin:
        """Give the branch of a GitHub backend, which goes with what selected that."""
        given = self._selection.ref
        if self._flags.ref is not None:
            return Origin("ref", given, "--ref")
        if self._flags.backend is not None:  # which leaves the two tiers one after the other
            source = self.of(REF)
        elif by_process(self._env, self._flags):
            source = self.of(REF, saved=False)
        else:
            source = self._saved_at(REF)
        if source == UNKNOWN:
            return Origin("ref", None, source)
        return Origin("ref", given, "default" if source == UNSET else source)

    def policy(self) -> Origin:
        """Give the policy, but not what stands in its place if that is none: it may be anything."""
        source = self._policy()
        if not self._settings.policy_valid:
            return Origin("policy", None, f"{source}, which is no policy")
        return Origin("policy", None if source == UNKNOWN else self._settings.policy, source)

    def _policy(self) -> str:
        file = self._settings.user_file
        match self._settings.policy_source:
            case "process_env":
                return _process(POLICY)
            case "user_config":
                return f"{self._file}:{POLICY}"
            case "policy_file":
                return (file and file.legacy_policy) or "legacy policy file"
            case "default":
                return UNKNOWN if self._blind else "default"


def _process(variable: str) -> str:
    return f"process environment:{variable}"
