"""Every example in the documentation does what the page says; how an example is marked: `tests/docs/pages.py`."""

from pathlib import Path

import pytest

from tests.command import Coord
from tests.docs.pages import can_play, played, steady, steps_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_print_what_the_page_says(page: Path, private: Path) -> None:
    lines = page.read_text(encoding="utf-8").split("\n")
    steps = [step for step in steps_of(lines) if can_play(step)]
    said, done = list[str](), list[str]()
    for step, printed in zip(steps, played(steps, private), strict=True):
        for heard, output in ((said, None if step.shown is None else lines[slice(*step.shown)]), (done, printed)):
            heard.append(f"$ {step.command}")
            if printed is None:
                heard.append("" if heard is said else "(not reached)")
            elif step.shown is not None:
                heard.append(steady(output if isinstance(output, str) else "\n".join(output or ())))
    assert "\n".join(done) == "\n".join(said)


def test_the_readme_shows_the_demo(coord: Coord) -> None:
    assert f"\n{coord('demo').out}```\n" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    import re

    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert "://" in link or (page.parent / link).exists(), f"{page.name} links to {link}"
