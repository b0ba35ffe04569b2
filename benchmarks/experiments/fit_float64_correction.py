"""Fit the learned correction of the float64 cost model to records of `config_times.py`, tuning and draws.

Every fourth product is left out of a first fit; of these, the config that is predicted to be fastest is compared with
the fastest registered one and with cuBLASLt's top heuristic. Then networks are fitted to all products, and written. Of
a draw, the time of the choice is fitted. Factors of configs, for products for which the networks are not read, are
fitted to those that tiles of 64 divide, and printed. ``--continue`` starts from the shipped networks, with few rounds:
so they learn further records and configs in seconds, and what is not among these stays nearly as it is. Needs PyTorch
and SciPy, and no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from correction_networks import Networks, Training, rounded
from fit_float64_cost import HELD_OUT, Product, products
from scipy.optimize import minimize

from gemmule.core.arch import Arch
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result
from gemmule.kernels.float64 import correction
from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.cost import FACTORS, power
from gemmule.kernels.float64.gemm.spec import SPEC
from gemmule.kernels.float64.limits import RATES, Limits, key_of, layout_of, limits, tiles_of
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")

_TRAINING = Training((24, 24), 4, 500, 256, 1e-2, 0.1)
#: Of each of the shipped networks, which are continued.
_CONTINUED = _TRAINING._replace(networks=1, epochs=40, rate=2e-3)
#: Weights of times fall by this exponent of how much slower they are than the fastest, to the least.
_SLOWER, _LEAST_WEIGHT = 2.5, 0.05
#: Weight of assumed times.
_ASSUMED = 0.2
_CHIPS = ("H200", "H100")
#: As logarithms: how near two predictions are that are chosen alike, and how much slower configs are whose errors count
#: 37 %. How much errors and changes of factors count beside what choices lose; and fits one after the other.
_NEAR, _FAST, _ERROR, _PRIOR, _FITS = 0.01, 0.05, 0.3, 1.0, 3


@dataclasses.dataclass
class Measured:
    """A product's times beside its limits, and what is read of them."""

    chip: str
    configs: Sequence[Float64Config]
    #: times, expected: Microseconds that were measured, and those of the limits, by config.
    times: Any
    expected: Any
    features: Any  #: A row for each config.
    cublaslt: float | None  #: Microseconds of cuBLASLt's top heuristic.
    whole: bool  #: Whether tiles of 64 divide it.
    assumed: bool = False  #: Whether times are those of factors of configs, not measured.


class Fit:
    """Networks that are fitted together, on features that are scaled to a mean of 0 and a deviation of 1.

    Parameters
    ----------
    found : sequence of Measured
        The products.
    start : sequence of dict
        Networks that are continued, as the cost model reads them; none for new ones.
    """

    def __init__(self, found: Sequence[Measured], start: Sequence[dict[str, Any]] = ()) -> None:
        self._parts = widths()
        features = np.concatenate([one.features for one in found])
        self._mean, self._deviation = features.mean(axis=0), features.std(axis=0) + 1e-3
        inputs = torch.cat([self._inputs(one) for one in found])
        wanted = np.concatenate([np.log2(one.times / one.expected) for one in found])
        near = [np.exp(-_SLOWER * (one.times / one.times.min() - 1)) for one in found]
        shares = [_ASSUMED if one.assumed else 1.0 for one in found]
        weights = np.concatenate([x * np.maximum(y, _LEAST_WEIGHT) for x, y in zip(shares, near, strict=True)])
        wanted, weights = (torch.tensor(x, dtype=torch.float32) for x in (wanted, weights / weights.mean()))
        starts = [self._scaled(one) for one in start]
        self._networks = [Networks(inputs, wanted, weights, _CONTINUED, one) for one in starts]
        if not starts:
            self._networks.append(Networks(inputs, wanted, weights, _TRAINING))

    def _scaled(self, network: dict[str, Any]) -> dict[str, Any]:
        """Return a network of features as they are as one of scaled features: the inverse of `networks`."""
        found = {name: np.array(value) for name, value in network.items()}
        own = np.concatenate([found[part] for part in self._parts]) * self._deviation[:, None]
        return found | {"first": np.concatenate([own, found["chips"] + self._mean / self._deviation @ own])}

    def _inputs(self, one: Measured) -> torch.Tensor:
        chip = np.zeros((len(one.features), len(_CHIPS)))
        chip[:, _CHIPS.index(one.chip)] = 1
        scaled = (one.features - self._mean) / self._deviation
        return torch.tensor(np.concatenate([scaled, chip], axis=1), dtype=torch.float32)

    def expected(self, one: Measured) -> Any:
        """Return the microseconds of a product's configs."""
        inputs = self._inputs(one)
        return one.expected * np.exp2(np.mean([networks.logs(inputs) for networks in self._networks], axis=0))

    def networks(self) -> list[dict[str, Any]]:
        """Return the weights as the cost model reads them: of features as they are."""
        found, ends = [], np.cumsum(list(self._parts.values()))
        for weights in itertools.chain.from_iterable(networks.weights() for networks in self._networks):
            *of_parts, chips = np.split(weights.pop("first"), ends)
            own = np.concatenate(of_parts)
            given = dict(zip(self._parts, np.split(own / self._deviation[:, None], ends[:-1]), strict=True))
            given |= {"chips": chips - self._mean / self._deviation @ own}
            found.append(rounded(given | weights))
        return found


