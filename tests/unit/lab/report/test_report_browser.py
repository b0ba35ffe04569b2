"""The report in headless Chromium: on small and large screens, light and dark, nothing runs out of the page."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gemmule.lab.report.page import report
from support.report import records as made

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
WIDTHS = (390, 1400)
#: Of the paper: A4 between its margins in pixels, 182 of 96 / 25.4 each, and a wide sheet.
PAPERS = (688, 1400)
#: A page around the report, at each width in a frame of its own: it measures, and writes what it found into its body.
HARNESS = """<!DOCTYPE html><meta charset="utf-8"><body>
%s
<script>
function box(element) { const r = element.getBoundingClientRect(); return [r.left, r.right, r.top, r.bottom]; }
function measure(frame) {
  const page = frame.contentDocument, view = frame.contentWindow, root = page.documentElement;
  const seen = [...page.querySelectorAll("figure svg")].filter((svg) => svg.getBoundingClientRect().width);
  const inside = (element) => element.closest(".scroll, svg");
  return {
    width: view.innerWidth, scroll: root.scrollWidth, dark: view.matchMedia("(prefers-color-scheme: dark)").matches,
    page: view.getComputedStyle(page.body).backgroundColor, ink: view.getComputedStyle(page.body).color,
    out: [...page.body.querySelectorAll("*")].filter((e) => !inside(e) && !e.matches(".skip")
      && e.getBoundingClientRect().right > view.innerWidth + 1).map((e) => e.tagName + "." + e.className),
    figures: seen.map((svg) => ({
      id: svg.getAttribute("aria-labelledby"), box: box(svg),
      texts: [...svg.querySelectorAll("text")].map((text) => ({
        said: text.textContent, box: box(text), size: parseFloat(view.getComputedStyle(text).fontSize)
          * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width,
        turned: /rotate\\((?!-?0[ )])/.test(text.getAttribute("transform") || ""),
        colour: view.getComputedStyle(text).fill })) })),
    regions: [...page.querySelectorAll(".scroll")].filter((e) => e.scrollWidth > e.clientWidth + 1)
      .map((e) => [e.tabIndex, view.getComputedStyle(e).overflowX]),
    glance: ((scroll) => ({ room: scroll.clientWidth, shade: view.getComputedStyle(scroll).backgroundImage,
      lines: view.getComputedStyle(scroll.querySelector("table")).borderCollapse,
      cells: [...scroll.querySelector("tbody tr").cells].map((cell) =>
        [cell.textContent, cell.getBoundingClientRect().right - scroll.getBoundingClientRect().left]) })
      )(page.querySelector(".scroll")),
    focus: [...page.querySelectorAll("a, summary, [tabindex]")].map((e) => e.tabIndex),
  };
}
// On paper the rules for print hold, and those for screens do not.
function print(frame) {
  const page = frame.contentDocument, view = frame.contentWindow;
  for (const rule of page.styleSheets[0].cssRules) {
    if (!rule.media) continue;
    if (/print/.test(rule.media.mediaText)) rule.media.mediaText = "all";
    else if (/screen|prefers/.test(rule.media.mediaText)) rule.media.mediaText = "not all";
  }
  const seen = (element) => element.checkVisibility() && element.getBoundingClientRect().height > 0;
  return {
    width: view.innerWidth, page: view.getComputedStyle(page.body).backgroundColor,
    main: box(page.querySelector("main")),
    folded: [...page.querySelectorAll("details:not([open]) td")].filter((cell) => cell.textContent).map(seen),
    overflow: [...page.querySelectorAll(".scroll")].map((e) => view.getComputedStyle(e).overflowX),
    right: Math.max(...[...page.querySelectorAll("td, th, dd")].map((e) => e.getBoundingClientRect().right)),
    figures: [...page.querySelectorAll("figure svg")].filter(seen).map((svg) => svg.getAttribute("aria-labelledby")),
    navigation: seen(page.querySelector("nav")),
  };
}
addEventListener("load", () => {
  const result = document.createElement("pre");
  result.id = "result";
  const frames = (kind) => [...document.querySelectorAll(`iframe.${kind}`)];
  result.textContent = JSON.stringify([frames("screen").map(measure), frames("paper").map(print)]);
  document.body.append(result);
});
</script>"""


def browser():
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    cached = sorted(Path.home().glob(".cache/ms-playwright/chromium*/chrome-*/chrome*"))
    return str(cached[-1]) if cached else None


@pytest.fixture(scope="module")
def report_file(tmp_path_factory):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    pytest.importorskip("jinja2", reason="jinja2 is not installed")
    if browser() is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    folder = tmp_path_factory.mktemp("report")
    (folder / "report.html").write_text(report([made.write(folder / "whole.jsonl", made.whole())]))
    return folder / "report.html"


def run_browser(folder, *arguments):
    command = [
        browser(), "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
        "--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr",
        *(["--no-sandbox"] if os.geteuid() == 0 else []), *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.fixture(scope="module", params=["light", "dark"])
def seen(request, report_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    frames = "".join(
        f'<iframe class="{kind}" src="{report_file.as_uri()}" style="width:{width}px;height:900px;border:0"></iframe>'
        for kind, widths in (("screen", WIDTHS), ("paper", PAPERS))
        for width in widths
    )
    (folder / "harness.html").write_text(HARNESS % frames)
    scheme = f"--blink-settings=preferredColorScheme={int(request.param == 'light')}"
    done = run_browser(
        folder, scheme, "--window-size=1600,2000", "--virtual-time-budget=20000", "--dump-dom",
        (folder / "harness.html").as_uri(),
    )  # fmt: skip
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-500:]
    screens, papers = json.loads(html.unescape(found[1]))
    return request.param, screens, done.stderr, papers


def test_the_page_fits_its_width(seen):
    scheme, frames, *_ = seen
    assert [frame["width"] for frame in frames] == list(WIDTHS)
    for frame in frames:
        assert frame["scroll"] <= frame["width"], frame["out"]
        assert frame["out"] == []
        assert frame["dark"] == (scheme == "dark")


def test_the_console_is_silent(seen):
    errors = [line for line in seen[2].splitlines() if "CONSOLE" in line]
    assert errors == []


def test_wide_tables_scroll_in_their_own_region(seen):
    for frame in seen[1]:
        assert all(region == [0, "auto"] for region in frame["regions"])
        assert all(place >= 0 for place in frame["focus"])


def test_a_narrow_screen_clips_no_table(seen):
    _, (small, _), *_ = seen
    assert small["regions"] == []  # a row is a list of its cells
    glance = small["glance"]
    assert [text for text, _ in glance["cells"][:2]] == ["float32 nn", "0.952"]
    assert all(right <= glance["room"] for _, right in glance["cells"])


def test_a_table_that_goes_on_says_so(seen):
    _, (_, large), *_ = seen
    assert large["glance"]["shade"].count("linear-gradient") == 2
    # A sticky column would take the lines of a collapsed table away.
    assert large["glance"]["lines"] == "separate"


def test_paper_shows_everything(seen):
    for width, paper in zip(PAPERS, seen[3], strict=True):
        assert paper["width"] == width
        assert paper["folded"]
        assert all(paper["folded"])
        assert set(paper["overflow"]) == {"visible"}
        assert paper["page"] == "rgb(255, 255, 255)"
        assert {name.rsplit("-", 2)[-2] for name in paper["figures"]} == {"wide"}
        assert not paper["navigation"]
        assert paper["main"][:2] == [0, width]  # nor is a column left free for it
        assert paper["right"] <= width


def test_each_width_has_its_own_figures(seen):
    _, (small, large), *_ = seen
    assert {figure["id"].rsplit("-", 2)[-2] for figure in small["figures"]} == {"narrow"}
    assert {figure["id"].rsplit("-", 2)[-2] for figure in large["figures"]} == {"wide"}
    assert len(small["figures"]) == len(large["figures"]) >= 4


def test_text_in_figures_can_be_read(seen):
    scheme, frames, *_ = seen
    for frame in frames:
        for figure in frame["figures"]:
            left, right, _, _ = figure["box"]
            for text in figure["texts"]:
                assert text["size"] >= 9.5, text
                assert left - 2 <= text["box"][0], text
                assert text["box"][1] <= right + 2, text
                channels = [int(part) for part in re.findall(r"\d+", text["colour"])[:3]]
                assert (min(channels) > 150) == (scheme == "dark"), text


def test_no_text_covers_another(seen):
    for frame in seen[1]:
        for figure in frame["figures"]:
            texts = [text for text in figure["texts"] if not text["turned"]]
            for number, one in enumerate(texts):
                for other in texts[number + 1 :]:
                    across = min(one["box"][1], other["box"][1]) - max(one["box"][0], other["box"][0])
                    down = min(one["box"][3], other["box"][3]) - max(one["box"][2], other["box"][2])
                    height = min(box[3] - box[2] for box in (one["box"], other["box"]))
                    assert across <= 1 or down <= 0.4 * height, (figure["id"], one["said"], other["said"])


def test_it_prints(report_file, tmp_path):
    target = tmp_path / "report.pdf"
    run_browser(tmp_path, f"--print-to-pdf={target}", "--no-pdf-header-footer", report_file.as_uri())
    content = target.read_bytes()
    assert content.startswith(b"%PDF")
    # A4, 210 x 297 mm in points.
    sizes = {tuple(map(round, map(float, box.split()))) for box in re.findall(rb"/MediaBox \[([^\]]+)\]", content)}
    assert sizes
    assert sizes <= {(0, 0, 595, 842), (0, 0, 594, 841), (0, 0, 595, 841), (0, 0, 594, 842)}


def test_what_is_folded_is_printed(report_file, tmp_path):
    pypdf = pytest.importorskip("pypdf", reason="pypdf is not installed")
    target = tmp_path / "report.pdf"
    run_browser(tmp_path, f"--print-to-pdf={target}", "--no-pdf-header-footer", report_file.as_uri())
    text = " ".join(" ".join(page.extract_text() for page in pypdf.PdfReader(target).pages).split())
    # Only the folded tables of all products and of all transposes have that column.
    assert text.count("median us") >= 2
    assert "Contents" not in text
