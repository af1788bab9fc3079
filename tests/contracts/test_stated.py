"""Each constraint that the contracts state in words, field by field: what it lets through and what it does not.

`test_agreement` has validators and types agree with each other; here all of them are held against the text.
"""

import copy
from typing import Any, NamedTuple

import pytest

from agentcoord.protocol.contracts.catalogue import BY_FAMILY
from tests.contracts.published import ROOT, fixtures, schema_allows, second_schema_allows, types_allow

Json = Any
Values = list[Json]


class Stated(NamedTuple):
    """Values that a field may have, and values that it may not; `...` is the field left out."""

    allowed: Values
    refused: Values

    def optional(self) -> "Stated":
        return Stated([*self.allowed, ...], [value for value in self.refused if value is not ...])

    def nullable(self) -> "Stated":
        return Stated([*self.allowed, None], [value for value in self.refused if value is not None])


def text(longest: int | None = None) -> Stated:
    allowed: Values = ["x", " ", "—"]
    refused: Values = ["", None, 5, True, [], {}, ...]
    if longest is None:
        return Stated([*allowed, "é" * 5000], refused)
    return Stated([*allowed, "é" * longest, "\U0001f600" * longest], [*refused, "x" * (longest + 1)])


def word(*words: str) -> Stated:
    return Stated([*words], [words[0].upper(), f"{words[0]} ", "", "other", None, 5, [words[0]], ...])


def version(number: int) -> Stated:
    return Stated([number, float(number)], [number - 1, number + 1, number + 0.5, str(number), True, None, ...])


def whole(least: int, most: int) -> Stated:
    outside: Values = [least - 1, most + 1, least + 0.5, str(least), True, None, [], ...]
    return Stated([least, most, float(least), float(most)], outside)


