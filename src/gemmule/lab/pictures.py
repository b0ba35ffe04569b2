"""Pictures of plots: matplotlib draws what `plots` and `transpose_plots` found in records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .drawing.bars import bars_height, draw_bars
from .drawing.canvas import KINDS, Page, figure_on, save
from .drawing.curves import draw_curves
from .drawing.theme import LIGHT, Theme
from .plots import Plot
from .transpose_plots import TransposePlot, as_curves, as_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class OwnPicture(Protocol):
    """A plot that draws itself."""

    @property
    def name(self) -> str:
        """Part of its file name."""

    @property
    def title(self) -> str:
        """Its title."""

    @property
    def drawn(self) -> bool:
        """Whether there is something to draw."""

    def page(self, theme: Theme) -> Page:
        """Return the page that it takes."""

    def draw(self, figure: Figure, page: Page) -> None:
        """Draw it."""


#: Kinds of plots of a page.
Picture = Plot | TransposePlot | OwnPicture


def draw(
    plot: Picture, folder: Path, stem: str, themes: Sequence[Theme] = (LIGHT,), kinds: Sequence[str] = KINDS
) -> list[Path]:
    """Draw a plot as files of some kinds, called after `stem` and the plot; return the files.

    The same records give the same files, with the same version of matplotlib. A file of a dark theme is called so.

    Raises
    ------
    UnsupportedError
        If matplotlib is not installed.
    """
    written = []
    panels = as_panels(plot) if isinstance(plot, TransposePlot) and plot.bars else ()
    for theme in themes:
        page = Page(theme=theme, height=bars_height(panels, narrow=False)) if panels else Page(theme=theme)
        if not isinstance(plot, Plot | TransposePlot):
            page = plot.page(theme)
        with figure_on(page) as figure:
            if isinstance(plot, TransposePlot):
                draw_bars(figure, panels, page) if panels else draw_curves(figure, as_curves(plot), page)
            elif isinstance(plot, Plot):
                draw_curves(figure, plot, page)
            else:
                plot.draw(figure, page)
            written += save(figure, folder, plot_stem(stem, plot, theme), fingerprint(plot), kinds)
    return written


def plot_stem(stem: str, plot: Picture, theme: Theme = LIGHT) -> str:
    """Return a plot's file name without its suffix."""
    return f"{stem}-{plot.name}" + ("" if theme is LIGHT else f"-{theme.name}")


def fingerprint(plot: Picture) -> str:
    """Return a digest of a plot's figures: its files contain it, so that a test can compare."""
    return f"figures {hashlib.sha256(repr(plot).encode()).hexdigest()[:32]}"
