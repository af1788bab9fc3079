"""The schemas and our own types say the same of anything, not only of what somebody thought of.

Valid documents are broken in the ways that documents break: a key is dropped, added or renamed, a value
becomes another one, is longer, or nearly right.
"""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentcoord.protocol.audit import is_terminal_event
from agentcoord.protocol.closeout import is_http_url
from agentcoord.protocol.contracts.catalogue import BY_FAMILY, CONTRACTS, Contract
from agentcoord.protocol.documents import decode
from agentcoord.protocol.uris import is_uri, is_web_uri
from tests.contracts.published import FORMATS, ROOT, fixtures, schema_allows, second_schema_allows, types_allow

Json = Any
Path = tuple[str | int, ...]

VALID: dict[str, list[Json]] = {contract.family: [] for contract in CONTRACTS}
for _fixture in fixtures(ROOT, "valid"):
    VALID[_fixture.contract.family].append(_fixture.read())
VALID["host_limit_projection"] = [{"host_limits": VALID["host_limit"][:2]}, {"claims": []}]
VALID["usage_projection"] = [{"usage": VALID["usage"][:1], "other": 1}]

ODD_INSTANTS = [
    *["2026-09-01T06:00:00Z", "2026-09-01t06:00:00z", "2026-09-01T06:00:00.123456789012Z", "2026-09-01T06:00:60Z"],
    *["2026-06-30T23:59:60+00:00", "2026-06-30T23:59:61Z", "2026-09-01T24:00:00Z", "2026-09-01T06:60:00Z"],
    *["2026-09-01T06:00:00+23:59", "2026-09-01T06:00:00+24:00", "2026-09-01T06:00:00-00:00", "2026-09-01T06:00:00+02"],
    *["2026-09-01T06:00:00+0200", "2026-09-01T06:00:00", "2026-09-01 06:00:00Z", "2026-02-29T06:00:00Z"],
    *["2024-02-29T06:00:00Z", "2026-13-01T06:00:00Z", "2026-00-01T06:00:00Z", "2026-09-31T06:00:00Z"],
    *["0000-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59.9-01:00", "10000-01-01T00:00:00Z"],
    *["2026-09-01T06:00:00Z\n", " 2026-09-01T06:00:00Z", "2026-09-01T06:00:00.Z", "2026-09-01T06:00:00,5Z"],
    *["٢٠٢٦-09-01T06:00:00Z", "2026-09-01T06:00:0\uff10Z", "2026-09-01", "06:00:00Z", "now", "2026-W36-2T06:00:00Z"],
    *["2026-09-01T06:00Z", "2026-09-01T06:00:00\u221202:00", "+2026-09-01T06:00:00Z", "2026-9-1T06:00:00Z"],
]
ODD_URIS = [
    *["https://x", "HTTPS://x.test:8443/a?b#c", "https://", "https:///a", "https://x\n", "https://x/a b", "https://é"],
    *[
        "http://[::1]:80/",
        "http://[::1",
        "http://[1::2::3]/",
        "http://x/%zz",
        "http://x/%41",
        "http://x/{a}",
        "ftp://x",
    ],
    *["mailto:a@b", "urn:a:b", "x:", "//x/a", "x", "http://x/[a]", "http://x/a#b#c", "http://u:p@x/", "http://x:y/"],
    *[
        "x:" + "a" * 1998,
        "x:" + "a" * 1999,
        "http://[v1.a:b]/",
        "codex://task/7",
        "http:x",
        "http://?q",
        "http://x?a/b?c",
        "http://x/\\",
    ],
]
ODD_WORDS = [
    *[
        "",
        " ",
        "\n",
        "—",
        "-",
        "\u2013",
        "null",
        "default",
        "a",
        "a\n",
        "A",
        "a.",
        ".a",
        "a..b",
        "a/b",
        "a/b/c",
        "/",
        "a:b",
    ],
    *[
        "a:",
        ":a",
        "..",
        ".",
        "é",
        "a\u2028",
        "\u00a0",
        "a b/c",
        "o/.",
        "./r",
        "x" * 128,
        "x" * 129,
        "x" * 160,
        "x" * 161,
    ],
    *["x" * 254, "x" * 255, "x" * 256, "x" * 257, "é" * 256, "\U0001f600" * 256, "\U0001f600" * 257, "x" * 4001],
    *["claims/o/r/7.json", "claims/o/r/..json", "events/b/e.json", "attention/w/o/r/a.json", "heartbeats/a.json\n"],
    *["x" * 254 + ":a", "b:x:a", "active", "consumed", "blocked", "cleared", "resolved", "auto", "USD", "lane_closed"],
]
AT_BOUNDS = ["o/" + "r" * 158, "o/" + "r" * 159, "b:" + "x" * 254, "b:" + "x" * 255, ":" * 256, ":x", "b:x"]
WORDS = [
    *[
        "manual",
        "host-message",
        "hook",
        "probe",
        "disabled",
        "enabled",
        "occupied",
        "terminal",
        "cancelled",
        "released",
    ],
    *["expired", "none", "ask", "done", "abandoned", "superseded", "findings", "pending", "clean", "open", "available"],
    *["unavailable", "unknown", "urgent-risk", "current-head-merge", "product-architecture", "archived_record"],
]
ODD_NUMBERS = [
    *[0, -0.0, 1, 1.0, 2, 2.0, -1, 0.5, 59, 60, 3600, 3601, 900.0, 1000, 1001, 2**53 - 1, 2**53, 2**64, 10**40],
    *[1e300, -1e300, 1e-300, 9007199254740991.0],
]
ODD_TEXTS = [*ODD_INSTANTS, *ODD_URIS, *ODD_WORDS, *AT_BOUNDS, *WORDS]
NO_NUMBERS: list[Json] = [None, True, False, [], {}]

