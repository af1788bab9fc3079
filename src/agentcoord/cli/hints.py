"""What a person is told besides the answer, where something looks right and is not."""

from typing import TYPE_CHECKING

from agentcoord.cli.output import Invocation, Output
from agentcoord.protocol.batches import UNKNOWN
from agentcoord.settings.value import Settings
from agentcoord.stores.opening import open_local

if TYPE_CHECKING:
    from agentcoord.operations.closeout import Closed


def hint_at_machine(closed: "Closed", invocation: Invocation, output: Output) -> None:
    """Tell a person, while it can still be mended for the next lane, why an audit will not count this closeout."""
    if invocation.terminal.notices and closed.event_created and closed.event["closed_by"]["machine"] == UNKNOWN:
        output.stderr.append(
            "notice: closed by an unknown machine, which batch-audit does not accept as a closeout; "
            "set AGENT_COORD_MACHINE_ID or pass --host before closing the next lane"
        )


def hint_at_root(settings: Settings, invocation: Invocation, output: Output) -> None:
    """Tell a person that nothing was found because nothing is there: a misspelt root looks like an empty one."""
    if not invocation.terminal.notices:
        return
    local = open_local(settings.selected, invocation.cwd)
    if local is not None and not local.exists():
        output.stderr.append(f"notice: the state root does not exist: {local.root}")
