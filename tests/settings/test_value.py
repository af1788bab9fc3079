"""The settings of one invocation: what is read, in which order it is refused, and what comes of it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentcoord.errors import ConfigError, CoordError, StackUsageError, UsageError
from agentcoord.protocol.identity import NOBODY, Identity
from agentcoord.settings.selection import Flags, Secret, SelectionError
from agentcoord.settings.value import Settings, check_usage, load, without_user_file

Env = dict[str, str]

CANNOT_IGNORE = (
    "--ignore-user-config requires exactly one explicit backend selector: --state-root, --api-url, or --backend"
)
NO_BACKEND = "--ignore-user-config is only valid for commands that select or report a coordination backend"
NEEDS_POLICY = (
    "config show with --ignore-user-config requires an explicit process AGENT_COORD_POLICY "
    "(required, optional, or disabled)"
)
ONE_FOR_STACK = "doctor --stack-json requires exactly one of --state-root, --api-url, or --backend"


def loaded(env: Env, command: str = "status", flags: Flags | None = None, **more: Any) -> Settings:
    flags = flags or Flags()
    return load(env, command=command, flags=flags, argv_selectors=list(flags.selectors()), **more)


class Home:
    """A home directory and the environment that names it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / ".config" / "agent-coord"
        self.config.mkdir(parents=True, mode=0o700)
        self.config.parent.chmod(0o755)
        self.env: Env = {"HOME": str(path)}

    def save(self, text: str, name: str = "env", mode: int = 0o600) -> Path:
        file = self.config / name
        file.write_text(text)
        file.chmod(mode)
        return file


@pytest.fixture
def home(private: Path) -> Home:
    return Home(private)


# Usage comes first


@pytest.mark.parametrize("command", ["status", "claim", "gc", "config", "config set", "version"])
@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
@pytest.mark.parametrize("option", ["state_root", "api_url", "backend", "ref"])
def test_a_blank_selector_is_refused_before_anything_is_read(command: str, blank: str, option: str) -> None:
    flags = replace(Flags(), **{option: blank})
    with pytest.raises(UsageError) as raised:
        loaded({"AGENT_COORD_ENV_FILE": "/no/such"}, command, flags)
    assert str(raised.value) == f"--{option.replace('_', '-')} requires a non-empty value"


@pytest.mark.parametrize("stack_json", [False, True])
@pytest.mark.parametrize(
    ("command", "selectors", "env", "message"),
    [
        ("claim", [], {}, CANNOT_IGNORE),
        ("claim", [], {"AGENT_COORD_STATE_ROOT": "/x"}, CANNOT_IGNORE),
        ("claim", ["--ref"], {}, CANNOT_IGNORE),
        ("claim", ["--state-root", "--state-root"], {}, CANNOT_IGNORE),
        ("claim", ["--state-root", "--api-url"], {}, CANNOT_IGNORE),
        ("doctor", ["--backend", "--api-url"], {}, CANNOT_IGNORE),
        ("config set", [], {}, "--ignore-user-config is not valid for config set"),
        ("config set", ["--api-url"], {}, "--ignore-user-config is not valid for config set"),
        ("version", [], {}, NO_BACKEND),
        ("bootstrap", ["--state-root"], {}, NO_BACKEND),
        ("demo", ["--state-root"], {}, NO_BACKEND),
        ("config", [], {"AGENT_COORD_POLICY": "required"}, CANNOT_IGNORE),
        ("config", ["--state-root"], {}, NEEDS_POLICY),
        ("config", ["--state-root"], {"AGENT_COORD_POLICY": " "}, NEEDS_POLICY),
        ("config", ["--state-root"], {"AGENT_COORD_POLICY": "sometimes"}, NEEDS_POLICY),
    ],
)
def test_a_bypass_needs_one_selector_and_a_command_that_selects(
    command: str, selectors: Sequence[str], env: Env, message: str, stack_json: bool
) -> None:
    flags = Flags(state_root="/x", ignore_user_config=True)
    with pytest.raises(UsageError) as raised:
        load(env, command=command, flags=flags, argv_selectors=selectors, stack_json=stack_json)
    assert str(raised.value) == message
    assert raised.value.exit == (64 if stack_json else 1)


def test_a_bypass_of_a_synced_log_needs_a_root() -> None:
    flags = Flags(api_url="https://x", ignore_user_config=True)
    with pytest.raises(UsageError) as raised:
        check_usage({}, command="log", flags=flags, argv_selectors=["--api-url"], sync=True)
    assert str(raised.value) == (
        "--sync with --ignore-user-config requires --state-root as its explicit backend selector"
    )
    check_usage({}, command="log", flags=flags, argv_selectors=["--api-url"])
    check_usage({}, command="log", flags=Flags(state_root="/x"), argv_selectors=["--state-root"], sync=True)


