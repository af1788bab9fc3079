"""What stands in front of the server passes on what matters: conditions, streams and sizes, and logs no token.

The configurations in deploy/ are started as they are, but for the address, the certificate and where files go.
"""

import json
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from agentcoordd.server.changes import LONGEST_WAIT
from tests.command import PATIENCE
from tests.deploy.running import ROOT, Certificate, Server, certificate, free_port, program, serving
from tests.stores.http_server import Asked, Reply, reply
from tests.stores.http_server import Server as Upstream

CLAIM = "/v1/state/claims%2Facme%2Fshop%2Fissue%3A7.json"
LARGEST = 1024 * 1024
"""Bytes of the largest record there may be, below archive/."""


@dataclass(frozen=True)
class Front:
    """A server, and the address by which clients reach it."""

    server: Server
    url: str
    ca: Path
    logs: tuple[Path, ...]

    def client(self) -> httpx.Client:
        return self.server.client(self.url, ca=self.ca)


@pytest.fixture
def certified(tmp_path: Path) -> Certificate:
    if program("openssl") is None:
        pytest.skip("openssl is not installed")
    return certificate(tmp_path)


@contextmanager
def _started(command: list[str], port: int, log: Path) -> Generator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            assert process.poll() is None, log.read_text()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)  # neither program says when it listens
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _edited(path: Path, replaced: dict[str, str]) -> str:
    text = path.read_text("utf-8")
    for old, new in replaced.items():
        assert old in text, f"{path.name} has no {old}"
        text = text.replace(old, new)
    return text


