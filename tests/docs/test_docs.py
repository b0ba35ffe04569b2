"""The documentation is true: its code runs, and its generated blocks are what the registry and the records say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gemmule.lab.pages import generated, pages, plots_link
from gemmule.runtime.device import device_count

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "CONTRIBUTING.md", *pages(ROOT)]
CODE = re.compile(r"^```python(?P<gpu> gpu)?\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)(?P<target>[^)#]+)")
BLOCKS = [
    pytest.param(match, id=f"{page.relative_to(ROOT)}:{page.read_text()[: match.start()].count(chr(10)) + 1}")
    for page in PAGES
    for match in CODE.finditer(page.read_text())
]


@pytest.mark.parametrize("block", BLOCKS)
def test_code_blocks_run(block, tmp_path, monkeypatch):
    if block["gpu"]:
        if device_count() == 0:
            pytest.skip("needs an NVIDIA GPU")
        pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.chdir(tmp_path)
    exec(compile(block["code"], "block", "exec"), {"__name__": "block"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_generated_blocks_are_current(page):
    text = page.read_text()
    new = generated(text, ROOT / "benchmarks" / "results", plots_link(page, ROOT))
    assert new == text, "run: python -m gemmule.lab.pages ."


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for match in LINK.finditer(page.read_text()):
        assert (page.parent / match["target"]).exists(), match["target"]


def test_docstring_examples():
    import doctest

    import gemmule.api

    assert doctest.testmod(gemmule.api, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
    assert sum(len(found.examples) for found in doctest.DocTestFinder().find(gemmule.api)) >= 8
