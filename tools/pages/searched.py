"""The best kernel and config of every product that was searched, beside the one that is taken without a search."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gemmule.core.chips import chip_named
from gemmule.core.config import Config
from gemmule.core.spec import KernelSpec
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.lab.bench_tables import Table
from gemmule.lab.gemm_operation import size_text
from gemmule.lab.operation import Record
from gemmule.lab.products import gemm_problem
from gemmule.lab.tuning.cells import PRESETS, preset


def searched(records: Sequence[Record], only: Sequence[str] = ()) -> tuple[Table, str]:
    """Return a table with a row for each product, and lines with the means of its ratios.

    Parameters
    ----------
    records : sequence of mapping
        An experiment block, and products by kernels of the registry in several configs. What is taken without a search
        is what a record says was chosen by dispatch; in files that have no such records, what the cost model of today
        takes of the configs of the best one's kernel.
    only : sequence of str
        Types of A and B, layouts, and presets of sizes such as ``cells`` to take; without one of a kind all of it.

    Raises
    ------
    KeyError
        If a kernel or the chip is not known, or nothing is left.
    """
    measured = [record for record in records if record["record"] == "gemm" and "ratio" in record]
    presets = [word for word in only if word in PRESETS or ":" in word]
    only = [word for word in only if word not in presets]
    if presets:
        sizes = {size for word in presets for size in preset(word)}
        measured = [record for record in measured if (record["m"], record["n"], record["k"]) in sizes]
    for field in ("dtype", "layout"):
        wanted = {record[field] for record in measured} & set(only)
        measured = [record for record in measured if not wanted or record[field] in wanted]
    if not measured or (unknown := set(only) - {record[name] for record in measured for name in ("dtype", "layout")}):
        raise KeyError(f"nothing was measured of {', '.join(sorted(unknown) if measured else [*only, *presets])}")
    chip = chip_named(str(records[0]["gpu"]))
    by_dispatch = any(record.get("chosen_by") == "dispatch" for record in measured)
    kinds = len({(record["dtype"], record["layout"]) for record in measured})
    products: dict[tuple[str, ...], list[Record]] = {}
    for record in measured:
        kind = (record["dtype"], record["layout"]) if kinds > 1 else ()
        products.setdefault((size_text(record), *kind), []).append(record)
    names = len({record["kernel"] for record in measured}) > 1
    rows, best_ratios, taken_ratios, shares = [], [], [], []
    for product, found in products.items():
        best = max(found, key=lambda record: float(record["ratio"]))
        taken = next((one for one in found if _is_taken(one, best, chip.sms, by_dispatch=by_dispatch)), None)
        best_ratios.append(best["ratio"])
        row = [*product, f"{best['median_us']:.1f}", f"{best['tflops']:.0f}", text_of(best, with_name=names)]
        row.append(f"{best['ratio']:.3f}")
        if taken is not None:
            taken_ratios.append(taken["ratio"])
            shares.append(taken["ratio"] / best["ratio"])
            row += [text_of(taken, with_name=names) if taken is not best else "the same", f"{taken['ratio']:.3f}"]
        rows.append(row if taken is not None else [*row, "", ""])
    header = ["M x N x K", *(("types", "layout") if kinds > 1 else ()), "us", "TFLOP/s", "best config", "vs cuBLASLt"]
    means = f"Geometric means: {_mean(best_ratios)} searched"
    if len(taken_ratios) == len(best_ratios):
        means += f", {_mean(taken_ratios)} unsearched, which is {_mean(shares)} of the searched"
    return ([*header, "config taken unsearched", "vs cuBLASLt"], rows), means


def _mean(ratios: Sequence[float]) -> str:
    return f"{statistics.geometric_mean(ratios):.3f} (least {min(ratios):.3f})"


def _is_taken(record: Record, best: Record, multiprocessors: int, *, by_dispatch: bool) -> bool:
    """Whether a record is of what is taken without a search."""
    if by_dispatch:
        return str(record.get("chosen_by")) == "dispatch"
    spec = _spec(best)
    return record["kernel"] == spec.name and _taken(spec, best, multiprocessors).is_recorded(record["config"])


def _spec(record: Record) -> KernelSpec:
    spec = next((spec for spec in REGISTRY if spec.name == record["kernel"]), None)
    if spec is None:
        raise KeyError(f"the registry has no kernel {record['kernel']}")
    return spec


def _taken(spec: KernelSpec, record: Record, multiprocessors: int) -> Config:
    """Return the config that the cost model takes."""
    size = (record["m"], record["n"], record["k"])
    problem = gemm_problem(*size, record["dtype"], record["out_dtype"], record["layout"])
    return choose(problem, spec.archs[0], (spec,), multiprocessors=multiprocessors).config


def text_of(record: Mapping[str, Any], *, with_name: bool) -> str:
    """Return the fields of a config that are not as they are unless told."""
    plain = type(_spec(record).default)().as_dict()
    name = [f"{record['kernel']}:"] if with_name else []
    fields = [f"{field}={value}" for field, value in record["config"].items() if value != plain.get(field, 0)]
    return " ".join([*name, *(fields or ["as it comes"])])
