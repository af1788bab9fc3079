"""The published description of the HTTP API and the running server say the same, in both directions."""

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.command import PATIENCE
from tests.deploy.running import ROOT, Server, issue, serving

FILE = ROOT / "schema/api/http/openapi.json"
API: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
CREATE = {"If-None-Match": "*"}
EXAMPLES = "60"
CLAIM = "claims/acme/shop/7.json"
NOTE = "attention/ws/acme/shop/a1.json"

Seen = tuple[str, int, str]
"""What was seen to occur: an operation, a status, and the error code, empty for a success."""


def _resolved(node: Any) -> Any:
    while "$ref" in node:
        found = API
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        node = found
    return node


OPERATIONS: dict[str, Any] = {
    operation["operationId"]: operation
    for item in API["paths"].values()
    for method, operation in item.items()
    if method != "parameters"
}


def _documented() -> set[Seen]:
    return {
        (name, int(status), code)
        for name, operation in OPERATIONS.items()
        for status, said in operation["responses"].items()
        for code in _codes(_resolved(said))
    }


def _codes(response: Any) -> list[str]:
    schema = response["content"].get("application/json", {}).get("schema", {})
    return schema.get("properties", {}).get("error", {}).get("enum", [""])


class Checked:
    """A client whose every answer has to be as described; it keeps what it saw."""

    def __init__(self) -> None:
        self.seen: set[Seen] = set()

    def __call__(self, operation: str, answer: httpx.Response) -> httpx.Response:
        """Check one answer."""
        responses = OPERATIONS[operation]["responses"]
        assert str(answer.status_code) in responses, f"{operation}: {answer.status_code} {answer.text}"
        content = _resolved(responses[str(answer.status_code)])["content"]
        kind = answer.headers["content-type"].partition(";")[0]
        assert kind in content, f"{operation}: {kind}"
        value: Any = answer.json() if kind == "application/json" else answer.text
        schema = {**content[kind]["schema"], "components": API["components"]}
        jsonschema_rs.validator_for(schema).validate(value)
        code = value["error"] if answer.status_code >= 400 else ""
        self.seen.add((operation, answer.status_code, code))
        return answer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


def _state(client: httpx.Client, method: str, path: str, **more: Any) -> httpx.Response:
    return client.request(method, f"/v1/state/{path}", **more)


def _ask_for_records(check: Checked, client: httpx.Client, narrow: httpx.Client) -> None:
    data: dict[str, Any] = {"data": {"n": 1}}
    check("write", _state(client, "PUT", CLAIM, json=data, headers=CREATE))
    check("write", _state(client, "PUT", NOTE, json={"data": [None, 1.5, "é"]}, headers=CREATE))
    check("write", _state(client, "PUT", "heartbeats/a1.json", json=data, headers=CREATE))
    check("write", _state(client, "PUT", CLAIM, json=data, headers={"If-Match": "1"}))
    check("write", _state(client, "PUT", CLAIM, json=data, headers=CREATE))
    check("write", _state(client, "PUT", CLAIM, json=data, headers={"If-Match": "1"}))
    check("write", _state(client, "PUT", "etc/passwd", json=data, headers=CREATE))
    check("write", _state(client, "PUT", CLAIM, content=b"{", headers=CREATE))
    check("write", _state(client, "PUT", CLAIM, json={}, headers=CREATE))
    check("write", _state(client, "PUT", CLAIM, json=data, headers={"If-None-Match": "1"}))
    check("write", _state(client, "PUT", CLAIM, json=data, headers={"If-Match": "2x"}))
    check("write", _state(client, "PUT", CLAIM, json=data))
    check("write", _state(client, "PUT", CLAIM, json={"data": "x" * 262143}, headers=CREATE))
    check("write", _state(narrow, "PUT", CLAIM, json=data, headers=CREATE))
    for path in (CLAIM, "claims/acme/shop/8.json", "claims/acme/shop/8%2"):
        check("read", _state(client, "GET", path))
    check("read", _state(narrow, "GET", CLAIM))
    check("delete", _state(client, "DELETE", CLAIM, headers={"If-Match": "2"}))
    check("delete", _state(client, "DELETE", CLAIM, headers={"If-Match": "2"}))
    check("delete", _state(client, "DELETE", CLAIM))
    check("delete", _state(client, "DELETE", CLAIM, headers={"If-Match": "9" * 18}))
    check("delete", _state(client, "DELETE", "claims/acme", headers={"If-Match": "2"}))
    check("delete", _state(client, "DELETE", NOTE, headers={"If-Match": "1"}))
    check("delete", _state(narrow, "DELETE", CLAIM, headers={"If-Match": "2"}))


