"""What one environment mapping says: the values that are set in it and the paths it names.

Nothing here touches the disk, and nothing reads `os.environ`: the same question asked for another
caller's environment gets that caller's answer.
"""

from collections.abc import Iterator, Mapping
from posixpath import join

from msgspec import Struct

from agentcoord.errors import ConfigError

API_URL = "AGENT_COORD_API_URL"
API_TOKEN = "AGENT_COORD_API_TOKEN"
MACHINE_ID = "AGENT_COORD_MACHINE_ID"
BACKEND = "AGENT_COORD_BACKEND"
REF = "AGENT_COORD_REF"
STATE_ROOT = "AGENT_COORD_STATE_ROOT"
STATUS_STATE_ROOT = "AGENT_COORD_STATUS_STATE_ROOT"
LOCAL = "AGENT_COORD_LOCAL"
POLICY = "AGENT_COORD_POLICY"
ENV_FILE = "AGENT_COORD_ENV_FILE"
SESSION_ID = "AGENT_COORD_SESSION_ID"
CODEX_THREAD_ID = "CODEX_THREAD_ID"

# What `run` tells the command it runs; nothing here is ever read.
FENCE = "AGENT_COORD_FENCE"
AGENT_ID = "AGENT_COORD_AGENT_ID"
INSTANCE_ID = "AGENT_COORD_INSTANCE_ID"
REPO = "AGENT_COORD_REPO"
TARGET = "AGENT_COORD_TARGET"
BATCH_ID = "AGENT_COORD_BATCH_ID"

WHITESPACE = " \t\n\v\f\r"
"""What a shell calls whitespace; a value of a wider space is a value."""

Env = Mapping[str, str]


class UserFile(Struct, frozen=True):
    """Where the user file is, and the variable that says so. Who named it explicitly expects it to exist."""

    path: str
    explicit: bool
    variable: str

    @property
    def legacy_policy(self) -> str | None:
        """The old policy file beside a conventional user file; None beside a named one (spec: cli §2.4)."""
        return None if self.explicit else self.path.removesuffix("env") + "policy"


def is_set(value: str | None) -> bool:
    """Tell whether a value counts as given at all: blank is the same as absent (spec: cli §2.5)."""
    return value is not None and value.strip(WHITESPACE) != ""


def setting(env: Env, key: str) -> str | None:
    """Give the value verbatim when it is set, else None (spec: cli §2.5)."""
    value = env.get(key)
    return value if is_set(value) else None


def user_file(env: Env) -> UserFile | None:
    """Locate the user file; None when there is no home to look in.

    Raises ConfigError when a variable that names the place is relative (spec: cli §2.2).
    """
    file = named_user_file(env)
    if file is not None and not file.path.startswith("/"):
        raise ConfigError(f"{file.variable} must be an absolute path", finding="user_file.path")
    return file


def named_user_file(env: Env) -> UserFile | None:
    """Say where the user file should be, also where its path is relative and nobody will look."""
    if (named := setting(env, ENV_FILE)) is not None:
        return UserFile(named, explicit=True, variable=ENV_FILE)
    return next(_conventional(env), None)


def _conventional(env: Env) -> Iterator[UserFile]:
    for variable, below in (("XDG_CONFIG_HOME", ""), ("HOME", ".config")):
        if base := env.get(variable):
            yield UserFile(join(base, below, "agent-coord", "env"), explicit=False, variable=variable)


def consumer_files(env: Env) -> list[str]:
    """List the files a shell may load a fleet URL from, most telling first (spec: cli §2.8)."""
    return list(dict.fromkeys(_consumer_files(env)))


def _consumer_files(env: Env) -> Iterator[str]:
    if (named := setting(env, ENV_FILE)) is not None:
        yield named
    file = next((file for file in _conventional(env) if file.path.startswith("/")), None)
    if file is not None:
        yield file.path
        yield file.path.removesuffix("env") + "http-env.sh"


def implicit_root(env: Env) -> str | None:
    """Give the zero-config local root; None when no absolute directory is known (spec: cli §2.7)."""
    place = _implicit_root(env)
    return None if place is None else place[1]


def implicit_root_variable(env: Env) -> str | None:
    """Name the variable that says where the zero-config root is."""
    place = _implicit_root(env)
    return None if place is None else place[0]


def _implicit_root(env: Env) -> tuple[str, str] | None:
    for variable, below in (("XDG_STATE_HOME", ""), ("HOME", ".local/state")):
        if (base := env.get(variable, "")).startswith("/"):
            return variable, join(base, below, "agent-coordination")
    return None
