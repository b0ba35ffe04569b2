"""Fit what promoting FP8 accumulators costs `hopper_gemm` to records of `config_times.py --dtype float8_e4m3fn`.

Times of ping-pong and of cooperative configs are those of other types and, for each k-tile, a time that grows with the
tile's columns. Every fourth product is left out of the fit; of these, the config that is predicted to be fastest is
compared with the fastest one and with cuBLASLt's top heuristic. Needs SciPy, and no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from gemmule.core.dtype import Precision
from gemmule.dispatch.rates_table import rates_for
from gemmule.kernels.hopper.cost import pauses
from gemmule.kernels.hopper.cost.operation import operation_of
from gemmule.kernels.hopper.cost.times import rates_of, times_us
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import read_records

_HELD_OUT, _SMS, _LINEAR = 4, 132, 0.1


class Product(NamedTuple):
    """A measured product: predicted times without promotion, terms of it by constant, measured times, cuBLASLt's."""

    base: Any
    terms: Any
    times: Any
    first: float | None


def products(path: Path) -> list[Product]:
    """Return the products of a record, in the registered configs."""
    found = read_records(path)
    gpu = rates_for(found[0]["gpu"], _SMS)
    (named,) = (one["configs"] for one in found if one["record"] == "configs")
    configs = [HopperGemmConfig(**one) for one in named]
    result = []
    for one in found:
        if one["record"] != "config_times":
            continue
        problem = gemm_problem(one["m"], one["n"], one["k"], "float8_e4m3fn", "bfloat16", one["layout"])
        operation = operation_of(dataclasses.replace(problem, precision=Precision.FLOAT8))
        able = [x for x, config in enumerate(configs) if str(x) in one["times_us"] and config in SPEC.configs]
        if not able:
            continue
        rates = rates_of(tuple(configs[x] for x in able), gpu)
        times = np.array([one["times_us"][str(x)] for x in able])
        terms = pauses.promotion_terms(operation, rates)
        result.append(Product(times_us(operation, rates), terms, times, one["cublaslt_us"][0]))
    return result


def judged(found: Sequence[Product], values: Any) -> str:
    """Return what the choices reach of the best config, and of cuBLASLt's top heuristic."""
    picked = [one.times[np.argmin(one.base + values @ one.terms)] for one in found]
    best = statistics.geometric_mean(one.times.min() / time for one, time in zip(found, picked, strict=True))
    first = [one.first / time for one, time in zip(found, picked, strict=True) if one.first is not None]
    return f"{best:.4f} of the best config, {statistics.geometric_mean(first):.4f} of cuBLASLt's top heuristic"


def main() -> None:
    """Fit, and print the constants and how good the choices are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+")
    found = [one for path in parser.parse_args().records for one in products(path)]
    fitted = [one for number, one in enumerate(found) if number % _HELD_OUT]
    held = found[::_HELD_OUT]

    def errors(values: Any) -> Any:
        # The near ones count most: only these are chosen.
        return np.concatenate(
            [np.log((one.base + values @ one.terms) / one.times) * (one.times.min() / one.times) for one in fitted]
        )

    start = np.array(pauses.PROMOTE_US).ravel()
    values = least_squares(errors, start, bounds=(0, np.inf), loss="soft_l1", f_scale=_LINEAR).x
    print("PROMOTE_US =", tuple(tuple(float(f"{x:.3g}") for x in pair) for pair in values.reshape(2, 2)))
    for name, some in (("fitted", fitted), ("held out", held)):
        print(f"{len(some)} {name} products: {judged(some, values)}; before: {judged(some, start)}")


if __name__ == "__main__":
    main()
