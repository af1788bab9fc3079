"""Records as JSON: strict in reading, stable in writing, lenient in looking."""

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol import documents
from agentcoord.protocol.documents import (
    INPUT_DEPTH,
    canonical,
    decode,
    depth,
    encode,
    encode_pretty,
    is_document,
    stated,
    text,
)
from tests.protocol.strategies import Json, records, values


def nested(levels: int, *, by: str = "list") -> object:
    value: object = 1
    for number in range(levels):
        value = [value] if by == "list" or (by == "both" and number % 2) else {"k": value}
    return value


@given(values)
def test_what_is_written_is_read_back(value: object) -> None:
    assert decode(encode(value)) == decode(encode_pretty(value)) == decode(canonical(value)) == value


@given(values)
def test_others_read_what_is_written(value: object) -> None:
    for written in (encode(value), encode_pretty(value), canonical(value)):
        assert json.loads(written) == value


@given(values)
def test_the_canonical_form_is_one_for_all_orders_of_keys(value: object) -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(inner) for key, inner in reversed(cast("Json", value).items())}
        return [turned(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value

    assert canonical(turned(value)) == canonical(value)


def test_the_canonical_form_sorts_by_code_point_and_leaves_text_literal() -> None:
    assert (
        canonical({"b": [1, {"z": None, "é": True}], "B": 'é\u2028"\\\x7f\n\x01', "a": 10**30})
        == ('{"B":"é\u2028\\"\\\\\x7f\\n\\u0001","a":' + str(10**30) + ',"b":[1,{"z":null,"é":true}]}').encode()
    )


@pytest.mark.parametrize(
    ("document", "written"),
    [
        ({}, "{}\n"),
        ([], "[]\n"),
        ({"a": [], "b": {}, "c": "é"}, '{\n  "a": [],\n  "b": {},\n  "c": "é"\n}\n'),
        ({"z": 1, "a": [1, {"b": None}]}, '{\n  "z": 1,\n  "a": [\n    1,\n    {\n      "b": null\n    }\n  ]\n}\n'),
    ],
    ids=["object", "array", "empty containers", "order kept"],
)
def test_the_printed_form(document: object, written: str) -> None:
    assert encode_pretty(document) == written.encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" \n",
        b"{",
        b"[1,]",
        b"{'a':1}",
        b"NaN",
        b"Infinity",
        b"1e999",
        b'{"a":1} x',
        b"\xef\xbb\xbf{}",
        b'"\xff"',
        b'"\\ud800"',
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b"1" * 5000,
    ],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_not_json_is_a_value_error_with_one_line(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        decode(data)
    assert len(str(raised.value).splitlines()) == 1


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    try:
        decode(data)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - nothing raised is as good


@pytest.mark.parametrize("by", ["list", "dict", "both"])
@pytest.mark.parametrize("levels", [0, 1, 2, INPUT_DEPTH - 1, INPUT_DEPTH, INPUT_DEPTH + 1])
def test_depth_counts_containers(levels: int, by: str) -> None:
    assert depth(nested(levels, by=by)) == levels


@pytest.mark.parametrize(
    ("written", "levels"),
    [("1", 0), ("null", 0), ("[]", 1), ("{}", 1), ('[[],1,{"a":{}}]', 3), ('{"a":1,"b":[[1]]}', 3)],
)
def test_depth_is_that_of_the_deepest(written: str, levels: int) -> None:
    assert depth(decode(written.encode())) == levels


def test_depth_gives_up_one_past_the_limit() -> None:
    assert depth(nested(50_000)) == INPUT_DEPTH + 1
    assert depth(nested(10), limit=3) == 4


@given(values, st.integers(0, 4))
def test_depth_within_a_limit_is_the_depth(value: object, limit: int) -> None:
    assert depth(value, limit) == min(depth(value), limit + 1)


@pytest.mark.parametrize(
    ("document", "read"),
    [({"k": "v"}, "v"), ({"k": " "}, " "), ({"k": ""}, None), ({"k": None}, None), ({"k": 1}, None), ({}, None)],
    ids=repr,
)
def test_a_text_field_of_another_type_is_absent(document: Json, read: str | None) -> None:
    assert text(document, "k") == read


@given(records("abc"))
def test_only_what_says_something_is_stated(document: Json) -> None:
    picked = stated(document, ("c", "a", "x"))
    assert list(picked) == [key for key in ("c", "a", "x") if document.get(key) is not None]
    assert all(picked[key] == document[key] for key in picked)
    assert documents.given(document) == {key: value for key, value in document.items() if value is not None}


@given(values)
def test_a_document_is_an_object(value: object) -> None:
    assert is_document(value) == encode(value).startswith(b"{")
