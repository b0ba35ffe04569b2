"""Blocks of pictures: what each shows, of which records, and how a page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gemmule.core.chips import chip_named
from gemmule.lab.drawing.theme import DARK, LIGHT
from gemmule.lab.pictures import Picture, plot_stem
from gemmule.lab.plots import plots
from gemmule.lab.records import read_records
from gemmule.lab.transpose_plots import transpose_plots

from . import rooflines
from .draw_plot import draw_plot
from .layout_pictures import layout_picture
from .markdown import markdown
from .record_files import together
from .timelines import timeline_plot


def pictures_block(found: Sequence[Picture], stem: str, folder: str) -> str:
    """Return pictures, each for a light page and for a dark one; rooflines with their tables."""
    parts = []
    for plot in found:
        if isinstance(plot, rooflines.Roofline) and not plot.drawn:
            parts.append(f"{plot.title}: counted, and not timed at this size.")
            parts.append(markdown(*rooflines.table(plot.places)))
            continue
        # On GitHub a picture follows the reader's theme; elsewhere the light one is shown.
        parts.append(
            f"<picture>\n"
            f'<source media="(prefers-color-scheme: dark)" srcset="{folder}/{plot_stem(stem, plot, DARK)}.svg">\n'
            f'<img alt="{plot.title}" src="{folder}/{plot_stem(stem, plot, LIGHT)}.svg">\n'
            f"</picture>"
        )
        if isinstance(plot, rooflines.Roofline):
            parts.append(markdown(*rooflines.table(plot.places)))
    return "\n\n".join(parts)


def _plots_of(results: Path, words: Sequence[str]) -> tuple[list[Picture], str]:
    """Return the plots of a record file, those named only, and what their files are called after."""
    file, *named = words
    found = plots(read_records(results / file))
    if wrong := set(named) - {plot.name for plot in found}:
        raise KeyError(f"{file} gives no plot {', '.join(sorted(wrong))}, but {', '.join(plot.name for plot in found)}")
    return [plot for plot in found if not named or plot.name in named], Path(file).stem


def _rooflines_of(results: Path, words: Sequence[str]) -> tuple[list[Picture], str]:
    """Return the rooflines of record files, of the types named only, and what their files are called after."""
    files = [word for word in words if word.endswith(".jsonl")]
    dtypes = [word for word in words if word not in files]
    records = together(results, files)
    found = rooflines.rooflines(records, chip_named(str(records[0]["gpu"])))
    return [one for one in found if not dtypes or one.dtype in dtypes], Path(files[0]).stem


def _transposes_of(results: Path, words: Sequence[str]) -> tuple[list[Picture], str]:
    """Return the plots of measured transposes of a record file, and what its files are called after."""
    (file,) = words
    return list(transpose_plots(read_records(results / file))), Path(file).stem


def _timelines_of(results: Path, words: Sequence[str]) -> tuple[list[Picture], str]:
    """Return the pictures of kernels' timelines of a record file, and what their files are called after."""
    file, *kernels = words
    records = read_records(results / file)
    return [timeline_plot(records, kernel) for kernel in kernels], f"{Path(file).stem}-timeline"


def _draws_of(results: Path, words: Sequence[str]) -> tuple[list[Picture], str]:
    """Return the picture of record files of draws, and what its files are called after."""
    return [draw_plot(record for file in words for record in read_records(results / file))], Path(words[0]).stem


def _layouts_of(_: Path, words: Sequence[str]) -> tuple[list[Picture], str]:
    """Return the picture of a layout, and what its files are called after."""
    return [layout_picture(*words)], "layout"


#: By the name of a block, its pictures and what their files are called after.
PICTURES = {
    "draw_plot": _draws_of, "layout": _layouts_of, "plots": _plots_of, "roofline": _rooflines_of,
    "timeline_plot": _timelines_of, "transpose_plots": _transposes_of,
}  # fmt: skip
