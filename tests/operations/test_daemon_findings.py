"""What the doctor says of the daemon, by what was seen of it."""

import pytest

from agentcoord.daemonlink import Silent, Walled
from agentcoord.operations.doctor.daemon import DaemonSeen, findings_of
from agentcoord.version import VERSION

SOCKET = "/run/user/1000/agent-coord/daemon.sock"
UNIT = "/home/you/.config/systemd/user/agentcoordd.service"


def seen(**facts: object) -> list[tuple[str, str | None]]:
    found = findings_of(DaemonSeen(socket=SOCKET, **facts))  # pyright: ignore[reportArgumentType]
    assert all(finding.severity == "warning" for finding in found)
    return [(finding.id, finding.mend) for finding in found]


DOWN = ("daemon.down", "agent-coord daemon start")
OTHER = ("daemon.version", "agent-coord daemon restart")


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({}, []),
        ({"version": VERSION}, []),
        ({"version": VERSION, "service": UNIT, "program": "/opt/x", "lingers": True}, []),
        ({"version": VERSION, "service": UNIT, "program": "/opt/x"}, []),
        ({"required": True}, [DOWN]),
        ({"service": UNIT, "program": "/opt/x"}, [DOWN]),
        ({"version": "0.0.9"}, [OTHER]),
        ({"version": VERSION, "api": 99}, [OTHER]),
        ({"fault": Walled("no way")}, [("daemon.walled", None)]),
        ({"fault": Silent("no word"), "required": True}, [("daemon.silent", None)]),
        (
            {"version": VERSION, "service": UNIT, "program": "/gone", "startable": False, "lingers": False},
            [("daemon.unit_target", "agent-coord daemon install"), ("daemon.lingering", "loginctl enable-linger")],
        ),
    ],
)
def test_what_is_warned_of(facts: dict[str, object], found: list[tuple[str, str | None]]) -> None:
    assert seen(**facts) == found
