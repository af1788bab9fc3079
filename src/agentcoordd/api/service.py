"""Whom the daemon serves with what: it is no way out of a sandbox.

It runs with the user's rights, and its callers may be allowed less. So it reads and writes what its own
configuration and the environment it was started with name, never what only a caller names.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from agentcoord.cli.run import Chosen
from agentcoord.errors import CoordError
from agentcoord.settings.environment import (
    API_URL,
    ENV_FILE,
    STATE_ROOT,
    STATUS_STATE_ROOT,
    Env,
    implicit_root,
    setting,
)
from agentcoord.settings.selection import Flags, Secret, Selection, redact
from agentcoord.settings.value import load_as_far
from agentcoord.stores.opening import absolute
from agentcoordd.api.dispatch import Refused
from agentcoordd.api.messages import Fault
from agentcoordd.backends import Backend, HttpBackend, LocalBackend

FORWARDED = frozenset(
    {
        "claim",
        "release",
        "heartbeat",
        "register-batch",
        "record-event",
        "status",
        "log",
        "batch-audit",
        "attention",
        "attention-upsert",
        "attention-resolve",
        "attention-get",
        "attention-list",
        "gc",
        "verify",
    }
)
"""The commands that work on records and on nothing else; any other is the caller's own business."""

SURROUNDINGS = (
    "HOME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    ENV_FILE,
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    *(spelled for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for spelled in (name, name.upper())),
)
"""The variables that name files or way-stations which a command would use without being asked."""


class Service(Struct, frozen=True):
    """What one daemon serves. `own` is the environment it was started with."""

    own: Mapping[str, str]
    roots: frozenset[str] = frozenset()
    urls: frozenset[str] = frozenset()
    any_root: bool = False
    status_root: str | None = None
    """Where the mirror of a server is, if that was named."""

    def require_forwarded(self, argv: list[str], env: Env) -> None:
        """Refuse, by its words and surroundings alone, what the caller has to do itself. Raises Refused."""
        command = argv[0] if argv else "help"
        if command not in FORWARDED:
            raise _elsewhere(f"{command[:40]} runs where it is called")
        if any(word.partition("=")[0] == "--keep" for word in argv):
            raise _elsewhere("--keep is registered by its caller")
        if self.any_root:
            return
        for name in SURROUNDINGS:
            if env.get(name) != self.own.get(name):
                raise _elsewhere(f"{name} is not that of the daemon")

    def require_served(self, chosen: Chosen, env: Env, cwd: str) -> None:
        """Refuse a backend that is not the daemon's own, before any of it is touched. Raises Refused."""
        if chosen.words.flag("keep"):  # however it was abbreviated
            raise _elsewhere("--keep is registered by its caller")
        selection = chosen.settings.selection
        if selection is None or selection.kind == "github":
            raise _elsewhere("the GitHub backend starts programs, which its caller does itself")
        if self.any_root:
            return
        if selection.kind == "http" and selection.backend_source != "user_config" and selection.url not in self.urls:
            raise _elsewhere("the daemon does not serve this backend")
        # A root of the user file is the daemon's own, whatever it says by now; a relative one is refused there.
        if selection.kind == "local" and selection.backend_source in ("cli", "process_env"):
            self._require_root(selection.root or "", cwd)
        near_mirror = chosen.words.flag("sync") or chosen.words.command == "gc"
        if near_mirror and (mirror := setting(env, STATUS_STATE_ROOT)) is not None:
            self._require_root(mirror, cwd)

    def _require_root(self, root: str, cwd: str) -> None:
        """Compare names only: to resolve one would be a look at what the caller named."""
        try:
            path = absolute(root, cwd)
        except CoordError:
            path = root
        if path not in self.roots:
            raise _elsewhere("the daemon does not serve this state root")

    def serves(self, backend: Backend) -> bool:
        """Tell whether leases may be kept on a backend."""
        if isinstance(backend, LocalBackend):
            return self.any_root or backend.root in self.roots
        return self.any_root or backend.url in self.urls

    def token_of(self, url: str) -> Secret | None:
        """Find the daemon's own token for a server, as its environment and the user file are now."""
        flags = Flags(api_url=url)
        settings, _ = load_as_far(self.own, command="claim", flags=flags, argv_selectors=["--api-url"])
        return None if settings.selection is None else settings.selection.token

    def shown_backends(self) -> list[str]:
        """The addresses of remote backends, without what may be secret in them."""
        return sorted(redact(url) for url in self.urls)


def backend_of(selection: Selection | None, cwd: str) -> Backend | None:
    """Name the backend that a command selected, None when it has none that others could ask."""
    if selection is None or selection.kind == "github":
        return None
    if selection.kind == "http":
        return HttpBackend(selection.url or "")
    try:
        return LocalBackend(absolute(selection.root or "", cwd))
    except CoordError:
        return None


def service_of(own: Env, roots: Iterable[str], *, any_root: bool) -> Service:
    """Find out what a daemon serves that was started with an environment and configured with more roots.

    Reads the user file; one that cannot be read serves nothing.
    """
    named = [*roots]
    named += [root for name in (STATE_ROOT, STATUS_STATE_ROOT) if (root := setting(own, name)) is not None]
    urls = [url for url in (setting(own, API_URL),) if url is not None]
    if (implicit := implicit_root(own)) is not None:
        named.append(implicit)
    status_root = None
    for command in ("claim", "status"):
        settings, _ = load_as_far(own, command=command, flags=Flags(), argv_selectors=[])
        if settings.saved_url is not None:
            urls.append(settings.saved_url)
        if (selection := settings.selection) is not None and selection.root is not None:
            named.append(selection.root)
        if settings.status_root is not None:
            named.append(status_root := settings.status_root)
    return Service(
        own=own,
        roots=frozenset(root for root in named if root.startswith("/")),
        urls=frozenset(urls),
        any_root=any_root,
        status_root=status_root,
    )


def _elsewhere(why: str) -> Refused:
    return Refused(Fault.ELSEWHERE, why)
