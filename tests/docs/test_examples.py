"""Every example in the documentation does what its page says; `tests/docs/pages.py` tells how examples are marked."""

import re
from pathlib import Path

import pytest

from tests.command import Coord
from tests.docs.pages import PAGES, ROOT, Page, steady


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_examples_print_what_the_page_says(path: Path, pages: dict[Path, Page]) -> None:
    page = pages[path]
    said: list[str] = []
    done: list[str] = []
    for step, printed in zip(page.steps, page.printed, strict=True):
        shown = page.shown(step)
        ran = "(not reached)" if printed is None else printed if shown is not None else ""
        said += [f"$ {step.command}", steady(shown or "")]
        done += [f"$ {step.command}", steady(ran)]
    assert "\n".join(done) == "\n".join(said)


def test_the_readme_shows_the_demo(coord: Coord) -> None:
    assert f"\n{coord('demo').out}```\n" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link, heading in re.findall(r"\]\((?![a-z]+://)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        linked = page.parent / link if link else page
        assert linked.is_file(), f"{page.name} links to {link}"
        assert not heading or heading in _headings(linked), f"{page.name} links to {link}#{heading}"


def _headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}
