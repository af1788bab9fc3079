"""The grammar of the user file, and what a shell would make of a consumer file."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.errors import ConfigError
from agentcoord.settings.envfile import ALLOWED, configures_api_url, parse, quote

SOURCE = "/c/env"

# Text that leans towards what the grammar is made of, so that most examples get past the first line.
pieces = st.sampled_from(
    [
        *ALLOWED,
        *["AGENT_COORD_BOGUS", "OTHER_TOOL", "export ", "=", "'", '"', "\\", "#", " ", "\t", "\n", "\r\n", "\0"],
        *["/abs", "rel", "required", "$(x)", ";", "\ufeff", "é", "\u2028", "\x85"],
    ]
)
grammatical = st.lists(pieces | st.text(max_size=3), max_size=30).map("".join)
one_line = st.text(st.characters(exclude_characters="\n\0"))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        parse(text, SOURCE)
    return str(raised.value)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("", ""),
        ("''", ""),
        ('""', ""),
        (" # off", ""),
        ("m5", "m5"),
        (" m5 ", "m5"),
        ("m5\r", "m5"),
        ("m5 # note", "m5"),
        ("m5\t#note", "m5"),
        ("m5#note", "m5#note"),
        ("#m5", "#m5"),
        ('"a"#b', "a#b"),
        ('"a # b"', "a # b"),
        (r"a\ # b", None),  # the escaped blank belongs to the word, so the `#` does too, and `b` is a second word
        (r"a\ #b", "a #b"),
        ("'a b'", "a b"),
        ("'a'\"b\"c", "abc"),
        (r"'a\b'", r"a\b"),
        (r'"a\"b"', 'a"b'),
        (r'"a\\b"', r"a\b"),
        (r'"\$x \`y\`"', "$x `y`"),
        (r'"a\nb"', r"a\nb"),
        (r"a\'b", "a'b"),
        (r"\a", "a"),
        ("$(touch /x)", None),
        ('"$(touch /x)"', "$(touch /x)"),
        ("${HOME}/x", "${HOME}/x"),
        ("~/x;y&z|w", "~/x;y&z|w"),
        ("a b", None),
        ("'a' 'b'", None),
        ("a\rb", None),
        ("'a", "'"),
        ('"a', "'"),
        ('a"', "'"),
        ("a\\", "'"),
        ('"a\\', "'"),
        ("a\0b", "'"),
        ("'a\u2028b'", "a\u2028b"),
        ("a\u00a0b", "a\u00a0b"),
    ],
)
def test_a_value_is_one_shell_word(written: str, value: str | None) -> None:
    text = f"AGENT_COORD_MACHINE_ID={written}\n"
    if value is None:
        assert refusal(text) == "ambiguous user config value at /c/env:1"
    elif value == "'":
        assert refusal(text) == "unsafe user config value at /c/env:1"
    else:
        assert parse(text, SOURCE) == {"AGENT_COORD_MACHINE_ID": value}


@pytest.mark.parametrize(
    "line", ["", "  ", "\t\r", "# x", "   # x='", "OTHER_TOOL='open", "XAGENT_COORD_X=1", "AGENT_COORD=1"]
)
def test_lines_that_say_nothing_to_us_are_ignored(line: str) -> None:
    assert parse(f"{line}\nAGENT_COORD_REF=main", SOURCE) == {"AGENT_COORD_REF": "main"}


@pytest.mark.parametrize("prefix", ["", " ", "\t", "export ", "  export\t ", "\r"])
def test_an_assignment_may_be_indented_and_exported(prefix: str) -> None:
    assert parse(f"{prefix}AGENT_COORD_REF=main", SOURCE) == {"AGENT_COORD_REF": "main"}


@pytest.mark.parametrize(
    "line",
    [
        "not an assignment",
        "AGENT_COORD_REF",
        "AGENT_COORD_REF =main",
        "agent_coord_ref=main",
        "other=1",
        "exportAGENT_COORD_REF=main",
        "export",
        "set -e",
        "1A=x",
        "A-B=x",
        "\ufeffAGENT_COORD_REF=main",
        "\u00a0AGENT_COORD_REF=main",
        "AGENT_COORD_RÉF=main",
        "\0",
        "=x",
    ],
)
def test_anything_else_is_unsafe(line: str) -> None:
    assert refusal(f"\n{line}\n") == "unsafe user config syntax at /c/env:2"


@pytest.mark.parametrize(
    "key",
    ["AGENT_COORD_SESSION_ID", "AGENT_COORD_ENV_FILE", "AGENT_COORD_BOGUS", "AGENT_COORD_", "AGENT_COORD_API_URL_"],
)
def test_an_unknown_key_of_ours_is_refused(key: str) -> None:
    assert refusal(f"# x\n\n{key}=\n") == f"unsupported agent-coord key at /c/env:3: {key}"


def test_the_documented_keys_are_allowed() -> None:
    values = dict.fromkeys(ALLOWED, "/x") | {"AGENT_COORD_POLICY": "required"}
    assert parse("".join(f"{key}={value}\n" for key, value in values.items()), SOURCE) == values
    assert len(ALLOWED) == 9


@pytest.mark.parametrize("second", ["AGENT_COORD_REF=main", "export AGENT_COORD_REF=", " AGENT_COORD_REF='"])
def test_a_repeated_key_is_refused_even_when_blank(second: str) -> None:
    assert refusal(f"AGENT_COORD_REF=\n{second}\n") == "duplicate user config key at /c/env:2: AGENT_COORD_REF"


@pytest.mark.parametrize("token", ['"s3cret\rtoken"', "s3cret\\\rtoken", "'s3cret\0token'"])
def test_a_token_is_one_line(token: str) -> None:
    assert refusal(f"AGENT_COORD_API_TOKEN={token}") == "AGENT_COORD_API_TOKEN in /c/env:1 must be one line"


@pytest.mark.parametrize("value", ["required", "optional", "disabled", "", "'  '"])
def test_a_policy_is_one_of_three_or_blank(value: str) -> None:
    assert "AGENT_COORD_POLICY" in parse(f"AGENT_COORD_POLICY={value}", SOURCE)


@pytest.mark.parametrize("value", ["sometimes", "REQUIRED", "'required '", "0"])
def test_another_policy_is_refused(value: str) -> None:
    expected = "invalid coordination policy in /c/env:AGENT_COORD_POLICY: expected required, optional, disabled"
    assert refusal(f"AGENT_COORD_POLICY={value}") == expected


@pytest.mark.parametrize("key", ["AGENT_COORD_STATE_ROOT", "AGENT_COORD_STATUS_STATE_ROOT"])
def test_saved_roots_are_absolute(key: str) -> None:
    assert parse(f"{key}=' '", SOURCE) == {key: " "}
    for value in ("relative", "./root", "~/root", "'${HOME}/root'", "' /root'"):
        assert refusal(f"{key}={value}") == f"{key} in /c/env must be an absolute path"


@given(grammatical | st.text())
def test_parsing_answers_or_refuses(text: str) -> None:
    configures_api_url(text)
    try:
        values = parse(text, SOURCE)
    except ConfigError:
        return
    assert set(values) <= set(ALLOWED)
    assert "\0" not in "".join(values.values())


@given(one_line)
def test_what_is_quoted_is_read_back(value: str) -> None:
    written = f"AGENT_COORD_MACHINE_ID={quote(value)}\nAGENT_COORD_API_URL={quote(value)}\n"
    assert parse(written, SOURCE) == {"AGENT_COORD_MACHINE_ID": value, "AGENT_COORD_API_URL": value}
    assert configures_api_url(written) == bool(value.strip(" \t\n\v\f\r"))


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell to ask")
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\0")), min_size=1, max_size=20))
def test_a_shell_reads_back_the_same(values: list[str]) -> None:
    script = "".join(f"v={quote(value)}\nprintf '%s\\n' \"$v\"\n" for value in values)
    read = subprocess.run(["sh"], input=script.encode(), stdout=subprocess.PIPE, check=True).stdout
    assert read.decode() == "".join(f"{value}\n" for value in values)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("", "''"),
        ("https://coordination.example:8787/a_b-c,d+e@f", "https://coordination.example:8787/a_b-c,d+e@f"),
        ("a b", r"a\ b"),
        ("it's", r"it\'s"),
        ("#x~$=", r"\#x\~\$\="),
        ("é", r"\é"),
    ],
)
def test_only_what_needs_it_is_escaped(value: str, written: str) -> None:
    assert quote(value) == written


@pytest.mark.parametrize("value", ["a\nb", "\0", "\n"])
def test_no_line_holds_two(value: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        quote(value)


@pytest.mark.parametrize(
    "written",
    [
        "https://x",
        '"https://x"',
        "'https://x' # note",
        "''x",
        "#x",
        "x;y",
        "'open",
        '"open',
        "$URL",
        r"\x",
        '"a"b',
        '"a\\"',
        "x\r",
        "\\",
        "'  '\"x\"",
        "' '#x",
        "''#",
    ],
)
def test_a_shell_would_have_a_url(written: str) -> None:
    assert configures_api_url(f"set -e\n\texport  AGENT_COORD_API_URL={written}\n")


@pytest.mark.parametrize(
    "written",
    [
        "",
        " x",
        "\tx",
        " # x",
        "''",
        '""',
        "'' x",
        '"  "',
        r"\ ",
        ";x",
        "&x",
        "|x",
        "<x",
        ">x",
        "(x)",
        ")",
        "'",
        '"',
        "\r",
        "'\t",
    ],
)
def test_a_shell_would_have_none(written: str) -> None:
    assert not configures_api_url(f"AGENT_COORD_API_URL={written}\n")


@pytest.mark.parametrize(
    "line",
    [
        "# AGENT_COORD_API_URL=x",
        "XAGENT_COORD_API_URL=x",
        "AGENT_COORD_API_URL_OLD=x",
        "AGENT_COORD_API_URL =x",
        "echo AGENT_COORD_API_URL=x",
        "unset AGENT_COORD_API_URL",
        "",
    ],
)
def test_other_lines_configure_nothing(line: str) -> None:
    assert not configures_api_url(f"{line}\nAGENT_COORD_API_URL=\n")


def test_any_line_may_configure_it() -> None:
    assert configures_api_url("AGENT_COORD_API_URL=\nexport AGENT_COORD_API_URL=x\nAGENT_COORD_API_URL=\n")
