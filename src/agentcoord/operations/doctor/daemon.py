"""What the doctor finds out about the daemon: pure, from what was seen of it to findings.

The daemon is optional, so that there is none is nothing to warn of, unless somebody counts on it.
"""

from msgspec import Struct

from agentcoord.errors import CoordError
from agentcoord.files import printable
from agentcoord.operations.doctor.findings import Finding, of_error
from agentcoord.version import VERSION
from agentcoord.wire import API


class DaemonSeen(Struct, frozen=True):
    """What was seen of the daemon and of the service that starts it.

    `version` is None when it could not be asked; then `fault` says why, unless there is none at all.
    """

    socket: str
    version: str | None = None
    api: int = API
    fault: CoordError | None = None
    required: bool = False
    """Whether the environment says that commands need it."""
    service: str | None = None
    """The file of the installed service."""
    program: str | None = None
    """What the service starts; None where that cannot be read."""
    startable: bool = True
    lingers: bool | None = None
    """Whether the service runs while nobody is logged in; None where that cannot be told."""


def findings_of(seen: DaemonSeen) -> list[Finding]:
    """Warn of a daemon that cannot be asked, is of another version, or will not be there when it is needed."""
    findings: list[Finding] = []
    if seen.fault is not None:
        findings.append(of_error(seen.fault, severity="warning"))
    elif seen.version is None and seen.required:
        said = f"commands are to need the daemon, and none listens at {printable(seen.socket)}"
        findings.append(Finding("daemon.down", "warning", said, "agent-coord daemon start"))
    elif seen.version is None and seen.service is not None:
        said = f"the daemon is installed, and does not run: none listens at {printable(seen.socket)}"
        findings.append(Finding("daemon.down", "warning", said, "agent-coord daemon start"))
    elif seen.version is not None and (seen.version != VERSION or seen.api != API):
        talks = "" if seen.api == API else " and talks in another way, so no command is forwarded to it"
        said = f"the daemon is of version {seen.version}, this command of {VERSION}{talks}"
        findings.append(Finding("daemon.version", "warning", said, "agent-coord daemon restart"))
    if seen.service is None:
        return findings
    if not seen.startable:
        said = f"{printable(seen.service)} starts what is not there: {printable(seen.program or '?')}"
        findings.append(Finding("daemon.unit_target", "warning", said, "agent-coord daemon install"))
    if seen.lingers is False:
        said = "the daemon ends when you log out, and with it the leases of agents that go on"
        findings.append(Finding("daemon.lingering", "warning", said, "loginctl enable-linger"))
    return findings
