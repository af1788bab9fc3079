"""Retention looks at a few fields first: it makes the whole record of whatever it may have to do with."""

from typing import Any

import pytest
from hypothesis import given

from agentcoord.errors import StoreError
from agentcoord.protocol.documents import decode, encode
from agentcoord.protocol.retention import GOING_ON, Policy, decode_beat, decode_claim, plan_archiving
from tests.protocol.strategies import NOW, records, values

FIELDS = ("status", "terminal", "updated_at", "expires_at", "released_at", "synthetic")
ACTIVE = {"status": "active", "updated_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-01T01:00:00Z"}
AT_ONCE = Policy(hot_days=0, synthetic_hot_days=0)


@given(
    records(FIELDS, {"status": "active", "updated_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-01T01:00:00Z"})
)
def test_what_is_passed_over_would_have_been_left_alone(record: dict[str, Any]) -> None:
    data = encode(record)
    for path, seen in [("claims/o/r/7.json", decode_claim(data)), ("heartbeats/a.json", decode_beat(data, NOW))]:
        if seen is not GOING_ON:
            assert seen == decode(data)
            continue
        try:
            plan = plan_archiving(path, record, AT_ONCE, NOW)
        except StoreError as error:  # pragma: no cover - a record that is judged was eligible
            pytest.fail(str(error))
        assert plan is None


@given(values)
def test_what_is_no_object_is_given_as_it_is(value: Any) -> None:
    if not isinstance(value, dict):
        data = encode(value)
        assert decode_claim(data) == decode_beat(data, NOW) == decode(data)


DEEP = b'{"a":' * 50_000 + b"1" + b"}" * 50_000


@pytest.mark.parametrize("data", [b"", b"{", b'{"a": "\xff"}', b'{"a": "\\ud800"}', DEEP])
def test_what_cannot_be_read_is_no_better_for_being_glanced_at(data: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        decode_claim(data)
    with pytest.raises(ValueError, match="."):
        decode_beat(data, NOW)


def test_most_are_passed_over() -> None:
    claim = {"status": "active", "repo": "o/r", "phase": "coding"}
    assert decode_claim(encode(claim)) is GOING_ON
    beat = {"status": "in_progress", "updated_at": "2026-01-01T11:59:00Z", "expires_at": "2026-01-01T12:14:00Z"}
    assert decode_beat(encode(beat), NOW) is GOING_ON