@pytest.mark.parametrize("selectors", [[], ["--state-root", "--state-root"], ["--state-root", "--backend"], ["--ref"]])
def test_a_stack_report_names_one_backend(selectors: list[str]) -> None:
    with pytest.raises(StackUsageError) as raised:
        load(
            {"AGENT_COORD_ENV_FILE": "/no/such"},
            command="doctor",
            flags=Flags(state_root="/x"),
            argv_selectors=selectors,
            stack_json=True,
        )
    assert str(raised.value) == ONE_FOR_STACK


# The user file


@pytest.mark.parametrize("command", ["version", "bootstrap", "demo", "completion"])
def test_independent_commands_read_nothing(home: Home, command: str) -> None:
    home.save("broken", mode=0o644)
    home.config.chmod(0o755)
    env = home.env | {"AGENT_COORD_POLICY": "sometimes", "AGENT_COORD_MACHINE_ID": "m1"}
    settings = loaded(env, command)
    assert settings.selection is None
    assert settings.identity == NOBODY
    assert home.config.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("command", ["claim", "status", "log", "gc", "doctor", "config", "config set", "run"])
def test_a_broken_user_file_stops_all_others(home: Home, command: str) -> None:
    file = home.save("AGENT_COORD_MACHINE_ID=m1\n", mode=0o644)
    with pytest.raises(ConfigError) as raised:
        loaded(home.env, command, Flags(state_root="/x"))
    assert str(raised.value) == f"user config permissions are insecure (expected 0600): {file}"


@pytest.mark.parametrize("command", ["claim", "status", "config"])
def test_a_bypass_looks_past_it(home: Home, command: str) -> None:
    home.save("broken", mode=0o644)
    home.save("broken", "policy", mode=0o644)
    home.save("AGENT_COORD_API_URL=https://x\n", "http-env.sh")
    env = home.env | {"AGENT_COORD_POLICY": "required", "AGENT_COORD_MACHINE_ID": " m5 "}
    env |= {"XDG_CONFIG_HOME": "relative"}
    settings = loaded(env, command, Flags(state_root="/x", ignore_user_config=True))
    assert settings.selected.root == "/x"
    assert len(settings.selected.said) == 1
    assert settings.identity == Identity(machine_id="m5")
    assert settings.policy_source == "process_env"
    assert settings.user_file is None


def test_a_named_file_that_is_missing_stops_all_but_the_command_that_makes_it(home: Home) -> None:
    env = home.env | {"AGENT_COORD_ENV_FILE": str(home.path / "absent")}
    with pytest.raises(ConfigError, match=r"^configured user env file does not exist: "):
        loaded(env)
    settings = loaded(env, "config set")
    assert settings.user_file is not None
    assert settings.user_file.path == str(home.path / "absent")
    assert settings.selection is None


def test_without_a_home_there_is_no_file() -> None:
    settings = loaded({"AGENT_COORD_STATE_ROOT": "/x"}, "config set")
    assert settings.user_file is None


def test_the_user_file_selects_and_identifies(home: Home) -> None:
    home.save(
        "AGENT_COORD_API_URL=https://u.example\nAGENT_COORD_API_TOKEN=s3cret\n"
        "AGENT_COORD_MACHINE_ID=m5\nAGENT_COORD_POLICY=required\n"
    )
    settings = loaded(home.env, "claim")
    assert (settings.selected.kind, settings.selected.url) == ("http", "https://u.example")
    assert settings.selected.token == Secret("s3cret")
    assert settings.selected.said == ()
    assert settings.saved_url == "https://u.example"
    assert settings.identity.machine_id == "m5"
    assert "s3cret" not in repr(settings)


# Policy


@pytest.mark.parametrize(
    ("process", "saved", "legacy", "expected"),
    [
        (None, None, None, ("optional", "default")),
        ("disabled", "required", "required", ("disabled", "process_env")),
        (" ", "required", "disabled", ("required", "user_config")),
        (None, "''", " disabled\n", ("disabled", "policy_file")),
        (None, None, "required\n", ("required", "policy_file")),
        ("required", None, "sometimes", ("required", "process_env")),
        (None, "optional", "sometimes", ("optional", "user_config")),
    ],
)
def test_the_policy_comes_from_the_first_that_states_one(
    home: Home, process: str | None, saved: str | None, legacy: str | None, expected: tuple[str, str]
) -> None:
    if saved is not None:
        home.save(f"AGENT_COORD_POLICY={saved}\n")
    if legacy is not None:
        home.save(legacy, "policy")
    settings = loaded(home.env | ({} if process is None else {"AGENT_COORD_POLICY": process}), "config")
    assert (settings.policy, settings.policy_source) == expected