FORBIDDEN = Stated([...], [1, None])
ANYTHING = Stated([1, None, {}, "", ...], [])
ID = Stated(
    ["a", "0", "a.b", "a..b", "a-b_c.9", "x" * 128],
    ["", "A", "-a", "a-", ".a", "a.", "_a", "a b", "a/b", "a:b", "é", "a\n", "x" * 129, None, 5, ...],
)
INSTANT = Stated(
    [
        *["2026-01-01T00:00:00Z", "2026-01-01t00:00:00.123456789123z", "2026-12-31T23:59:60Z"],
        *["2024-02-29T23:59:59-00:00", "2026-01-01T00:00:00+23:59"],
    ],
    [
        *["2026-01-01", "2026-01-01T00:00:00", "2026-01-01 00:00:00Z", "20260101T000000Z", "2026-02-29T00:00:00Z"],
        *["2026-13-01T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:60:00Z", "2026-01-01T00:00:61Z"],
        *["2026-01-01T00:00:00+24:00", "2026-01-01T00:00:00+05:60", "2026-01-01T00:00:00+0530"],
        *["2026-01-01T00:00:00.Z", "2026-01-01T00:00:00Z\n", "", None, 5, ...],
    ],
)
ATTENDED = Stated(
    [*INSTANT.allowed[:2], *INSTANT.allowed[3:], f"2026-01-01T00:00:00.{'0' * 43}Z"],
    [*INSTANT.refused, "2026-12-31T23:59:60Z", f"2026-01-01T00:00:00.{'0' * 44}Z"],
)
WEB = Stated(
    ["http://x", "HTTPS://x?q=1", "https://x#f", "http://x:80/a%20b", "http://[::1]/", "http://u@h/"],
    [
        "",
        "x",
        "//x",
        "ftp://x",
        "mailto:a@b",
        "http://",
        "http:///x",
        "https://?q",
        "http://x y",
        "http://x/\n",
        None,
        5,
    ],
)
REPO = Stated(["a/b", "é/x y"], ["", "a", "a/", "/b", "a/b/c", None, 5, ...])
TOKENS = Stated([0, 5, 3.0, 10**18, None, "—"], [-1, 1.5, "5", "-", "", "unknown", True, [], ...])
COST = Stated([0, 1.5, 2, None, "—"], [-1, -0.01, "5", "-", "", True, [], ...])
LANE_REF = Stated(
    ["a:b", "a:b:c", "::a", "A.b_c-d:x.y-z_", "x" * 254 + ":a"],
    ["", "a", ":a", "a:", "a/b:c", "a:b/c", "a b:c", "a:é", "a:b\n", "x" * 255 + ":a", None, 5, ...],
)
BATCH_ID = Stated(["x", "A", "a:b.c_d-e", "x" * 254], ["", "a/b", "a b", "é", "a\n", "x" * 255, None, 5, ...])
SEGMENT = Stated(
    ["a", "a.b", "A_:-9", "x" * 160], ["", ".a", "a.", "a..b", "a/b", "a b", "é", "a\n", "x" * 161, None, 5, ...]
)
OWNED = Stated(
    ["o/r", ".github/.github", "o/-", "o/r.json", "o/" + "x" * 158],
    [
        "",
        "o",
        "o/",
        "/r",
        "o/r/s",
        "o/..",
        "./r",
        "o/.",
        "o/a..b",
        "o:x/r",
        "o/é",
        "o/r\n",
        "o/" + "x" * 159,
        None,
        5,
        ...,
    ],
)
PAIR = Stated(
    [{"k": "a", "v": value} for value in ("", "b", 5, 1.5, None, True)] + [{"k": "a", "v": 1, "href": "http://x"}],
    [
        *[{"k": "a", "v": []}, {"k": "a", "v": {}}, {"k": "", "v": 1}, {"k": 5, "v": 1}, {"k": "a"}, {"v": 1}],
        *[
            {"k": "a", "v": 1, "z": 1},
            {"k": "a", "v": 1, "href": None},
            {"k": "a", "v": 1, "href": "ftp://x"},
            "x",
            ...,
        ],
    ],
)
SOURCE = Stated(
    ["claims/o/r/7.json", "claims/o/r/issue:7.json", "heartbeats/a.json", "batches/b:c.json", "events/b/e.json"],
    [
        *["", "x", "heartbeats/a", "heartbeats/a/b.json", "events/e.json", "claims/o/r.json", "/heartbeats/a.json"],
        *["claims/../r/7.json", "heartbeats/a..b.json", "attention/w/o/r/i.json", "archive/heartbeats/a.json"],
        *["heartbeats/a.json\n", None, 5, ...],
    ],
)
WHEN = "2026-01-01T00:00:00Z"
HOLD: Json = {"lane_ref": "b7:x", "state": "active"}
MANY: Json = [{"lane_ref": f"b7:{number}", "state": "active"} for number in range(1001)]
ENDS = [HOLD | {"state": state, f"{state}_at": WHEN} for state in ("consumed", "released", "expired")]
HOLDS = Stated(
    [[HOLD], MANY[:1000], [HOLD, ENDS[0]], *([end] for end in ENDS)],
    [
        *[[], MANY, [HOLD, HOLD], None, {}, ..., [HOLD | {"z": 1}], [HOLD | {"state": "over"}], [{"state": "active"}]],
        *([end | {"released_at": WHEN, "consumed_at": WHEN}] for end in ENDS),
        *([HOLD | {"state": end["state"]}] for end in ENDS),
        *([end | {f"{end['state']}_at": None}] for end in ENDS),
        *([end | {"state": "active"}] for end in ENDS),
    ],
)
ROUTE = Stated(
    ["a/b", "é/x", {"model": "a/b", "effort": "x"}, ...],
    [
        *["", "a", "/b", "a/", "a/b/c", "a b/c", "a/b\n", "a/\tb", None, 5, [], {}, {"model": "a"}, {"effort": "a"}],
        *[{"model": "a", "effort": ""}, {"model": "a b", "effort": "x"}, {"model": "a", "effort": "b", "z": 1}],
    ],
)
OUTCOMES = Stated(
    [[], [{"lane": "a"}], [{"lane": "a", "refs": "x", "links": [], "route": "a/b", "pr": 1, "sha": "x", "issue": "2"}]],
    [
        *[None, {}, ..., [None], [{}], [{"lane": ""}], [{"lane": "a", "z": 1}], [{"lane": "a", "links": None}]],
        *[[{"lane": "a", "links": [{"label": "a"}]}], [{"lane": "a", "links": [{"href": "http://x"}]}]],
        [{"lane": "a", "links": [{"label": "a", "href": "x"}]}],
    ],
)
GENERATION = Stated([0, 5, 3.0, 2**53 - 1, float(2**53 - 1)], [-1, 1.5, 2**53, 2**64, "1", True, None, ...])
URI = Stated(
    ["codex://task/7", "urn:a:b", "mailto:a@b", "x:" + "a" * 1998],
    ["", "x", "//x", "/a", "1x:y", "http://x y", "x:" + "a" * 1999, None, 5],
)
CHOICES = Stated(
    [["a"], ["a"] * 10, ["é" * 2000]],
    [[], ["a"] * 11, [""], [5], ["x" * 2001], None, "a", {}, ...],
)
CAPABLE = word("available", "unavailable", "unknown")
PRIORITY = word("urgent-risk", "unblocks-work", "current-head-merge", "product-architecture")
COMMON = {
    "reason": text(),
    "archived_at": INSTANT,
    "delete_after": INSTANT,
    "schema_version": version(1),
    "synthetic": Stated([True, False], ["true", 1, None, ...]),
    "z": FORBIDDEN,
}
PLACED = {"schema_version": version(1), "workspace": text(), "z": FORBIDDEN}
SLOTS = PLACED | {"capacity_profile_id": ID, "updated_at": INSTANT}
REASON = text(256)

