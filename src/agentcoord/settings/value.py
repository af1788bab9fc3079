"""Everything one invocation is to know of its surroundings, read once and never again.

Public surface, for whoever runs a command:

    flags = Flags(state_root=…, api_url=…, backend=…, ref=…, ignore_user_config=…)   # None: not given
    settings = load(
        env,                        # explicit mapping, never os.environ itself in a daemon
        command="status",           # "config set" with a blank; see selection.ROLES
        flags=flags,
        argv_selectors=["--state-root"],   # selector options in order of appearance, repeats kept
        stack_json=False,           # doctor --stack-json: usage errors exit 64, nothing is said
        sync=False,                 # log --sync
        install_root=None,          # served to reads if it holds claims/, heartbeats/ and batches/
    )

    settings.selection      Selection | None (None for "config set" and commands that read no configuration):
                            kind, root, url, repo, ref, token (Secret; .reveal()), implicit, status_root,
                            backend_source, configured, said (lines to print, in order), warnings,
                            split_brain_file
    settings.selected       the same, for commands that always have one
    settings.identity       protocol Identity: machine_id, session_id, session_source (None when unset)
    settings.policy, settings.policy_source
    settings.user_file      UserFile(path, explicit) | None, where `config set` writes
    settings.saved_url      the URL in the user file as it was read, for `config set`
    settings.local          what says that local is meant, verbatim
    settings.coordination() the `coordination` object of `config show --json`

In order, `load` raises UsageError (StackUsageError under stack_json) before anything is read, ConfigError for
the user file and the policy, and SelectionError for the selection. A SelectionError carries `.selection`: print
`error.selection.said` first, then the message. `load_as_far` gives both, what could be loaded and why not all of it;
a stack report without its configuration takes `without_user_file(env, flags)`. For a doctor whose
`selection.split_brain_file` is set: report in full, then exit 2 with `split_brain_refusal(file)`. Show URLs through
`redact(url)`.

`load` may wait up to two seconds for a writer of the user file; an event loop calls it in a thread.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from agentcoord.errors import ConfigError, StackUsageError, UsageError
from agentcoord.protocol.identity import NOBODY, Identity
from agentcoord.settings import envfile
from agentcoord.settings.environment import (
    API_URL,
    CODEX_THREAD_ID,
    LOCAL,
    MACHINE_ID,
    POLICY,
    SESSION_ID,
    STATUS_STATE_ROOT,
    WHITESPACE,
    Env,
    UserFile,
    consumer_files,
    is_set,
    setting,
    user_file,
)
from agentcoord.settings.securefile import MISSING, Waiting, peek, read_private
from agentcoord.settings.selection import (
    Discreet,
    Flags,
    Role,
    Secret,
    Selection,
    SelectionError,
    choose,
    concerned_by_split_brain,
    guard,
    redact,
    role_of,
    split_brain_refusal,
)

__all__ = [
    "Flags",
    "Role",
    "Secret",
    "Selection",
    "SelectionError",
    "Settings",
    "check_usage",
    "fleet_file",
    "load",
    "load_as_far",
    "redact",
    "role_of",
    "split_brain_refusal",
    "without_user_file",
]

PolicySource = Literal["process_env", "user_config", "policy_file", "default"]
Use = Literal["read", "absent", "bypassed", "not_loaded"]

DEFAULT_POLICY = "optional"
_INSTALLED_STATE = ("claims", "heartbeats", "batches")


class Settings(Discreet, frozen=True, kw_only=True):
    """What one invocation knows of its surroundings; no part of it shows a token."""

    command: str
    role: Role
    selection: Selection | None = None
    identity: Identity = NOBODY
    policy: str = DEFAULT_POLICY
    policy_source: PolicySource = "default"
    policy_valid: bool = True  # if not, `policy` is not what stands at its source
    local: str | None = None
    status_root: str | None = None  # what reads use when nothing is selected, and where the mirror of a fleet is
    user_file: UserFile | None = None
    saved_url: str | None = None
    saved_keys: frozenset[str] = frozenset()  # what is set in the user file; of the values, only those above are kept
    user_file_use: Use = "not_loaded"
    consumers: Mapping[str, bool] = {}  # files that were looked at, by path: whether they configure a fleet URL

    @property
    def selected(self) -> Selection:
        """The selection of a command that works on a backend; asking for another's is a mistake in the program."""
        if self.selection is None:
            raise LookupError(f"{self.command} selects no backend")
        return self.selection

    def coordination(self) -> dict[str, Any]:
        """Give the `coordination` object; whether the backend answers is not asked (spec: cli §13)."""
        selected = self.selected
        return {
            "policy": self.policy,
            "configured": selected.configured,
            "backend": selected.kind,
            "source": {"backend": selected.backend_source, "policy": self.policy_source},
            "available": None,
        }


