"""The page that `gemmule report` makes of records, and records for it."""

from __future__ import annotations

import html.parser
import re

import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from support.report import records as made


def run(*arguments):
    return CliRunner().invoke(gemmule, ["report", *map(str, arguments)], catch_exceptions=False)


def made_page(tmp_path, *files):
    """The page of lists of records, each a file."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    pytest.importorskip("jinja2", reason="jinja2 is not installed")
    paths = [made.write(tmp_path / f"{number}.jsonl", records) for number, records in enumerate(files)]
    result = run(*paths, "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"report: {tmp_path / 'page.html'}\n"
    return (tmp_path / "page.html").read_text()


def profile_records():
    """One of each kind of row, of a product in float32."""
    row = {
        "record": "profile", "m": 512, "n": 256, "k": 128, "dtype": "float32", "count": 4, "total_us": 280.0,
        "average_us": 70.0, "median_us": 69.5, "min_us": 68.0, "max_us": 73.0, "share": 0.75,
    }  # fmt: skip
    return [
        row | {"kind": "range", "name": "copy in"},
        row | {"kind": "kernel", "name": "g01_0", "range": "g01", "grid": [4, 2, 1], "block": [256, 1, 1]},
        row | {"kind": "call", "name": "cuLaunchKernelEx"},
        row | {"kind": "copy", "name": "memcpy HtoD", "bytes": 8000000, "min_bytes": 1000000, "max_bytes": 4000000},
        row | {"kind": "copy", "name": "memset", "bytes": 8, "min_bytes": 8, "max_bytes": 8}
        | dict.fromkeys(("total_us", "average_us", "median_us", "min_us", "max_us"), 0.0),
    ]  # fmt: skip


TIMED = made.gemm("g01", 64, 64, 64, 1.0)


@pytest.fixture
def undrawn(monkeypatch):
    """Pages whose figures are empty: drawing takes most of the time, and not every test looks at them."""

    def undrawn(wanted, watch):
        return {one.name: f'<svg role="img" aria-label="{one.title}"></svg>' for one in wanted}

    monkeypatch.setattr("gemmule.lab.report.page.draw_all", undrawn)


class Reader(html.parser.HTMLParser):
    """Collects what stands where: elements with their attributes, headings, and the cells of tables by caption."""

    VOID = ("meta", "link", "br", "wbr", "path", "use", "rect", "line", "circle")

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.headings, self.tables, self.svg_texts = [], [], [], {}, []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in self.VOID:
            return
        self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append([int(tag[1]), ""])
        if tag == "caption":
            self.caption = ""
        if tag == "tr":
            self.row = []
        if tag in ("th", "td"):
            self.row.append("")
        if tag == "tbody":
            self.tables[self.caption] = []

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag in self.VOID:
            return
        assert self.open.pop() == tag, (tag, self.open[-3:])
        if tag == "tr" and "tbody" in self.open:
            self.tables[self.caption].append(self.row)

    def handle_data(self, data):
        if "caption" in self.open:
            self.caption += data
        elif "th" in self.open or "td" in self.open:
            self.row[-1] += data
        if self.open and re.fullmatch("h[1-6]", self.open[-1]):
            self.headings[-1][1] += data
        if "svg" in self.open and self.open[-1] == "text":
            self.svg_texts.append(data)
