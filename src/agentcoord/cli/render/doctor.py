"""The doctor's findings as text, JSON and the stack component report (spec: cli §14)."""

from agentcoord.cli.output import Output
from agentcoord.errors import Exit
from agentcoord.operations.doctor.report import Report
from agentcoord.operations.doctor.stack import StackReport
from agentcoord.protocol.documents import Document, encode_pretty
from agentcoord.version import VERSION

_STACK_EXITS = {"healthy": Exit.OK, "degraded": Exit.USAGE, "failed": Exit.UNKNOWN}


def render_report(report: Report, output: Output, *, json: bool) -> None:
    """Print what was found."""
    if json:
        output.add(encode_pretty(_facts(report)))
        return
    backend = report.backend
    lines = ["agent-coord doctor", f"version: {VERSION}", f"backend: {backend.kind}"]
    lines.append(f"backend_repo: {backend.repo or ''}")
    if backend.url is not None:
        lines.append(f"backend_url: {backend.url}")
    if report.prefix is not None:
        lines.append(f"doctor_prefix: {report.prefix}")
    lines.append(f"state_root: {backend.root or '-'}")
    lines += [f"mode: {'deep' if report.deep else 'lightweight'}", f"status: {report.status}"]
    if report.split_brain_file is not None:
        lines.append(f"split_brain_env_file: {report.split_brain_file}")
    if report.environment is not None:
        shown = report.environment
        lines += [f"{key}: {shown[key] or '-'}" for key in ("machine_id", "session_id")]
        lines += [f"{key}: {shown[key]}" for key in ("session_source", "machine_match")]
    for line in lines:
        output.say(line)


def _facts(report: Report) -> Document:
    facts: Document = {
        "version": VERSION,
        "backend": report.backend.kind,
        "backend_repo": report.backend.repo,
        "backend_url": report.backend.url,
        "state_root": report.backend.root,
        "deep": report.deep,
        "status": report.status,
    }
    if report.split_brain_file is not None:
        facts["split_brain_env_file"] = report.split_brain_file
    if report.prefix is not None:
        facts["doctor_prefix"] = report.prefix
    if report.environment is not None:
        facts["environment_identity"] = report.environment
    return facts


def render_stack(report: StackReport, output: Output) -> None:
    """Print the component report; nothing else is ever said with it."""
    output.exit = _STACK_EXITS[report.status]
    output.add(
        encode_pretty(
            {
                "schema_version": 1,
                "component": "agent-coordination",
                "status": report.status,
                "checks": [
                    {
                        "id": check.id,
                        "status": check.status,
                        "summary": check.summary,
                        "details": check.details,
                        "guidance": check.guidance,
                    }
                    for check in report.checks
                ],
            }
        )
    )