def load(
    env: Env,
    *,
    command: str,
    flags: Flags,
    argv_selectors: Sequence[str],
    stack_json: bool = False,
    sync: bool = False,
    install_root: str | None = None,
    uid: int | None = None,
    waiting: Waiting | None = None,
) -> Settings:
    """Read the settings of one invocation; the user file is opened at most once.

    Raises UsageError, ConfigError and SelectionError, in this order (spec: cli §1.3, §2).
    """
    settings, fault = load_as_far(
        env,
        command=command,
        flags=flags,
        argv_selectors=argv_selectors,
        stack_json=stack_json,
        sync=sync,
        install_root=install_root,
        uid=uid,
        waiting=waiting,
    )
    if fault is not None:
        raise fault
    return settings


def load_as_far(
    env: Env,
    *,
    command: str,
    flags: Flags,
    argv_selectors: Sequence[str],
    stack_json: bool = False,
    sync: bool = False,
    install_root: str | None = None,
    uid: int | None = None,
    waiting: Waiting | None = None,
) -> tuple[Settings, ConfigError | None]:
    """Read the settings as `load` does, and give what is known also when it is not all, with the first fault.

    Without its user file that is what flags and process select. Raises UsageError.
    """
    check_usage(env, command=command, flags=flags, argv_selectors=argv_selectors, stack_json=stack_json, sync=sync)
    role = role_of(command)
    if role is Role.INDEPENDENT:
        return Settings(command=command, role=role), None
    reading = _Reading(os.geteuid() if uid is None else uid, waiting)
    saved: dict[str, str] = {}
    consumers: dict[str, bool] = {}
    try:
        file = None if flags.ignore_user_config else user_file(env)
        if file is not None:
            consumers[file.path] = False  # one that cannot be read now is not opened once more for a guess
        text = reading.text(file, changing=role is Role.SET)
        if file is not None:
            consumers[file.path] = text is not None and envfile.configures_api_url(text)
            saved = {} if text is None else envfile.parse(text, file.path)
    except ConfigError as error:
        return _without_file(env, flags, role, error, consumers), error
    (policy, policy_source), fault = _policy(env, saved, None if role is Role.SET else file, reading)
    selection = None
    if role is not Role.SET and (fault is None or role is Role.DOCTOR):
        selection, refused = _select(env, saved, role, flags, stack_json, install_root, consumers)
        fault = fault or refused
    settings = Settings(
        command=command,
        role=role,
        selection=selection,
        identity=_identity(env, saved),
        policy=policy or DEFAULT_POLICY,
        policy_source=policy_source,
        policy_valid=policy is not None,
        local=setting(env, LOCAL) or setting(saved, LOCAL),
        status_root=setting(env, STATUS_STATE_ROOT) or setting(saved, STATUS_STATE_ROOT),
        user_file=file,
        saved_url=saved.get(API_URL),
        saved_keys=frozenset(key for key in saved if is_set(saved[key])),
        user_file_use="bypassed" if flags.ignore_user_config else "absent" if text is None else "read",
        consumers=consumers,
    )
    return settings, fault


def _without_file(env: Env, flags: Flags, role: Role, fault: ConfigError, consumers: Mapping[str, bool]) -> Settings:
    """Give what no user file could overrule."""
    (policy, policy_source), _ = _process_policy(env)
    return replace(
        without_user_file(env, flags, selecting=env),
        role=role,
        policy=policy or DEFAULT_POLICY,
        policy_source=policy_source,
        policy_valid=policy is not None,
        local=setting(env, LOCAL),
        user_file_use="absent" if fault.finding == MISSING else "not_loaded",
        consumers=consumers,
    )


def check_usage(
    env: Env, *, command: str, flags: Flags, argv_selectors: Sequence[str], stack_json: bool = False, sync: bool = False
) -> None:
    """Refuse selecting options that make no sense together, before anything is read.

    Raises UsageError, or StackUsageError for a stack report (spec: cli §1.3, §2.10, §14.2).
    """
    wrong = _misuse(env, role_of(command), flags, argv_selectors, stack_json, sync)
    if wrong is not None:
        raise StackUsageError(wrong) if stack_json else UsageError(wrong)


def without_user_file(env: Env, flags: Flags, *, selecting: Env | None = None) -> Settings:
    """Give what is known when the user file cannot be loaded: the flags' selection and the process's identity.

    With `selecting`, what is selected there counts as well: no user file could overrule it.

    For the doctor's reports only, which must name the backend they could not reach (spec: cli §14.2).
    """
    bypassing = Flags(state_root=flags.state_root, api_url=flags.api_url, backend=flags.backend, ref=flags.ref)
    return Settings(
        command="doctor",
        role=Role.DOCTOR,
        selection=choose(Role.SHOW, bypassing, selecting or {}, {}),
        identity=_identity(env, {}),
    )


