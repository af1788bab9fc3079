"""Looking at the daemon and at the service that starts it, for the doctor; nothing is started or changed."""

import os

from agentcoord.cli import services
from agentcoord.daemonlink import Connection, NoDaemon, place_of
from agentcoord.errors import StoreError
from agentcoord.operations.doctor.daemon import DaemonSeen
from agentcoord.settings.environment import Env

_WAIT = 2.0


def inspect(env: Env) -> DaemonSeen:
    """See whether the daemon answers, and whether what starts it at the next log-in can. Never raises."""
    daemon = fault = None
    try:
        with Connection(env, _WAIT, any_api=True) as connection:
            daemon = connection.daemon
    except NoDaemon:
        pass
    except StoreError as error:
        fault = error
    service = services.installed(env)
    program = None if service is None else services.installed_program(service)
    seen = DaemonSeen(
        socket=place_of(env).socket,
        fault=fault,
        required=env.get("AGENT_COORD_DAEMON") == "require",
        service=service,
        program=program,
        startable=service is None or (program is not None and os.access(program, os.X_OK)),
        lingers=None if service is None else services.lingers(env),
    )
    if daemon is None:
        return seen
    from msgspec.structs import replace

    return replace(seen, version=daemon.version, api=daemon.api)
