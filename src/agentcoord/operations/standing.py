"""Telling whether a fence still names the acquisition that holds a work item."""

from msgspec import Struct

from agentcoord.operations.claims import beat_of, state_of
from agentcoord.operations.context import Context, read_object
from agentcoord.protocol.paths import claim_path, require_repo, require_segment
from agentcoord.protocol.standing import Standing, compare, judge


class VerifyRequest(Struct, frozen=True):
    """An acquisition that a caller believes to be its own."""

    repo: str
    target: str
    fence: str


async def verify(context: Context, request: VerifyRequest) -> Standing:
    """Compare a fence with the records as they are now. Only reads.

    Raises UsageError for an invalid request, StoreError when the backend cannot tell.
    """
    require_repo(request.repo, "target repo")
    require_segment(request.target, "target")
    found = await read_object(context.store, claim_path(request.repo, request.target), "a claim")
    standing = compare(found[0] if found else None, request.fence)
    if not standing.held or standing.holder is None:
        return standing
    beat = await beat_of(context, standing.holder)
    now = context.now()
    return judge(standing, state_of(beat, now), now)
