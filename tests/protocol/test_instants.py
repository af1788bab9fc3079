"""Instants: which spellings are one, and that reading keeps their order."""

from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.instants import event_stamp, exact, is_rfc3339, later, parse, stamp, whole
from tests.protocol.strategies import instants

LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59)
digits = st.text("0123456789", max_size=30)


@st.composite
def spelled(draw: st.DrawFn) -> tuple[str, Fraction]:
    """Spell an instant in some offset, with any number of fractional digits, and tell what it is."""
    base = whole(draw(instants))
    offset, fraction = draw(offsets), draw(digits)
    local = (base + timedelta(minutes=offset)).strftime("%Y-%m-%dT%H:%M:%S")
    sign = "-" if offset < 0 else "+"
    zone = f"{sign}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
    spelling = f"{local}{'.' + fraction if fraction else ''}{zone if offset else draw(st.sampled_from(['Z', zone]))}"
    return spelling, int(base.timestamp()) + Fraction(int(fraction or 0), 10 ** len(fraction))


RFC3339 = [
    ("2026-01-01T00:00:00Z", True),
    ("2026-01-01t00:00:00z", True),
    ("2026-01-01T00:00:00+00:00", True),
    ("2026-01-01T00:00:00-00:00", True),
    ("2026-01-01T00:00:00.5Z", True),
    ("2026-01-01T00:00:00.123456789012345678901234567890Z", True),
    ("2026-01-01T23:59:59+23:59", True),
    ("2026-01-01T23:59:59-23:59", True),
    ("2026-01-01T23:59:60Z", True),
    ("2024-02-29T00:00:00Z", True),
    ("2000-02-29T00:00:00Z", True),
    ("9999-12-31T23:59:60Z", True),
    ("0001-01-01T00:00:00+23:59", True),
    ("2026-02-29T00:00:00Z", False),
    ("2100-02-29T00:00:00Z", False),
    ("2026-02-30T00:00:00Z", False),
    ("2026-04-31T00:00:00Z", False),
    ("2026-00-01T00:00:00Z", False),
    ("2026-13-01T00:00:00Z", False),
    ("2026-01-00T00:00:00Z", False),
    ("2026-01-32T00:00:00Z", False),
    ("2026-01-01T24:00:00Z", False),
    ("2026-01-01T00:60:00Z", False),
    ("2026-01-01T00:00:61Z", False),
    ("2026-01-01T00:00:00+24:00", False),
    ("2026-01-01T00:00:00-24:00", False),
    ("2026-01-01T00:00:00+00:60", False),
    ("2026-01-01T00:00:00", False),
    ("2026-01-01T00:00:00+0100", False),
    ("2026-01-01T00:00:00+01", False),
    ("2026-01-01T00:00:00.Z", False),
    ("2026-01-01T00:00:00,5Z", False),
    ("2026-01-01T00:00Z", False),
    ("2026-01-01 00:00:00Z", False),
    ("2026-1-1T00:00:00Z", False),
    ("20260101T000000Z", False),
    ("2026-W01-1T00:00:00Z", False),
    (" 2026-01-01T00:00:00Z", False),
    ("2026-01-01T00:00:00Z\n", False),
    ("2026-01-01", False),
    ("٢٠٢٦-01-01T00:00:00Z", False),
    ("now", False),
    ("", False),
    (None, False),
    (1767225600, False),
    (["2026-01-01T00:00:00Z"], False),
]


@pytest.mark.parametrize(("value", "valid"), RFC3339, ids=repr)
def test_rfc3339(value: object, valid: bool) -> None:
    assert is_rfc3339(value) is valid


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("2026-01-01T00:00:00Z", datetime(2026, 1, 1, tzinfo=UTC)),
        ("2026-01-01T00:00:00.25Z", datetime(2026, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC)),
        ("2026-01-01T00:00:00.9999999Z", datetime(2026, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC)),
        ("2026-01-01T02:30:00+02:30", datetime(2026, 1, 1, tzinfo=UTC)),
        ("2025-12-31T22:00:00-0200", datetime(2026, 1, 1, tzinfo=UTC)),
        ("2025-12-31T22:00:00.5-02", datetime(2026, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-01-01T00:00:00+24", None),
        ("2026-01-01T00:00:00+2", None),
        ("2026-01-01T00:00:00+", None),
        (" 2026-01-01T00:00:00Z\n", datetime(2026, 1, 1, tzinfo=UTC)),
        ("2025-12-31T23:59:60Z", datetime(2026, 1, 1, tzinfo=UTC)),
        ("1969-12-31T23:59:59.5Z", datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC)),
        ("9999-12-31T23:59:60Z", None),  # an instant, but none that is read as a date
        ("0001-01-01T00:00:00+00:01", None),
        ("2026-01-01T24:00:00Z", None),
        ("2026-01-01T00:00:00", None),
        ("2026-01-01T000000.0Z", None),  # as long as a stamp, and ISO 8601 too
        ("2026-01-01T00:00.00Z", None),
        ("2026-01-01T00:00,00Z", None),
        ("2026-01-01", None),
        ("", None),
        (None, None),
        (1767225600, None),
        ({}, None),
    ],
    ids=repr,
)
def test_reading(value: object, read: datetime | None) -> None:
    assert parse(value) == read


