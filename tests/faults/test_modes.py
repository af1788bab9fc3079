"""What a command makes has the modes that its caller's umask leaves, whoever does the work."""

import pytest

from tests.daemon.remembering import configure
from tests.daemon.running import Daemon
from tests.faults.commands import ALONE, EXEC, ITEM, REQUIRED, Machine, modes


def under(mask: str) -> list[str]:
    return ["/bin/sh", "-c", f"umask {mask}; {EXEC}", "sh"]


@pytest.mark.parametrize(("daemons", "callers"), [("077", "022"), ("000", "077"), ("022", "002")])
def test_records_and_directories_are_made_as_by_the_caller(
    daemon: Daemon, machine: Machine, daemons: str, callers: str
) -> None:
    other = daemon.directory / "other"
    configure(daemon, mirror={"on": False})  # or the daemon may be first, and makes the mirror as its own
    daemon.start(before=under(daemons))
    for command in (
        ("claim", "--agent-id", "ana", *ITEM),
        ("heartbeat", "--agent-id", "ana"),
        ("record-event", "--batch-id", "spring", "--type", "note", "--message", "hello"),
        ("log", "--sync"),
    ):
        assert machine(*command, env=REQUIRED, before=under(callers)).exit == 0
        alone = machine(*command, "--state-root", str(other), env=ALONE, before=under(callers))
        assert alone.exit == 0, alone.err
    # The last part of an event's name is chance.
    assert sorted(modes(machine.root).values()) == sorted(modes(other).values())
    assert modes(machine.root)["claims/acme/widgets/7.json"] == oct(0o666 & ~int(callers, 8))
    assert modes(machine.root)["claims/acme/widgets"] == oct(0o777 & ~int(callers, 8))


def test_a_group_goes_on_from_directory_to_directory(daemon: Daemon, machine: Machine) -> None:
    machine.root.mkdir(parents=True)
    machine.root.chmod(0o2775)
    daemon.start(before=under("077"))
    assert machine("claim", "--agent-id", "ana", *ITEM, env=REQUIRED, before=under("002")).exit == 0
    assert modes(machine.root)["claims/acme/widgets"] == "0o2775"
    assert modes(machine.root)["claims/acme/widgets/7.json"] == "0o664"
