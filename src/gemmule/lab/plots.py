"""Plots of measured products over sizes, made from records only, without matplotlib; `pictures` draws them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gemmule.core.dtype import Kind, dtype_named

from .gemm_operation import layout_text
from .kernel_labels import Key, key_of, labels
from .styles import Style, styles

Record = Mapping[str, Any]
#: Fewer sizes make no curve.
_FEWEST_SIZES = 3
#: The float64 kernels by the names that the paper they come from gives them.
_PAPER = {"d01_shared_ab": "normal", "d02_b_in_registers": "opt"}


@dataclasses.dataclass(frozen=True)
class Plot:
    """One plot."""

    name: str  #: Part of its file name, e.g. ``float32-nn-k1024``.
    title: str  #: Title.
    axis: str  #: Text of the axis of sizes.
    curves: tuple[tuple[str, Mapping[int, float]], ...]  #: Name of each kernel and its TFLOP/s over M = N.
    library: Mapping[int, float]  #: The baseline's TFLOP/s over M = N.
    peaks: tuple[tuple[float, str], ...]  #: The chip's peak rates in TFLOP/s, with their names.
    styles: tuple[Style, ...]  #: Style of each curve.
    unit: str = "TFLOP/s"  #: Text of the other axis.
    reference: str = "cuBLASLt"  #: Name of the baseline.
    #: TFLOP/s of calls over M = N: part of the curves, so no part of the picture's digest.
    called: Mapping[int, float] = dataclasses.field(default_factory=dict, repr=False, compare=False)


def plots(records: Sequence[Record]) -> list[Plot]:
    """Return the plots that a record file gives: one for each type, layout, and K that is fixed or equal to M = N.

    float64 products of both kernels of the paper on B in registers give its comparison of normal, opt and cuBLAS too.
    """
    found = []
    for family in _families(records):
        names = labels(family.products)
        paper = [r for r in family.products if r["kernel"] in _PAPER]
        if len(paper) < len(family.products):
            found.append(_plot(family, f"every kernel and cuBLAS, {family.title}", family.products, names))
        if family.dtype == "float64" and {r["kernel"] for r in paper} == set(_PAPER):
            in_paper = {
                key: label.replace(key[0], f"{_PAPER.get(key[0])}: {key[0]}", 1) for key, label in names.items()
            }
            of_paper = dataclasses.replace(family, name=f"{family.name}-registers")
            found.append(_plot(of_paper, f"normal, opt and cuBLAS, {family.title}", paper, in_paper))
    return found


def error_plots(records: Sequence[Record]) -> list[Plot]:
    """Return the errors of the same products, with those of the baseline; kernels that err alike are one curve."""
    found = []
    for family in _families(records):
        names = labels(family.products)
        looks = styles(family.products)
        curves: dict[Key, dict[int, float]] = {}
        for r in family.products:
            if "error_u" in r:
                curves.setdefault(key_of(r), {})[r["m"]] = r["error_u"]
        alike: list[tuple[dict[int, float], list[Key]]] = []
        for key, curve in curves.items():
            of_curve = next((keys for other, keys in alike if other == curve), None)
            if of_curve is None:
                alike.append((curve, [key]))
            else:
                of_curve.append(key)
        library = {
            r["m"]: r["error_u"] for r in records if r["record"] == "yardstick" and "error_u" in r and family.has(r)
        }
        if not curves or not library:
            continue
        if not any(max(curve.values()) > 0 for curve in (*curves.values(), library)):
            # Sums of integers are exact: there is nothing to draw.
            continue
        named = tuple((_together([names[key] for key in keys], len(curves)), curve) for curve, keys in alike)
        found.append(
            Plot(
                f"{family.name}-error", f"largest error, {family.title}", family.axis, named, library, (),
                tuple(looks[keys[0]] for _, keys in alike), "largest error, u (|A| |B|)",
            )
        )  # fmt: skip
    return found


def one_curve(plot: Plot, greatest: str) -> Plot:
    """Return a plot of one curve: what calls ran, or where few sizes have it the greatest of each size."""
    if len(plot.called) >= _FEWEST_SIZES:
        name, curve = "what a call runs", dict(plot.called)
    else:
        sizes = sorted({size for _, curve in plot.curves for size in curve})
        name, curve = greatest, {size: max(c[size] for _, c in plot.curves if size in c) for size in sizes}
    return dataclasses.replace(plot, curves=((name, curve),), styles=(Style(),))


def _together(names: Sequence[str], all_of_them: int) -> str:
    """Return a name for kernels that share a curve."""
    if len(names) == 1:
        return names[0]
    return f"all {len(names)} kernels" if len(names) == all_of_them else f"{names[0]} and {len(names) - 1} more"


@dataclasses.dataclass(frozen=True)
class _Family:
    """Products with M = N of one type and layout, with one K or with K = M."""

    name: str
    title: str
    axis: str
    dtype: str
    products: tuple[Record, ...]

    def has(self, record: Record) -> bool:
        """Whether a product, such as the baseline's, is one of them."""
        alike = ("dtype", "out_dtype", "precision", "layout", "own_transpose", "m", "n", "k")
        return any(all(record.get(field) == one.get(field) for field in alike) for one in self.products)


