"""A directory's mark vouches for its files only once a further change would give it another mark."""

import time
from types import SimpleNamespace

import pytest

from agentcoord.marks import mark_of_directory

FINE, COARSE = 1_700_000_000_123_456_789, 1_700_000_000_000_000_000
"""Times as most file systems keep them, and as those do that keep whole seconds."""
MS = 1_000_000


@pytest.mark.parametrize(
    ("changed", "age", "vouches"),
    [(FINE, 40, False), (FINE, 60, True), (COARSE, 60, False), (COARSE, 2400, False), (COARSE, 2600, True)],
)
def test_how_old_a_change_has_to_be(changed: int, age: int, vouches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: changed + age * MS)

    def stat(path: str) -> SimpleNamespace:
        del path
        return SimpleNamespace(st_ctime_ns=changed)

    monkeypatch.setattr("agentcoord.marks.os", SimpleNamespace(stat=stat))
    assert mark_of_directory("events/b1/.") == (changed if vouches else 0)
