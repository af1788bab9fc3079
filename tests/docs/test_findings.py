"""The page on the doctor knows every finding there is, and no other."""

import ast
import re
from collections.abc import Iterator

from tests.docs.pages import ROOT

MAKERS = ("Finding", "_open", "_foreign")
PAGE = ROOT / "docs" / "doctor.md"


def used() -> Iterator[str]:
    """Give what the program calls its findings, wherever it gives one a name."""
    for path in sorted((ROOT / "src" / "agentcoord").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=maker), args=[ast.Constant(value=str(id)), *_]) if maker in MAKERS:
                    yield id
                case ast.keyword(arg="finding", value=ast.Constant(value=str(id))):
                    yield id
                case ast.Assign(targets=[ast.Name(id="MISSING")], value=ast.Constant(value=str(id))):
                    yield id
                case ast.AnnAssign(target=ast.Name(id="topic"), value=ast.Constant(value=str(id))):
                    yield id
                case ast.Assign(targets=[ast.Name(id="topic")], value=ast.Constant(value=str(id))):
                    yield id
                case _:
                    pass


def told() -> Iterator[str]:
    """Give the findings of the page's table."""
    table = re.search(r"^\| `id` \|.*?\n\n", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert table is not None
    for row in table.group().split("\n")[2:]:
        yield from re.findall(r"`([^`]+)`", row.split("|")[1]) if row else ()


def test_the_page_lists_every_finding() -> None:
    found = list(told())
    assert sorted(found) == sorted(set(found))
    assert set(found) == set(used())
