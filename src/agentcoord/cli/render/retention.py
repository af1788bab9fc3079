"""What retention found due, and did."""

from typing import Any

from agentcoord.cli.output import Output, one_line
from agentcoord.cli.render.trail import render_sync
from agentcoord.files import printable
from agentcoord.operations.mirror import Synced
from agentcoord.operations.retention import Retention
from agentcoord.protocol.documents import Document, encode_pretty
from agentcoord.protocol.retention import Action, Archive, Compact, Delete


def render_retention(result: Retention, output: Output, *, json: bool, synced: Synced | None = None) -> None:
    """Print the actions, alike whether they are only planned or were taken (spec: cli §12.5).

    `synced`: what the sync before it came to, if there was one.
    """
    mode = "execute" if result.request.execute else "dry-run"
    policy = result.request.policy
    if json:
        shown: dict[str, Any] = {
            "mode": mode,
            "policy": {
                "hot_days": policy.hot_days,
                "archive_days": policy.archive_days,
                "synthetic_hot_days": policy.synthetic_hot_days,
            },
            "prefixes": list(result.request.prefixes),
            "actions": [_shown(action) for action in result.actions],
        }
        if synced is not None:
            shown |= {"synced": synced.added, "mirror": printable(synced.path)}
        output.add(encode_pretty(shown))
        return
    windows = f"hot={policy.hot_days}d archive={policy.archive_days}d synthetic_hot={policy.synthetic_hot_days}d"
    lines = [f"gc {mode} {windows}", *(map(_line, result.actions) if result.actions else ["- no actions"])]
    if synced is not None:
        render_sync(synced, output, json=False)
    output.page("\n".join(map(one_line, lines)))


def _word(action: Action) -> str:
    match action:
        case Archive():
            return "replace_archive" if action.replaces else "archive"
        case Compact():
            return "compact"
        case Delete():
            return "delete"


def _shown(action: Action) -> Document:
    shown: Document = {"action": _word(action)}
    if isinstance(action, Compact):
        shown["source_paths"] = list(action.source_paths)
    else:
        shown["source_path"] = action.source_path
    if not isinstance(action, Delete):
        shown["archive_path"] = action.archive_path
    return shown | {"reason": action.reason, "eligible_at": action.eligible_at}


def _line(action: Action) -> str:
    sources = ",".join(action.source_paths) if isinstance(action, Compact) else action.source_path
    place = "" if isinstance(action, Delete) else f" -> {action.archive_path}"
    return f"- {_word(action)} {sources}{place} ({action.reason})"
