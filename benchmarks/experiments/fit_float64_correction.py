"""Fit the learned correction of the float64 cost model to records of `config_times.py`, tuning and draws.

Every fourth product is left out of a first fit; of these, the config that is predicted to be fastest is compared with
the fastest registered one and with cuBLASLt's first choice. Then networks are fitted to all products, and written. Of a
draw, the time of the choice is fitted. Of products that tiles of 64 divide, for which the networks are not read,
factors of configs are printed. Needs PyTorch and SciPy, and no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fit_cost_model import Fit, Measured, Training
from fit_float64_cost import HELD_OUT, Product, products

from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result
from gemmule.kernels.float64 import correction
from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.gemm.spec import SPEC
from gemmule.kernels.float64.limits import RATES, Limits, key_of, lies_of, limits, tiles_of
from gemmule.lab.products import gemm_problem

_TRAINING = Training(units=24, epochs=150, batch=256, rate=1e-2, decay=0.3)
_CHIPS = ("H200", "H100")
#: As a logarithm: how much slower than a product's best config one is that counts 37 %.
_SLOWER = 0.06


def measured(one: Product) -> Measured:
    """Return a product's times beside its limits, and what is read of them."""
    configs = tuple(one.times)
    found = limits(one.problem, configs, one.gpu, RATES)
    times = np.array(list(one.times.values()))
    features = np.concatenate(list(_parts(one.problem, configs, found).values()), dtype=np.float32).T
    return Measured(one.gpu.learned, configs, times, found.times, features, 1.0, one.first)


def _parts(problem: GemmProblem, configs: Sequence[Float64Config], found: Limits) -> dict[str, Any]:
    """Return the parts of features, a column for each config."""
    of, lies = tiles_of(configs, RATES), lies_of(row_result(problem)[0])
    numbers = correction.numbers(problem, of, found)
    return {"config": of.features, "lies": correction.lies_features(of, lies), "numbers": numbers}


def widths() -> dict[str, int]:
    """Return the parts of features, and their widths."""
    problem = gemm_problem(64, 64, 64, "float64", "float64", "nn")
    parts = _parts(problem, SPEC.configs, limits(problem, SPEC.configs, H200_RATES, RATES))
    return {name: len(part) for name, part in parts.items()}


def fit_to(found: Sequence[Measured]) -> Fit:
    """Return networks that are fitted to products."""
    parts = widths()
    return Fit(found, parts, _CHIPS, np.eye(sum(parts.values())), _TRAINING)


def judged(fit: Fit, found: Sequence[Measured]) -> str:
    """Say how good choices among the registered configs are."""
    shares, ratios, best = [], [], []
    for one in found:
        able = np.array([config in SPEC.configs for config in one.configs])
        if sum(able) < 2:
            continue
        took = one.times[np.where(able, fit.expected(one), np.inf).argmin()]
        shares.append(one.times[able].min() / took)
        if one.cublaslt is not None:
            ratios.append(one.cublaslt / took)
            best.append(one.cublaslt / one.times[able].min())
    ratio = np.array(ratios)
    return (
        f"{len(shares)} products, {np.exp(np.mean(np.log(shares))):.4f} of the best registered config; of cuBLASLt's "
        f"first choice {np.exp(np.mean(np.log(ratio))):.4f} ({np.exp(np.mean(np.log(best))):.4f}), below 0.95 "
        f"{np.mean(ratio < 0.95):.2f} ({np.mean(np.array(best) < 0.95):.2f}), least {ratio.min():.3f}"
    )


def factors(found: Sequence[Product]) -> dict[tuple[int, ...], float]:
    """Return measured times by those of the limits, of products that the networks are not read for.

    A config that is far slower than the best of a product says little of where it would be chosen.
    """
    logs: dict[tuple[int, ...], list[tuple[float, float]]] = {}
    for one in found:
        configs = [config for config in one.times if config in SPEC.configs]
        expected = limits(one.problem, configs, one.gpu, RATES).times
        least = min(one.times.values())
        for config, us in zip(configs, expected, strict=True):
            slower = math.log(one.times[config] / least)
            entry = math.log(one.times[config] / us), math.exp(-slower / _SLOWER)
            logs.setdefault(key_of(config), []).append(entry)
    return {
        key: round(math.exp(sum(log * weight for log, weight in some) / sum(weight for _, weight in some)), 3)
        for key, some in logs.items()
    }


def main() -> None:
    """Fit, say how good the choices are, and write the data that the cost model reads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+")
    given = parser.parse_args()
    every = [one for path in given.records for one in products(path, "float64")]
    whole = [one for one in every if correction.measured_share(one.problem) == 0]
    for key, factor in factors(whole).items():
        print(f"    {key}: {factor},")
    found = [measured(one) for one in every if one not in whole]
    fit = fit_to([one for number, one in enumerate(found) if number % HELD_OUT])
    for chip in _CHIPS:
        print(f"{chip}: {judged(fit, [one for one in found[::HELD_OUT] if one.chip == chip])}", flush=True)
    path = Path(correction.__file__).with_name("correction.json")
    content = {"chips": _CHIPS, "networks": fit_to(found).networks()}
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
