"""From records to what stands on the page."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .. import bench_tables
from ..drawing.canvas import check_matplotlib
from ..gemm_operation import GEMM, layout_text, size_text
from ..gemm_tables import controls
from ..kernel_labels import labels, name_of
from ..plots import Plot, error_plots, one_curve, plots
from . import figures
from .profiles import profiles
from .sources import Machine, Source
from .transposes import transposes
from .views import Experiment, FigureView, MachineView, Section, TableView, table_view

Record = Mapping[str, Any]
#: Most columns of a table of ratios, and curves of a figure.
_MOST_KERNELS = 12
#: Caption of a figure's only curve, by its name.
_ONE = {
    "what a call runs": "What a call runs", "fastest": "The fastest kernel of each size",
    "largest": "The largest error of all kernels",
}  # fmt: skip
_WORDS = {
    "gpu": "GPU", "driver": "driver", "cuda_driver": "CUDA version of the driver", "cublaslt": "cuBLASLt",
    "sm_clock_mhz": "clock of the SMs at the start, MHz", "sm_clock_max_mhz": "highest clock of the SMs, MHz",
    "memory_clock_mhz": "clock of the memory, MHz", "power_limit_w": "power limit, W", "python": "Python",
    "system": "system", "cpus": "CPUs", "seed": "seed", "seconds_per_point": "seconds for each figure",
    "warm_up_s": "seconds of warm-up",
}  # fmt: skip


def machine_view(machine: Machine) -> MachineView:
    """Return the report on a kind of GPU; kinds of records that it lacks are named in a line each.

    Raises
    ------
    UnsupportedError
        If matplotlib is not installed.
    """
    check_matplotlib()
    name = _slug(machine.name)
    found: list[Section] = []
    absent: list[str] = []
    for build in (
        _summary,
        _ladder,
        _errors,
        transposes,
        _products,
        profiles,
    ):
        section = build(machine, name)
        if isinstance(section, Section):
            found.append(section)
        elif section:
            absent.append(section)
    if machine.other_kinds:
        absent.append(f"Records of other kinds: {', '.join(machine.other_kinds)}.")
    facts = [_facts(source) for source in machine.sources]
    common = tuple(fact for fact in facts[0] if len(facts) > 1 and all(fact in other for other in facts))
    experiments = tuple(
        Experiment(source.name, tuple(fact for fact in own if fact not in common))
        for source, own in zip(machine.sources, facts, strict=True)
    )
    return MachineView(name, machine.name, tuple(found), tuple(absent), common, experiments)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-")


def _of(machine: Machine, kind: str) -> list[Record]:
    return [record for record in machine.records if record["record"] == kind]


def _type_text(record: Record) -> str:
    out, precision = record.get("out_dtype", record["dtype"]), record.get("precision", "ieee")
    words = [record["dtype"], f"-> {out}" if out != record["dtype"] else "", precision if precision != "ieee" else ""]
    return " ".join(filter(None, [*words, layout_text(record)]))


def _summary(machine: Machine, name: str) -> Section | str:
    """Return the fastest kernel of every type and layout, at the largest size that has a ratio."""
    products = [r for r in _of(machine, "gemm") if "ratio" in r]
    if not products:
        return ""
    names = labels(products)
    rows = []
    for words in dict.fromkeys(map(_type_text, products)):
        alike = [r for r in products if _type_text(r) == words]
        largest = max(r["m"] * r["n"] * r["k"] for r in alike)
        best = max((r for r in alike if r["m"] * r["n"] * r["k"] == largest), key=lambda r: r["ratio"])
        rows.append(
            (
                words, f"{best['ratio']:.3f}", name_of(best, names), f"{best['tflops']:.1f}",
                _peaks_text(best), size_text(best),
            )
        )  # fmt: skip
    # The ratio is what a narrow screen must show.
    header = ("type and layout", "rate / cuBLASLt's", "fastest kernel", "TFLOP/s", "share of the peak", "M x N x K")
    caption = "The fastest kernel of each type and layout, at the largest size with cuBLASLt"
    table = TableView(f"{name}-summary-table", caption, header, tuple(rows), more_texts=(2, 4, 5))
    return Section(f"{name}-summary", "At a glance", tables=(table,))


def _peaks_text(record: Record) -> str:
    """Return the shares of the peaks that a product is held against, each with the unit whose peak it is."""
    shares = []
    if "peak_share" in record:
        unit = f" of {_unit_text(record['peak_unit'])}" if "peak_unit" in record else ""
        shares.append(f"{100 * record['peak_share']:.1f} %{unit}")
    if "fma_share" in record:
        shares.append(f"{100 * record['fma_share']:.1f} % of FMA units")
    return ", ".join(shares)


def _unit_text(unit: str) -> str:
    return {"fp64": "fp64 FMA units"}.get(unit, unit.replace("_tensor", " tensor cores"))


def _ladder(machine: Machine, name: str) -> Section | str:
    found = plots(machine.records)
    if not found:
        return "The ladder over sizes: it takes gemm records of three sizes with M = N, with one K or K = M."
    text = "A curve for each kernel, and dashed for cuBLASLt, its best of 8 in the same run. Dotted: the chip's peak."
    drawn = _drawn(found, name, "Rate", text, "fastest")
    return Section(f"{name}-ladder", "The ladder over sizes", figures=drawn)


def _drawn(found: Sequence[Plot], name: str, what: str, text: str, greatest: str) -> tuple[FigureView, ...]:
    """Return the figures of plots over sizes; their captions leave out what titles say of the kernels.

    With many kernels one curve is shown, and all are folded.
    """
    drawn = []
    for plot in found:
        title = f"{what} over size, {plot.title.rpartition(', ')[2]}, {plot.axis}"
        many = len(plot.curves) > _MOST_KERNELS
        if many:
            one = one_curve(plot, greatest)
            (shown, _), *_ = one.curves
            caption = f"{_ONE[shown]}, and dashed cuBLASLt."
            drawn.append(figures.curves_view(one, f"{name}-{plot.name}-call", title, caption, 2))
        every = figures.curves_view(plot, f"{name}-{plot.name}", f"Every kernel: {title}" if many else title, text, 2)
        drawn.append(dataclasses.replace(every, folded=many))
    return tuple(drawn)


def _errors(machine: Machine, name: str) -> Section | str:
    found = error_plots(machine.records)
    if not found:
        return "Errors, and cuBLAS's: it takes gemm and yardstick records with errors, of three sizes with M = N."
    text = (
        "The largest error of the checked rows, in units of the unit roundoff u times (|A| |B|)ij, for the kernels and "
        "for cuBLASLt. Kernels that sum in the same order err alike."
    )
    drawn = _drawn(found, name, "Largest error", text, "largest")
    return Section(f"{name}-errors", "Errors, and cuBLAS's", figures=drawn)


def _products(machine: Machine, name: str) -> Section | str:
    products = GEMM.of(machine.records)
    if not products:
        return "Tables of products: there are no gemm records."
    made = []
    for words in dict.fromkeys(map(_type_text, products)):
        alike = [record for record in products if _type_text(record) == words]
        slug = _slug(words)
        ratios = bench_tables.ratios(GEMM, alike)
        if ratios[1]:
            caption = f"Time of cuBLASLt / time of the kernel, {words}"
            made.append(_ratios(f"{name}-ratios-{slug}", caption, ratios))
        all_figures = bench_tables.figures(GEMM, [record for record in alike if record["record"] != "skipped"])
        if all_figures[1]:
            caption = f"Every product, {words}: {len(all_figures[1])} rows"
            made.append(table_view(f"{name}-figures-{slug}", caption, all_figures, texts=2, folded=True))
    notes = [f"{line}." for line in (*controls(products), *bench_tables.skipped(GEMM, products))]
    if machine.replaced:
        notes.append(f"{machine.replaced} figures are left out, because a newer file has them too.")
    paragraph = (
        "Above 1 the kernel is faster than cuBLASLt, which was timed in the same run. In brackets: the limits between "
        "which four of five ratios of neighbouring samples are."
    )
    return Section(f"{name}-products", "Tables of products", (paragraph,), tables=tuple(made), notes=tuple(notes))


def _ratios(name: str, caption: str, table: tuple[Sequence[str], Sequence[Sequence[str]]]) -> TableView:
    """Return the ratios of every kernel; of many kernels, of which few ran each size, the fastest of each size."""
    (size, *kernels), rows = table
    if len(kernels) <= _MOST_KERNELS:
        return table_view(name, caption, table)
    fastest = []
    for where, *cells in rows:
        ratio, kernel = max(((cell, kernel) for cell, kernel in zip(cells, kernels, strict=True) if cell), key=_ratio)
        fastest.append((where, ratio, kernel))
    return TableView(name, f"{caption}: the fastest kernel", (size, "ratio", "kernel"), tuple(fastest), more_texts=(2,))


def _ratio(cell: tuple[str, str]) -> float:
    return float(cell[0])


def _facts(source: Source) -> list[tuple[str, str]]:
    """Return how a file was measured: pairs of what and how."""
    block = source.experiment
    date = str(block["date"])
    utc = re.fullmatch(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)", date)
    facts = [("date", "{}-{}-{} {}:{}:{} UTC".format(*utc.groups()) if utc else date)]
    facts += [(_WORDS[field], _plain_fact(block[field])) for field in _WORDS if field in block]
    facts.append(("packages", ", ".join(f"{package} {version}" for package, version in block["packages"].items())))
    facts.append(("commit", str(block.get("commit", "unknown"))))
    facts.append(("command", str(block["command"])))
    return facts


def _plain_fact(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
