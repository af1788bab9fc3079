"""Which paths an environment names, and what counts as set in it."""

import pytest

from agentcoord.errors import ConfigError
from agentcoord.settings.environment import UserFile, consumer_files, implicit_root, is_set, setting, user_file


@pytest.mark.parametrize("value", [None, "", " ", "\t\n\v\f\r "])
def test_blank_is_not_set(value: str | None) -> None:
    assert not is_set(value)


@pytest.mark.parametrize("value", ["x", " x ", "0", "\u00a0", "'"])
def test_what_is_set_is_kept_verbatim(value: str) -> None:
    assert setting({"KEY": value}, "KEY") == value


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (
            {"AGENT_COORD_ENV_FILE": "/p/coord.env", "XDG_CONFIG_HOME": "rel"},
            UserFile("/p/coord.env", explicit=True, variable="AGENT_COORD_ENV_FILE"),
        ),
        (
            {"AGENT_COORD_ENV_FILE": " ", "XDG_CONFIG_HOME": "/x"},
            UserFile("/x/agent-coord/env", explicit=False, variable="XDG_CONFIG_HOME"),
        ),
        (
            {"XDG_CONFIG_HOME": "", "HOME": "/h"},
            UserFile("/h/.config/agent-coord/env", explicit=False, variable="HOME"),
        ),
        (
            {"XDG_CONFIG_HOME": "/x", "HOME": "rel"},
            UserFile("/x/agent-coord/env", explicit=False, variable="XDG_CONFIG_HOME"),
        ),
        ({"HOME": "/h"}, UserFile("/h/.config/agent-coord/env", explicit=False, variable="HOME")),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)
def test_the_user_file_is_where_the_first_of_three_variables_says(
    env: dict[str, str], expected: UserFile | None
) -> None:
    assert user_file(env) == expected


@pytest.mark.parametrize(
    ("env", "variable"),
    [
        ({"AGENT_COORD_ENV_FILE": "coord.env"}, "AGENT_COORD_ENV_FILE"),
        ({"AGENT_COORD_ENV_FILE": " /p/coord.env"}, "AGENT_COORD_ENV_FILE"),
        ({"XDG_CONFIG_HOME": "x", "HOME": "/h"}, "XDG_CONFIG_HOME"),
        ({"XDG_CONFIG_HOME": " ", "HOME": "/h"}, "XDG_CONFIG_HOME"),
        ({"HOME": "home"}, "HOME"),
    ],
)
def test_a_relative_place_is_refused(env: dict[str, str], variable: str) -> None:
    with pytest.raises(ConfigError) as raised:
        user_file(env)
    assert str(raised.value) == f"{variable} must be an absolute path"


def test_only_a_conventional_file_has_a_legacy_policy_beside_it() -> None:
    assert (
        UserFile("/h/.config/agent-coord/env", explicit=False, variable="HOME").legacy_policy
        == "/h/.config/agent-coord/policy"
    )
    assert UserFile("/h/.config/agent-coord/env", explicit=True, variable="HOME").legacy_policy is None


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"HOME": "/h"}, ["/h/.config/agent-coord/env", "/h/.config/agent-coord/http-env.sh"]),
        ({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}, ["/x/agent-coord/env", "/x/agent-coord/http-env.sh"]),
        (
            {"AGENT_COORD_ENV_FILE": "/p", "HOME": "/h"},
            ["/p", "/h/.config/agent-coord/env", "/h/.config/agent-coord/http-env.sh"],
        ),
        (
            {"AGENT_COORD_ENV_FILE": "/h/.config/agent-coord/env", "HOME": "/h"},
            ["/h/.config/agent-coord/env", "/h/.config/agent-coord/http-env.sh"],
        ),
        ({"AGENT_COORD_ENV_FILE": "/p"}, ["/p"]),
        ({}, []),
    ],
)
def test_consumer_files_are_probed_in_order_and_once(env: dict[str, str], expected: list[str]) -> None:
    assert consumer_files(env) == expected


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"XDG_STATE_HOME": "/xs", "HOME": "/h"}, "/xs/agent-coordination"),
        ({"XDG_STATE_HOME": "rel", "HOME": "/h"}, "/h/.local/state/agent-coordination"),
        ({"XDG_STATE_HOME": "", "HOME": "/h"}, "/h/.local/state/agent-coordination"),
        ({"HOME": "/h"}, "/h/.local/state/agent-coordination"),
        ({"HOME": "h"}, None),
        ({}, None),
    ],
)
def test_the_implicit_root_is_absolute_or_unknown(env: dict[str, str], expected: str | None) -> None:
    assert implicit_root(env) == expected