UNLIKE = frozenset({"2026-09-01T06:00:60Z"})
"""Where validators differ: a leap second at an hour that never has one."""

strange: st.SearchStrategy[Json] = st.one_of(
    st.sampled_from([None, True, False, [], {}, [None], {"a": 1}]),
    st.sampled_from(ODD_INSTANTS),
    st.sampled_from(ODD_URIS),
    st.sampled_from([*ODD_WORDS, *AT_BOUNDS, *WORDS]),
    st.sampled_from(ODD_NUMBERS),
    st.text(max_size=4),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)


def places(value: Json, at: Path = ()) -> Iterator[Path]:
    """List where something stands in a document, the document itself first."""
    yield at
    entries: list[tuple[str | int, Json]] = []
    if isinstance(value, dict):
        entries = list(cast("dict[str, Json]", value).items())
    elif isinstance(value, list):
        entries = list(enumerate(cast("list[Json]", value)))
    for key, inner in entries:
        yield from places(inner, (*at, key))


def changed(document: Json, at: Path, change: Callable[[Json, str | int], None]) -> Json:
    """Copy a document and change what holds the place."""
    whole = {"": copy.deepcopy(document)}
    holder: Json = whole
    for key in ("", *at)[:-1]:
        holder = holder[key]
    change(holder, ("", *at)[-1])
    return whole.get("")


def _drop(holder: Json, key: str | int) -> None:
    del holder[key]


def _set(value: Json) -> Callable[[Json, str | int], None]:
    def put(holder: Json, key: str | int) -> None:
        holder[key] = copy.deepcopy(value)

    return put


def _add(name: str, value: Json) -> Callable[[Json, str | int], None]:
    def put(holder: Json, key: str | int) -> None:
        inner = holder[key]
        if isinstance(inner, dict):
            cast("dict[str, Json]", inner).setdefault(name, copy.deepcopy(value))
        elif isinstance(inner, list):
            cast("list[Json]", inner).append(copy.deepcopy(value))

    return put


LONGEST = 5000
"""Where repeating a repetition stops: beyond the bound of every text."""


def _repeat(times: int) -> Callable[[Json, str | int], None]:
    def put(holder: Json, key: str | int) -> None:
        if isinstance(holder[key], str | list):
            holder[key] = (holder[key] * times)[:LONGEST]

    return put


KNOWN_NAMES = sorted(
    {str(key) for documents in VALID.values() for each in documents for at in places(each) for key in at}
)


@st.composite
def broken(draw: st.DrawFn, family: str) -> Json:
    """A valid document after one to three changes."""
    document = draw(st.sampled_from(VALID[family]))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.sampled_from(list(places(document))))
        names = st.sampled_from(KNOWN_NAMES) | st.text(max_size=3)
        change = draw(
            st.one_of(
                st.builds(_set, strange),
                st.builds(_add, names, strange),
                st.builds(_repeat, st.sampled_from([2, 11, 60])),
                st.just(_drop) if at else st.builds(_set, strange),
            )
        )
        document = changed(document, at, change)
    return document


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.family)
def test_schema_and_types_agree_on_broken_documents(contract: Contract) -> None:
    verdicts: set[bool] = set()

    @settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(broken(contract.family))
    def agree(document: Json) -> None:
        allowed = schema_allows(contract, document)
        assert types_allow(contract, document) is allowed
        verdicts.add(allowed)

    agree()
    assert verdicts == {True, False}


