"""The doctor's findings as text, JSON and the stack component report (spec: cli §14)."""

from typing import Any, cast

from agentcoord.cli.output import Output
from agentcoord.errors import Exit
from agentcoord.files import discreet, printable
from agentcoord.operations.doctor.fleet import Evidence
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
    if report.evidence is not None:
        lines += _evidence(report.evidence)
    if report.environment is not None:
        shown = report.environment
        lines += [f"{key}: {shown[key] or '-'}" for key in ("machine_id", "session_id")]
        lines += [f"{key}: {shown[key]}" for key in ("session_source", "machine_match")]
    if report.evidence is not None and report.evidence.resources.notes:
        lines += ["degraded", *(f"- {note}" for note in dict.fromkeys(report.evidence.resources.notes.values()))]
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


def _evidence(evidence: Evidence) -> list[str]:
    lines = ["resource_checks", *(f"- {prefix}: {state}" for prefix, state in evidence.resources.results.items())]
    if evidence.identity is not None:
        lines.append(f"machine: {evidence.identity['machine']}")
        for key in ("read_prefixes", "write_prefixes"):
            scopes: list[str] = evidence.identity[key]
            lines.append(f"{key}: {'all-state' if '' in scopes else ','.join(scopes) or '-'}")
    return lines


def _explained(explanation: Explanation) -> list[str]:
    settings = [f"- {origin.name}: {origin.value or '-'} ({origin.source})" for origin in explanation.settings]
    found = explanation.file_system
    where: list[str] = []
    if found is not None:
        where = [f"- mount_point: {printable(found.mount.point)}", f"- type: {printable(found.mount.type)}"]
        where.append(f"- locks: {found.locks}" + ("" if found.fault is None else f" ({printable(found.fault)})"))
    daemon = [f"- {name}: {_word(value)}" for name, value in _daemon(explanation).items()]
    findings: list[str] = []
    for finding in explanation.findings:
        findings.append(f"- {finding.severity} {finding.id}: {finding.summary}")
        if finding.mend is not None:
            findings.append(f"  {finding.mend}")
    none = ["- none"]
    lines = ["settings", *(settings or none), "file_system", *(where or none), "daemon", *(daemon or none)]
    return [*lines, "findings", *(findings or none)]


def _daemon(explanation: Explanation) -> Document:
    """Give what was seen of the daemon; `running` and `lingers` are null where that cannot be told."""
    seen = explanation.daemon
    if seen is None:
        return {}
    return {
        "running": None if seen.fault is not None else seen.version is not None,
        "version": seen.version,
        "socket": seen.socket,
        "service": seen.service,
        "program": seen.program,
        "lingers": seen.lingers,
    }


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else printable(str(value))


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
    evidence = report.evidence
    if evidence is not None:
        facts["resource_checks"] = evidence.resources.results
        if evidence.identity is not None:
            facts["identity"] = evidence.identity
    if report.environment is not None:
        facts["environment_identity"] = report.environment
    if evidence is not None and evidence.resources.notes:
        facts["degraded"] = list(dict.fromkeys(evidence.resources.notes.values()))
        facts["section_notes"] = evidence.resources.notes
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
        "daemon": _daemon(explanation) or None,
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
