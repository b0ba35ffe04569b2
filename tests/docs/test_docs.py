"""The documentation is true: its code runs, and its generated blocks are what the registry and the records say."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from gemmule.runtime.device import device_count
from pages.blocks import generated, listings, pages, plots_link
from pages.rung_diff import LISTINGS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "CONTRIBUTING.md", *pages(ROOT)]
CODE = re.compile(r"^```python(?: (?P<needs>gpu|torch|jax))?\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)(?P<target>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?")
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(?P<text>.+?)(?: +#+)? *$", re.MULTILINE)
NAMED = re.compile(r"""<[a-z][^>]*? (?:id|name)=["']([^"']+)""")
BLOCKS = [
    pytest.param(match, id=f"{page.relative_to(ROOT)}:{page.read_text()[: match.start()].count(chr(10)) + 1}")
    for page in PAGES
    for match in CODE.finditer(page.read_text())
]


@pytest.mark.parametrize("block", BLOCKS)
def test_code_blocks_run(block, tmp_path, monkeypatch):
    if block["needs"] == "gpu" and device_count() == 0:
        pytest.skip("needs an NVIDIA GPU")
    if block["needs"]:
        pytest.importorskip("jax" if block["needs"] == "jax" else "torch", reason="the framework is not installed")
    monkeypatch.chdir(tmp_path)
    exec(compile(block["code"], "block", "exec"), {"__name__": "block"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_generated_blocks_are_current(page):
    text = page.read_text()
    new = generated(text, ROOT / "benchmarks" / "results", plots_link(page, ROOT))
    assert new == text, "run: python -m pages.blocks ."


def test_words_outside_the_notebook():
    docs = ROOT / "docs"
    words = sum(len(page.read_text().split()) for page in pages(ROOT) if not page.is_relative_to(docs / "notebook"))
    assert words - len((ROOT / "README.md").read_text().split()) <= 50_000


def test_diffs_are_current():
    diffs = {name: text for page in PAGES for name, text in listings(page.read_text()).items()}
    assert diffs == {path.name: path.read_text() for path in (ROOT / "docs" / LISTINGS).iterdir()}


def anchors(text):
    """The places of a page that a link can name, as GitHub names them."""
    plain = FENCED.sub("", text)
    found = set(NAMED.findall(plain))
    for match in HEADING.finditer(plain):
        words = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", match["text"]).casefold()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        # Of headings that are called alike, the second ends in -1.
        numbered = (f"{name}-{number}" for number in itertools.count(1))
        found.add(next(one for one in itertools.chain([name], numbered) if one not in found))
    return found


def dead_links(page):
    """The links of a page that lead to no file, or to no place in it."""
    dead = []
    for match in LINK.finditer(FENCED.sub("", page.read_text())):
        target = page.parent / match["target"] if match["target"] else page
        there = target.exists()
        if there and match["anchor"] is not None and target.suffix == ".md":
            there = match["anchor"] in anchors(target.read_text())
        if not there:
            dead.append(match[0].removeprefix("]("))
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert dead_links(page) == []


def test_a_dead_link_is_found(tmp_path):
    other, page = tmp_path / "other.md", tmp_path / "page.md"
    headings = "# One\n```\n# no heading\n```\n## `a_b` and [C](d.md): *e*!\n## Twice\n## Twice\n"
    other.write_text(f"{headings}<a id='x'></a>\n")
    places = ("one", "a_b-and-c-e", "twice", "twice-1", "x")
    alive = ["other.md", *(f"other.md#{place}" for place in places), "#top"]
    dead = ["none.md", "none.md#one", "other.md#no-heading", "other.md#twice-2", "other.md#", "#one"]
    page.write_text("# Top\n" + "".join(f"[a]({target})\n" for target in (*alive, *dead)))
    assert dead_links(page) == dead


def test_docstring_examples():
    import doctest

    from gemmule.api import functions

    assert doctest.testmod(functions, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
    assert sum(len(found.examples) for found in doctest.DocTestFinder().find(functions)) >= 8