def _misuse(
    env: Env, role: Role, flags: Flags, argv_selectors: Sequence[str], stack_json: bool, sync: bool
) -> str | None:
    selectors = [option for option in argv_selectors if option in ("--state-root", "--api-url", "--backend")]
    if flags.ignore_user_config and (wrong := _misused_bypass(env, role, selectors, sync)) is not None:
        return wrong
    values = {
        "--backend": flags.backend,
        "--ref": flags.ref,
        "--state-root": flags.state_root,
        "--api-url": flags.api_url,
    }
    for option, value in values.items():
        if value is not None and not is_set(value):
            return f"{option} requires a non-empty value"
    if stack_json and len(selectors) != 1:
        return "doctor --stack-json requires exactly one of --state-root, --api-url, or --backend"
    return None


def _misused_bypass(env: Env, role: Role, selectors: Sequence[str], sync: bool) -> str | None:
    if role is Role.SET:
        return "--ignore-user-config is not valid for config set"
    if role is Role.INDEPENDENT:
        return "--ignore-user-config is only valid for commands that select or report a coordination backend"
    if len(selectors) != 1:
        return (
            "--ignore-user-config requires exactly one explicit backend selector: --state-root, --api-url, or --backend"
        )
    if role is Role.SHOW and env.get(POLICY) not in envfile.POLICIES:
        return (
            f"config show with --ignore-user-config requires an explicit process {POLICY} "
            "(required, optional, or disabled)"
        )
    if sync and selectors != ["--state-root"]:
        return "--sync with --ignore-user-config requires --state-root as its explicit backend selector"
    return None


class _Reading(Struct, frozen=True):
    """How private files are read for one invocation."""

    uid: int
    waiting: Waiting | None

    def text(self, file: UserFile | None, *, changing: bool) -> str | None:
        """Read the user file. Who is to change it waits later: it is read again then, under the writers' lock."""
        if file is None:
            return None
        return read_private(
            file.path,
            explicit=file.explicit,
            uid=self.uid,
            missing_ok=changing,
            lock=not changing,
            waiting=self.waiting,
        )

    def legacy_policy(self, file: UserFile | None) -> str | None:
        path = None if file is None else file.legacy_policy
        text = None if path is None else read_private(path, explicit=False, uid=self.uid, lock=False)
        return None if path is None or text is None else envfile.policy(text.strip(WHITESPACE), path)


_Policy = tuple[tuple[str | None, PolicySource], ConfigError | None]
"""A policy, None if what is given is none, with its source; and why it is none."""


def _policy(env: Env, saved: Env, file: UserFile | None, reading: _Reading) -> _Policy:
    own, fault = _process_policy(env)
    if own[1] != "default":
        return own, fault
    if (kept := setting(saved, POLICY)) is not None:
        return (kept, "user_config"), None
    try:
        if (legacy := reading.legacy_policy(file)) is not None:
            return (legacy, "policy_file"), None
    except ConfigError as error:
        return (None, "policy_file"), error
    return own, None


def _process_policy(env: Env) -> _Policy:
    if (own := setting(env, POLICY)) is None:
        return (DEFAULT_POLICY, "default"), None
    try:
        return (envfile.policy(own, f"process environment:{POLICY}"), "process_env"), None
    except ConfigError as error:
        return (None, "process_env"), error


def _identity(env: Env, saved: Env) -> Identity:
    """Attribute to the machine, which may be saved, and to the session, which never is (spec: cli §2.5)."""
    machine = setting(env, MACHINE_ID) or setting(saved, MACHINE_ID)
    sources = ((SESSION_ID, "agent_coord_session_id"), (CODEX_THREAD_ID, "codex_thread_id"))
    session, source = next(((id, name) for key, name in sources if (id := setting(env, key))), (None, None))
    return Identity(
        machine_id=machine and machine.strip(WHITESPACE),
        session_id=session and session.strip(WHITESPACE),
        session_source=source,
    )


def _select(
    env: Env,
    saved: Env,
    role: Role,
    flags: Flags,
    stack_json: bool,
    install_root: str | None,
    consumers: dict[str, bool],
) -> tuple[Selection, SelectionError | None]:
    try:
        selection = choose(role, flags, env, saved, install_root=_with_state(install_root))
        if not stack_json and concerned_by_split_brain(selection, role, flags, env, saved):
            file = fleet_file(env, consumers)
            selection = selection if file is None else guard(selection, role, file)
    except SelectionError as error:
        if stack_json:
            silent = SelectionError(str(error), error.selection.silent())
            silent.__cause__ = error
            return silent.selection, silent
        return error.selection, error
    return (selection.silent() if stack_json else selection), None


def fleet_file(env: Env, consumers: dict[str, bool]) -> str | None:
    """Give the first consumer file that configures a fleet URL.

    `consumers` says it of files that were looked at before, and is told of the others, so that none is opened twice.
    """
    for path in consumer_files(env):
        if path not in consumers:
            consumers[path] = envfile.configures_api_url(peek(path) or "")
        if consumers[path]:
            return path
    return None


def _with_state(install_root: str | None) -> str | None:
    """Take an install root only if it is one of those that carry their state with them (spec: cli §2.7)."""
    if install_root is None:
        return None
    try:
        complete = all(os.path.isdir(os.path.join(install_root, family)) for family in _INSTALLED_STATE)
    except ValueError:
        return None
    return install_root if complete else None
