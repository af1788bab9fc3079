"""`gc` beside the mirror, which may be all that is left of what it drops: syncing first, and saying what is missing."""

from collections.abc import Callable
from functools import partial

from agentcoord.cli.output import Output
from agentcoord.errors import StoreError
from agentcoord.files import printable
from agentcoord.operations.context import Context
from agentcoord.operations.mirror import Lacking, Synced, find_lacking, sync_mirror
from agentcoord.operations.retention import Retention, RetentionRequest, retain
from agentcoord.operations.trail import TrailRequest


async def collect(
    context: Context,
    request: RetentionRequest,
    mirror_root: Callable[[], str],
    output: Output,
    *,
    sync_first: bool,
    notices: bool,
    umask: int | None = None,
) -> tuple[Retention, Synced | None]:
    """Do one round of retention; with `sync_first`, not before the mirror has all of the trail.

    `notices`: a person is told of dropped events that the mirror lacks. Raises StoreError, from the sync too: then
    nothing was removed.
    """
    synced: Synced | None = None

    async def sync() -> None:
        nonlocal synced
        synced = await sync_mirror(context, TrailRequest(sync=True), mirror_root(), afresh=True, umask=umask)

    result = await retain(context, request, first=sync if sync_first else None, telling=notices and not sync_first)
    if result.dropped and (lacking := await _lacking(context, result, mirror_root)) is not None and lacking.count:
        output.stderr.append(_notice(lacking, executed=request.execute))
    return result, synced


async def _lacking(context: Context, result: Retention, mirror_root: Callable[[], str]) -> Lacking | None:
    """Compare with the mirror; where there is no place for one, a round that went well is not to fail for it."""
    try:
        return await context.aside(partial(find_lacking, result.dropped, mirror_root()))
    except StoreError:
        return None


def _notice(lacking: Lacking, *, executed: bool) -> str:
    one = lacking.count == 1
    if executed:
        events = f"{lacking.count} {'event that was' if one else 'events that were'} dropped"
        hint = (
            "next time, agent-coord gc --execute --sync-first; what the archive still has, agent-coord log --sync saves"
        )
    else:
        events = f"{lacking.count} {'event' if one else 'events'} that would be dropped"
        hint = "run agent-coord log --sync first, or agent-coord gc --execute --sync-first"
    path = printable(lacking.path)
    where = path if lacking.fault is None else f"{path}, which {lacking.fault}"
    return f"notice: {events} {'is' if one else 'are'} not in the mirror {where}: {hint}"