def measured(one: Product) -> Measured:
    """Return a product's times beside its limits, and what is read of them."""
    configs = tuple(one.times)
    found = limits(one.problem, configs, one.gpu, RATES)
    times = np.array(list(one.times.values()))
    features = np.concatenate(list(_parts(one.problem, configs, found).values()), dtype=np.float32).T
    expected = found.times * power(one.problem, configs)
    return Measured(one.gpu.learned, configs, times, expected, features, one.first, correction.is_whole(one.problem))


def assumed(one: Product) -> Measured:
    """Return what the factors of configs say of those that were not timed.

    Of products that tiles of 64 divide few configs were timed, and networks let others win.
    """
    configs = [
        config
        for config in SPEC.configs
        if config not in one.times and SPEC.why_not(one.problem, HOPPER, config) is None
    ]
    found = limits(one.problem, configs, one.gpu, RATES).times * power(one.problem, configs)
    factor = np.array([FACTORS.get(key_of(config), 1.0) for config in configs])
    said = measured(one._replace(times=dict(zip(configs, (found * factor).tolist(), strict=True)), first=None))
    return dataclasses.replace(said, assumed=True)


def _parts(problem: GemmProblem, configs: Sequence[Float64Config], found: Limits) -> dict[str, Any]:
    """Return the parts of features, a column for each config."""
    of, layout = tiles_of(configs, RATES), layout_of(row_result(problem)[0])
    numbers = correction.numbers(problem, of, found)
    return {"config": of.features, "lies": correction.layout_features(of, layout), "numbers": numbers}


def widths() -> dict[str, int]:
    """Return the parts of features, and their widths."""
    problem = gemm_problem(64, 64, 64, "float64", "float64", "nn")
    parts = _parts(problem, SPEC.configs, limits(problem, SPEC.configs, H200_RATES, RATES))
    return {name: len(part) for name, part in parts.items()}


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
        f"top heuristic {np.exp(np.mean(np.log(ratio))):.4f} ({np.exp(np.mean(np.log(best))):.4f}), below 0.95 "
        f"{np.mean(ratio < 0.95):.2f} ({np.mean(np.array(best) < 0.95):.2f}), least {ratio.min():.3f}"
    )


def factors(found: Sequence[Product]) -> dict[tuple[int, ...], float]:
    """Return factors with which choices lose least, of products that the networks are not read for."""
    shared = [[config for config in one.times if config in SPEC.configs] for one in found]
    keys = sorted({key_of(config) for configs in shared for config in configs})
    numbers = [np.array([keys.index(key_of(config)) for config in configs], int) for configs in shared]
    expected = [
        np.log(limits(one.problem, configs, one.gpu, RATES).times * power(one.problem, configs))
        for one, configs in zip(found, shared, strict=True)
    ]
    times = [np.log([one.times[config] for config in configs]) for one, configs in zip(found, shared, strict=True)]
    start = np.log([FACTORS.get(key, 1.0) for key in keys])

    def loss(values: Any) -> float:
        """Return how much slower choices are, how far predictions of fast configs are off, how far factors moved."""
        lost = 0.0
        for number, logs, measured_logs in zip(numbers, expected, times, strict=True):
            predicted, slower = logs + values[number], measured_logs - measured_logs.min()
            chances, weights = np.exp((predicted.min() - predicted) / _NEAR), np.exp(-slower / _FAST)
            # One choice that is far slower is worse than many that are a little slower.
            lost += float(chances @ (slower + 4 * slower**2) / chances.sum())
            lost += _ERROR * float(weights @ np.abs(predicted - measured_logs) / weights.sum())
        return lost / len(found) + _PRIOR * float(np.square(values - start).mean())

    values = start
    for _ in range(_FITS):
        values = minimize(loss, values, method="L-BFGS-B", options={"maxiter": 60, "eps": 1e-4}).x
    return {key: round(math.exp(value), 3) for key, value in zip(keys, values, strict=True)}


def main() -> None:
    """Fit, say how good the choices are, and write the data that the cost model reads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--continue", dest="continued", action="store_true", help="start from the shipped networks")
    given = parser.parse_args()
    path = Path(correction.__file__).with_name("correction.json")
    start = json.loads(path.read_text())["networks"] if given.continued else ()
    every = [one for path in given.records for one in products(path, "float64")]
    whole = [one for one in every if correction.is_whole(one.problem) and len(one.times) > 1]
    for key, factor in factors(whole).items():
        print(f"    {key}: {factor},")
    given_products = [one for one in every if correction.measured_share(one.problem) > 0]
    found = [measured(one) for one in given_products]
    prior = [assumed(one) for one in given_products if correction.is_whole(one.problem)]
    fit = Fit([*(one for number, one in enumerate(found) if number % HELD_OUT), *prior], start)
    for chip, is_whole in itertools.product(_CHIPS, (False, True)):
        held_out = [
            one for one in found[::HELD_OUT] if one.chip == chip and one.whole == is_whole and one.cublaslt is not None
        ]
        if held_out:
            print(f"{chip}, {'whole' if is_whole else 'other'} tiles: {judged(fit, held_out)}", flush=True)
    content = {"chips": _CHIPS, "networks": Fit([*found, *prior], start).networks()}
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
