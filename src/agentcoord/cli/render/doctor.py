"""The doctor's findings as text, JSON and the stack component report (spec: cli §14)."""

from typing import Any, cast

from agentcoord.cli.output import Output
from agentcoord.errors import Exit
from agentcoord.files import discreet, printable
from agentcoord.operations.doctor.report import Explanation, Report
from agentcoord.operations.doctor.stack import StackReport
from agentcoord.protocol.documents import Document, encode_pretty
from agentcoord.version import VERSION

_STACK_EXITS = {"healthy": Exit.OK, "degraded": Exit.USAGE, "failed": Exit.UNKNOWN}


def render_report(report: Report, output: Output, *, json: bool) -> None:
    """Print what was found."""
    if json:
        output.add(encode_pretty(_presentable(_facts(report))))
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
    if report.explanation is not None:
        lines += _explained(report.explanation)
    for line in lines:
        output.say(line)


def _presentable(part: Any) -> Any:
    """Give a report, or a part of one, with texts that JSON can carry and that show no userinfo."""
    if isinstance(part, str):
        return discreet(printable(part))
    if isinstance(part, dict):
        return {_presentable(key): _presentable(value) for key, value in cast(Document, part).items()}
    if isinstance(part, list | tuple):
        return [_presentable(value) for value in cast("list[Any]", part)]
    return part


def _explained(explanation: Explanation) -> list[str]:
    settings = [f"- {origin.name}: {origin.value or '-'} ({origin.source})" for origin in explanation.settings]
    found = explanation.file_system
    where: list[str] = []
    if found is not None:
        where = [f"- mount_point: {printable(found.mount.point)}", f"- type: {printable(found.mount.type)}"]
        where.append(f"- locks: {found.locks}" + ("" if found.fault is None else f" ({printable(found.fault)})"))
    findings: list[str] = []
    for finding in explanation.findings:
        findings.append(f"- {finding.severity} {finding.id}: {finding.summary}")
        if finding.mend is not None:
            findings.append(f"  {finding.mend}")
    none = ["- none"]
    return ["settings", *(settings or none), "file_system", *(where or none), "findings", *(findings or none)]


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
    if report.explanation is not None:
        facts |= _explanation(report.explanation)
    return facts


def _explanation(explanation: Explanation) -> Document:
    found = explanation.file_system
    return {
        "settings": [
            {"name": origin.name, "value": origin.value, "source": origin.source} for origin in explanation.settings
        ],
        "file_system": None
        if found is None
        else {
            "mount_point": found.mount.point,
            "type": found.mount.type,
            "source": found.mount.source,
            "options": found.mount.options,
            "locks": found.locks,
            "fault": found.fault,
        },
        "findings": [
            {"id": finding.id, "severity": finding.severity, "summary": finding.summary, "mend": finding.mend}
            for finding in explanation.findings
        ],
    }


def render_stack(report: StackReport, output: Output) -> None:
    """Print the component report; nothing else is ever said with it."""
    output.exit = _STACK_EXITS[report.status]
    output.add(
        encode_pretty(
            _presentable(
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
    )
