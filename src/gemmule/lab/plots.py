"""Plots of measured products over sizes, made from records only.

What there is to draw is found out without matplotlib, drawing needs it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmule.core.errors import UnsupportedError

from .gemm_tables import Key, labels

Record = Mapping[str, Any]

# Okabe and Ito's colours, which colour-blind people can tell apart, and some more; the yardstick is black.
_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#7F7F7F",
    "#8C564B",
    "#5B3FA0",
    "#00655C",
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")
_KINDS = ("png", "svg")
#: The float64 kernels by the names that the paper they come from gives them.
#: Fewer sizes make no curve.
_FEWEST_SIZES = 3
_PAPER = {"d01_shared_ab": "normal", "d02_b_in_registers": "opt"}


@dataclasses.dataclass(frozen=True)
class Plot:
    """One plot.

    Attributes
    ----------
    name : str
        Part of its file name, e.g. ``float32-nn-k1024``.
    title : str
        What it shows.
    axis : str
        Text of the axis of sizes.
    curves : tuple of (str, dict)
        Name of each kernel and its TFLOP/s over M = N.
    library : dict
        The yardstick's TFLOP/s over M = N.
    peaks : tuple of (float, str)
        The chip's peak rates in TFLOP/s, with their names.
    """

    name: str
    title: str
    axis: str
    curves: tuple[tuple[str, Mapping[int, float]], ...]
    library: Mapping[int, float]
    peaks: tuple[tuple[float, str], ...]


def plots(records: Sequence[Record]) -> list[Plot]:
    """Return the plots that a record file gives: one for each type, layout, and K that is fixed or equal to M = N.

    float64 products of both kernels of the paper on B in registers give its comparison of normal, opt and cuBLAS too.
    """
    names = labels(records)
    gpu = f", {records[0]['gpu']}" if records and "gpu" in records[0] else ""
    families: dict[tuple[str, str, str, str, str], list[Record]] = {}
    for r in records:
        if r["record"] != "gemm" or r["m"] != r["n"]:
            continue
        out, precision = r.get("out_dtype", r["dtype"]), r.get("precision", "ieee")
        # Other outputs and precisions are other products: they are told where they are not the usual.
        types = (r["dtype"], out if out != r["dtype"] else "", precision if precision != "ieee" else "", r["layout"])
        families.setdefault((*types, f"k{r['k']}"), []).append(r)
        if r["m"] == r["k"]:
            families.setdefault((*types, "square"), []).append(r)
    found = []
    for (dtype, out, precision, layout, family), products in families.items():
        if len({r["m"] for r in products}) < _FEWEST_SIZES:
            continue
        axis = "M = N = K" if family == "square" else f"M = N, K = {family[1:]}"
        name = "-".join(filter(None, (dtype, out, precision, layout, family)))
        title = " ".join(filter(None, (dtype, f"-> {out}" if out else "", precision, layout))) + gpu
        paper = [r for r in products if r["kernel"] in _PAPER]
        if len(paper) < len(products):
            found.append(_plot(name, f"every kernel and cuBLAS, {title}", axis, products, names))
        if dtype == "float64" and {r["kernel"] for r in paper} == set(_PAPER):
            told = {key: label.replace(key[0], f"{_PAPER.get(key[0])}: {key[0]}", 1) for key, label in names.items()}
            found.append(_plot(f"{name}-registers", f"normal, opt and cuBLAS, {title}", axis, paper, told))
    return found


def _plot(name: str, title: str, axis: str, products: Sequence[Record], names: Mapping[Key, str]) -> Plot:
    curves: dict[str, dict[int, float]] = {}
    library: dict[int, list[float]] = {}
    peaks: dict[float, str] = {}
    for r in products:
        curves.setdefault(names[r["kernel"], tuple(r["config"].items())], {})[r["m"]] = r["tflops"]
        if "yardstick_best_us" in r:
            library.setdefault(r["m"], []).append(2e-6 * r["m"] * r["n"] * r["k"] / r["yardstick_best_us"])
        if "peak_tflops" in r:
            peaks[r["peak_tflops"]] = f"peak of {r['peak_unit'].replace('_', ' ')}: {r['peak_tflops']:.1f} TFLOP/s"
        if "fma_tflops" in r:
            peaks[r["fma_tflops"]] = f"peak of FMA without tensor cores: {r['fma_tflops']:.1f} TFLOP/s"
    # The yardstick was measured beside every kernel.
    rates = {size: statistics.median(values) for size, values in library.items()}
    return Plot(name, title, axis, tuple(curves.items()), rates, tuple(sorted(peaks.items())))


def check_matplotlib() -> None:
    """Raise UnsupportedError if matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(f"plots need matplotlib ({error}); pip install 'gemmule[report]'") from error


def draw(plot: Plot, folder: Path, stem: str) -> list[Path]:
    """Draw a plot as PNG and as SVG, called after `stem` and the plot; return the files.

    The same records give the same files, with the same version of matplotlib.

    Raises
    ------
    UnsupportedError
        If matplotlib is not installed.
    """
    check_matplotlib()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "gemmule", "svg.fonttype": "none", "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(9.5, 5.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for number, (name, curve) in enumerate(plot.curves):
            sizes = sorted(curve)
            axes.plot(
                sizes, [curve[size] for size in sizes], label=name, color=_COLOURS[number % len(_COLOURS)],
                marker=_MARKERS[number % len(_MARKERS)], markersize=5, linewidth=1.6,
            )  # fmt: skip
        if plot.library:
            sizes = sorted(plot.library)
            rates = [plot.library[size] for size in sizes]
            axes.plot(sizes, rates, label="cuBLASLt, best of 8", color="black", linestyle="--", linewidth=2)
        for rate, text in plot.peaks:
            axes.axhline(rate, color="#555555", linewidth=1, linestyle=":")
            axes.annotate(
                text, (0.01, rate), xycoords=("axes fraction", "data"), va="center", fontsize=8, color="#444444",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
            )  # fmt: skip
        ticks = sorted({size for _, curve in plot.curves for size in curve})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks], rotation=45, ha="right", fontsize=8)
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel(plot.axis)
        axes.set_ylabel("TFLOP/s")
        axes.set_title(plot.title, fontsize=11)
        axes.grid(color="#DDDDDD", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
        written = []
        for kind in _KINDS:
            target = folder / f"{plot_stem(stem, plot)}.{kind}"
            # Dates and versions would make each file another one.
            metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
            figure.savefig(target, metadata=metadata, dpi=120)
            written.append(target)
    return written


def plot_stem(stem: str, plot: Plot) -> str:
    """Return a plot's file name without its suffix."""
    return f"{stem}-{plot.name}"
