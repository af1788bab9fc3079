"""Where each setting of one invocation came from: what a person asks when a command used another one.

Nothing is read here. A token takes part by being set or not; its value is never looked at.
"""

from collections.abc import Collection
from posixpath import join

from msgspec import Struct

from agentcoord.files import printable
from agentcoord.settings.environment import (
    API_TOKEN,
    API_URL,
    BACKEND,
    CODEX_THREAD_ID,
    ENV_FILE,
    MACHINE_ID,
    POLICY,
    SESSION_ID,
    STATE_ROOT,
    STATUS_STATE_ROOT,
    Env,
    implicit_root_variable,
    setting,
    user_file_variable,
)
from agentcoord.settings.selection import Flags, Selection, redact
from agentcoord.settings.value import Settings

UNSET = "unset"
_OF_KIND = {"local": STATE_ROOT, "http": API_URL, "github": BACKEND}
_FLAG_OF_KIND = {"local": "--state-root", "http": "--api-url", "github": "--backend"}
_SELECTING = (API_URL, STATE_ROOT, BACKEND, STATUS_STATE_ROOT)


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
        Origin("backend", settings.selected.kind, places.backend()),
        places.state_root(cwd),
        places.api_url(),
        places.api_token(),
        Origin("machine_id", settings.identity.machine_id, places.of(MACHINE_ID)),
        Origin("session_id", settings.identity.session_id, places.of(SESSION_ID, CODEX_THREAD_ID, saved=False)),
        Origin("policy", settings.policy, places.policy()),
    ]
    if fleet_file is not None:
        origins.append(Origin("consumer_file", fleet_file, f"configures {API_URL}"))
    return tuple(
        Origin(origin.name, None if origin.value is None else printable(origin.value), printable(origin.source))
        for origin in origins
    )


def _user_file(env: Env, settings: Settings) -> tuple[Origin, Origin]:
    """Say where the user file is, also when it was bypassed or refused, and what was done with it."""
    variable = user_file_variable(env)
    place = _place_of(env, variable)
    use, why = settings.user_file_use, variable or UNSET
    if use == "bypassed":
        why = "--ignore-user-config"
    return Origin("user_config", place, variable or UNSET), Origin("user_config_use", use, why)


def _place_of(env: Env, variable: str | None) -> str | None:
    if variable is None:
        return None
    base = env[variable]
    if variable == ENV_FILE:
        return base
    return join(base, "" if variable == "XDG_CONFIG_HOME" else ".config", "agent-coord", "env")


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

    def of(self, *variables: str, saved: bool = True) -> str:
        """Say where the first variable that is set is set: in the process before the user file."""
        for variable in variables:
            if self._in_process(variable):
                return _process(variable)
        kept = next((variable for variable in variables if saved and variable in self._saved), None)
        return UNSET if kept is None else f"{self._file}:{kept}"

    def _in_process(self, variable: str) -> bool:
        bypassed = self._flags.ignore_user_config and variable in _SELECTING
        return not bypassed and setting(self._env, variable) is not None

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
                return "default"

    def _selecting(self) -> str:
        return STATUS_STATE_ROOT if self._selection.status_root else _OF_KIND[self._selection.kind]

    def state_root(self, cwd: str) -> Origin:
        """Give the root in force as an absolute path, and what it was before."""
        selection = self._selection
        if selection.kind != "local" or selection.root is None:
            return Origin("state_root", None, UNSET)
        source = self.backend()
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
        """Give the fleet's address, without userinfo, also where another backend was selected."""
        given = self._flags.api_url
        if given is not None:
            return Origin("api_url", redact(given), "--api-url")
        source = self.of(API_URL)
        if source == UNSET:
            return Origin("api_url", None, source)
        url = setting(self._env, API_URL) if source == _process(API_URL) else self._settings.saved_url
        return Origin("api_url", None if url is None else redact(url), source)

    def api_token(self) -> Origin:
        """Say whether there is a token."""
        source = self.of(API_TOKEN)
        return Origin("api_token", "not set" if source == UNSET else "set", source)

    def policy(self) -> str:
        """Say what decided the policy."""
        file = self._settings.user_file
        match self._settings.policy_source:
            case "process_env":
                return _process(POLICY)
            case "user_config":
                return f"{self._file}:{POLICY}"
            case "policy_file":
                return (file and file.legacy_policy) or "legacy policy file"
            case "default":
                return "default"


def _process(variable: str) -> str:
    return f"process environment:{variable}"
