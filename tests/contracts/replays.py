"""Replays: what a replay document asks, answered by our own rules in the words of what it expects."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from agentcoord.errors import StoreError
from agentcoord.protocol import archive, attention, closeout
from agentcoord.protocol.contracts import (
    admission,
    batch_blockers,
    batch_completions,
    capacity,
    host_limits,
    merge_authority,
    routes,
    usage,
)
from agentcoord.protocol.contracts.vocabulary import conform
from agentcoord.protocol.instants import parse

Json = dict[str, Any]

WORKSPACE, PROFILE, INBOX = "default", "codex-primary", "ready-issues"
SEEN = "2026-07-14T00:00:00Z"


def now(text: str) -> datetime:
    instant = parse(text)
    assert instant is not None
    return instant


def plain(value: object) -> Any:
    """Give a struct as JSON has it."""
    return json.loads(msgspec.json.encode(value))


# Capacity: each kind of document is known by what is in it ----------------------------------------------


def _world(slots: int, *, running: list[str], reservations: list[Json], like: Json | None = None) -> Json:
    like = like or {"workspace": WORKSPACE, "capacity_profile_id": PROFILE, "inbox_id": INBOX}
    base = {"schema_version": 1, "workspace": like["workspace"], "capacity_profile_id": like["capacity_profile_id"]}
    inbox = base | {"inbox_id": like["inbox_id"]}
    return {
        "capacity_profile": base | {"status": "enabled", "max_concurrency": slots, "updated_at": SEEN},
        "inboxes": [inbox | {"status": "enabled", "updated_at": SEEN}],
        "lane_occupancies": [inbox | {"lane_ref": ref, "state": "occupied", "updated_at": SEEN} for ref in running],
        "active_reservations": reservations,
    }


def _request(reservation_id: str, lane_refs: list[str], world: Json) -> Json:
    inbox = world["inboxes"][0]
    return {
        "reservation_id": reservation_id,
        "capacity_profile_id": inbox["capacity_profile_id"],
        "inbox_id": inbox["inbox_id"],
        "batch_id": capacity.batch_of(lane_refs[0]),
        "owner_machine": "m",
        "owner_id": "o",
        "instance_id": "i",
        "lane_refs": lane_refs,
    }


def _used(world: Json, at: datetime) -> list[str]:
    snapshot = admission.read_snapshot(world, at)
    return sorted(capacity.used_refs(snapshot.lane_occupancies, snapshot.active_reservations, at))


def _left(world: Json, at: datetime) -> int:
    return admission.remaining_slots(admission.read_snapshot(world, at).capacity_profile, _used(world, at))


def _ask(world: Json, request: Json, at: datetime) -> tuple[str, Json]:
    decision = admission.decide_reservation(request, world, at)
    if isinstance(decision, admission.Accepted):
        world = world | {"active_reservations": [*world["active_reservations"], plain(decision.reservation)]}
    return admission.OUTCOMES[type(decision)], world


def requests(document: Json) -> Json:
    at = now(document["as_of"])
    names = ("capacity_profile", "inboxes", "lane_occupancies", "active_reservations")
    world = {name: document[name] for name in names if name in document}
    outcomes: Json = {}
    for request in document["requests"]:
        asked = {name: value for name, value in request.items() if name != "attempt"}
        outcomes[request["attempt"]], world = _ask(world, asked, at)
    return {
        "outcomes": outcomes,
        "effective_used_lane_refs": _used(world, at),
        "remaining_slots": _left(world, at),
    }


def scenarios(document: Json) -> Json:
    at, told = now(SEEN), dict[str, Any]()
    for scenario in document["scenarios"]:
        world = _world(document["max_concurrency"], running=document["occupied_lane_refs"], reservations=[])
        outcome, world = _ask(world, _request("r", scenario["requested_lane_refs"], world), at)
        told[scenario["name"]] = {"outcome": outcome, "used_lane_refs_after": _used(world, at)}
    return told


def boundaries(document: Json) -> Json:
    reservation = document["reservation"]
    world = _world(document["max_concurrency"], running=[], reservations=[reservation], like=reservation)
    instants = {name: now(text) for name, text in document["as_of"].items()}
    return {
        name: {"used_lane_refs": _used(world, at), "remaining_slots": _left(world, at)} for name, at in instants.items()
    }


def orderings(document: Json) -> Json:
    at, existing = now(document["release_at"]), document["existing_reservation"]
    told: Json = {}
    for ordering in document["orderings"]:
        world = _world(document["max_concurrency"], running=[], reservations=[existing], like=existing)
        outcomes: list[str] = []
        for operation in ordering["operations"]:
            if operation == "reserve":
                outcome, world = _ask(world, _request("r-new", [document["requested_lane_ref"]], world), at)
            else:
                held, *others = world["active_reservations"]
                reservation = capacity.require_reservation(held)
                given_back = admission.release(reservation, owner=reservation.owner, now=at)
                world = world | {"active_reservations": [plain(given_back), *others]}
                outcome = "released"
            outcomes.append(outcome)
        state = world["active_reservations"][0]["lane_holds"][0]["state"]
        told[ordering["name"]] = {"outcomes": outcomes, "existing_lane_state": state}
    return told


def lifecycle(document: Json) -> Json:
    """Launch, give back and let expire; whatever may not be done is tried as well."""
    reservation = capacity.require_reservation(document["reservation"])
    running = [capacity.require_occupancy(lane) for lane in document["lane_occupancies"]]
    ref = next(hold.lane_ref for hold in reversed(reservation.lane_holds) if hold.state == "active")
    stranger = tuple(document["wrong_owner"][name] for name in ("owner_machine", "owner_id", "instance_id"))
    launch_at, back_at = now(document["consume_at"]), now(document["release_at"])
    at_expiry, before = now(document["at_expiry"]), now(document["before_expiry"])
    mine = reservation.owner

    def launch(at: datetime, of: capacity.CapacityReservation = reservation, by: Any = mine) -> Any:
        return admission.consume(of, ref, owner=by, occupancies=running, now=at)

    launched, given_back = launch(launch_at), admission.release(reservation, owner=mine, now=back_at)
    expired = admission.release(reservation, owner=mine, now=at_expiry)
    assert launch(launch_at, of=launched) is launched
    assert plain(launch(before))["lane_holds"][-1]["state"] == "consumed"
    for ended in (given_back, expired):
        assert admission.release(ended, owner=mine, now=at_expiry) is ended
        refuses(launch, launch_at, ended)
    refuses(launch, at_expiry)
    refuses(launch, launch_at, reservation, stranger)
    refuses(lambda: admission.release(reservation, owner=stranger, now=back_at))  # pyright: ignore[reportArgumentType]
    refuses(lambda: admission.consume(reservation, ref, owner=mine, occupancies=[], now=launch_at))
    return {
        "expected_after_consume": plain(launched),
        "expected_after_release": plain(given_back),
        "expected_after_expiry": plain(expired),
    }


def refuses(call: Callable[..., object], *args: object) -> None:
    try:
        call(*args)
    except StoreError:
        return
    raise AssertionError("it was allowed")


def capacity_replay(document: Json) -> Json:
    kinds: Mapping[str, Callable[[Json], Json]] = {
        "requests": requests,
        "scenarios": scenarios,
        "as_of": boundaries,
        "orderings": orderings,
        "wrong_owner": lifecycle,
    }
    return next(answer for known, answer in kinds.items() if known in document)(document)


# The others ----------------------------------------------------------------------------------------------


def host_limit_replay(document: Json) -> Json:
    at = now(document["as_of"])
    limits = host_limits.read_projection(document["status"])
    host_limits.require_limits(limits)
    lanes = [conform(lane, host_limits.Lane, "lane") for lane in document["lanes"]]
    return {
        "effective_record_count": sum(host_limits.is_effective(limit, at) for limit in limits),
        "lane_statuses": dict(host_limits.lane_statuses(lanes, limits, at)),
    }


def usage_replay(document: Json) -> Json:
    return plain(usage.aggregate(usage.read_projection(document["status"])))


def route_replay(document: Json) -> Json:
    return {"chips": {lane["lane"]: routes.chip(routes.require_routed(lane)) for lane in document["lanes"]}}


def merge_authority_replay(document: Json) -> Json:
    manifests = {batch["batch_id"]: merge_authority.require_manifest(batch) for batch in document["batches"]}
    return {"drawer": {name: merge_authority.render_authority(each) for name, each in manifests.items()}}


def completion_replay(document: Json) -> Json:
    return plain(batch_completions.drawer(batch_completions.require_completion(document["record"])))


def blocker_replay(document: Json) -> Json:
    panels = [batch_blockers.panel(batch_blockers.require_blocker(each["record"])) for each in document["records"]]
    return {"panels": panels}


def attention_replay(document: Json) -> Json:
    stored: Json | None = None
    told: list[str] = []
    for step in document["steps"]:
        try:
            if "upsert" in step:
                stored = attention.decide_upsert(attention.require_attention(step["upsert"], opening=True), stored)
                told.append("stored")
            else:
                assert stored is not None
                settled = attention.decide_resolve(stored, step["resolve"], now(step["at"]))
                told.append("unchanged" if settled is None else "stored")
                stored = settled or stored
        except StoreError:
            told.append("refused")
    return {"steps": told, "record": stored}


def closing_replay(document: Json) -> Json:
    stored: dict[str, closeout.Closing] = {}
    told: list[str] = []
    for event in document["events"]:
        assert event["event_id"] == closeout.closing_event_id(event["lane"])
        closing = closeout.closing_of(event)
        first = stored.get(event["event_id"])
        if first is None:
            stored[event["event_id"]] = closing
        told.append(
            "stored" if first is None else "same" if first.agrees(closing, machine_counts=False) else "conflict"
        )
    return {"events": told}


def archive_replay(document: Json) -> Json:
    if "found" in document:
        wanted = document["envelope"]
        return {each["name"]: archive.keeps(each["envelope"], wanted) for each in document["found"]}
    sources: list[archive.Source] = [(each["path"], each["data"]) for each in document["sources"]]
    place = {"lane": document["lane"], "repo": document["repo"], "target": document["target"]}
    (path, data), *others = sources
    told: Json = {"path": archive.compaction_path(document["batch_id"], **place, sources=sources)}
    for retry in document["retries"]:
        change = retry["sources_change"]
        again = dict(reversed(data.items())) if change is None else data | change
        other = archive.compaction_path(document["batch_id"], **place, sources=[(path, again), *others])
        told[retry["name"]] = other == told["path"]
    return told


def expectation(folder: str, document: Json) -> Any:
    """Read what a replay document expects, in the form in which `answer` answers."""
    if folder.endswith("batch-blocker"):
        return {"panels": [each["expected_panel"] for each in document["records"]]}
    if folder.endswith("attention"):
        return {"steps": [step["expected"] for step in document["steps"]], **document["expected"]}
    if "found" in document:
        return {each["name"]: each["keeps"] for each in document["found"]}
    if "retries" in document:
        return document["expected"] | {retry["name"]: retry["same_place"] for retry in document["retries"]}
    if "events" in document:
        return {"events": document["expected"]}
    if "wrong_owner" in document:
        return {name: value for name, value in document.items() if name.startswith("expected_")}
    return document["expected"]


ANSWERS: Mapping[str, Callable[[Json], Json]] = {
    "schema/state/v1/attention": attention_replay,
    "schema/state/v1": host_limit_replay,
    "schema/state/v1/capacity-reservation": capacity_replay,
    "schema/state/v1/usage": usage_replay,
    "schema/state/v1/route": route_replay,
    "schema/state/v1/merge-authority": merge_authority_replay,
    "schema/state/v1/batch-completion": completion_replay,
    "schema/state/v1/batch-blocker": blocker_replay,
    "contracts/fixtures/v1": archive_replay,
    "contracts/fixtures/v2": closing_replay,
}
