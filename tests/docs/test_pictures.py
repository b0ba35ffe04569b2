"""The pictures of the documentation are those of the records: their files hold the fingerprint of what they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gemmule.lab.drawing.theme import THEMES
from gemmule.lab.pictures import plot_stem
from pages.blocks import KINDS, PLOTS, has_pictures, pages, pictures

ROOT = Path(__file__).parents[2]
TARGETS = re.compile(r"""<(?:img|source)[^>]*?\b(?:src|srcset)="(?!https?:)(?P<target>[^"]+)""")
SHOWING = [page for page in pages(ROOT) if has_pictures(page.read_text())]


@pytest.mark.parametrize("page", SHOWING, ids=lambda page: str(page.relative_to(ROOT)))
def test_pictures_are_current(page):
    for mark, (plot, stem) in pictures(page.read_text(), ROOT / "benchmarks" / "results").items():
        for theme in THEMES:
            for kind in KINDS:
                path = ROOT / PLOTS / f"{plot_stem(stem, plot, theme)}.{kind}"
                assert mark.encode() in path.read_bytes(), f"{path}: run python -m pages.blocks ."


@pytest.mark.parametrize("page", pages(ROOT), ids=lambda page: str(page.relative_to(ROOT)))
def test_pictures_are_there(page):
    for match in TARGETS.finditer(page.read_text()):
        assert (page.parent / match["target"]).exists(), match["target"]


def test_the_ladder_has_pictures():
    page = ROOT / "docs" / "ladder" / "index.md"
    assert page in SHOWING
    assert pictures(page.read_text(), ROOT / "benchmarks" / "results")
