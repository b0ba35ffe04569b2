"""The best config of a kernel at every size, beside the one that is taken without a search."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gemmule.core.chips import chip_named
from gemmule.core.spec import Config, KernelSpec
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose

from .gemm_tables import Record, Table, size_text
from .products import gemm_problem


def searched(records: Sequence[Record]) -> tuple[Table, str]:
    """Return a table with a row for each size, and a line with the means of its ratios.

    Parameters
    ----------
    records : sequence of mapping
        An experiment block, and products of one kernel of the registry in several configs.

    Raises
    ------
    KeyError
        If the kernel or the chip is not known.
    """
    measured = [record for record in records if record["record"] == "gemm" and "ratio" in record]
    spec = next((spec for spec in REGISTRY if spec.name == measured[0]["kernel"]), None)
    if spec is None:
        raise KeyError(f"the registry has no kernel {measured[0]['kernel']}")
    chip = chip_named(str(records[0]["gpu"]))
    sizes: dict[str, list[Record]] = {}
    for record in measured:
        sizes.setdefault(size_text(record), []).append(record)
    rows, best_ratios, taken_ratios = [], [], []
    for size, found in sizes.items():
        best = max(found, key=lambda record: record["ratio"])
        taken = next((one for one in found if one["config"] == _taken(spec, best, chip.sms).as_dict()), None)
        best_ratios.append(best["ratio"])
        taken_ratios += [taken["ratio"]] if taken is not None else []
        row = [size, f"{best['median_us']:.1f}", f"{best['tflops']:.0f}", _text(spec, best["config"])]
        row += [f"{best['ratio']:.3f}", _text(spec, taken["config"]) if taken is not None else ""]
        rows.append([*row, f"{taken['ratio']:.3f}" if taken is not None else ""])
    header = ["M x N x K", "us", "TFLOP/s", "best config", "/ cuBLAS", "config taken unsearched", "/ cuBLAS"]
    means = f"Geometric means: {statistics.geometric_mean(best_ratios):.3f} searched"
    if len(taken_ratios) == len(best_ratios):
        means += f", {statistics.geometric_mean(taken_ratios):.3f} unsearched"
    return (header, rows), means


def _taken(spec: KernelSpec, record: Record, multiprocessors: int) -> Config:
    """Return the config that `matmul` takes."""
    size = (record["m"], record["n"], record["k"])
    problem = gemm_problem(*size, record["dtype"], record["out_dtype"], record["layout"])
    return choose(problem, spec.archs[0], (spec,), multiprocessors=multiprocessors).config


def _text(spec: KernelSpec, config: Mapping[str, Any]) -> str:
    """Return the fields of a config that are not as they are unless told."""
    plain = type(spec.default)().as_dict()
    return " ".join(f"{name}={value}" for name, value in config.items() if value != plain[name]) or "as it comes"
