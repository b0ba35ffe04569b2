"""The picture of draws: each random product a dot, by how much faster than cuBLASLt it was."""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gemmule.lab.draw_tables import first_ratio, is_odd, types_of
from gemmule.lab.drawing.canvas import Page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gemmule.lab.drawing.theme import Theme

Record = Mapping[str, Any]

#: Ends of the axis, ratios; what lies beyond is drawn at the end.
_LEAST, _MOST = 0.3, 5.0
_TICKS = (_LEAST, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
#: Points of width of the picture, which a phone's screen shows whole; of height of a type, of what is around those of a
#: GPU, and of what is around all.
_WIDTH, _ROW, _AROUND, _EDGES = 470.0, 36.0, 44.0, 66.0


@dataclasses.dataclass(frozen=True)
class DrawnType:
    """Ratios of a type's GEMMs to cuBLASLt's top heuristic: more than 1 is faster."""

    types: str
    aligned: tuple[float, ...]
    odd: tuple[float, ...]

    @property
    def counted(self) -> str:
        """How many GEMMs are aligned, and how many are odd."""
        return " + ".join(str(len(ratios)) for ratios in (self.aligned, self.odd) if ratios) or "0"


@dataclasses.dataclass(frozen=True)
class DrawPlot:
    """A picture of draws, a panel for each GPU."""

    gpus: tuple[tuple[str, tuple[DrawnType, ...]], ...]

    name = "draws"
    title = "Speed-up over cuBLASLt on random shapes, untuned"
    drawn = True

    def page(self, theme: Theme) -> Page:
        """Return the page that it takes."""
        height = _EDGES + sum(_AROUND + _ROW * len(types) for _, types in self.gpus)
        return Page(width=_WIDTH, height=height, theme=theme)

    def draw(self, figure: Figure, page: Page) -> None:
        """Draw it."""
        heights = [len(types) for _, types in self.gpus]
        panels = figure.subplots(len(self.gpus), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
        for axes, (gpu, types) in zip(panels, self.gpus, strict=True):
            _panel(axes, types, page)
            axes.set_title(gpu, pad=6)
            axes.set_yticks(range(len(types)), [f"{one.types}\nn = {one.counted}" for one in types])
            axes.tick_params(axis="x", labelbottom=True)
        figure.suptitle(f"{self.title}", x=0.01, ha="left")
        figure.supxlabel(
            "time of cuBLASLt's top heuristic / time of gemmule: more than 1 is faster\n"
            "dot: one GEMM of n (filled: aligned + hollow: odd); bar: geometric mean",
            fontsize=page.text - 1,
        )


def draw_plot(records: Iterable[Record]) -> DrawPlot:
    """Return the picture of record files of draws: of a GPU's runs, the last that has a type stands for it."""
    found: dict[str, dict[str, list[Record]]] = {}
    gpu = ""
    for one in records:
        if one["record"] == "experiment":
            gpu, fresh = str(one["gpu"]), set()
        elif one["record"] == "gemm" and one.get("chosen_by") == "dispatch":
            of_gpu, types = found.setdefault(gpu, {}), types_of(one)
            if types not in fresh:
                fresh.add(types)
                of_gpu[types] = []
            of_gpu[types].append(one)
    order = list(dict.fromkeys(types for of_gpu in found.values() for types in of_gpu))
    return DrawPlot(
        tuple((_short(gpu), tuple(_drawn(of_gpu, types) for types in order)) for gpu, of_gpu in found.items())
    )


def _short(gpu: str) -> str:
    return gpu.removeprefix("NVIDIA ").removesuffix(" 80GB HBM3")


def _drawn(of_gpu: Mapping[str, Sequence[Record]], types: str) -> DrawnType:
    records = of_gpu.get(types, ())
    return DrawnType(types.replace(":", ", "), _ratios(records, odd=False), _ratios(records, odd=True))


def _ratios(records: Sequence[Record], *, odd: bool) -> tuple[float, ...]:
    return tuple(round(ratio, 4) for one in records if is_odd(one) == odd and (ratio := first_ratio(one)) is not None)


def _panel(axes: Axes, types: Sequence[DrawnType], page: Page) -> None:
    theme = page.theme
    axes.set_xscale("log")
    axes.set_xlim(_LEAST, _MOST * 1.06)
    axes.set_ylim(len(types) - 0.4, -0.6)
    axes.axvline(1, color=theme.ink, linewidth=1.2)
    scatter = random.Random(0)  # noqa: S311 - places of dots, which repeat
    for row, one in enumerate(types):
        for ratios, place, filled in ((one.aligned, row - 0.2, True), (one.odd, row + 0.2, False)):
            if not ratios:
                continue
            colour = theme.series[0 if filled else 1]
            axes.plot(
                [min(max(ratio, _LEAST), _MOST) for ratio in ratios],
                [place + scatter.uniform(-0.13, 0.13) for _ in ratios],
                marker="o", markersize=3, linestyle="none", color=colour, alpha=0.55, markeredgewidth=0.8,
                markerfacecolor=colour if filled else "none",
            )  # fmt: skip
            mean = statistics.geometric_mean(ratios)
            axes.plot([mean, mean], [place - 0.19, place + 0.19], color=theme.ink, linewidth=2.2)
    ends = {_LEAST: "≤ ", _MOST: "≥ "}
    axes.set_xticks(_TICKS, [f"{ends.get(tick, '')}{tick:g}" for tick in _TICKS])
    axes.minorticks_off()
    axes.grid(axis="x", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
