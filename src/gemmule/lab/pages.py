"""Writes the generated blocks of the documentation, and its plots: ``python -m gemmule.lab.pages FOLDER``.

A block stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. NAME is ``kernels``, ``dtypes``, or one of
``experiment FILE``, ``checks FILE``, ``host_to_gpu FILE``, ``stream FILE``, ``bench FILE [KERNEL …]`` for the figures
of measured products (of those kernels only; cublaslt is the yardstick's name), ``ratios FILE`` for their ratios to the
yardstick, and ``plots FILE`` for their plots, with a record file of benchmarks/results; or ``diff BEFORE AFTER`` for
what a kernel changes of another, and ``source KERNEL`` for its class.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmule.core.errors import UnsupportedError

from . import gemm_tables
from .plots import draw, plot_stem, plots
from .records import read_records
from .rung_diff import diff_block, source_block
from .tables import check_table, dtype_table, experiment_line, host_to_gpu_table, kernel_table, markdown, stream_table

_BLOCK = re.compile(
    r"<!-- generated: (?P<name>\S+)(?: (?P<file>(?!-->)\S+))?(?P<rest>(?: (?!-->)\S+)*) -->\n.*?<!-- end -->", re.DOTALL
)
#: Where plots lie, from the root.
PLOTS = Path("docs", "plots")


def generated(text: str, results: Path, plots_folder: str = "plots") -> str:
    """Return a page's text with its generated blocks made anew.

    Parameters
    ----------
    text : str
        The page.
    results : Path
        Folder of the record files.
    plots_folder : str
        Folder of the plots, as the page links to it.

    Raises
    ------
    KeyError
        If a block has a name that nothing generates.
    """

    def block(match: re.Match[str]) -> str:
        name, file, rest = match["name"], match["file"], match["rest"].split()
        if file is None:
            content = {"kernels": kernel_table, "dtypes": dtype_table}[name]()
        elif name in ("diff", "source"):
            content = diff_block(file, *rest) if name == "diff" else source_block(file)
        else:
            records = read_records(results / file)
            if name == "bench":
                content = bench_block(records, rest)
            elif name == "plots":
                content = plots_block(records, Path(file).stem, plots_folder)
            else:
                tables = {
                    "checks": check_table,
                    "experiment": experiment_line,
                    "host_to_gpu": host_to_gpu_table,
                    "ratios": ratios_block,
                    "stream": stream_table,
                }
                content = tables[name](records)
        head = match[0].partition("\n")[0]
        return f"{head}\n{content}\n<!-- end -->"

    return _BLOCK.sub(block, text)


def bench_block(records: Sequence[Mapping[str, Any]], kernels: Sequence[str]) -> str:
    """Return the figures of measured products, of some kernels or of all."""
    chosen = [r for r in records if not kernels or r.get("kernel", r.get("library")) in kernels]
    wrong = set(kernels) - {r.get("kernel", r.get("library")) for r in records}
    if wrong:
        raise KeyError(f"the record has no kernel {', '.join(sorted(wrong))}")
    # A page shows what was measured, and says in lines below what was not.
    rows = markdown(*gemm_tables.figures([r for r in chosen if r["record"] not in ("skipped", "check")]))
    notes = [*gemm_tables.skipped(chosen), *gemm_tables.controls(chosen)]
    return "\n".join([rows, *(f"\n{note}." for note in notes)])


def ratios_block(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the ratios to the yardstick, sizes by kernels."""
    return markdown(*gemm_tables.ratios(records))


def plots_block(records: Sequence[Mapping[str, Any]], stem: str, folder: str) -> str:
    """Return the plots of a record file as pictures."""
    return "\n\n".join(f"![{plot.title}]({folder}/{plot_stem(stem, plot)}.svg)" for plot in plots(records))


def plots_link(page: Path, root: Path) -> str:
    """Return the folder of the plots as `page` links to it."""
    return Path(os.path.relpath(root / PLOTS, page.parent)).as_posix()


def pages(root: Path) -> list[Path]:
    """Return the pages that may hold generated blocks."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def main(root: Path) -> None:
    """Make the generated blocks of README.md and docs/ anew, and the plots where matplotlib is installed."""
    results = root / "benchmarks" / "results"
    shown: dict[str, None] = {}
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        page.write_text(generated(text, results, plots_link(page, root)), encoding="utf-8")
        shown.update({match["file"]: None for match in _BLOCK.finditer(text) if match["name"] == "plots"})
    for file in shown:
        records = read_records(results / file)
        try:
            for plot in plots(records):
                draw(plot, root / PLOTS, Path(file).stem)
        except UnsupportedError as error:
            sys.stderr.write(f"the plots stay as they are: {error}\n")
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
