"""Where an HTTP backend is, and how a request to it is spelled. Pure: an address in, an address out.

What a URL says of a user is dropped where the URL is read, so nothing behind this module can send or
show it (spec: http §8).
"""

import ipaddress
import re
from urllib.parse import quote, urlencode

from msgspec import Struct

from agentcoord.errors import ConfigError
from agentcoord.settings.environment import Env, setting

_HIGHEST_PORT = 65535
_LONGEST_HOST = 253
_PLAIN_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_SCHEME = re.compile(r"(https?)://", re.IGNORECASE)
_IN_NO_URL = re.compile(r"[^!-~]|[\"<>\\^`{|}]")
_NAME = re.compile(r"(?!.*\.\.)[a-z0-9_~-][a-z0-9._~-]*", re.IGNORECASE)
_LONGEST_LABEL = 63
_PROXY_SCHEMES = ("http", "https")

HEADER_VALUE = re.compile(r"[!-~]{1,4096}")
"""What may stand in a header as it is: visible ASCII, so that nobody needs to quote a token to refuse it."""


class Base(Struct, frozen=True):
    """The address that all routes of a backend start from. `host` has its brackets, `path` no final slash."""

    scheme: str
    host: str
    port: int | None
    path: str

    @property
    def origin(self) -> str:
        """Scheme, host and port, as a request and a person need them."""
        return f"{self.scheme}://{self.host}" + ("" if self.port is None else f":{self.port}")

    @property
    def loopback(self) -> bool:
        """Whether this is the machine itself, which no proxy can stand for."""
        name = self.host.strip("[]").rstrip(".").lower()
        if name == "localhost" or name.endswith(".localhost"):
            return True
        address = _address(name)
        return address is not None and address.is_loopback

    def record(self, path: str) -> str:
        """Address one record: every byte of its path that could mean anything else is escaped."""
        return f"{self.origin}{self.path}/v1/state/{quote(path, safe='')}"

    def listing(self, prefix: str, cursor: str | None, limit: int | None) -> str:
        """Address one page of a listing."""
        asked = {"prefix": prefix, "cursor": cursor, "limit": limit}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return f"{self.origin}{self.path}/v1/state?{query}"

    def changes(self, since: str | None, wait: int, limit: int) -> str:
        """Address what changed after a cursor; without one, only the newest cursor."""
        asked = {"since": since, "wait": wait, "limit": limit}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return f"{self.origin}{self.path}/v1/changes?{query}"

    def route(self, name: str) -> str:
        """Address a route that is not about state, such as `health`."""
        return f"{self.origin}{self.path}/v1/{name}"


def base_of(url: str) -> Base:
    """Read the address of a backend. Raises ConfigError, which never shows it (spec: http §8)."""
    if _IN_NO_URL.search(url):
        raise _invalid("malformed URL")
    scheme = _SCHEME.match(url)
    if scheme is None:
        raise _invalid("expected http(s) URL with host")
    place, mark, _ = _until(url[scheme.end() :], "?#")
    authority, slash, path = _until(place, "/")
    host, port = _host_and_port(authority.rpartition("@")[2])
    if mark:
        raise _invalid("must not include a query or fragment")
    base = Base(scheme[1].lower(), host, _port(port), (slash + path).removesuffix("/"))
    if base.scheme == "http" and base.host not in _PLAIN_HOSTS:
        raise ConfigError("HTTP backend URL must use https unless it points at localhost")
    return base


def proxy_of(base: Base, env: Env) -> str | None:
    """Give the proxy that an environment wants between us and the backend; None for a direct way.

    Raises ConfigError for one that we cannot speak to.
    """
    if base.loopback or _bypasses_proxies(base, env):
        return None
    for variable in (f"{base.scheme}_proxy", "all_proxy"):
        for name in (variable, variable.upper()):
            if (proxy := setting(env, name)) is not None:
                return _proxy(proxy.strip(), name)
    return None


def _proxy(proxy: str, variable: str) -> str:
    scheme, found, _ = proxy.partition("://")
    if found and scheme.lower() not in _PROXY_SCHEMES:
        raise ConfigError(f"the proxy in {variable} is of an unsupported kind: expected an http(s) URL")
    if _IN_NO_URL.search(proxy):
        raise ConfigError(f"the proxy in {variable} is not a URL")
    return proxy if found else f"http://{proxy}"


def _bypasses_proxies(base: Base, env: Env) -> bool:
    spared = setting(env, "no_proxy") or setting(env, "NO_PROXY") or ""
    name = base.host.strip("[]").rstrip(".").lower()
    port = base.port or (443 if base.scheme == "https" else 80)
    return any(_spares(entry.strip().lower(), name, port) for entry in spared.split(","))


def _spares(entry: str, name: str, port: int) -> bool:
    if entry in ("", "*"):
        return entry == "*"
    own = _address(name)
    if own is not None:
        try:
            return own in ipaddress.ip_network(entry.strip("[]"), strict=False)
        except ValueError:
            pass  # not a network: a name, or an address with a port
    host, colon, digits = entry.rpartition(":")
    if colon and digits.isdecimal():
        if int(digits) != port:
            return False
        entry = host
    entry = entry.strip("[]").removeprefix("*").lstrip(".")
    return entry != "" and (name == entry or name.endswith(f".{entry}"))


def _until(text: str, ends: str) -> tuple[str, str, str]:
    at = next((at for at, char in enumerate(text) if char in ends), len(text))
    return text[:at], text[at : at + 1], text[at + 1 :]


def _host_and_port(place: str) -> tuple[str, str]:
    if place.startswith("["):
        inner, closed, rest = place[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")) or not isinstance(_address(inner), ipaddress.IPv6Address):
            raise _invalid("malformed URL")
        return f"[{inner.lower()}]", rest[1:]
    host, _, port = place.partition(":")
    if not host:
        raise _invalid("expected http(s) URL with host")
    labels = host.rstrip(".").split(".")
    if len(host) > _LONGEST_HOST or not _NAME.fullmatch(host) or any(len(label) > _LONGEST_LABEL for label in labels):
        raise _invalid("malformed URL")
    return host.lower(), port


def _port(digits: str) -> int | None:
    if not digits:
        return None
    if not digits.isdecimal() and digits.removeprefix("-").isdecimal():
        raise _invalid("port must be between 1 and 65535")
    if not digits.isdecimal():
        raise _invalid("malformed URL")
    significant = digits.lstrip("0")
    if not 0 < len(significant) <= len(str(_HIGHEST_PORT)) or int(significant) > _HIGHEST_PORT:
        raise _invalid("port must be between 1 and 65535")
    return int(significant)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _invalid(why: str) -> ConfigError:
    return ConfigError(f"invalid HTTP backend URL: {why}")