@pytest.mark.parametrize("command", ["claim", "status", "config", "config set"])
@pytest.mark.parametrize("value", ["sometimes", " required"])
def test_an_invalid_process_policy_stops_every_command_that_loads(home: Home, command: str, value: str) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(home.env | {"AGENT_COORD_POLICY": value}, command)
    assert str(raised.value) == (
        "invalid coordination policy in process environment:AGENT_COORD_POLICY: expected required, optional, disabled"
    )


@pytest.mark.parametrize("content", ["sometimes\n", "", "required disabled"])
def test_a_legacy_policy_must_be_one(home: Home, content: str) -> None:
    file = home.save(content, "policy")
    with pytest.raises(ConfigError) as raised:
        loaded(home.env)
    assert str(raised.value) == (f"invalid coordination policy in {file}: expected required, optional, disabled")


def test_a_legacy_policy_must_be_private(home: Home) -> None:
    file = home.save("required\n", "policy", mode=0o644)
    with pytest.raises(ConfigError) as raised:
        loaded(home.env)
    assert str(raised.value) == f"user config permissions are insecure (expected 0600): {file}"
    assert loaded(home.env, "config set").policy_source == "default"


def test_a_named_file_has_no_legacy_policy(home: Home) -> None:
    home.save("required\n", "policy")
    file = home.save("")
    assert loaded(home.env | {"AGENT_COORD_ENV_FILE": str(file)}).policy_source == "default"


# Identity


@pytest.mark.parametrize(
    ("env", "saved", "expected"),
    [
        ({}, "", Identity()),
        ({}, "AGENT_COORD_MACHINE_ID=' m1 '", Identity(machine_id="m1")),
        ({"AGENT_COORD_MACHINE_ID": " m5 "}, "AGENT_COORD_MACHINE_ID=m1", Identity(machine_id="m5")),
        ({"AGENT_COORD_MACHINE_ID": " "}, "AGENT_COORD_MACHINE_ID=m1", Identity(machine_id="m1")),
        (
            {"AGENT_COORD_SESSION_ID": " s-1 ", "CODEX_THREAD_ID": "t-1"},
            "",
            Identity(session_id="s-1", session_source="agent_coord_session_id"),
        ),
        (
            {"AGENT_COORD_SESSION_ID": "  ", "CODEX_THREAD_ID": "t-1"},
            "",
            Identity(session_id="t-1", session_source="codex_thread_id"),
        ),
        ({"AGENT_COORD_SESSION_ID": "", "CODEX_THREAD_ID": " "}, "", Identity()),
    ],
)
def test_identity_is_attributed_to_machine_and_session(home: Home, env: Env, saved: str, expected: Identity) -> None:
    home.save(saved)
    settings = loaded(home.env | env)
    assert settings.identity == expected


# Selection


def test_a_consumer_file_makes_an_implicit_write_a_split_brain(home: Home) -> None:
    home.config.chmod(0o755)
    file = home.save('export AGENT_COORD_API_URL="https://x"\n', "http-env.sh", mode=0o644)
    with pytest.raises(SelectionError) as raised:
        loaded(home.env, "claim")
    assert str(raised.value).startswith(f"split-brain configuration: {file} configures AGENT_COORD_API_URL, ")
    assert loaded(home.env, "doctor").selected.split_brain_file == str(file)
    selected = loaded(home.env, "status").selected
    assert (len(selected.said), len(selected.warnings)) == (2, 1)
    assert loaded(home.env, "config").selected.said == ()
    assert loaded(home.env | {"AGENT_COORD_LOCAL": "1"}, "claim").selected.implicit


def test_the_first_consumer_file_that_configures_a_url_is_named(home: Home) -> None:
    saved = home.save("AGENT_COORD_API_URL=https://x\nAGENT_COORD_API_TOKEN=t\n")
    home.save("AGENT_COORD_API_URL=https://x\n", "http-env.sh")
    (warning,) = loaded(home.env | {"AGENT_COORD_STATE_ROOT": "/x"}).selected.said
    assert f"split-brain configuration: {saved} configures" in warning


def test_a_stack_report_says_nothing(home: Home) -> None:
    home.save("AGENT_COORD_API_URL=https://x\n", "http-env.sh")
    env = home.env | {"AGENT_COORD_BACKEND": "o/r", "AGENT_COORD_API_TOKEN": "t"}
    for flags in (Flags(state_root="/x"), Flags(api_url="https://y"), Flags(state_root="/x", ignore_user_config=True)):
        assert loaded(env, "doctor", flags, stack_json=True).selected.said == ()
    with pytest.raises(SelectionError) as raised:
        loaded(home.env | {"AGENT_COORD_STATE_ROOT": "/x"}, "doctor", Flags(api_url="https://y"), stack_json=True)
    assert raised.value.selection.said == ()
    assert raised.value.selection.url == "https://y"


