"""Versions and settings as text and JSON (spec: cli §13)."""

from typing import Any

from agentcoord.cli.output import Output
from agentcoord.operations.configuration import configuration, versions
from agentcoord.protocol.documents import Document, encode_pretty


def _shown(value: object) -> str:
    return "none" if value is None else str(value)


def render_version(output: Output, *, json: bool) -> None:
    """Print the versions of the contract."""
    facts = versions()
    if json:
        output.add(encode_pretty(facts))
        return
    output.say(f"agent-coord {facts.pop('version')}")
    for key, value in facts.items():
        output.say(f"{key}: {_shown(value)}")


def render_configuration(coordination: Document, output: Output, *, json: bool) -> None:
    """Print the configuration in force."""
    facts: dict[str, Any] = configuration(coordination)
    if json:
        output.add(encode_pretty(facts))
        return
    output.say("agent-coord config")
    for key in (
        "version",
        "default_backend",
        "default_claim_ttl_seconds",
        "default_heartbeat_ttl_seconds",
        "heartbeat_dead_after_ttl_multiplier",
    ):
        output.say(f"{key}: {_shown(facts[key])}")
    days = facts["retention_policy"]
    output.say(
        f"retention_policy: hot={days['hot_days']}d,archive={days['archive_days']}d,"
        f"synthetic_hot={days['synthetic_hot_days']}d"
    )
    vocabulary = facts["heartbeat_status_vocabulary"]
    output.say(f"dependency_terminal_statuses: {','.join(facts['dependency_terminal_statuses'])}")
    output.say(f"heartbeat_working_statuses: {','.join(vocabulary['working'])}")
    output.say(f"heartbeat_terminal_statuses: {','.join(vocabulary['terminal'])}")
    output.say(f"exit_codes: {','.join(f'{name}={code}' for name, code in facts['exit_codes'].items())}")
    for key in ("policy", "backend"):
        output.say(f"coordination_{key}: {coordination[key]}")
    output.say(f"coordination_configured: {str(coordination['configured']).lower()}")