def distinct(contract: Contract) -> list[tuple[Json, Path]]:
    """List the places that differ by more than their position in a list, each in one document that has it."""
    kinds: dict[Path, tuple[Json, Path]] = {}
    for document in VALID[contract.family]:
        variant = [str(document.get(name)) for name in ("record_family", "state")]
        for at in places(document):
            place = tuple("*" if isinstance(key, int) else key for key in at)
            kinds.setdefault((*variant, *place), (document, at))
    return list(kinds.values())


def texts_of(contract: Contract) -> list[tuple[Json, Path]]:
    return [(document, at) for document, at in distinct(contract) if isinstance(found(document, at), str)]


def found(document: Json, at: Path) -> Json:
    for key in at:
        document = document[key]
    return document


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.family)
def test_every_text_of_a_document_is_held_against_every_odd_one(contract: Contract) -> None:
    for document, at in texts_of(contract):
        for odd in ODD_TEXTS:
            other = changed(document, at, _set(odd))
            allowed = schema_allows(contract, other)
            assert types_allow(contract, other) is allowed, (at, odd)
            assert odd in UNLIKE or second_schema_allows(contract, other) is allowed, (at, odd)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.family)
def test_every_place_of_a_document_is_held_against_every_odd_number_and_without_it(contract: Contract) -> None:
    for document, at in distinct(contract):
        for odd in (*ODD_NUMBERS, *NO_NUMBERS):
            other = changed(document, at, _set(odd))
            assert types_allow(contract, other) is schema_allows(contract, other), (at, odd)
        if at:
            other = changed(document, at, _drop)
            assert types_allow(contract, other) is schema_allows(contract, other), (at, "dropped")


def test_a_reservation_holds_no_more_than_a_thousand_lanes() -> None:
    contract, reservation = BY_FAMILY["capacity_reservation"], VALID["capacity_reservation"][0]
    for count in (1000, 1001):
        holds = [{"lane_ref": f"b7:{number}", "state": "active"} for number in range(count)]
        verdicts = {ask(contract, reservation | {"lane_holds": holds}) for ask in (schema_allows, types_allow)}
        assert verdicts == {count == 1000}


# Bytes --------------------------------------------------------------------------------------------------


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('"cost":1,"cost":"free"', False),  # of two keys the last one counts, for every reader
        ('"cost":"free","cost":1', True),
        ('"cost":NaN', None),
        ('"cost":Infinity', None),
        ('"cost":-0', True),
        ('"cost":1E2', True),
        ('"cost":01', None),
        ('"input_tokens":1.0,"cost":1', True),
        ('"input_tokens":123456789012345678901234567890,"cost":1', True),
        ('"cost":"\\u2014"', True),
    ],
)
def test_both_read_the_same_bytes_alike(text: str, valid: bool | None) -> None:
    contract, base = BY_FAMILY["usage"], next(iter(VALID["usage"]))
    rest = json.dumps({name: value for name, value in base.items() if f'"{name}"' not in text})
    data = f"{rest[:-1]},{text}}}".encode()
    if valid is None:
        with pytest.raises(ValueError, match="malformed|range"):
            decode(data)
        with pytest.raises(ValueError, match="not JSON|delimiter"):
            json.loads(data, parse_constant=_no_constant)
        return
    assert types_allow(contract, decode(data)) is valid
    assert schema_allows(contract, json.loads(data)) is valid


# URIs, and the one rule that two modules know -------------------------------------------------------------


@settings(max_examples=500)
@given(st.sampled_from(ODD_URIS) | st.from_regex(r"[a-z]{1,3}:[!-~]{0,12}", fullmatch=True) | st.text(max_size=8))
@example("http://[::ffff:1.2.3.4]/")
def test_a_uri_is_what_the_package_takes_for_one(text: str) -> None:
    # The package also takes a scheme with nothing behind it, and what ends with a newline; our schemas do not.
    if text.endswith("\n") or (text.endswith(":") and text.count(":") == 1):
        assert not is_uri(text)
    else:
        assert is_uri(text) is FORMATS.conforms(text, "uri")
    assert not is_web_uri(text) or is_uri(text)


@settings(max_examples=300, deadline=None)
@given(broken("lane_closed"))
def test_the_audit_knows_a_closing_event_by_the_same_rule(event: Json) -> None:
    if not isinstance(event, dict):
        return
    event = cast("dict[str, Any]", event)
    contract = BY_FAMILY["lane_closed"]
    urls = [event[name] for name in ("pr_url", "evidence_url") if name in event]
    # The audit forgives unescaped characters and refuses an empty host.
    if all(is_http_url(url) is is_web_uri(url) for url in urls):
        assert is_terminal_event(event) is types_allow(contract, event)
