"""How an acquisition stands: one line, or the same for a program."""

from agentcoord.cli.output import Output
from agentcoord.errors import Exit
from agentcoord.operations.standing import VerifyRequest
from agentcoord.protocol.documents import Document, encode_pretty
from agentcoord.protocol.standing import Standing, explain


def facts_of_standing(standing: Standing, request: VerifyRequest) -> Document:
    """Give what programs are told of an acquisition."""
    return {
        "held": standing.held,
        "repo": request.repo,
        "target": request.target,
        "holder": standing.holder,
        "reason": standing.reason,
        "liveness": standing.seen,
        "expires_at": standing.until,
    }


def render_standing(standing: Standing, request: VerifyRequest, output: Output, *, json: bool) -> None:
    """Say whether the fence holds; that it does not goes to stderr too, whatever stdout carries."""
    line = explain(standing, request.repo, request.target)
    if not standing.held:
        output.stderr.append(line)
        output.exit = Exit.REFUSED
    if json:
        output.add(encode_pretty(facts_of_standing(standing, request)))
    elif standing.held:
        output.say(line)
