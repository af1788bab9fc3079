"""Where settings came from: every place a value may have been put, and the one that won."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentcoord.protocol.identity import Identity
from agentcoord.settings.environment import UserFile
from agentcoord.settings.provenance import Origin, provenance
from agentcoord.settings.selection import Flags, Role, SelectionError, choose
from agentcoord.settings.value import Settings

Env = dict[str, str]
HOME = {"HOME": "/h"}
FILE = "/h/.config/agent-coord/env"
TOKEN = "t0ps3cret"


def told(
    env: Env | None = None, saved: Env | None = None, flags: Flags | None = None, cwd: str = "/work", **more: Any
) -> dict[str, tuple[str | None, str]]:
    """Give value and source by name, as they are told of a doctor."""
    env, saved, flags = HOME | (env or {}), saved or {}, flags or Flags()
    selection = choose(Role.DOCTOR, flags, env, saved, install_root=more.pop("install_root", None))
    fleet_file = more.pop("fleet_file", None)
    settings = Settings(
        command="doctor",
        role=Role.DOCTOR,
        selection=selection,
        user_file=UserFile(FILE, explicit=False, variable="HOME"),
        saved_url=saved.get("AGENT_COORD_API_URL"),
        user_file_use="read",
    )
    settings = replace(settings, **more)
    origins = provenance(env, saved, flags, settings, cwd=cwd, fleet_file=fleet_file)
    return {origin.name: (origin.value, origin.source) for origin in origins}


def test_of_nothing_at_all() -> None:
    assert told(user_file_use="absent") == {
        "user_config": (FILE, "HOME"),
        "user_config_use": ("absent", "HOME"),
        "backend": ("local", "default"),
        "state_root": ("/h/.local/state/agent-coordination", "default below HOME"),
        "api_url": (None, "unset"),
        "api_token": ("not set", "unset"),
        "ref": ("state", "default"),
        "local": (None, "unset"),
        "machine_id": (None, "unset"),
        "session_id": (None, "unset"),
        "policy": ("optional", "default"),
    }


@pytest.mark.parametrize(
    ("env", "use", "file", "source"),
    [
        ({}, "read", FILE, ("HOME", "HOME")),
        ({"XDG_CONFIG_HOME": "/x"}, "absent", "/x/agent-coord/env", ("XDG_CONFIG_HOME", "XDG_CONFIG_HOME")),
        (
            {"XDG_CONFIG_HOME": "/x", "AGENT_COORD_ENV_FILE": "/n"},
            "read",
            "/n",
            ("AGENT_COORD_ENV_FILE", "AGENT_COORD_ENV_FILE"),
        ),
        ({"AGENT_COORD_ENV_FILE": " "}, "read", FILE, ("HOME", "HOME")),
        ({"AGENT_COORD_ENV_FILE": "n"}, "not_loaded", "n", ("AGENT_COORD_ENV_FILE", "AGENT_COORD_ENV_FILE")),
        ({}, "bypassed", FILE, ("HOME", "--ignore-user-config")),
        ({"HOME": "", "XDG_STATE_HOME": "/s"}, "absent", None, ("unset", "unset")),
    ],
)
def test_of_the_user_file(env: Env, use: str, file: str | None, source: tuple[str, str]) -> None:
    shown = told(env, user_file_use=use)
    assert (shown["user_config"], shown["user_config_use"]) == ((file, source[0]), (use, source[1]))


@pytest.mark.parametrize(
    ("flags", "env", "saved", "backend", "root"),
    [
        ({"state_root": "/f"}, {}, {}, ("local", "--state-root"), ("/f", "--state-root")),
        ({"state_root": "f/g"}, {}, {}, ("local", "--state-root"), ("/work/f/g", "--state-root, relative to /work")),
        (
            {},
            {"AGENT_COORD_STATE_ROOT": "/e"},
            {"AGENT_COORD_STATE_ROOT": "/s"},
            ("local", "process environment:AGENT_COORD_STATE_ROOT"),
            ("/e", "process environment:AGENT_COORD_STATE_ROOT"),
        ),
        (
            {},
            {},
            {"AGENT_COORD_STATE_ROOT": "/s"},
            ("local", f"{FILE}:AGENT_COORD_STATE_ROOT"),
            ("/s", f"{FILE}:AGENT_COORD_STATE_ROOT"),
        ),
        (
            {},
            {"AGENT_COORD_STATUS_STATE_ROOT": "/e"},
            {},
            ("local", "process environment:AGENT_COORD_STATUS_STATE_ROOT"),
            ("/e", "process environment:AGENT_COORD_STATUS_STATE_ROOT"),
        ),
        (
            {},
            {},
            {"AGENT_COORD_STATUS_STATE_ROOT": "/s"},
            ("local", f"{FILE}:AGENT_COORD_STATUS_STATE_ROOT"),
            ("/s", f"{FILE}:AGENT_COORD_STATUS_STATE_ROOT"),
        ),
        ({"backend": "o/r"}, {}, {}, ("github", "--backend"), (None, "unset")),
        (
            {},
            {"AGENT_COORD_BACKEND": "o/r"},
            {},
            ("github", "process environment:AGENT_COORD_BACKEND"),
            (None, "unset"),
        ),
        (
            {},
            {"XDG_STATE_HOME": "/x"},
            {},
            ("local", "default"),
            ("/x/agent-coordination", "default below XDG_STATE_HOME"),
        ),
    ],
)
def test_of_the_backend(
    flags: dict[str, str],
    env: Env,
    saved: Env,
    backend: tuple[str, str],
    root: tuple[str | None, str],
) -> None:
    shown = told(env, saved, Flags(**flags))  # pyright: ignore[reportArgumentType]
    assert (shown["backend"], shown["state_root"]) == (backend, root)


def test_of_state_beside_the_program_and_of_a_directory_that_is_gone() -> None:
    assert told(install_root="/opt/ac")["state_root"] == ("/opt/ac", "state beside the installed program")
    gone = told(flags=Flags(state_root="f"), cwd="")["state_root"]
    assert gone == ("f", "--state-root, relative to a directory that is gone")


@pytest.mark.parametrize(
    ("flags", "env", "saved", "url", "token"),
    [
        (
            Flags(api_url=f"https://me:{TOKEN}@f"),
            {"AGENT_COORD_API_TOKEN": TOKEN},
            {},
            ("https://***@f", "--api-url"),
            ("set", "process environment:AGENT_COORD_API_TOKEN"),
        ),
        (
            Flags(),
            {},
            {"AGENT_COORD_API_URL": f"https://me:{TOKEN}@s", "AGENT_COORD_API_TOKEN": TOKEN},
            ("https://***@s", f"{FILE}:AGENT_COORD_API_URL"),
            ("set", f"{FILE}:AGENT_COORD_API_TOKEN"),
        ),
        (  # displaced by the flag, and worth knowing
            Flags(state_root="/f"),
            {"AGENT_COORD_API_URL": "https://e"},
            {"AGENT_COORD_API_URL": "https://s"},
            ("https://e", "process environment:AGENT_COORD_API_URL"),
            ("not set", "unset"),
        ),
        (
            Flags(state_root="/f", ignore_user_config=True),
            {"AGENT_COORD_API_URL": "https://e"},
            {},
            (None, "unset"),
            ("not set", "unset"),
        ),
    ],
)
def test_of_the_fleet(flags: Flags, env: Env, saved: Env, url: tuple[str | None, str], token: tuple[str, str]) -> None:
    shown = told(env, saved, flags)
    assert (shown["api_url"], shown["api_token"]) == (url, token)


def test_of_identity_and_policy() -> None:
    env = {"AGENT_COORD_MACHINE_ID": "m1", "CODEX_THREAD_ID": "t1", "AGENT_COORD_POLICY": "required"}
    shown = told(
        env,
        {"AGENT_COORD_MACHINE_ID": "m2"},
        identity=Identity(machine_id="m1", session_id="t1"),
        policy="required",
        policy_source="process_env",
    )
    assert shown["machine_id"] == ("m1", "process environment:AGENT_COORD_MACHINE_ID")
    assert shown["session_id"] == ("t1", "process environment:CODEX_THREAD_ID")
    assert shown["policy"] == ("required", "process environment:AGENT_COORD_POLICY")
    saved = told({}, {"AGENT_COORD_MACHINE_ID": "m2"}, identity=Identity(machine_id="m2"), policy_source="user_config")
    assert saved["machine_id"] == ("m2", f"{FILE}:AGENT_COORD_MACHINE_ID")
    assert saved["policy"] == ("optional", f"{FILE}:AGENT_COORD_POLICY")
    assert told(policy_source="policy_file")["policy"] == ("optional", "/h/.config/agent-coord/policy")
    assert told({"AGENT_COORD_SESSION_ID": "s", "CODEX_THREAD_ID": "t"})["session_id"][1].endswith("_SESSION_ID")


def test_of_a_consumer_file() -> None:
    assert "consumer_file" not in told()
    assert told(fleet_file="/h/env")["consumer_file"] == ("/h/env", "configures AGENT_COORD_API_URL")


def test_bytes_that_are_no_text_do_not_come_out() -> None:
    assert told(flags=Flags(state_root="/\udcff"))["state_root"] == ("/\ufffd", "--state-root")


NAMES = ["AGENT_COORD_API_URL", "AGENT_COORD_STATE_ROOT", "AGENT_COORD_MACHINE_ID", "AGENT_COORD_BACKEND"]
tiers = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["/x", "https://u:p@h", " ", ""]))


@given(tiers, tiers, st.booleans(), st.booleans())
def test_no_origin_shows_a_token(env: Env, saved: Env, in_process: bool, in_file: bool) -> None:
    env |= {"AGENT_COORD_API_TOKEN": TOKEN} if in_process else {}
    saved |= {"AGENT_COORD_API_TOKEN": TOKEN} if in_file else {}
    try:
        shown = told(env, saved)
    except SelectionError:
        return
    assert TOKEN not in str(shown)
    assert TOKEN not in repr(Origin("api_token", *shown["api_token"]))
    assert shown["api_token"][0] == ("set" if in_process or in_file else "not set")


@pytest.mark.parametrize(
    ("flags", "env", "saved", "shown"),
    [
        (Flags(backend="o/r", ref="f"), {"AGENT_COORD_REF": "p"}, {"AGENT_COORD_REF": "s"}, ("f", "--ref")),
        (
            Flags(backend="o/r"),
            {"AGENT_COORD_REF": "p"},
            {"AGENT_COORD_REF": "s"},
            ("p", "process environment:AGENT_COORD_REF"),
        ),
        (Flags(backend="o/r"), {}, {"AGENT_COORD_REF": "s"}, ("s", f"{FILE}:AGENT_COORD_REF")),
        (Flags(), {"AGENT_COORD_BACKEND": "o/r"}, {"AGENT_COORD_REF": "s"}, ("state", "default")),
        (Flags(), {"AGENT_COORD_REF": "p"}, {"AGENT_COORD_REF": "s"}, ("s", f"{FILE}:AGENT_COORD_REF")),
        (Flags(backend="o/r", ignore_user_config=True), {"AGENT_COORD_REF": "p"}, {}, ("state", "default")),
    ],
)
def test_of_the_ref(flags: Flags, env: Env, saved: Env, shown: tuple[str, str]) -> None:
    assert told(env, saved, flags)["ref"] == shown


def test_of_local() -> None:
    assert told({"AGENT_COORD_LOCAL": "1"}, local="1")["local"] == ("1", "process environment:AGENT_COORD_LOCAL")
    assert told({}, {"AGENT_COORD_LOCAL": "1"}, local="1")["local"] == ("1", f"{FILE}:AGENT_COORD_LOCAL")


def test_of_a_file_that_was_not_loaded() -> None:
    shown = told(user_file_use="not_loaded")
    assert shown["backend"] == shown["state_root"] == shown["ref"] == shown["policy"] == (None, "unknown")
    assert shown["api_token"] == ("unknown", "unknown")
