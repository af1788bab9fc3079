"""Merge authority: whether a batch may merge its work by itself, told in its manifest.

A manifest that is silent says something else than one that says none (spec: contracts, merge authority v1).
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from agentcoord.errors import UsageError
from agentcoord.protocol.contracts.vocabulary import UNKNOWN_METRIC, conform

FAMILY = "merge_authority"

Authority = Literal["none", "ask", "auto"]
_LAUNCHED: dict[str, Authority] = {"auto_merge_when_gates_pass": "auto", "ask": "ask", "none": "none"}


class Manifest(Struct, frozen=True, kw_only=True):
    """A batch manifest, of which only the authority matters here."""

    merge_authority: Authority | UnsetType = UNSET


def require_manifest(value: object) -> Manifest:
    """Check the authority of a manifest. Raises UsageError."""
    return conform(value, Manifest, "merge authority")


def from_launch(word: str) -> Authority:
    """Translate what a launch declares into what the manifest keeps. Raises UsageError for another word."""
    if word not in _LAUNCHED:
        raise UsageError(f"merge authority must be one of: {', '.join(_LAUNCHED)}")
    return _LAUNCHED[word]


def render_authority(manifest: Manifest) -> str:
    """Spell the authority as a reader sees it."""
    return UNKNOWN_METRIC if manifest.merge_authority is UNSET else manifest.merge_authority
