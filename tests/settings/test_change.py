"""What may be saved together with what, which values are accepted, and how a file is written."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.errors import UsageError
from agentcoord.settings.change import (
    MAX_TOKEN_BYTES,
    Change,
    content,
    require_api_url,
    require_machine_id,
    token_of,
)
from agentcoord.settings.envfile import ALLOWED, parse
from agentcoord.settings.selection import Secret

URL, TOKEN, MACHINE, POLICY = (f"AGENT_COORD_{name}" for name in ("API_URL", "API_TOKEN", "MACHINE_ID", "POLICY"))
A, B = "https://a.example", "https://b.example"
BOUND = {URL: A, TOKEN: "kept"}

ABSOLUTE = "--api-url must be an absolute HTTP(S) URL"
BARE = "--api-url must not include a query or fragment"
PORT = "--api-url port must be between 1 and 65535"
HTTPS = "--api-url must use https unless it points at localhost"
CHANGED = "saved API URL changed while reading --token-stdin; retry with --api-url in the same transaction"
NEEDS_TOKEN = "--token-stdin is required when changing an API URL that has a saved token"
NEEDS_URL = "--token-stdin requires a saved API URL or --api-url in the same transaction"


def change(url: str | None = None, token: str | None = None, **others: str) -> Change:
    return Change(api_url=url, token=None if token is None else Secret(token), **others)


def fault(call: object, *arguments: object, **named: object) -> str:
    assert callable(call)
    with pytest.raises(UsageError) as raised:
        call(*arguments, **named)
    assert raised.value.exit == 1
    return str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        A,
        "HTTPS://A.Example",
        "https://a.example/",
        "https://a.example/v1/x",
        "https://a.example:1",
        "https://a.example:65535/x",
        "https://a.example:",
        "https://a_b.example",
        "https://user:pw@a.example",
        "https://[2001:db8::1]:8443",
        "http://localhost",
        "http://LOCALHOST:8787/x",
        "http://127.0.0.1:1",
        "http://[::1]:8787",
        "http://user@localhost",
    ],
)
def test_a_url_to_save(url: str) -> None:
    assert require_api_url(url) == url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", ABSOLUTE),
        ("a.example", ABSOLUTE),
        ("//a.example", ABSOLUTE),
        ("https:", ABSOLUTE),
        ("https://", ABSOLUTE),
        ("https:///x", ABSOLUTE),
        ("https://:443", ABSOLUTE),
        ("https://@", ABSOLUTE),
        ("ftp://a.example", ABSOLUTE),
        ("file:///x", ABSOLUTE),
        (" https://a.example", ABSOLUTE),
        ("https://a.example ", ABSOLUTE),
        ("https://a.example/a b", ABSOLUTE),
        ("https://a.example\n", ABSOLUTE),
        ("https://a.example\nAGENT_COORD_LOCAL=1", ABSOLUTE),
        ("https://a.example\0", ABSOLUTE),
        ("https://ä.example", ABSOLUTE),
        ("https://a.example\\@b.example", ABSOLUTE),
        ("https://a@b@c", ABSOLUTE),
        ("https://a.example:x", ABSOLUTE),
        ("https://a.example:-1", ABSOLUTE),
        ("https://[::1", ABSOLUTE),
        ("https://::1", ABSOLUTE),
        ("https://a.example?", BARE),
        ("https://a.example#", BARE),
        ("https://a.example/x?y=1", BARE),
        ("https://a.example:0?y", BARE),
        ("http://a.example/#x", BARE),
        ("https://a.example:0", PORT),
        ("https://a.example:00000", PORT),
        ("https://a.example:65536", PORT),
        ("http://a.example:65536", PORT),
        ("https://a.example:" + "9" * 5000, PORT),
        ("http://a.example", HTTPS),
        ("http://localhost.example", HTTPS),
        ("http://127.0.0.2", HTTPS),
        ("http://[::2]", HTTPS),
        ("http://localhost@a.example", HTTPS),
        ("HTTP://a.example", HTTPS),
    ],
)
def test_a_url_not_to_save(url: str, said: str) -> None:
    assert fault(require_api_url, url) == said


@pytest.mark.parametrize(
    ("data", "token"),
    [
        (b"t", "t"),
        (b"t\n", "t"),
        (b"t\r\n", "t"),
        (b" t \n", " t "),
        (b"a b'c\"d\\e$f`g;h#i\n", "a b'c\"d\\e$f`g;h#i"),
        ("zoë\n".encode(), "zoë"),
        (b"x" * MAX_TOKEN_BYTES, "x" * MAX_TOKEN_BYTES),
    ],
)
def test_a_token_is_one_line_as_it_came(data: bytes, token: str) -> None:
    secret = token_of(data)
    assert secret.reveal() == token
    assert parse(content({URL: A, TOKEN: token}), "f") == {URL: A, TOKEN: token}


EMPTY = "--token-stdin requires a non-empty token"
ONE_LINE = "--token-stdin token must be one line"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", EMPTY),
        (b"\n", EMPTY),
        (b"\r\n", EMPTY),
        (b" \t \n", EMPTY),
        (b"\n\n", EMPTY),
        (b"s3cret\n\n", ONE_LINE),
        (b"s3cret\ntwo", ONE_LINE),
        (b"s3cret\r", ONE_LINE),
        (b"s3cret\r\r\n", ONE_LINE),
        (b"s3\rcret\n", ONE_LINE),
        (b"s3\0cret\n", ONE_LINE),
        (b"s3cret\xff\n", "--token-stdin token must be valid UTF-8"),
        (b"\xed\xa0\x80", "--token-stdin token must be valid UTF-8"),
        (b"x" * (MAX_TOKEN_BYTES + 1), "--token-stdin input is too large"),
        (b"x" * MAX_TOKEN_BYTES + b"\n", "--token-stdin input is too large"),
    ],
)
def test_a_token_that_is_none(data: bytes, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        token_of(data)
    assert str(raised.value) == said
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("machine", ["m5", "a.b-c_d:e", "1"])
def test_a_machine_id(machine: str) -> None:
    assert require_machine_id(machine) == machine


@pytest.mark.parametrize("machine", ["", " ", "..", ".", "a/b", "m5 ", "a\nb", "ä", ".a", "a."])
def test_no_machine_id(machine: str) -> None:
    assert fault(require_machine_id, machine) == f"invalid machine-id: {machine}"


@pytest.mark.parametrize(
    ("saved", "seen", "wanted", "after"),
    [
        ({}, None, change(A), {URL: A}),
        ({}, None, change(A, "new"), {URL: A, TOKEN: "new"}),
        ({}, None, change(machine_id="m1", policy="required"), {MACHINE: "m1", POLICY: "required"}),
        ({URL: A}, A, change(B), {URL: B}),
        ({URL: A}, A, change(token="new"), {URL: A, TOKEN: "new"}),
        (BOUND, A, change(token="new"), {URL: A, TOKEN: "new"}),
        (BOUND, A, change(A), BOUND),
        (BOUND, A, change(B, "new"), {URL: B, TOKEN: "new"}),
        (BOUND, A, change(machine_id="m1"), {**BOUND, MACHINE: "m1"}),
        (BOUND, None, change(B, "new"), {URL: B, TOKEN: "new"}),  # changed meanwhile, and bound anew
        (BOUND, B, change(machine_id="m1"), {**BOUND, MACHINE: "m1"}),  # changed meanwhile, and of no concern
        ({URL: A, TOKEN: " "}, A, change(B), {URL: B, TOKEN: " "}),  # a blank token is none
        ({URL: "http://a.example"}, None, change(policy="optional"), {URL: "http://a.example", POLICY: "optional"}),
    ],
)
def test_a_change_keeps_what_it_does_not_name(
    saved: dict[str, str], seen: str | None, wanted: Change, after: dict[str, str]
) -> None:
    before = dict(saved)
    assert wanted.applied(saved, seen_url=seen) == after
    assert saved == before


@pytest.mark.parametrize(
    ("saved", "seen", "wanted", "said"),
    [
        ({}, None, change(token="s3cret"), NEEDS_URL),
        ({URL: " "}, " ", change(token="s3cret"), NEEDS_URL),
        ({URL: A}, None, change(token="s3cret"), CHANGED),
        ({URL: A}, B, change(token="s3cret"), CHANGED),
        ({}, A, change(token="s3cret"), CHANGED),
        (BOUND, A, change(B), NEEDS_TOKEN),
        (BOUND, A, change(A + "/"), NEEDS_TOKEN),
        (BOUND, B, change(B, machine_id="m1"), NEEDS_TOKEN),
        ({TOKEN: "s3cret"}, None, change(A), NEEDS_TOKEN),  # whose token that is, nobody knows
        ({TOKEN: "s3cret"}, None, change(policy="required"), NEEDS_URL),
        ({URL: "http://a.example"}, "http://a.example", change(token="s3cret"), HTTPS),
        ({URL: "https://a.example?x"}, "https://a.example?x", change(token="s3cret"), BARE),
        ({URL: "a.example"}, "a.example", change(token="s3cret"), ABSOLUTE),
        ({URL: "https://a.example:0"}, "https://a.example:0", change(token="s3cret"), PORT),
    ],
)
def test_a_change_that_would_send_a_token_elsewhere(
    saved: dict[str, str], seen: str | None, wanted: Change, said: str
) -> None:
    assert fault(wanted.applied, saved, seen_url=seen) == said


def test_a_change_names_its_keys_and_hides_its_token() -> None:
    everything = change("https://me:hush@a.example", "s3cret", machine_id="m1", policy="required")
    assert everything.keys == [TOKEN, URL, MACHINE, POLICY]
    assert change().keys == []
    assert re.search("s3cret|hush", repr(everything)) is None


def test_a_file_is_written_in_one_order() -> None:
    values: dict[str, str] = {}
    values.update(dict.fromkeys(reversed(ALLOWED), "x"))
    assert content(values) == "".join(f"{key}=x\n" for key in ALLOWED)
    assert content({}) == ""
    assert content({"AGENT_COORD_REF": "", URL: "https://a.example/~x"}) == (
        f"{URL}=https://a.example/\\~x\nAGENT_COORD_REF=''\n"
    )


line = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"))


@given(st.dictionaries(st.sampled_from(["AGENT_COORD_REF", "AGENT_COORD_LOCAL", MACHINE, URL]), line))
def test_what_is_written_is_read_back(values: dict[str, str]) -> None:
    assert parse(content(values), "f") == values
