"""The steps that bring a database to the newest schema, as SQL files in the order of their names."""

from collections.abc import Iterator
from importlib.resources import files

from msgspec import Struct


class Migration(Struct, frozen=True):
    """One step: its number and what it runs."""

    number: int
    name: str
    sql: str


def migrations(dialect: str) -> Iterator[Migration]:
    """Give the steps for `sqlite` or `postgres`, in order."""
    folder = files(__package__ or __name__) / dialect
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".sql"):
            yield Migration(int(entry.name.split("_")[0]), entry.name, entry.read_text("utf-8"))
