"""What pages say under "Measured" and the like is in a table of theirs, on a page that they link to, or in a record."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = re.compile(r"<!-- generated.*?<!-- end -->", re.DOTALL)
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
HEADINGS = "Measured|Times|Models|How fast|What it costs|Errors and times"
SECTION = re.compile(rf"^## (?:{HEADINGS})\b.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
FIGURE = re.compile(r"(?<![\w.^/-])\d+\.\d+(?![\w.]*\d)")
LINK = re.compile(r"\]\((?P<page>[^)#\s:]+\.md)")
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if page.relative_to(DOCS).parts[0] != "notebook" and SECTION.search(page.read_text())
]


def untraced(text: str, sources: list[str]) -> list[str]:
    """Return the figures of measured sections that no source has, rounded to as many digits."""
    there = [float(number) for source in sources for number in re.findall(r"\d+(?:\.\d+)?", source)]

    def found(figure: str) -> bool:
        near = 0.5 * 10.0 ** -len(figure.partition(".")[2]) + 1e-9
        return any(abs(float(figure) - one) <= near for one in there)

    prose = " ".join(CODE.sub(" ", GENERATED.sub("", section)) for section in SECTION.findall(text))
    return [figure for figure in FIGURE.findall(prose) if not found(figure)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_measured_figures_are_in_tables(page):
    text = page.read_text()
    links = {page.parent / match["page"] for match in LINK.finditer(text)}
    sources = GENERATED.findall(text) + [link.read_text() for link in links]
    for stamp in set(re.findall(r"\b\d{8}T\d{6}\b", text)):
        for record in (ROOT / "benchmarks" / "results").glob(f"{stamp}-*.jsonl"):
            times = re.findall(r'_us": ([\d.]+)', record.read_text())
            sources.append(" ".join(f"{float(time) * 1e-6:.4f}" for time in times))  # in seconds
    assert untraced(text, sources) == []


def test_a_figure_from_nowhere_is_found():
    assert untraced("# A\n\n0.3\n\n## Measured\n\n0.95 and 1.2, `7.5`\n", ["| 0.951 | 1.26 |"]) == ["1.2"]
