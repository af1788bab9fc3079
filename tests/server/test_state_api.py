"""The state API as its callers see it, over both databases (spec: http §1 to §6, §10)."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.calling import Caller, Reply, calling, rest, revoke, sql, wire
from tests.server.conftest import Calls
from tests.server.running import Running

ACTIVE, ARCHIVE, ENVELOPE = 262_144, 1_048_576, 4096


def test_the_smoke_of_the_contract(caller: Caller, mine: str) -> None:
    claim, absent = f"claims/{mine}/r/7.json", f"claims/{mine}/r/8.json"
    assert caller.put(claim, {"a": 1}, if_none_match="*").json() == {"path": claim, "version": 1, "updated_by": mine}
    assert caller.put(claim, {"a": 2}, if_none_match="*").refusal == (409, "already_exists")
    assert caller.get(claim).json() == {"path": claim, "data": {"a": 1}, "version": 1, "updated_by": mine}
    lower = caller.ask("GET", "/v1/whoami", headers={"Authorization": f"bearer {caller.token}"})
    assert lower.json() == {"machine": mine, "read_prefixes": [""], "write_prefixes": [""]}
    stale = caller.ask("GET", "/v1/whoami", headers={"Authorization": "Bearer 0123"})
    assert stale.refusal == (401, "unknown_token")
    assert caller.put(claim, 1, if_none_match="1").refusal == (400, "invalid_if_none_match")
    updated = caller.put(claim, {"a": 3}, if_match="1")
    assert (updated.status, updated.json()) == (200, {"path": claim, "version": 2, "updated_by": mine})
    assert caller.put(claim, 1, if_match="1").refusal == (409, "version_conflict")
    assert caller.put(absent, 1, if_match="1").refusal == (409, "version_conflict")
    assert caller.put(claim, 1).refusal == (400, "precondition_required")
    assert caller.ask("PUT", f"/v1/state/{claim}", "null", {"If-Match": "2"}).refusal == (400, "missing_data")
    assert caller.put(claim, 1, if_match="2x").refusal == (400, "invalid_if_match")
    assert caller.put(claim, 1, if_match="9" * 30).refusal == (400, "invalid_if_match")
    assert [entry["path"] for entry in caller.list(f"claims/{mine}").json()["entries"]] == [claim]
    assert caller.list("events/a/b").refusal == (400, "invalid_prefix")
    assert caller.list(f"claims/{mine}", limit=0).refusal == (400, "invalid_limit")
    assert caller.list(f"claims/{mine}", cursor="events/a/b.json").refusal == (400, "invalid_cursor")
    assert caller.get("etc/passwd").refusal == (400, "invalid_path")
    assert caller.get("claims/o/r/%zz.json").refusal == (400, "invalid_path")
    assert caller.get(f"events/b/{'x' * 588}.json").refusal == (400, "invalid_path")
    assert caller.ask("POST", f"/v1/state?prefix=claims/{mine}").refusal == (405, "method_not_allowed")
    assert caller.put(claim, "x" * (ACTIVE - 1), if_match="2").refusal == (413, "payload_too_large")
    for name in ("a", "b"):
        caller.create(f"events/{mine}/{name}.json")
    first = caller.list(f"events/{mine}", limit=1).json()
    assert first["next_cursor"] == f"events/{mine}/a.json"
    second = caller.list(f"events/{mine}", limit=1, cursor=first["next_cursor"]).json()
    assert [entry["path"] for entry in second["entries"]] == [f"events/{mine}/b.json"]
    assert "next_cursor" not in second


# --- which of two faults wins -------------------------------------------------------------------------------------

NONE, STALE, BLIND, FULL = "no token", "stale token", "token without scopes", "token for everything"
HUGE = {"Content-Length": str(ACTIVE + ENVELOPE + 1)}


@pytest.mark.parametrize(
    ("who", "method", "target", "headers", "expected"),
    [
        (NONE, "GET", "/v1/state/etc/passwd", {}, (401, "unauthorized")),
        (NONE, "GET", "/v1/nothing", {}, (401, "unauthorized")),
        (NONE, "POST", "/v1/whoami", {}, (401, "unauthorized")),
        (NONE, "GET", "/v1/state/claims/o/r/%0A.json", {}, (401, "unauthorized")),
        (STALE, "GET", "/v1/nothing", {}, (401, "unknown_token")),
        (STALE, "PUT", "/v1/state/etc/passwd", {}, (401, "unknown_token")),
        (BLIND, "POST", "/v1/state/etc/passwd", {}, (400, "invalid_path")),
        (BLIND, "GET", "/v1/state/etc/passwd", {}, (400, "invalid_path")),
        (BLIND, "POST", "/v1/state/claims/o/r/7.json", {}, (405, "method_not_allowed")),
        (BLIND, "PUT", "/v1/state/claims/o/r/7.json", {}, (403, "forbidden")),
        (BLIND, "PUT", "/v1/state/claims/o/r/7.json", HUGE, (403, "forbidden")),
        (BLIND, "DELETE", "/v1/state/claims/o/r/7.json", {}, (403, "forbidden")),
        (BLIND, "POST", "/v1/state?prefix=etc", {}, (400, "invalid_prefix")),
        (BLIND, "POST", "/v1/state?prefix=claims", {}, (405, "method_not_allowed")),
        (BLIND, "GET", "/v1/state?prefix=claims&limit=0", {}, (403, "forbidden")),
        (FULL, "GET", "/v1/state?prefix=claims&limit=0&cursor=x", {}, (400, "invalid_limit")),
        (FULL, "PUT", "/v1/state/claims/o/r/7.json", {**HUGE, "If-None-Match": "1"}, (413, "payload_too_large")),
        (FULL, "PUT", "/v1/state/claims/o/r/7.json", {"If-None-Match": "1"}, (400, "invalid_json")),
        (FULL, "PUT", "/v1/state/claims/o/r/7.json", {}, (400, "invalid_json")),
        (FULL, "POST", "/v1/nothing", {}, (404, "route_not_found")),
        (FULL, "GET", "/v1/nothing/claims/o/r/7.json", {}, (404, "route_not_found")),
        (FULL, "GET", "/", {}, (404, "route_not_found")),
        (FULL, "GET", "/v1//health", {}, (404, "route_not_found")),
        (FULL, "GET", "/v1/health/", {}, (404, "route_not_found")),
        (FULL, "GET", "/v1/state%0Ax", {}, (404, "route_not_found")),
    ],
)
def test_of_two_faults_the_earlier_check_speaks(
    server: Running,
    scoped: Calls,
    who: str,
    method: str,
    target: str,
    headers: dict[str, str],
    expected: tuple[int, str],
) -> None:
    match who:
        case "no token":
            token = None
        case "stale token":
            token = "0" * 48
        case "token without scopes":
            token = scoped(reads=[], writes=[]).token
        case _:
            token = scoped(reads=[""], writes=[""]).token
    with calling(server, token) as caller:
        assert caller.ask(method, target, headers=headers).refusal == expected


@pytest.mark.parametrize(
    ("body", "conditions", "expected"),
    [
        ("x" * (ACTIVE + ENVELOPE + 1), {"If-Match": "x"}, (413, "payload_too_large")),
        ("[1", {"If-None-Match": "1"}, (400, "invalid_json")),
        ("[1]", {"If-None-Match": "1"}, (400, "missing_data")),
        ('{"Data":1}', {}, (400, "missing_data")),
        ('{"data":"' + "x" * (ACTIVE - 1) + '"}', {"If-None-Match": "1"}, (413, "payload_too_large")),
        ('{"data":1}', {"If-None-Match": "1", "If-Match": "x"}, (400, "invalid_if_none_match")),
        ('{"data":1}', {"If-None-Match": "", "If-Match": "1"}, (400, "invalid_if_none_match")),
        ('{"data":1}', {"If-Match": ""}, (400, "invalid_if_match")),
        ('{"data":1}', {"If-Match": '"1"'}, (400, "invalid_if_match")),
        ('{"data":1}', {"If-Match": "-1"}, (400, "invalid_if_match")),
        ('{"data":1}', {"If-Match": "1.0"}, (400, "invalid_if_match")),
        ('{"data":1}', {"If-Match": "*"}, (400, "invalid_if_match")),
        ('{"data":1}', {"If-Match": str(2**53)}, (400, "invalid_if_match")),
        ('{"data":1}', {"If-Match": str(2**53 - 1)}, (409, "version_conflict")),
        ('{"data":1}', {"If-Match": "0"}, (409, "version_conflict")),
        ('{"data":1}', {}, (400, "precondition_required")),
    ],
)
def test_a_write_is_judged_body_first_then_condition(
    caller: Caller, mine: str, body: str, conditions: dict[str, str], expected: tuple[int, str]
) -> None:
    path = f"claims/{mine}/r/7.json"
    assert caller.ask("PUT", f"/v1/state/{path}", body, conditions).refusal == expected
    assert caller.get(path).refusal == (404, "not_found")


def test_none_match_decides_before_match_is_looked_at(caller: Caller, mine: str) -> None:
    path = f"claims/{mine}/r/7.json"
    assert caller.put(path, 1, if_none_match="*", if_match="no number").status == 201
    assert caller.put(path, 2, if_none_match="*", if_match="1").refusal == (409, "already_exists")


# --- who calls ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["Bearer {}", "bearer {}", "BEARER {}", "BeArEr   {}"])
def test_the_scheme_may_be_written_in_any_case(caller: Caller, mine: str, said: str) -> None:
    reply = caller.ask("GET", "/v1/whoami", headers={"Authorization": said.format(caller.token)})
    assert reply.json()["machine"] == mine


@pytest.mark.parametrize("said", ["", "Bearer", "Bearer ", "Basic {}", "{}", "Bearer{}", "Token {}", "Bearer {} x"])
def test_any_other_scheme_is_no_authentication(caller: Caller, said: str) -> None:
    reply = caller.ask("GET", "/v1/whoami", headers={"Authorization": said.format(caller.token)})
    assert reply.refusal == (401, "unauthorized")


def test_a_token_in_another_case_or_its_own_hash_is_unknown(server: Running, caller: Caller, mine: str) -> None:
    [(stored,)] = sql(server.db, "SELECT token_hash FROM machines WHERE machine = $1", mine)
    assert caller.token is not None
    for wrong in (stored, caller.token[:-1], caller.token + "0", "\xe9"):
        reply = caller.ask("GET", "/v1/whoami", headers={"Authorization": f"Bearer {wrong}"})
        assert reply.refusal == (401, "unknown_token")


def test_a_revoked_token_is_unknown_at_once(server: Running, caller: Caller, mine: str) -> None:
    assert caller.ask("GET", "/v1/whoami").status == 200
    revoke(server.db, mine)
    if server.db.startswith("postgresql"):  # there, servers are told, in their time
        while caller.ask("GET", "/v1/whoami").status == 200:
            pass
    assert caller.ask("GET", "/v1/whoami").refusal == (401, "unknown_token")


@pytest.mark.parametrize(
    "stored",
    ["", "null", '""', "{}", "[]", "[1]", '["claims",1]', '["claims","etc"]', '["claims/"]', '["claims', "[[]]"],
)
def test_a_scope_list_that_is_not_wholly_valid_grants_nothing(
    server: Running, caller: Caller, mine: str, stored: str
) -> None:
    path = f"claims/{mine}/r/7.json"
    caller.create(path)
    sql(server.db, "UPDATE machines SET read_prefixes = $1, write_prefixes = $1 WHERE machine = $2", stored, mine)
    # What is done past the commands, the server sees in its own time.
    while (who := caller.ask("GET", "/v1/whoami").json())["read_prefixes"] == [""]:
        pass
    assert who == {"machine": mine, "read_prefixes": [], "write_prefixes": []}
    assert caller.get(path).refusal == (403, "forbidden")
    assert caller.list("claims").refusal == (403, "forbidden")
    assert caller.put(path, 2, if_match="1").refusal == (403, "forbidden")
    assert caller.delete(path, if_match="1").refusal == (403, "forbidden")
    assert caller.changes().refusal == (403, "forbidden")


def test_whoami_lists_scopes_in_the_order_given(scoped: Calls) -> None:
    who = scoped(reads=["events/b1", "claims"], writes=["batches/b.json"]).ask("GET", "/v1/whoami").json()
    assert (who["read_prefixes"], who["write_prefixes"]) == (["events/b1", "claims"], ["batches/b.json"])


def test_health_asks_nobody_who_they_are(server: Running) -> None:
    with calling(server, None) as caller:
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            reply = caller.ask(method, "/v1/health?x=1")
            assert (reply.status, reply.json()) == (200, {"status": "ok"})
        head = caller.ask("HEAD", "/v1/health")
        assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize("method", ["HEAD", "POST", "PATCH", "OPTIONS", "PROPFIND"])
@pytest.mark.parametrize("target", ["/v1/whoami", "/v1/state?prefix=claims", "/v1/state/claims/o/r/7.json"])
def test_other_methods_are_not_allowed(caller: Caller, method: str, target: str) -> None:
    reply = caller.ask(method, target)
    assert reply.status == 405
    assert reply.body == b"" if method == "HEAD" else reply.refusal == (405, "method_not_allowed")


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize("target", ["/v1/whoami", "/v1/state?prefix=claims", "/v1/changes", "/metrics"])
def test_what_can_only_be_read_is_not_written(caller: Caller, method: str, target: str) -> None:
    assert caller.ask(method, target).refusal == (405, "method_not_allowed")


# --- paths --------------------------------------------------------------------------------------------------------


def test_a_path_is_decoded_once(caller: Caller, mine: str) -> None:
    path = f"claims/{mine}/r/a:b.json"
    caller.create(path, "found")
    for spelled in (
        path.replace("/", "%2F"),
        path.replace("/", "%2f"),
        path.replace(":", "%3A"),
        "".join(f"%{byte:02X}" for byte in path.encode()),
    ):
        assert caller.get(spelled).json()["data"] == "found"
    assert caller.get(path.replace(":", "%253A")).refusal == (400, "invalid_path")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "claims",
        "claims/",
        "/claims/o/r/7.json",
        "claims//r/7.json",
        "claims/o//7.json",
        "claims/o/r/7.json/",
        "claims/o/r/7",
        "claims/o/r/.json",
        "claims/o/r/7.JSON",
        "claims/o/r/s/7.json",
        "claims/o/../7.json",
        "claims/o/%2e%2e/7.json",
        "claims/o/./7.json",
        "claims/o/r/a..b.json",
        "claims/o/r/7%00.json",
        "claims/o/r/7.json%00",
        "claims/o/r/7.json%0A",
        "%0Aclaims/o/r/7.json",
        "claims/o/r/%ff.json",
        "claims/o/r/%c3%a9.json",
        "claims/o/r/%.json",
        "claims/o/r/7.json%",
        "claims/o/r/%4.json",
        "claims/o/r/%g0.json",
        "claims/o/r/a%20b.json",
        "claims/o/r/a+b.json",
        "claims/o/r/a%5Cb.json",
        "heartbeats/a/b.json",
        "heartbeats/.a.json",
        "events/a.json",
        "events/a/b/c.json",
        "archive/attention/w/o/r/1.json",
        "archive/archive/claims/o/r/7.json",
        "archive/etc/passwd",
        f"attention/{'w' * 161}/o/r/1.json",
        f"attention/w/{'o' * 80}/{'r' * 80}/1.json",
        f"attention/w/o/r/{'i' * 161}.json",
        f"events/b/{'x' * 499}.json",
        f"archive/events/b/{'x' * 500}.json",
    ],
)
def test_what_is_no_record_path_is_refused(caller: Caller, path: str) -> None:
    assert caller.get(path).refusal == (400, "invalid_path")


@pytest.mark.parametrize(
    "path",
    [
        "claims/.github/.dot/7.json",
        "heartbeats/a.b:c_d-e.json",
        "attention/{}/o/r/1.json".format("w" * 160),
        f"attention/w/{'o' * 79}/{'r' * 80}/1.json",
        f"events/b/{'x' * 498}.json",
        f"archive/events/b/{'x' * 498}.json",
    ],
)
def test_a_path_at_the_edge_of_the_grammar_may_be_absent(caller: Caller, path: str) -> None:
    assert caller.get(path).refusal == (404, "not_found")


@pytest.mark.parametrize(
    "query",
    [
        "",
        "prefix=",
        "prefix=etc",
        "prefix=claims/",
        "prefix=/claims",
        "prefix=claims//o",
        "prefix=claims/o/../r",
        "prefix=claims/%2e%2e",
        "prefix=claims/o/r/7.json",
        "prefix=heartbeats/a.json",
        "prefix=events/a/b",
        "prefix=claims%00",
        "prefix=claims%0A",
        "prefix=%ff",
        "prefix=claims%",
        "prefix=archive/attention",
        f"prefix=attention/w/{'o' * 159}",
        f"prefix=events/{'b' * 506}",
        "Prefix=claims",
    ],
)
def test_what_is_no_directory_is_not_listed(caller: Caller, query: str) -> None:
    assert caller.ask("GET", f"/v1/state?{query}").refusal == (400, "invalid_prefix")


def test_a_repository_may_be_named_like_a_record(caller: Caller, mine: str) -> None:
    caller.create(f"claims/{mine}/x.json/7.json")
    [entry] = caller.list(f"claims/{mine}/x.json").json()["entries"]
    assert entry["path"] == f"claims/{mine}/x.json/7.json"


# --- scopes -------------------------------------------------------------------------------------------------------


def _paths(reply: Reply) -> list[str]:
    assert reply.status == 200, reply
    return [entry["path"] for entry in reply.json()["entries"]]


def test_a_directory_scope_covers_what_lies_below_it(caller: Caller, scoped: Calls, mine: str) -> None:
    inside, beside = f"events/{mine}/a.json", f"events/{mine}x/a.json"
    caller.create(inside)
    caller.create(beside)
    reader = scoped(reads=[f"events/{mine}"], writes=[])
    assert reader.get(inside).status == 200
    assert reader.get(f"events/{mine}/absent.json").refusal == (404, "not_found")
    assert reader.get(beside).refusal == (403, "forbidden")
    assert reader.get(f"events/{mine}x/absent.json").refusal == (403, "forbidden")
    assert reader.put(inside, 2, if_match="1").refusal == (403, "forbidden")


def test_a_listing_is_whole_filtered_or_forbidden(caller: Caller, scoped: Calls, mine: str) -> None:
    one, two, three = (f"claims/{mine}/{name}.json" for name in ("a/1", "a/2", "b/1"))
    for path in (one, two, three):
        caller.create(path)
    reader = scoped(reads=[f"claims/{mine}/a", f"claims/{mine}/b/1.json"], writes=[])
    whole = reader.list(f"claims/{mine}/a")
    assert (_paths(whole), "filtered" in whole.json()) == ([one, two], False)
    part = reader.list(f"claims/{mine}")
    assert (_paths(part), part.json()["filtered"]) == ([one, two, three], True)  # also when nothing was hidden
    caller.create(f"claims/{mine}/c/1.json")
    assert _paths(reader.list(f"claims/{mine}")) == [one, two, three]
    exact = reader.list(f"claims/{mine}/b")
    assert (_paths(exact), exact.json()["filtered"]) == ([three], True)
    assert reader.list(f"claims/{mine}/c").refusal == (403, "forbidden")
    assert reader.list("heartbeats").refusal == (403, "forbidden")
    assert _paths(reader.list(f"claims/{mine}", limit=2)) == [one, two]
    assert _paths(reader.list(f"claims/{mine}", cursor=two)) == [three]
    nothing = scoped(reads=[f"claims/{mine}/a/9.json"], writes=[]).list(f"claims/{mine}/a")
    assert nothing.json() == {"entries": [], "filtered": True}


def test_an_exact_scope_covers_one_record_and_nothing_below(caller: Caller, scoped: Calls, mine: str) -> None:
    path = f"claims/{mine}/x/y.json"
    caller.create(path)
    writer = scoped(reads=[path], writes=[path])
    assert writer.get(path).status == 200
    assert writer.put(path, 2, if_match="1").status == 200
    assert writer.get(f"claims/{mine}/x/z.json").refusal == (403, "forbidden")


def test_who_deletes_must_cover_the_archived_copy_as_well(caller: Caller, scoped: Calls, mine: str) -> None:
    path = f"claims/{mine}/r/7.json"
    caller.create(path)
    caller.create(f"archive/{path}")
    for writes in (["claims"], [f"archive/claims/{mine}"], [path]):
        assert scoped(reads=[], writes=writes).delete(path, if_match="1").refusal == (403, "forbidden")
    archivist = scoped(reads=[], writes=["archive"])
    deleted = archivist.delete(f"archive/{path}", if_match="1")
    assert deleted.json()["path"] == f"archive/{path}"
    both = scoped(reads=[], writes=[path, f"archive/{path}"])
    assert both.delete(path, if_match="1").json() | {"updated_by": ""} == {
        "path": path,
        "deleted": True,
        "updated_by": "",
    }


def test_attention_is_never_deleted(caller: Caller, scoped: Calls, mine: str) -> None:
    path = f"attention/{mine}/o/r/1.json"
    caller.create(path)
    assert caller.delete(path, if_match="1").refusal == (405, "method_not_allowed")
    assert caller.delete(path).refusal == (405, "method_not_allowed")
    assert scoped(reads=[""], writes=["claims"]).delete(path, if_match="1").refusal == (403, "forbidden")
    assert caller.get(path).json()["version"] == 1


# --- writing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prefix", "cap"), [("events", ACTIVE), ("archive/events", ARCHIVE)])
def test_a_record_may_be_as_large_as_its_cap(caller: Caller, mine: str, prefix: str, cap: int) -> None:
    path = f"{prefix}/{mine}/a.json"
    assert caller.put(path, "x" * (cap - 1), if_none_match="*").refusal == (413, "payload_too_large")
    assert caller.create(path, "x" * (cap - 2)).status == 201
    assert len(caller.get(path).json()["data"]) == cap - 2


def test_a_body_may_be_larger_than_its_record_by_an_envelope(caller: Caller, mine: str) -> None:
    body = '{"data":1}'
    path, create = f"/v1/state/events/{mine}/a.json", {"If-None-Match": "*"}
    assert caller.ask("PUT", path, body + " " * (ACTIVE + ENVELOPE - len(body)), create).status == 201
    over = body + " " * (ACTIVE + ENVELOPE - len(body) + 1)
    assert caller.ask("PUT", path.replace("a.json", "b.json"), over, create).refusal == (413, "payload_too_large")


def test_the_cap_counts_bytes_of_compact_text(caller: Caller, mine: str) -> None:
    text = "é" * ((ACTIVE - 2) // 2)
    caller.create(f"events/{mine}/a.json", text)
    loose = '{"data":[' + "1 , " * 1000 + "1]}"
    reply = caller.ask("PUT", f"/v1/state/events/{mine}/b.json", loose, {"If-None-Match": "*"})
    assert reply.status == 201


def _head(caller: Caller, path: str, *lines: str) -> bytes:
    fields = [f"PUT /v1/state/{path} HTTP/1.1", "Host: h", f"Authorization: Bearer {caller.token}", *lines]
    return "\r\n".join(fields).encode() + b"\r\n\r\n"


def test_an_announced_excess_is_refused_before_the_body_comes(server: Running, caller: Caller, mine: str) -> None:
    with wire(server) as connection:
        size = f"Content-Length: {ACTIVE + ENVELOPE + 1}"
        connection.sendall(_head(caller, f"events/{mine}/a.json", size, "If-None-Match: *"))
        answer = rest(connection)  # nothing was sent of the body, and the connection ends
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b'{"error":"payload_too_large"}')
    assert b"content-type: application/json\r\n" in answer


def test_a_chunked_body_is_a_body(server: Running, caller: Caller, mine: str) -> None:
    path = f"events/{mine}/a.json"
    head = _head(caller, path, "Transfer-Encoding: chunked", "If-None-Match: *", "Connection: close")
    with wire(server) as connection:
        connection.sendall(head + b'4\r\n{"da\r\n3\r\nta"\r\n4;x=y\r\n:42}\r\n0\r\n\r\n')
        assert rest(connection).startswith(b"HTTP/1.1 201 ")
    assert caller.get(path).json()["data"] == 42


def test_a_chunked_body_ends_where_the_cap_does(server: Running, caller: Caller, mine: str) -> None:
    path = f"events/{mine}/a.json"
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with wire(server) as connection:
        connection.sendall(_head(caller, path, "Transfer-Encoding: chunked", "If-None-Match: *"))
        connection.sendall(chunk * 4)
        connection.sendall(b"1001\r\n" + b" " * 4097 + b"\r\n")  # one byte more than may come; the end never comes
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert caller.get(path).refusal == (404, "not_found")


def test_of_two_writers_of_one_version_one_wins(server: Running, caller: Caller, mine: str) -> None:
    path, rounds, writers = f"claims/{mine}/r/7.json", 10, 6
    caller.create(path, "first")

    def write(number: int) -> list[int]:
        with calling(server, caller.token) as own:
            return [own.put(path, number, if_match=str(version)).status for version in range(1, rounds + 1)]

    with ThreadPoolExecutor(writers) as pool:
        outcomes = list(pool.map(write, range(writers)))
    final = caller.get(path).json()
    won = sum(status == 200 for outcome in outcomes for status in outcome)
    assert {status for outcome in outcomes for status in outcome} == {200, 409}
    assert final["version"] == won + 1


def test_of_many_who_create_one_record_one_does(server: Running, caller: Caller, mine: str) -> None:
    path = f"claims/{mine}/r/7.json"

    def create(number: int) -> tuple[int, int]:
        with calling(server, caller.token) as own:
            return own.put(path, number, if_none_match="*").status, number

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(create, range(8)))
    [winner] = [number for status, number in outcomes if status == 201]
    assert sorted(status for status, _ in outcomes) == [201] + [409] * 7
    assert caller.get(path).json()["data"] == winner


def test_versions_begin_anew_after_a_deletion(caller: Caller, mine: str) -> None:
    path = f"claims/{mine}/r/7.json"
    caller.create(path)
    assert caller.put(path, 2, if_match="1").json()["version"] == 2
    assert caller.delete(path, if_match="1").refusal == (409, "version_conflict")
    assert caller.delete(path, if_match="2").json() == {"path": path, "deleted": True, "updated_by": mine}
    assert caller.get(path).refusal == (404, "not_found")
    assert caller.delete(path, if_match="2").refusal == (409, "version_conflict")
    assert caller.create(path).json()["version"] == 1


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, (400, "precondition_required")),
        ({"if_match": "x"}, (400, "precondition_required")),
        ({"if_match": "*"}, (400, "precondition_required")),
        ({"if_none_match": "*"}, (400, "precondition_required")),
        ({"if_match": str(2**53)}, (400, "invalid_if_match")),
        ({"if_match": "9" * 40}, (400, "invalid_if_match")),
        ({"if_match": "2"}, (409, "version_conflict")),
    ],
)
def test_a_deletion_names_the_version(
    caller: Caller, mine: str, conditions: dict[str, str], expected: tuple[int, str]
) -> None:
    path = f"claims/{mine}/r/7.json"
    caller.create(path)
    assert caller.delete(path, **conditions).refusal == expected
    assert caller.get(path).status == 200


def test_a_row_from_before_attribution_names_no_writer(server: Running, caller: Caller, mine: str) -> None:
    path = f"claims/{mine}/r/7.json"
    statement = "INSERT INTO state (path, data, version, updated_at) VALUES ($1, '1', 7, '2020-01-01T00:00:00.000Z')"
    sql(server.db, statement, path)
    assert caller.get(path).json() == {"path": path, "data": 1, "version": 7}
    assert caller.list(f"claims/{mine}").json() == {"entries": [{"path": path, "data": 1, "version": 7}]}


def test_a_write_is_stored_as_the_contract_says(server: Running, caller: Caller, mine: str) -> None:
    path = f"claims/{mine}/r/7.json"
    caller.ask("PUT", f"/v1/state/{path}", '{ "data" : { "b" : 1, "a" : [ ] } }', {"If-None-Match": "*"})
    [row] = sql(server.db, "SELECT data, version, updated_by, updated_at FROM state WHERE path = $1", path)
    assert row[:3] == ('{"b":1,"a":[]}', 1, mine)
    assert len(row[3]) == len("2020-01-01T00:00:00.000Z")
    assert row[3].endswith("Z")


# --- JSON ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "false",
        '""',
        '"\\u0000"',
        '"\\u0000\\u001f\\u007f \\u2028\\ud83d\\ude00"',
        '"\\"\\\\\\/\\b\\f\\n\\r\\t"',
        '"é 漢字 😀"',
        '{"é\\u0000\\n":{"":[]}}',
        "18446744073709551616",
        "-123456789012345678901234567890",
        "9007199254740993",
        "0.1",
        "1.0",
        "-0.0",
        "1e300",
        "5e-324",
        '{"z":1,"a":2}',
        "[" * 200 + "]" * 200,
        "'--; DROP TABLE state".replace("'", "\"'") + '"',
    ],
)
def test_what_is_written_is_what_is_read(caller: Caller, mine: str, text: str) -> None:
    path = f"claims/{mine}/r/7.json"
    body = f'{{"data":{text}}}'
    assert caller.ask("PUT", f"/v1/state/{path}", body, {"If-None-Match": "*"}).status == 201
    want = repr(json.loads(text))  # which tells 1 from 1.0 and keeps the order of keys
    assert repr(caller.get(path).json()["data"]) == want
    [entry] = caller.list(f"claims/{mine}").json()["entries"]
    assert repr(entry["data"]) == want
    head = caller.changes().json()["cursor"]
    feed, _, number = head.rpartition(".")
    [change] = caller.changes(f"{feed}.{int(number) - 1}").json()["changes"]
    assert repr(change["data"]) == want


def test_of_a_key_given_twice_the_last_counts(caller: Caller, mine: str) -> None:
    path = f"claims/{mine}/r/7.json"
    body = '{"data":1,"data":{"a":1,"a":2},"more":3}'
    assert caller.ask("PUT", f"/v1/state/{path}", body, {"If-None-Match": "*"}).status == 201
    assert caller.get(path).json()["data"] == {"a": 2}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{'data':1}",
        b'{"data":01}',
        b'{"data":NaN}',
        b'{"data":1e999}',
        b'{"data":"\\ud800"}',
        b'{"data":"\\udc00\\ud800"}',
        b'{"data":{"\\ud800":1}}',
        b'{"data":"\xed\xa0\x80"}',
        b'{"data":"\xff"}',
        b'{"data":"\n"}',
        b'{"data":1}x',
        b'{"data":1,}',
        b'\xef\xbb\xbf{"data":1}',
        b'{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"data":' + b"1" * 5000 + b"}",
    ],
)
def test_what_is_not_json_is_not_stored(caller: Caller, mine: str, body: bytes) -> None:
    path = f"claims/{mine}/r/7.json"
    reply = caller.ask("PUT", f"/v1/state/{path}", body, {"If-None-Match": "*"})
    assert reply.refusal == (400, "invalid_json")
    assert caller.get(path).status == 404


# --- listings -----------------------------------------------------------------------------------------------------

NAMES = ("%", "-", "--", "0", "A", "Z", "_", "__", "a", "a-b", "a.b", "a0", "aB", "a_b", "ab")


def test_a_listing_is_in_byte_order_page_by_page(caller: Caller, mine: str) -> None:
    names = [name for name in NAMES if name != "%"]
    paths = [f"events/{mine}/{name}.json" for name in names]
    for path in reversed(paths):
        caller.create(path)
    ordered = sorted(paths, key=str.encode)
    assert _paths(caller.list(f"events/{mine}")) == ordered
    for limit in (1, 2, 5, len(names) - 1, len(names), 1000):
        found: list[str] = []
        cursor: dict[str, object] = {}
        while True:
            page = caller.list(f"events/{mine}", limit=limit, **cursor)
            assert 0 < len(_paths(page)) <= limit
            found += _paths(page)
            if "next_cursor" not in page.json():
                break
            assert page.json()["next_cursor"] == found[-1]
            cursor = {"cursor": found[-1]}
        assert found == ordered
    assert _paths(caller.list(f"events/{mine}", cursor=ordered[3])) == ordered[4:]
    assert (
        _paths(caller.list(f"events/{mine}", cursor=f"events/{mine}/0000.json"))
        == ordered[ordered.index(f"events/{mine}/0.json") + 1 :]
    )
    last = caller.list(f"events/{mine}", cursor=ordered[-1], limit=1)
    assert last.json() == {"entries": []}


def test_a_prefix_matches_literally(caller: Caller, mine: str) -> None:
    for owner in (f"{mine}_x", f"{mine}ax", f"{mine}-x", f"{mine}.x", f"{mine}_xy", f"{mine}_X"):
        caller.create(f"claims/{owner}/r/7.json")
    assert _paths(caller.list(f"claims/{mine}_x")) == [f"claims/{mine}_x/r/7.json"]
    assert caller.list("claims/%25").refusal == (400, "invalid_prefix")
    assert _paths(caller.list(f"claims/{mine}")) == []


def test_the_archive_lists_its_families(caller: Caller, mine: str) -> None:
    caller.create(f"archive/events/{mine}/a.json")
    caller.create(f"events/{mine}/a.json")
    assert _paths(caller.list(f"archive/events/{mine}")) == [f"archive/events/{mine}/a.json"]
    assert f"archive/events/{mine}/a.json" in _paths(caller.list("archive"))


@pytest.mark.parametrize("limit", ["", "0", "00", "1001", "-1", "1.0", "+1", "1e2", "x", "9" * 5000, "٣"])
def test_a_limit_is_a_number_up_to_a_thousand(caller: Caller, limit: str) -> None:
    assert caller.list("claims", limit=limit).refusal == (400, "invalid_limit")


@pytest.mark.parametrize(
    "cursor", ["", "claims", "claims/o/r/7", "events/b/a.json", "claims/o2/r/7.json", "claims/o/r"]
)
def test_a_cursor_is_a_record_below_the_prefix(caller: Caller, cursor: str) -> None:
    assert caller.list("claims/o", cursor=cursor).refusal == (400, "invalid_cursor")


def test_an_empty_listing_has_no_more_to_say(caller: Caller, mine: str) -> None:
    assert caller.list(f"events/{mine}").body == b'{"entries":[]}'
    assert caller.list(f"events/{mine}", limit=5).body == b'{"entries":[]}'


def test_a_listing_without_limit_is_one_snapshot(server: Running, caller: Caller, mine: str) -> None:
    """Two records only ever move together, in one statement: no listing may see one of them moved."""
    paths = [f"events/{mine}/a.json", f"events/{mine}/z.json"]
    for path in (*paths, *(f"events/{mine}/m{number}.json" for number in range(50))):
        caller.create(path, 0)

    def move() -> None:
        for number in range(40):
            statement = "UPDATE state SET data = $1 WHERE path IN ($2, $3)"
            sql(server.db, statement, str(number), *paths)

    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(move)
        seen: set[int] = set()
        while not moving.done():
            entries = {entry["path"]: entry["data"] for entry in caller.list(f"events/{mine}").json()["entries"]}
            assert entries[paths[0]] == entries[paths[1]]
            seen.add(entries[paths[0]])
        moving.result()
    assert len(seen) > 1


def test_figures_are_for_callers_with_a_token(server: Running, caller: Caller) -> None:
    with wire(server) as connection:
        fields = ["GET /metrics HTTP/1.1", "Host: h", f"Authorization: Bearer {caller.token}", "Connection: close"]
        connection.sendall("\r\n".join([*fields, "", ""]).encode())
        answer = rest(connection)
    assert b"content-type: text/plain" in answer
    assert b"agent_coord_requests_total{" in answer
    with calling(server, None) as nobody:
        assert nobody.ask("GET", "/metrics").refusal == (401, "unauthorized")