def _families(records: Sequence[Record]) -> list[_Family]:
    gpu = _gpu(records)
    families: dict[tuple[str, str, str, str, str], list[Record]] = {}
    for r in records:
        if r["record"] != "gemm" or r["m"] != r["n"] or r.get("batch"):
            continue
        out, precision = r.get("out_dtype", r["dtype"]), r.get("precision", "ieee")
        # Other outputs and precisions are other products: named unless they are the default.
        types = (r["dtype"], out if out != r["dtype"] else "", precision if precision != "ieee" else "", layout_text(r))
        families.setdefault((*types, f"k{r['k']}"), []).append(r)
        if r["m"] == r["k"]:
            families.setdefault((*types, "square"), []).append(r)
    found = []
    for (dtype, out, precision, layout, family), products in families.items():
        if len({r["m"] for r in products}) < _FEWEST_SIZES:
            continue
        axis = "M = N = K" if family == "square" else f"M = N, K = {family[1:]}"
        name = "-".join(filter(None, (dtype, out, precision, layout.replace(" ", "-"), family)))
        title = " ".join(filter(None, (dtype, f"-> {out}" if out else "", precision, layout))) + gpu
        found.append(_Family(name, title, axis, dtype, tuple(products)))
    return found


def _gpu(records: Sequence[Record]) -> str:
    return f", {records[0]['gpu']}" if records and "gpu" in records[0] else ""


def _mflop(r: Record) -> float:
    """Return the operations of a product, in millions, as `GemmProblem.flop` counts them."""
    millions: float = 2e-6 * r["m"] * r["n"] * r["k"]
    return 4 * millions if dtype_named(r["dtype"]).kind is Kind.COMPLEX else millions


def _plot(family: _Family, title: str, products: Sequence[Record], names: Mapping[Key, str]) -> Plot:
    looks = styles(products)
    curves: dict[Key, dict[int, float]] = {}
    library: dict[int, list[float]] = {}
    peaks: dict[float, str] = {}
    for r in products:
        curves.setdefault(key_of(r), {})[r["m"]] = r["tflops"]
        if "yardstick_best_us" in r:
            library.setdefault(r["m"], []).append(_mflop(r) / r["yardstick_best_us"])
        if "peak_tflops" in r:
            peaks[r["peak_tflops"]] = f"peak of {r['peak_unit'].replace('_', ' ')}: {r['peak_tflops']:.1f} TFLOP/s"
        if "fma_tflops" in r:
            peaks[r["fma_tflops"]] = f"peak of FMA without tensor cores: {r['fma_tflops']:.1f} TFLOP/s"
    # The baseline was measured with every kernel.
    rates = {size: statistics.median(values) for size, values in library.items()}
    named = tuple((names[key], curve) for key, curve in curves.items())
    drawn = tuple(looks[key] for key in curves)
    called = {r["m"]: r["tflops"] for r in products if r.get("chosen_by") == "dispatch"}
    return Plot(family.name, title, family.axis, named, rates, tuple(sorted(peaks.items())), drawn, called=called)
