"""Fit the rates of `simt_gemm`'s predicted times to records of `config_times.py --dtype float32`.

Every eighth product is left out of the fit; of these, the config that is predicted to be fastest is compared with the
fastest one and with cuBLASLt's top heuristic. Needs SciPy, and no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from gemmule.core.problem import GemmProblem
from gemmule.dispatch.rates_table import rates_for
from gemmule.kernels.simt.config import SimtConfig
from gemmule.kernels.simt.cost import limits
from gemmule.kernels.simt.gemm.spec import SPEC
from gemmule.kernels.simt.rates import RATES, SimtRates
from gemmule.kernels.simt.work import SimtFacts, SimtWork
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import read_records

HELD_OUT = 8
_SMS = 132
#: Errors count linearly from here on, as a logarithm; how fast a config's weight falls with its distance from the best,
#: and how much its own factor counts as an error.
_LINEAR, _NEAR, _PRIOR = 0.1, 1.5, 0.5
#: Where the fit of a rate begins at least.
_LEAST = 1e-3


def stacked(works: list[SimtWork]) -> SimtWork:
    """Return works as one."""
    sizes = [one.k_tiles.size for one in works]

    def arrays(kind: Any, several: list[Any]) -> dict[str, Any]:
        return {
            field.name: np.concatenate(
                [np.broadcast_to(getattr(one, field.name), size) for one, size in zip(several, sizes, strict=True)]
            )
            for field in dataclasses.fields(kind)
            if field.name != "facts"
        }

    facts = SimtFacts(**arrays(SimtFacts, [one.facts for one in works]))
    return SimtWork(facts=facts, **arrays(SimtWork, works))


def main() -> None:
    """Fit, and print rates, factors and how good the choices are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", help="of times on one chip")
    parser.add_argument(
        "--other-k-major", type=Path, nargs="*", default=[], metavar="RECORD",
        help="leave out aligned K-major operands of these: the kernel read them otherwise",
    )  # fmt: skip
    given = parser.parse_args()
    records: list[dict[str, Any]] = []
    for path in (*given.records, *given.other_k_major):
        found = read_records(path)
        (every,) = (one for one in found if one["record"] == "configs")
        of_path = {
            str(number): SimtConfig(**config)
            for number, config in enumerate(every["configs"])
            if every.get("kernels", [SPEC.name] * (number + 1))[number] == SPEC.name
        }
        for one in found:
            if one["record"] == "config_times" and (path in given.records or one["layout"] == "tn" or one["k"] % 2):
                times_us = {of_path[x]: time for x, time in one["times_us"].items() if x in of_path}
                records.append(one | {"times_us": times_us})
    gpu = rates_for(found[0]["gpu"], _SMS)
    kept = list(SPEC.configs)
    works: list[SimtWork] = []
    rows: list[tuple[int, int, float]] = []
    records = [one for one in records if any(config in kept for config in one["times_us"])]
    for number, one in enumerate(records):
        problem: GemmProblem = gemm_problem(one["m"], one["n"], one["k"], "float32", "float32", one["layout"])
        able = [config for config in kept if config in one["times_us"]]
        works.append(limits(problem, able, gpu))
        rows += [(number, kept.index(config), one["times_us"][config]) for config in able]
    work = stacked(works)
    products, which, times = (np.array(column) for column in zip(*rows, strict=True))
    best = np.full(len(records), np.inf)
    np.minimum.at(best, products, times)
    every = np.array([min(one["times_us"].values()) for one in records])
    # A factor of aligned products and one of others, by config.
    which = 2 * which + np.array([records[number]["k"] % 2 for number in products])
    weights = (times / best[products]) ** (-_NEAR / 2)
    fitted = products % HELD_OUT != 0
    # The last one is not fitted: no product is bound by memory.
    count = len(SimtRates._fields) - 1

    def rates_of(values: Any) -> SimtRates:
        return SimtRates(*(float(f"{x:.4g}") for x in np.exp(values[:count])), memory=RATES.memory)

    def logs(values: Any) -> Any:
        exact = SimtRates(*np.exp(values[:count]), memory=RATES.memory)
        return np.log(work.predicted_us(exact)) + values[count:][which]

    def errors(values: Any) -> Any:
        return np.concatenate([((logs(values) - np.log(times)) * weights)[fitted], _PRIOR * values[count:]])

    rates = np.maximum(np.array(RATES)[:count], _LEAST)
    start = np.concatenate([np.log(rates), np.zeros(2 * len(kept))])
    values = least_squares(errors, start, loss="soft_l1", f_scale=_LINEAR).x
    print("RATES =", rates_of(values))
    for one, (aligned, other) in zip(kept, np.exp(values[count:]).reshape(-1, 2), strict=True):
        key = one.tile_m, one.tile_n, one.tile_k, one.warps_k, one.cluster_k
        print(f"    {key}: ({aligned:.3f}, {other:.3f}),")
    predicted = logs(values)
    print(f"error of fitted products {np.std((predicted - np.log(times))[fitted]):.3f}, of others "
          f"{np.std((predicted - np.log(times))[~fitted]):.3f}")  # fmt: skip
    for name, some in (("fitted", 1), ("held out", 0)):
        shares, ratios = [], []
        for number, one in enumerate(records):
            if bool(number % HELD_OUT) != bool(some):
                continue
            at = np.flatnonzero(products == number)
            took = times[at[np.argmin(predicted[at])]]
            shares.append(every[number] / took)
            if one["cublaslt_us"][0] is not None:
                ratios.append(one["cublaslt_us"][0] / took)
        print(f"{name}: {len(shares)} products, {np.exp(np.mean(np.log(shares))):.4f} of the best config, "
              f"{np.exp(np.mean(np.log(ratios))):.4f} of cuBLASLt's top heuristic")  # fmt: skip


if __name__ == "__main__":
    main()
