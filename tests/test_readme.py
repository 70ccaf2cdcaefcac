"""The README's tour runs line by line, and names what is there."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(page):
    """The page's examples, without the fence that ends a block of code."""
    text = re.sub(r"^```.*$", "", page.read_text(), flags=re.MULTILINE)
    return doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_page_runs(page):
    report = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    runner.run(examples(page), out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_tour_is_long_enough_to_show_the_whole_way():
    tour = examples(ROOT / "README.md")
    lines = sum(e.source.count("\n") for e in tour.examples)
    assert lines >= 40


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_paths_in_the_page_exist(page):
    found = re.findall(r"`([\w./]+/[\w./]*|[\w/]+\.(?:py|toml|md))`", page.read_text())
    missing = [p for p in found if not (ROOT / p).exists() and not (ROOT / "symgrad" / p).exists()]
    assert found
    assert missing == []
