"""The command that is run to tell a person what became of a lease."""

import logging
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL
from typing import Any

import anyio
import msgspec

from agentcoord.errors import UsageError

_QUEUED = 256
_SECONDS = 10.0

log = logging.getLogger(__name__)


class Notification:
    """Runs one program for each event, one after the other, with the event as JSON on its standard input.

    The program is given by its absolute path: nothing is looked up. One that takes longer than `limit` seconds is
    killed, and events that come faster than it can take them are dropped with a line in the log.
    """

    def __init__(self, argv: Sequence[str], *, limit: float = _SECONDS, env: Mapping[str, str] | None = None) -> None:
        if not argv or not argv[0].startswith("/"):
            raise UsageError(f"the notification command must be an absolute path: {argv[0] if argv else 'nothing'}")
        self._argv = tuple(argv)
        self._limit = limit
        self._env = None if env is None else dict(env)
        self._send, self._receive = anyio.create_memory_object_stream[dict[str, Any]](_QUEUED)

    def post(self, topic: str, data: Mapping[str, Any]) -> None:
        """Have an event told in its turn."""
        try:
            self._send.send_nowait({"topic": topic, **data})
        except anyio.WouldBlock:
            log.warning("notification dropped, %d are waiting: %s", _QUEUED, topic)

    async def run(self) -> None:
        """Tell one event after the other, until cancelled."""
        with self._send, self._receive:
            async for event in self._receive:
                await self._tell(event)

    async def _tell(self, event: dict[str, Any]) -> None:
        try:
            with anyio.fail_after(self._limit):
                ran = await anyio.run_process(
                    self._argv,
                    input=msgspec.json.encode(event) + b"\n",
                    stdout=DEVNULL,
                    stderr=DEVNULL,
                    check=False,
                    cwd="/",
                    env=self._env,
                    start_new_session=True,
                )
        except TimeoutError:
            log.warning("notification command took longer than %g s and was killed: %s", self._limit, self._argv[0])
        except OSError as error:
            log.warning("notification command failed: %s: %s", self._argv[0], error.strerror or error)
        else:
            if ran.returncode:
                log.warning("notification command exited with %d: %s", ran.returncode, self._argv[0])