@pytest.mark.parametrize(
    ("instant", "written"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z"),
        (datetime(2026, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC), "2026-01-01T00:00:00Z"),
        (datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))), "2025-12-31T23:00:00Z"),
    ],
    ids=["whole", "a fraction is cut", "UTC"],
)
def test_writing(instant: datetime, written: str) -> None:
    assert stamp(instant) == written


@given(instants, offsets)
def test_what_is_written_is_read_back_to_the_second(instant: datetime, offset: int) -> None:
    elsewhere = instant.astimezone(timezone(timedelta(minutes=offset)))
    assert parse(stamp(elsewhere)) == whole(instant)
    assert is_rfc3339(stamp(elsewhere))


@given(spelled(), spelled())
def test_exactness_orders_like_the_instants(one: tuple[str, Fraction], other: tuple[str, Fraction]) -> None:
    (a, at_a), (b, at_b) = one, other
    exact_a, exact_b = exact(a), exact(b)
    assert exact_a is not None
    assert exact_b is not None
    assert (exact_a < exact_b, exact_a == exact_b) == (at_a < at_b, at_a == at_b)


@given(instants, digits, digits, offsets)
def test_fractions_are_compared_to_the_last_digit(instant: datetime, one: str, other: str, offset: int) -> None:
    here = instant.strftime("%Y-%m-%dT%H:%M:%S")
    there = (instant + timedelta(minutes=offset)).strftime("%Y-%m-%dT%H:%M:%S")
    zone = f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
    a, b = exact(f"{here}.0{one}Z"), exact(f"{there}.0{other}{zone}")
    assert a is not None
    assert b is not None
    ordered = Fraction(int("0" + one), 10 ** len(one)), Fraction(int("0" + other), 10 ** len(other))
    assert (a < b, a == b) == (ordered[0] < ordered[1], ordered[0] == ordered[1])


def test_more_digits_than_a_number_may_have_are_still_compared() -> None:
    many = "3" * 10_000
    low, high = exact(f"2026-01-01T00:00:00.{many}3Z"), exact(f"2026-01-01T00:00:00.{many}4Z")
    assert low is not None
    assert high is not None
    assert low < high
    assert parse(f"2026-01-01T00:00:00.{many}Z") == datetime(2026, 1, 1, 0, 0, 0, 333_333, tzinfo=UTC)
    assert is_rfc3339(f"2026-01-01T00:00:00.{many}Z")


@given(spelled())
def test_reading_cuts_what_is_finer_than_a_microsecond(one: tuple[str, Fraction]) -> None:
    spelling, at = one
    read = parse(spelling)
    assert read is not None
    microseconds = (read - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    cut = at - Fraction(microseconds, 10**6)
    assert Fraction(0) <= cut < Fraction(1, 10**6)


@given(
    instants.map(stamp), st.lists(st.tuples(st.integers(0, 19), st.sampled_from("0123456789-:TZtz.,+ W")), max_size=3)
)
def test_the_short_way_of_reading_takes_nothing_that_the_long_way_refuses(
    written: str, changes: list[tuple[int, str]]
) -> None:
    letters = list(written)
    for position, letter in changes:
        letters[position] = letter
    damaged = "".join(letters)
    assert (parse(damaged) is None) == (exact(damaged) is None)


@given(st.text(max_size=30))
def test_what_is_valid_is_also_read_exactly(value: str) -> None:
    assert not is_rfc3339(value) or exact(value) is not None


@pytest.mark.parametrize(
    ("seconds", "then"),
    [
        (0, datetime(2026, 1, 1, tzinfo=UTC)),
        (60, datetime(2026, 1, 1, 0, 1, tzinfo=UTC)),
        (10**12, LAST),
        (10**30, LAST),
    ],
)
def test_a_time_to_come_stops_at_the_last_that_can_be_spelled(seconds: int, then: datetime) -> None:
    assert later(datetime(2026, 1, 1, tzinfo=UTC), seconds) == then


def test_an_event_stamp() -> None:
    assert event_stamp(datetime(2026, 7, 8, 23, 55, 0, 123456, tzinfo=UTC)) == "20260708T235500.123456Z"
    assert event_stamp(datetime(7, 1, 1, tzinfo=UTC)) == "00070101T000000.000000Z"
    assert stamp(datetime(7, 1, 1, tzinfo=UTC)) == "0007-01-01T00:00:00Z"


@given(instants, instants)
def test_event_stamps_sort_like_the_instants(one: datetime, other: datetime) -> None:
    assert (event_stamp(one) < event_stamp(other)) == (one < other)