STATED: dict[str, dict[str, Stated]] = {
    "attention-open": {
        "schema_version": version(1),
        "workspace": SEGMENT,
        "id": SEGMENT,
        "repository": OWNED,
        "target": text(2000),
        "kind": text(100),
        "question": text(4000),
        "priority_reason": text(4000),
        "safe_resume": text(4000),
        "choices": CHOICES,
        "priority_class": PRIORITY,
        "source_generation": GENERATION,
        "status": Stated(["open"], ["resolved", "other", None, ...]),
        "resolved_at": FORBIDDEN,
        "z": FORBIDDEN,
        "created_at": ATTENDED,
        "refreshed_at": ATTENDED,
        "source.provider": text(100),
        "source.host_id": text(255),
        "source.task_id": text(255),
        "source.last_seen_at": ATTENDED,
        "source.open_uri": URI.optional(),
        "source.z": FORBIDDEN,
        "source.capabilities.native_open": CAPABLE,
        "source.capabilities.prompt_forwarding": CAPABLE,
        "source.capabilities.z": FORBIDDEN,
        "source.capabilities": Stated([], [None, {}, [], ...]),
    },
    "attention-resolved": {"resolved_at": ATTENDED},
    "host-limit-reset-known": {
        **PLACED,
        "machine": text(),
        "quota_host": ID,
        "scope": ID,
        "observed_at": INSTANT,
        "resets_at": INSTANT.nullable(),
        "source": word("manual", "host-message", "hook", "probe"),
        "cleared_at": FORBIDDEN,
        "status": Stated(["active"], ["cleared", "other", None, ...]),
    },
    "host-limit-cleared": {"cleared_at": INSTANT, "status": Stated(["cleared"], ["active", None, ...])},
    "capacity-profile-disabled": SLOTS
    | {"status": word("enabled", "disabled"), "max_concurrency": whole(1, 1000), "inbox_id": FORBIDDEN},
    "inbox-enabled": SLOTS | {"inbox_id": ID, "status": word("enabled", "disabled"), "max_concurrency": FORBIDDEN},
    "lane-occupancy-blocked": SLOTS
    | {"inbox_id": ID, "lane_ref": LANE_REF, "blocked_reason": REASON, "terminal_at": Stated([...], [WHEN, None])}
    | {"state": Stated(["blocked"], ["occupied", "terminal", "cancelled", "other", None, ...])},
    "lane-occupancy-occupied": {"blocked_reason": Stated([...], ["x"]), "terminal_at": Stated([...], [WHEN])},
    "lane-occupancy-cancelled": {
        "terminal_at": INSTANT,
        "blocked_reason": Stated([...], ["x"]),
        "state": Stated(["terminal", "cancelled"], ["occupied", "blocked"]),
    },
    "capacity-reservation-two-lanes": PLACED
    | {"reservation_id": ID, "capacity_profile_id": ID, "inbox_id": ID, "batch_id": BATCH_ID, "lane_holds": HOLDS}
    | {"owner_machine": REASON, "owner_id": REASON, "instance_id": REASON, "ttl_seconds": whole(60, 3600)}
    | {"created_at": INSTANT, "expires_at": INSTANT, "planning_attempt_id": Stated([...], ["x", None])},
    "capacity-reservation-planning": {"planning_attempt_id": REASON, "batch_id": Stated([...], ["x", None])},
    "usage-all-known": PLACED
    | {"repo": REPO, "batch_id": text(), "lane_name": text(), "agent_id": text(), "target": text(), "model": text()}
    | {"input_tokens": TOKENS, "output_tokens": TOKENS, "cost": COST, "reported_at": INSTANT}
    | {"currency": Stated(["USD", ...], ["usd", "EUR", "", None])},
    "route-left-out": {"route": ROUTE, "z": ANYTHING},
    "merge-authority-silent": {
        "merge_authority": Stated(
            ["none", "ask", "auto", ...], ["", "None", "auto_merge_when_gates_pass", "—", None, 5]
        ),
        "z": ANYTHING,
    },
    "completion-everything": PLACED
    | {"batch_id": text(), "finalReport": text(), "audit.verdict": word("clean", "findings", "pending")}
    | {"audit.author": text(), "audit.z": FORBIDDEN, "completion.z": FORBIDDEN, "completion.state.z": FORBIDDEN}
    | {"completion.state.live": Stated(PAIR.allowed, [*PAIR.refused, None, "—"]), "completion.outcomes": OUTCOMES}
    | {"completion.state.replay": Stated([*PAIR.allowed, None, "—"], PAIR.refused)}
    | {
        "completion.receipts": Stated(
            [[each] for each in PAIR.allowed], [[], None, {}, ..., *([e] for e in PAIR.refused[:-1])]
        )
    }
    | {
        "completion.baseline.path": text(),
        "completion.baseline.k": text().optional(),
        "completion.baseline.z": FORBIDDEN,
    }
    | {"completion.baseline.v": Stated(["", 5, 1.5, None, True, ...], [[], {}])}
    | {"completion.baseline.href": WEB.optional(), "completion.receipts.0.href": WEB.optional()}
    | {"completion.usage": Stated(["", "—", {}, {"a": 1}, None], [5, [], True, ...])}
    | {"completion.tokensTotal": TOKENS, "completion.cost": COST}
    | {"completion.duration": Stated(["", "1h", "—", 0, 1.5, None], [-1, [], {}, True, ...])},
    "blocker-with-reply": PLACED
    | {
        "batch_id": text(),
        "blocker.message": text(),
        "blocker.recommendedReply": text().optional(),
        "blocker.z": FORBIDDEN,
    }
    | {"blocker.decisions": Stated([["a"], ["a", "a"]], [[], [""], [None], [5], "a", None, {}, ...])},
    "lane_closed_more": {
        "schema_version": version(2),
        "type": Stated(["lane_closed"], ["LANE_CLOSED", "other", None, ...]),
        "event_id": text(),
        "repo": REPO,
        "target": text(),
        "workspace": text(),
        "at": INSTANT,
        "terminal": word("done", "abandoned", "superseded"),
        "closed_by.agent_id": text(),
        "closed_by.machine": text(),
        "closed_by.z": FORBIDDEN,
        "closed_by": Stated([], [None, {}, "x", ...]),
        **{name: text().optional() for name in ("batch_id", "lane", "branch", "pr_state")},
        "pr_url": WEB.optional(),
        "evidence_url": WEB.optional(),
        "agent_id": ANYTHING,
        "z": ANYTHING,
    },
    "archive_record": COMMON
    | {"source_path": SOURCE, "data": Stated([{}, {"a": 1}], [[], None, "x", 5, ...]), "records": FORBIDDEN},
    "compacted_events": COMMON
    | {"records": Stated([[{}], [{}, {}]], [[], [1], [None], None, {}, ...]), "data": Stated([...], [{}])}
    | {"source_paths": Stated([[path] for path in SOURCE.allowed], [[], ["heartbeats/a.json"] * 2, None, "x", ...])},
}