def _ask_for_lists(check: Checked, client: httpx.Client, narrow: httpx.Client) -> None:
    def listed(asking: httpx.Client, **query: str) -> Any:
        return check("list", asking.get("/v1/state", params=query)).json()

    assert listed(client, prefix="heartbeats")["entries"]
    assert listed(narrow, prefix="heartbeats") == {"error": "forbidden"}
    assert listed(narrow, prefix="archive")["filtered"] is True
    for wrong in ({}, {"prefix": "claims/a/b/c"}, {"prefix": "claims", "limit": "0"}):
        listed(client, **wrong)
    listed(client, prefix="claims", cursor="heartbeats/a1.json")

    def changes(asking: httpx.Client, **query: str) -> Any:
        return check("changes", asking.get("/v1/changes", params=query)).json()

    cursor = changes(client)["cursor"]
    feed, _, _ = cursor.partition(".")
    found = changes(client, since=f"{feed}.0", wait="1")["changes"]
    assert [change.get("deleted", False) for change in found if change["path"] == CLAIM][-1] is True
    assert changes(narrow, since=f"{feed}.0")["filtered"] is True
    assert changes(narrow, prefix="heartbeats") == {"error": "forbidden"}
    for wrong in ({"prefix": "x"}, {"wait": "61"}, {"limit": "0"}, {"since": "yesterday"}, {"since": "0" * 16 + ".1"}):
        changes(client, **wrong)


def _ask_the_rest(check: Checked, client: httpx.Client) -> None:
    check("health", client.get("/v1/health"))
    check("whoami", client.get("/v1/whoami"))
    check("metrics", client.get("/metrics"))


ROUTES = {
    "whoami": ("GET", "/v1/whoami"),
    "list": ("GET", "/v1/state?prefix=claims"),
    "read": ("GET", f"/v1/state/{CLAIM}"),
    "write": ("PUT", f"/v1/state/{CLAIM}"),
    "delete": ("DELETE", f"/v1/state/{CLAIM}"),
    "changes": ("GET", "/v1/changes"),
    "metrics": ("GET", "/metrics"),
}


def test_everything_documented_occurs_and_nothing_else(server: Server, tmp_path: Path) -> None:
    check = Checked()
    narrow = issue(server.db, "narrow", "--read-prefix", "archive/claims", "--write-prefix", "archive/claims")
    with server.client() as client, server.client(token=narrow) as limited:
        _ask_for_records(check, client, limited)
        _ask_for_lists(check, client, limited)
        _ask_the_rest(check, client)
    with httpx.Client(base_url=server.url, trust_env=False) as nobody:
        for operation, (method, route) in ROUTES.items():
            check(operation, nobody.request(method, route))
            check(operation, nobody.request(method, route, headers={"Authorization": "Bearer 0"}))
    with serving(tmp_path) as broken, broken.client() as client:
        with closing(sqlite3.connect(broken.db)) as connection:
            connection.executescript("DROP TABLE machines; DROP TABLE feed")
        for operation, (method, route) in {**ROUTES, "health": ("GET", "/v1/health")}.items():
            check(operation, client.request(method, route))
    check("write", _never_sent(tmp_path / "slow"))
    assert check.seen == _documented()


def _never_sent(directory: Path) -> httpx.Response:
    """Promise a body to a server that waits less long than usual, and never send it."""
    directory.mkdir()
    impatient = (
        "import sys; from functools import partial; from agentcoordd.__main__ import main; "
        "from agentcoordd.server import commands; "
        "commands.Serving = partial(commands.Serving, body_seconds=0.2); sys.exit(main())"
    )
    with (
        serving(directory, program=(sys.executable, "-c", impatient)) as server,
        socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection,
    ):
        head = f"PUT /v1/state/{CLAIM} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n"
        connection.sendall(f"{head}Content-Length: 10\r\n\r\n".encode())
        with connection.makefile("rb") as stream:
            said, body = stream.read().split(b"\r\n\r\n")
    lines = said.decode().split("\r\n")
    headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines[1:])]
    return httpx.Response(int(lines[0].split()[1]), headers=headers, content=body)


@pytest.mark.parametrize(
    "route", ["/v1/whoami", "/v1/state?prefix=claims", f"/v1/state/{CLAIM}", "/v1/changes", "/metrics"]
)
def test_other_methods_and_routes_are_refused_as_the_description_says(server: Server, route: str) -> None:
    with server.client() as client:
        assert client.post(route).json() == {"error": "method_not_allowed"}
        assert client.patch(route).status_code == 405
        assert client.get("/v1/other").json() == {"error": "route_not_found"}
        assert client.post("/v1/health").json() == {"status": "ok"}
    assert "405 method_not_allowed" in API["info"]["description"]