def test_a_stack_report_past_a_broken_file_knows_what_flags_and_process_say() -> None:
    settings = without_user_file(
        {"AGENT_COORD_MACHINE_ID": "m5", "AGENT_COORD_POLICY": "x"}, Flags(api_url="https://y")
    )
    assert (settings.selected.kind, settings.selected.url, settings.selected.said) == ("http", "https://y", ())
    assert settings.identity == Identity(machine_id="m5")


def test_an_install_root_must_hold_state(home: Home) -> None:
    for family in ("claims", "heartbeats"):
        (home.path / family).mkdir()
    assert loaded(home.env, install_root=str(home.path)).selected.implicit
    (home.path / "batches").mkdir()
    assert loaded(home.env, install_root=str(home.path)).selected.root == str(home.path)
    assert loaded(home.env, "claim", install_root=str(home.path)).selected.implicit
    assert loaded(home.env, install_root="/\0").selected.implicit


@pytest.mark.parametrize(
    ("flags", "env", "saved", "expected"),
    [
        (Flags(), {}, "", (False, "local", "default")),
        (Flags(), {"AGENT_COORD_STATE_ROOT": "/none"}, "", (True, "local", "process_env")),
        (Flags(), {"AGENT_COORD_API_URL": "https://x"}, "", (True, "http", "process_env")),
        (Flags(), {"AGENT_COORD_BACKEND": "o/r"}, "", (True, "github", "process_env")),
        (Flags(), {"AGENT_COORD_API_TOKEN": "t"}, "", (False, "local", "default")),
        (Flags(), {"AGENT_COORD_STATUS_STATE_ROOT": "/x"}, "", (False, "local", "default")),
        (Flags(), {}, "AGENT_COORD_STATE_ROOT=/none\n", (True, "local", "user_config")),
        (Flags(state_root="/x"), {"AGENT_COORD_BACKEND": "o/r"}, "", (True, "local", "cli")),
        (Flags(api_url="https://y"), {}, "AGENT_COORD_API_TOKEN=t\n", (True, "http", "cli")),
        (Flags(backend="o/r"), {}, "", (True, "github", "cli")),
    ],
)
def test_config_show_reports_what_would_be_selected(
    home: Home, flags: Flags, env: Env, saved: str, expected: tuple[bool, str, str]
) -> None:
    home.save(saved)
    settings = loaded(home.env | env, "config", flags)
    configured, backend, source = expected
    assert settings.coordination() == {
        "policy": "optional",
        "configured": configured,
        "backend": backend,
        "source": {"backend": source, "policy": "default"},
        "available": None,
    }
    assert settings.selected.said == ()


def test_config_show_needs_no_home() -> None:
    assert loaded({"HOME": ""}, "config").coordination()["configured"] is False


def test_a_command_without_a_backend_has_no_selection() -> None:
    with pytest.raises(LookupError):
        _ = loaded({}, "version").selected


# Whatever the environment says

names = st.sampled_from(
    [
        *["AGENT_COORD_API_URL", "AGENT_COORD_API_TOKEN", "AGENT_COORD_BACKEND", "AGENT_COORD_STATE_ROOT", "HOME"],
        *["AGENT_COORD_STATUS_STATE_ROOT", "AGENT_COORD_LOCAL", "AGENT_COORD_POLICY", "AGENT_COORD_ENV_FILE"],
        *["XDG_CONFIG_HOME", "XDG_STATE_HOME", "AGENT_COORD_MACHINE_ID", "CODEX_THREAD_ID"],
    ]
)
environments = st.dictionaries(
    names, st.sampled_from(["", " ", "x", "/x", "/etc/passwd", "/\0", "/\ud800"]) | st.text()
)
roots = st.none() | st.sampled_from(["", "/x"])
urls = st.none() | st.sampled_from(["", "https://me:pw@y"])
some_flags = st.builds(
    Flags, state_root=roots, api_url=urls, backend=roots, ref=roots, ignore_user_config=st.booleans()
)
commands = st.sampled_from(["claim", "status", "doctor", "gc", "config", "config set", "version"])


@given(environments, commands, some_flags, st.booleans())
def test_settings_are_loaded_or_refused(env: Env, command: str, flags: Flags, stack_json: bool) -> None:
    try:
        settings = loaded(env, command, flags, stack_json=stack_json, install_root="/x", uid=os.geteuid())
    except CoordError:
        return
    assert (settings.selection is None) == (command in ("config set", "version"))
    assert "pw" not in repr(settings) or "pw" in repr(env)