def changed(document: Json, path: str, value: Json) -> Json:
    """Copy a document and put a value at a place of it, or take away what is there."""
    other = copy.deepcopy(document)
    holder: Json = other
    *above, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in above:
        holder = holder[part]
    if value is ...:
        holder.pop(last, None)
    else:
        holder[last] = copy.deepcopy(value)
    return other


CASES = [
    pytest.param(name, path, stated, id=f"{name}-{path}")
    for name, fields in STATED.items()
    for path, stated in fields.items()
]


FIXTURES = {fixture.path.stem: fixture for fixture in fixtures(ROOT, "valid")}


@pytest.mark.parametrize(("name", "path", "stated"), CASES)
def test_a_field_is_bound_as_the_contract_says(name: str, path: str, stated: Stated) -> None:
    contract, document = FIXTURES[name].contract, FIXTURES[name].read()
    for wanted, values in ((True, stated.allowed), (False, stated.refused)):
        for value in values:
            other = changed(document, path, value)
            verdicts = [allows(contract, other) for allows in (schema_allows, second_schema_allows, types_allow)]
            assert verdicts == [wanted] * 3, value


def test_every_contract_is_held_against_its_text() -> None:
    families = {FIXTURES[name].contract.family for name in STATED}
    assert families == {family for family in BY_FAMILY if not family.endswith("_projection")}