@pytest.mark.parametrize("path", ["%0A", "claims%2Fa%2Fb%2Fc.json%0A", "%00", "%ff", "a" * 600, ".", "%E2%80%A8", ""])
def test_no_path_is_answered_before_it_is_known_who_asks(server: Server, path: str) -> None:
    with httpx.Client(base_url=server.url, trust_env=False) as nobody, server.client() as client:
        assert nobody.get(f"/v1/state/x/{path}").json() == {"error": "unauthorized"}
        assert nobody.get(f"/{path}").json() == {"error": "unauthorized"}
        assert client.get(f"/v1/state/x/{path}").json() == {"error": "invalid_path"}
        assert client.get(f"/{path}").json() == {"error": "route_not_found"}


@pytest.mark.parametrize("record", [CLAIM, NOTE, f"archive/{CLAIM}", "events/b1/e.1.json", "heartbeats/a:1.json"])
def test_the_pattern_of_paths_is_the_servers(server: Server, record: str) -> None:
    pattern = re.compile(API["components"]["schemas"]["Path"]["pattern"])
    for path in (record, f"x{record}", record[:-5], f"{record}/x", record.replace("/", "//", 1)):
        with server.client() as client:
            accepted = _state(client, "GET", path).json() != {"error": "invalid_path"}
        assert (pattern.search(path) is not None) == accepted, path


HOOKS = """
from zlib import crc32

import schemathesis

PATHS = ("claims/acme/shop/%d.json", "archive/batches/b%d.json", "attention/ws/acme/shop/%d.json", "events/b1/%d.json")

@schemathesis.hook
def before_call(context, case, kwargs):
    if "path" in (case.path_parameters or {}):
        chance = crc32(repr((case.path_parameters, case.headers, case.body)).encode())
        if chance % 4:
            case.path_parameters["path"] = PATHS[chance % 4] % (chance // 4 % 3)
        if "If-Match" in (case.headers or {}) and chance // 16 % 2:
            case.headers["If-Match"] = str(1 + chance // 32 % 2)
    wait = str((case.query or {}).get("wait", ""))
    if wait.isdecimal() and int(wait) <= 60:
        case.query["wait"] = "0"
"""
"""Half of the requests for records go to a few real ones, so that they meet; whether changes are waited for is
tested elsewhere."""


@contextmanager
def _hooks(directory: Path) -> Generator[dict[str, str]]:
    (directory / "hooks.py").write_text(HOOKS, "utf-8")
    yield {**os.environ, "SCHEMATHESIS_HOOKS": str(directory / "hooks.py"), "NO_COLOR": "1"}


def _schemathesis(server: Server, api: Path, directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    with _hooks(directory) as environment:
        return subprocess.run(
            [
                *(Path(sys.executable).with_name("schemathesis"), "run", str(api), "--url", server.url),
                *("--header", f"Authorization: Bearer {server.token}", "--mode", "all"),
                *("--phases", "coverage,fuzzing", "--max-examples", EXAMPLES, "--seed", "1"),
                *("--generation-deterministic", "--request-timeout", "10"),
                "--checks",
                "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
                *options,
            ],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=4 * PATIENCE,
        )


@pytest.fixture
def described(tmp_path: Path) -> dict[str, Any]:
    """The description, but for the pattern of paths: schemathesis generates no slashes there, the hooks put them in."""
    described = json.loads(FILE.read_text("utf-8"))
    described["paths"]["/v1/state/{path}"]["parameters"][0]["schema"] = {"type": "string", "maxLength": 40}
    return described


def _written(directory: Path, described: dict[str, Any]) -> Path:
    (directory / "openapi.json").write_text(json.dumps(described), "utf-8")
    return directory / "openapi.json"


def test_no_request_that_can_be_generated_surprises_the_server(
    server: Server, described: dict[str, Any], tmp_path: Path
) -> None:
    ran = _schemathesis(server, _written(tmp_path, described), tmp_path)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr
    assert f"{len(OPERATIONS)} selected / {len(OPERATIONS)} total" in ran.stdout, ran.stdout
    reached = set(re.findall(r" (GET|PUT|DELETE) /v1/state/[^ ]+ (\d+) ", server.log.read_text()))
    assert {
        ("GET", "200"),
        ("GET", "404"),
        ("PUT", "201"),
        ("PUT", "200"),
        ("PUT", "409"),
        ("DELETE", "200"),
    } <= reached


@pytest.mark.parametrize(("operation", "method", "status"), [("read", "get", "404"), ("write", "put", "409")])
def test_a_status_that_is_not_documented_would_be_noticed(
    server: Server, described: dict[str, Any], tmp_path: Path, operation: str, method: str, status: str
) -> None:
    del described["paths"]["/v1/state/{path}"][method]["responses"][status]
    ran = _schemathesis(server, _written(tmp_path, described), tmp_path, "--include-operation-id", operation)
    assert ran.returncode == 1, ran.stdout
    assert f"[{status}]" in ran.stdout
