"""What one `config set` makes of the user file, and why it may not.

A saved token belongs to the URL it was saved with: no change sends it anywhere else, and none leaves a
token without a URL.
"""

import re

from agentcoord.errors import UsageError
from agentcoord.protocol.paths import require_segment
from agentcoord.settings.envfile import ALLOWED, quote
from agentcoord.settings.environment import API_TOKEN, API_URL, MACHINE_ID, POLICY, Env, is_set, setting
from agentcoord.settings.selection import Discreet, Secret

MAX_TOKEN_BYTES = 65536

_URL = re.compile(
    r"(?P<scheme>https?)://(?:[^/?#@]*@)?(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._~-]+)(?::(?P<port>[0-9]*))?(?P<rest>[/?#].*)?",
    re.IGNORECASE,
)
_IN_NO_URL = re.compile(r"[^!-~]|[\"<>\\^`{|}]")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_HIGHEST_PORT = 65535


class Change(Discreet, frozen=True, kw_only=True):
    """The settings one command gives, None for those it leaves alone."""

    api_url: str | None = None
    token: Secret | None = None
    machine_id: str | None = None
    policy: str | None = None

    @property
    def keys(self) -> list[str]:
        """The names of what is given, sorted."""
        return sorted(self._values())

    def applied(self, saved: Env, *, seen_url: str | None) -> dict[str, str]:
        """Give the settings after this change of the saved ones.

        `seen_url` is the saved URL when the command began: a token without a URL was meant for that
        one. Raises UsageError (spec: cli §13, config set).
        """
        url = setting(saved, API_URL)
        if self.token is not None and self.api_url is None and url != (seen_url if is_set(seen_url) else None):
            raise UsageError(
                "saved API URL changed while reading --token-stdin; retry with --api-url in the same transaction"
            )
        if self.token is None and self.api_url not in (None, url) and setting(saved, API_TOKEN) is not None:
            raise UsageError("--token-stdin is required when changing an API URL that has a saved token")
        values = {**saved, **self._values()}
        if setting(values, API_TOKEN) is not None and setting(values, API_URL) is None:
            raise UsageError("--token-stdin requires a saved API URL or --api-url in the same transaction")
        if self.token is not None:
            require_api_url(values[API_URL])
        return values

    def _values(self) -> dict[str, str]:
        given = {
            API_URL: self.api_url,
            API_TOKEN: None if self.token is None else self.token.reveal(),
            MACHINE_ID: self.machine_id,
            POLICY: self.policy,
        }
        return {key: value for key, value in given.items() if value is not None}


def content(values: Env) -> str:
    """Write settings as the text of a user file, which `parse` reads back (spec: cli §13, config set)."""
    return "".join(f"{key}={quote(values[key])}\n" for key in ALLOWED if key in values)


def require_api_url(url: str) -> str:
    """Give a URL back that a token may be saved with. Raises UsageError (spec: cli §13, config set)."""
    found = None if _IN_NO_URL.search(url) else _URL.fullmatch(url)
    if found is None:
        raise UsageError("--api-url must be an absolute HTTP(S) URL")
    if "?" in (rest := found["rest"] or "") or "#" in rest:
        raise UsageError("--api-url must not include a query or fragment")
    if (port := found["port"]) and not _is_port(port):
        raise UsageError("--api-url port must be between 1 and 65535")
    if found["scheme"].lower() == "http" and found["host"].lower() not in _LOOPBACK:
        raise UsageError("--api-url must use https unless it points at localhost")
    return url


def require_machine_id(machine_id: str) -> str:
    """Give a machine id back. Raises UsageError."""
    return require_segment(machine_id, "machine-id")


def token_of(data: bytes) -> Secret:
    """Read a token from what was piped in: one line of text, whose own end does not belong to it.

    Raises UsageError, which never shows any of it (spec: cli §13, config set).
    """
    if len(data) > MAX_TOKEN_BYTES:
        raise UsageError("--token-stdin input is too large")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        # Without a cause: that would hold the bytes.
        raise UsageError("--token-stdin token must be valid UTF-8") from None
    if text.endswith("\n"):
        text = text.removesuffix("\n").removesuffix("\r")
    if not is_set(text):
        raise UsageError("--token-stdin requires a non-empty token")
    if any(end in text for end in "\r\n\0"):
        raise UsageError("--token-stdin token must be one line")
    return Secret(text)


def _is_port(digits: str) -> bool:
    significant = digits.lstrip("0")
    return 0 < len(significant) <= len(str(_HIGHEST_PORT)) and int(significant) <= _HIGHEST_PORT
