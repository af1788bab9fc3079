"""Where the socket lies, what a line may be, and chance that can be had twice."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.cli.chance import stream
from agentcoord.wire import decode, encode, runtime_directory, socket_path

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES))
def test_a_line_says_what_json_says(frame: dict[str, object]) -> None:
    line = encode(frame)
    assert line.count(b"\n") == 1
    assert json.loads(line) == frame
    assert decode(line) == frame
    assert decode(json.dumps(frame).encode()) == frame


def test_text_that_is_not_unicode_has_no_line() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        encode({"a": os.fsdecode(b"\xff")})


@given(st.binary(max_size=40))
def test_anything_else_is_refused_in_one_way(data: bytes) -> None:
    try:
        assert isinstance(decode(data), dict)
    except ValueError:
        pass


def test_the_directory_is_what_the_environment_says() -> None:
    assert runtime_directory({"AGENT_COORD_RUNTIME_DIR": "/x/y"}, 7) == "/x/y"


@pytest.mark.parametrize("named", ["", "relative", "./x"])
def test_a_directory_that_is_not_absolute_does_not_count(named: str) -> None:
    uid = 4_000_000  # nobody, so without a session
    assert runtime_directory({"AGENT_COORD_RUNTIME_DIR": named}, uid) == f"/tmp/agent-coord-{uid}"  # noqa: S108


def test_a_path_that_fits_stays() -> None:
    directory = "/" + "d" * (103 - len("//daemon.sock"))
    assert socket_path(directory, 7) == f"{directory}/daemon.sock"
    assert len(socket_path(directory, 7)) == 103


@pytest.mark.parametrize("directory", ["/" + "d" * 91, "/" + "ü" * 50, os.fsdecode(b"/\xff" * 60)])
def test_a_path_that_is_too_long_gets_a_short_one_of_its_own(directory: str) -> None:
    short = socket_path(directory, 7)
    assert Path(short).name == "daemon.sock"
    assert short.startswith("/tmp/agent-coord-7-")  # noqa: S108
    assert len(short) == len("/tmp/agent-coord-7-01234567/daemon.sock")  # noqa: S108
    assert short == socket_path(directory, 7)
    assert short != socket_path(directory + "e", 7)


@given(st.lists(st.integers(0, 100), max_size=20), st.binary(min_size=32, max_size=32))
def test_chance_is_the_same_however_it_is_drawn(sizes: list[int], seed: bytes) -> None:
    draw = stream(seed)
    parts = [draw(size) for size in sizes]
    assert [len(part) for part in parts] == sizes
    assert b"".join(parts) == stream(seed)(sum(sizes))


def test_chance_is_what_it_always_was() -> None:
    """Client and daemon may be of different versions, so the bytes are part of the protocol."""
    assert stream(bytes(32))(4).hex() == "2c34ce1d"
    assert stream(b"\x01" * 32)(64) != stream(bytes(32))(64)
