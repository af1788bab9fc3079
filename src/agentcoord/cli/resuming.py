"""`resume`: what is known of a work item, with what this machine adds: a watched process, the branch's worktree."""

from msgspec import Struct

from agentcoord.checkout import Checkout, find_checkout
from agentcoord.cli.keeping import DAEMON
from agentcoord.cli.leases import lanes_of
from agentcoord.cli.output import Invocation
from agentcoord.errors import StoreError
from agentcoord.operations.context import Context
from agentcoord.operations.resume import Resume, ResumeRequest, resume
from agentcoord.protocol.documents import Document


class Resumable(Struct, frozen=True):
    """What the records say of an item, and what this machine adds. None where it has nothing."""

    found: Resume
    lane: Document | None
    checkout: Checkout | None


async def gather(context: Context, request: ResumeRequest, invocation: Invocation) -> Resumable:
    """Gather it. Raises UsageError, StoreError as `resume` does; what this machine adds is never waited for long."""
    found = await resume(context, request)
    checkout = None
    if invocation.own and found.branch is not None and "\0" not in found.branch:
        checkout = find_checkout(found.repo, found.branch, invocation.cwd, invocation.env)
    return Resumable(found, _lane(found, invocation), checkout)


def _lane(found: Resume, invocation: Invocation) -> Document | None:
    """Ask the daemon, if there is one, whether it watches the holder's process."""
    holder = found.tenure.holder
    if holder is None or invocation.env.get(DAEMON, "").strip() == "off":
        return None
    try:
        lanes = lanes_of(invocation.env)
    except StoreError:  # none that can be asked: it is not needed for the answer
        return None
    here = (holder, found.repo, found.target)
    return next((lane for lane in lanes if (lane.get("agent_id"), lane.get("repo"), lane.get("target")) == here), None)
