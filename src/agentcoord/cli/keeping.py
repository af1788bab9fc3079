"""`--keep`: what was just written is kept by the daemon for as long as the agent's process lives.

The command stands by itself: if the daemon cannot be reached, what was written stays, and one line says that
nobody keeps it.
"""

import os
from shlex import join

from msgspec.structs import replace

from agentcoord.cli import requests
from agentcoord.cli.leases import ask_to_hold, backend_of, kept, lanes_of, require_keepable
from agentcoord.cli.options import Words
from agentcoord.cli.output import Invocation, Output
from agentcoord.daemonlink import Declined
from agentcoord.errors import Exit, StoreError, UsageError
from agentcoord.operations.context import Context, read_object
from agentcoord.operations.heartbeats import heartbeat
from agentcoord.protocol.claims import Wanted
from agentcoord.protocol.documents import Document, text
from agentcoord.protocol.heartbeats import Beat
from agentcoord.protocol.liveness import liveness
from agentcoord.protocol.paths import heartbeat_path, require_segment
from agentcoord.protocol.statuses import normalize
from agentcoord.settings.selection import redact
from agentcoord.settings.value import Settings

DAEMON = "AGENT_COORD_DAEMON"

_MOST_ANCESTORS = 64


class Keeping:
    """The part of one command that its `--keep` adds. Made before anything is written."""

    def __init__(self, words: Words, settings: Settings, invocation: Invocation) -> None:
        if invocation.env.get(DAEMON) == "off":
            raise UsageError(f"--keep needs the daemon, which {DAEMON}=off forbids")
        self._asked = requests.keep(words)
        require_segment(self._asked.agent_id, "agent-id")
        require_keepable(self._asked)
        self._backend = backend_of(settings.selected, invocation.cwd)
        self._session = settings.identity.session_id
        self._supersede = words.flag("supersede")
        root, url = words.text("state_root"), words.text("api_url")
        self._given = [] if root is None else ["--state-root", root]
        self._given += [] if url is None else ["--api-url", redact(url)]
        self._invocation = invocation
        self._lease: Document | None = None
        self._fault: StoreError | None = None

    async def claiming(self, context: Context, wanted: Wanted) -> Wanted:
        """Say in a claim which instance of the agent it is for. Another that lives is refused, unless superseded."""
        instance = self._asked.instance or self._own_instance() or await self._kept_instance(context)
        instance = instance or self._invocation.random(8).hex()
        metadata = wanted.metadata | {"instance_id": instance}
        return replace(wanted, metadata=metadata, exclusive=not self._supersede)

    def _own_instance(self) -> str | None:
        """Name the instance by what is the same in every command of it: its session, or the process it named."""
        watched = self._asked.watch_pid
        if self._session is not None or watched is None:
            return self._session
        found = _stat(watched)
        return None if found is None else f"pid-{watched}-{found[1]}"

    async def _kept_instance(self, context: Context) -> str | None:
        """Find the instance that the daemon keeps this agent for already, if its process is one above the caller."""
        asked = self._asked
        try:
            lanes = lanes_of(self._invocation.env)
        except StoreError:
            return None
        mine = [asked.watch_pid] if asked.watch_pid is not None else _ancestors(os.getpid())
        for lane in lanes:
            if lane.get("agent_id") == asked.agent_id and lane.get("pid") in mine:
                found = await read_object(context.store, heartbeat_path(asked.agent_id), "a heartbeat")
                if (instance := None if found is None else text(found[0], "instance_id")) is not None:
                    return instance
        return None

    async def beating(self, context: Context, record: Document) -> None:
        """Bring a heartbeat of another instance over to this one, if that one is dead or superseded.

        Else it stays, and the daemon will not keep the claim: one of two that live under one name would be
        taken for the other.
        """
        asked, instance = self._asked, text(record, "instance_id")
        found = await read_object(context.store, heartbeat_path(asked.agent_id), "a heartbeat")
        if found is None or text(found[0], "instance_id") in (None, instance):
            return
        if self._supersede or liveness(found[0], context.now()) == "dead":
            beat = Beat(
                agent_id=asked.agent_id,
                ttl=asked.ttl,
                status=normalize(requests.DEFAULT_STATUS),
                repo=asked.repo,
                target=asked.target,
                batch_id=text(record, "batch_id"),
                branch=text(record, "branch"),
                metadata={"instance_id": instance},
            )
            await heartbeat(context, beat)

    def hold(self, record: Document, fence: str | None) -> Document:
        """Have what was written kept, with a `fence` a claim, else a heartbeat; gives what the answer says of it."""
        kinds = ("heartbeat",) if fence is None else ("heartbeat", "claim")
        asked = replace(self._asked, instance=text(record, "instance_id"))
        try:
            self._lease = ask_to_hold(self._invocation.env, self._backend, asked, kinds, fence)
        except StoreError as error:
            self._fault = error
        return {"lease": self._lease}

    def say(self, output: Output, *, json: bool) -> None:
        """Say who keeps it, or that nobody does, which is not what was asked for."""
        if self._fault is not None:
            then = "once that is mended, run" if isinstance(self._fault, Declined) else "then run"
            output.stderr.append(f"it is written, but nobody keeps it: {self._fault}; {then}: {self._mend()}")
            output.exit = Exit.UNKNOWN
        elif self._lease is not None and not json:
            output.say(kept(self._lease))

    def _mend(self) -> str:
        """Give the command that has what was written kept. The same one again might be refused as another instance."""
        asked = self._asked
        words = ["agent-coord", "lease", "hold", "--agent-id", asked.agent_id]
        if asked.repo is not None and asked.target is not None:
            words += ["--repo", asked.repo, "--target", asked.target]
        if asked.ttl != requests.HEARTBEAT_TTL:
            words += ["--ttl", str(asked.ttl)]
        if asked.watch_pid is not None:
            words += ["--watch-pid", str(asked.watch_pid)]
        return join(words + self._given)


def _ancestors(pid: int) -> list[int]:
    """List the processes above one, nearest first, as far as the system tells."""
    above: list[int] = []
    while len(above) < _MOST_ANCESTORS and (found := _stat(pid)) is not None and found[0] > 0:
        pid = found[0]
        above.append(pid)
    return above


def _stat(pid: int) -> tuple[int, int] | None:
    """Give a process's parent and the tick it began at; None where nobody can tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before it may hold anything
        return int(fields[1]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
