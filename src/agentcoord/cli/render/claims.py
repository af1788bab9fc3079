"""Claims and releases: the line a script reads, or the record written."""

from agentcoord.cli.output import Output
from agentcoord.errors import Exit
from agentcoord.operations.claims import Claimed, Refused, Released, ReleaseRequest
from agentcoord.protocol.claims import refusal
from agentcoord.protocol.documents import Document, encode_pretty


def facts_of_claim(result: Claimed | Refused) -> Document:
    """Give what programs are told of a claim that was made or refused."""
    if isinstance(result, Refused):
        refused = result.refusal
        return {
            "refused": True,
            "repo": result.repo,
            "target": result.target,
            "holder": refused.holder,
            "liveness": refused.seen,
            "expires_at": refused.expires_at,
        } | ({} if refused.instance is None else {"instance_id": refused.instance})
    return {
        "record": result.record,
        "fence": result.fence,
        "renewed": result.renewed,
        "taken_over_from": result.taken_over_from,
    }


def facts_of_release(result: Released) -> Document:
    """Give what programs are told of a lease that was given back."""
    closed = result.closed
    more = {} if closed is None else {"event": closed.event, "changed": closed.changed}
    return {"record": result.record} | more


def render_claim(result: Claimed | Refused, output: Output, *, json: bool, more: Document | None = None) -> None:
    """Say who holds the lease now; a refusal goes to stderr too, whatever stdout carries.

    `more` joins the JSON of a claim.
    """
    if isinstance(result, Refused):
        refused = result.refusal
        output.stderr.append(refusal(refused, result.repo, result.target))
        output.exit = Exit.REFUSED
        if json:
            output.add(encode_pretty(facts_of_claim(result)))
        return
    record = result.record
    if json:
        output.add(encode_pretty(facts_of_claim(result) | (more or {})))
        return
    output.say(f"claimed {record['repo']}#{record['target']} by {record['agent_id']} until {record['expires_at']}")


def hints_of_claim(result: Claimed) -> list[str]:
    """Say what a person could not see from the line that scripts read."""
    if result.taken_over_from is not None:
        was = result.taken_over_from or "an unknown agent"
        return [
            f"notice: taken over from {was}, who is dead or was never heard of; its work may be unfinished",
            _resume_hint(result.record),
        ]
    if result.handed_over:
        return ["notice: the item was handed over", _resume_hint(result.record)]
    return ["notice: the lease was yours already and is renewed"] if result.renewed else []


def _resume_hint(record: Document) -> str:
    item = f"--repo {record['repo']} --target {record['target']}"
    return f"notice: agent-coord resume {item} shows how it was left"


def render_release(result: Released, request: ReleaseRequest, output: Output, *, json: bool) -> None:
    """Say that the lease is given back, or that its lane was closed before."""
    closed, item = result.closed, f"{request.repo}#{request.target}"
    if json:
        output.add(encode_pretty(facts_of_release(result)))
    elif closed is not None and not closed.changed:
        output.say(f"lane already closed for {item}")
    else:
        output.say(f"released {item} by {request.agent_id}")