@contextmanager
def _nginx(upstream: int, certified: Certificate, directory: Path) -> Generator[tuple[int, tuple[Path, ...]]]:
    nginx = program("nginx")
    if nginx is None:
        pytest.skip("nginx is not installed")
    port = free_port()
    logs = (directory / "access.log", directory / "error.log", directory / "nginx.log")
    text = _edited(
        ROOT / "deploy/nginx.conf",
        {
            "pid /run/nginx.pid": f"pid {directory}/nginx.pid",
            "worker_processes auto": "worker_processes 1",
            "/var/log/nginx/agent-coord.log": str(logs[0]),
            "/var/log/nginx/error.log": str(logs[1]),
            "127.0.0.1:8787": f"127.0.0.1:{upstream}",
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "/etc/ssl/fleet.example/fullchain.pem": str(certified.chain),
            "/etc/ssl/fleet.example/privkey.pem": str(certified.key),
        },
    )
    places = "".join(
        f"    {kind}_temp_path {directory}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (directory / "nginx.conf").write_text(text.replace("http {\n", "http {\n" + places, 1), "utf-8")
    command = [nginx, "-p", str(directory), "-c", str(directory / "nginx.conf"), "-g", "daemon off;"]
    with _started([*command, "-e", str(logs[1])], port, logs[2]):
        yield port, logs


@contextmanager
def _caddy(upstream: int, certified: Certificate, directory: Path) -> Generator[tuple[int, tuple[Path, ...]]]:
    caddy = program("caddy")
    if caddy is None:
        pytest.skip("caddy is not installed")
    port = free_port()
    logs = (directory / "access.log", directory / "caddy.log")
    text = _edited(
        ROOT / "deploy/Caddyfile",
        {
            "fleet.example {": f"https://127.0.0.1:{port} {{",
            "# tls /etc/ssl/fleet.example/fullchain.pem /etc/ssl/fleet.example/privkey.pem": (
                f"tls {certified.chain} {certified.key}"
            ),
            "/var/log/caddy/agent-coord.log": str(logs[0]),
            "reverse_proxy 127.0.0.1:8787": f"reverse_proxy 127.0.0.1:{upstream}",
        },
    )
    # A port of its own instead of 80, which belongs to the machine; that nothing listens there is tested below.
    text = text.replace("admin off", f"admin off\n\thttp_port {free_port()}", 1)
    (directory / "Caddyfile").write_text(text, "utf-8")
    command = [caddy, "run", "--adapter", "caddyfile", "--config", str(directory / "Caddyfile")]
    with _started(["env", f"HOME={directory}", f"XDG_DATA_HOME={directory}/data", *command], port, logs[1]):
        yield port, logs


PROXIES = {"nginx": _nginx, "caddy": _caddy}


@pytest.fixture(params=["nginx", "caddy", "none"])
def front(request: pytest.FixtureRequest, tmp_path: Path, certified: Certificate) -> Iterator[Front]:
    """The server behind nginx, behind Caddy, and speaking TLS by itself."""
    if request.param == "none":
        with serving(tmp_path, "--tls-cert", certified.chain, "--tls-key", certified.key) as server:
            yield Front(server, server.url, certified.chain, (server.log,))
        return
    with serving(tmp_path) as server, PROXIES[request.param](server.port, certified, tmp_path) as (port, logs):
        yield Front(server, f"https://127.0.0.1:{port}", certified.chain, (server.log, *logs))


def test_records_come_and_go(front: Front) -> None:
    with front.client() as client:
        assert client.get("/v1/health").json() == {"status": "ok"}
        made = client.put(CLAIM, json={"data": {"n": 1}}, headers={"If-None-Match": "*"})
        assert (made.status_code, made.json()["version"]) == (201, 1)
        again = client.put(CLAIM, json={"data": {}}, headers={"If-None-Match": "*"})
        assert (again.status_code, again.json()) == (409, {"error": "already_exists"})
        changed = client.put(CLAIM, json={"data": {"n": 2}}, headers={"If-Match": "1"})
        assert (changed.status_code, changed.json()["version"]) == (200, 2)
        assert client.get(CLAIM).json()["data"] == {"n": 2}
        assert client.get("/v1/state?prefix=claims/acme").json()["entries"][0]["version"] == 2
        assert client.get("/v1/state/claims%2Facme%2F..%2F..%2Fx.json").json() == {"error": "invalid_path"}
        assert client.get("/v1/state/claims%zz").status_code == 400
        assert client.delete(CLAIM, headers={"If-Match": "2"}).json()["deleted"] is True
    with front.server.client(front.url, ca=front.ca, token="0" * 48) as stranger:
        assert (stranger.get(CLAIM).status_code, stranger.get(CLAIM).json()) == (401, {"error": "unknown_token"})


def test_the_largest_record_passes_and_a_larger_one_does_not(front: Front) -> None:
    create = {"If-None-Match": "*"}
    with front.client() as client:
        fits = "x" * (LARGEST - 2)
        assert client.put("/v1/state/archive/batches/b1.json", json={"data": fits}, headers=create).status_code == 201
        assert client.get("/v1/state/archive/batches/b1.json").json()["data"] == fits
        for size in (LARGEST - 1, LARGEST + 5000):
            body = json.dumps({"data": "x" * size}).encode()
            refused = client.put("/v1/state/archive/batches/b2.json", content=body, headers=create)
            assert (refused.status_code, refused.json()) == (413, {"error": "payload_too_large"})
        assert client.get("/v1/state/archive/batches/b2.json").status_code == 404


def test_a_long_poll_waits_and_is_answered_at_once(front: Front) -> None:
    with front.client() as client:
        cursor = client.get("/v1/changes").json()["cursor"]
        began = time.monotonic()
        assert client.get("/v1/changes", params={"since": cursor, "wait": "1"}).json()["changes"] == []
        assert time.monotonic() - began >= 0.9
        answers: list[httpx.Response] = []

        def follow() -> None:
            with front.client() as follower:
                answers.append(follower.get("/v1/changes", params={"since": cursor, "wait": "50"}))

        following = threading.Thread(target=follow)
        following.start()
        _until_open(front, 2)
        client.put(CLAIM, json={"data": {}}, headers={"If-None-Match": "*"})
        following.join(40)
        assert not following.is_alive()
    assert [change["path"] for change in answers[0].json()["changes"]] == ["claims/acme/shop/issue:7.json"]


def test_a_stream_is_passed_on_as_it_comes_and_ends_with_its_reader(front: Front) -> None:
    with front.client() as client:
        with client.stream("GET", "/v1/changes", headers={"Accept": "text/event-stream"}) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.iter_lines()
            assert next(lines) == "event: cursor"
            for version in range(1, 4):  # each is here before the next is written
                condition = {"If-None-Match": "*"} if version == 1 else {"If-Match": str(version - 1)}
                client.put(CLAIM, json={"data": {}}, headers=condition)
                change = next(line for line in lines if line.startswith('data: {"path"'))
                assert json.loads(change.removeprefix("data: "))["version"] == version
        _until_open(front, 1)


def test_no_log_has_a_token(front: Front) -> None:
    with front.client() as client:
        client.get("/v1/whoami")
        client.put(CLAIM, json={"data": {}}, headers={"If-None-Match": "*"})
        client.get("/v1/state", params={"prefix": "claims"})
        _until(lambda: all("whoami" in log.read_text() for log in front.logs[:2] if "error" not in log.name))
    for log in front.logs:
        text = log.read_text()
        assert front.server.token not in text
        assert "bearer" not in text.lower()


@pytest.mark.parametrize("front", ["nginx", "caddy"], indirect=True)
def test_a_server_that_is_gone_is_no_answer_of_the_state(front: Front) -> None:
    front.server.stop()
    with front.client() as client:
        answer = client.put(CLAIM, json={"data": {}}, headers={"If-None-Match": "*"})
    assert (answer.status_code, answer.json()) == (502, {"error": "server_unreachable"})


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_write_that_is_cut_off_is_not_sent_again(
    proxy: str, method: str, certified: Certificate, tmp_path: Path
) -> None:
    """Not even on a kept connection that has worked before, where a proxy likes to try another one."""

    def cut_off(asked: Asked) -> Reply:
        return reply(200, {"status": "ok"}) if asked.method == "GET" else Reply(closes=True)

    with (
        Upstream(cut_off).running() as upstream,
        PROXIES[proxy](upstream.port, certified, tmp_path) as (port, _),
        httpx.Client(verify=ssl.create_default_context(cafile=certified.chain), trust_env=False) as client,
    ):
        url = f"https://127.0.0.1:{port}"
        assert client.get(f"{url}/v1/health").json() == {"status": "ok"}
        answer = client.request(method, url + CLAIM, content=b"{}", headers={"If-Match": "1"})
        assert (answer.status_code, answer.json()) == (502, {"error": "server_unreachable"})
        assert upstream.targets(method) == [CLAIM]


def test_proxies_wait_longer_than_a_long_poll_does() -> None:
    waits = {"nginx.conf": r"proxy_read_timeout (\d+)s", "Caddyfile": r"response_header_timeout (\d+)s"}
    for name, pattern in waits.items():
        (seconds,) = re.findall(pattern, (ROOT / "deploy" / name).read_text("utf-8"))
        assert int(seconds) > LONGEST_WAIT + 10


def _until_open(front: Front, requests: int) -> None:
    """Wait until the server is answering so many requests, the one that asks among them."""

    def reached() -> bool:
        with front.server.client(ca=front.ca if front.url == front.server.url else None) as client:
            found = re.search(r"^agent_coord_open_requests (\d+)", client.get("/metrics").text, re.MULTILINE)
        return found is not None and int(found.group(1)) == requests

    _until(reached)


def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)
