"""What is shown of a database URL: where the database is, and never what may be a password."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoordd.server.storage.urls import place, shown


@pytest.mark.parametrize(
    ("url", "seen", "where"),
    [
        ("sqlite:///var/lib/state.db", "sqlite:///var/lib/state.db", None),
        ("postgresql://db/coord", "postgresql://db/coord", "db/coord"),
        ("postgres://u@db:5433/coord", "postgres://***@db:5433/coord", "db:5433/coord"),
        ("postgresql://u:pw@db/coord?password=pw", "postgresql://***@db/coord?***", "db/coord"),
        ("postgresql://u:p@w@db/coord", "postgresql://***@db/coord", "db/coord"),
        ("postgresql:///coord?password=p@w", "postgresql://***@?***", ""),
        ("postgresql://u:p?w@db/coord", "postgresql://***@?***", ""),
        ("postgresql:///coord", "postgresql:///coord", "/coord"),
    ],
)
def test_what_is_shown(url: str, seen: str, where: str | None) -> None:
    assert shown(url) == seen
    assert where is None or place(url) == where


@given(password=st.text("pq@?&=/:#%", min_size=3), option=st.text("pq@?&=/:#%", min_size=3))
def test_no_password_is_ever_shown(password: str, option: str) -> None:
    """Whatever the characters: the letters of both are of no other part."""
    for url in (f"postgresql://u:{password}@h/d", f"postgresql://u@h/d?password={option}"):
        assert not set("pq") & set(shown(url).removeprefix("postgresql://"))
