"""Fit the factors of `simt_gemm`'s predicted times to what choices lose, by records of float32 times.

A config is chosen with a probability that falls by e for each `_SPREAD` of its predicted time, so that the mean loss to
the fastest timed one has a derivative: factors of all configs, of aligned operands and of others, lower it, and are
held near those that are shipped. Prepared operands are counted where their product's config is still the chosen one.
Prints the losses of choices on each chip with factors fitted on the other one and on random halves of the products,
and the factors of all. Needs SciPy, and no GPU.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result
from gemmule.dispatch.rates_table import rates_for
from gemmule.kernels.simt.config import SimtConfig
from gemmule.kernels.simt.cost import costs_with_copies, operand_layouts
from gemmule.kernels.simt.gemm.spec import SPEC, is_small
from gemmule.kernels.simt.gemm_mn_major.spec import SPEC as MN_MAJOR
from gemmule.kernels.simt.rates import FACTORS
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import read_records

_SMS = 132
#: Spread of predicted times, as a logarithm; how much the squares of factors count; and the most that a choice loses.
_SPREAD, _HELD, _MOST = 0.02, 0.3, 0.25
_HALVES, _SEED = 40, 5
_CONFIGS = list(SPEC.configs)
#: The carve-out of records where the driver decides.
_DRIVERS = -1


class _Option(NamedTuple):
    """What a product was timed by."""

    factor: int  #: Number of its factor: of a config with aligned operands, or of it with others.
    share: float  #: Part of the time that it multiplies.
    predicted: float  #: Logarithm of the predicted time.
    loss: float  #: Logarithm of the measured time by the least.


class _Product(NamedTuple):
    """A timed product."""

    extents: tuple[int, int, int]
    chip: str
    options: list[_Option]


def options(problem: GemmProblem, times: dict[SimtConfig, float], prepared: float | None, chip: str) -> list[_Option]:
    """Return what a product was timed by: its configs, and the time with prepared operands, if that is known."""
    gpu = rates_for(chip, _SMS)
    a, b = operand_layouts(problem)
    _, first, second = row_result(problem)
    copied = [name for name, one in ((first, a), (second, b)) if one.k_major or one.unaligned]
    own, others = costs_with_copies(problem, copied, _CONFIGS, gpu)
    others = np.array(others)
    other = a.unaligned or b.unaligned
    found = [
        (_CONFIGS.index(config) + other * len(_CONFIGS), 1.0, float(own[_CONFIGS.index(config)]), time)
        for config, time in times.items()
    ]
    if prepared is not None and not is_small(problem):
        chosen = int(np.argmin(others))
        cost = MN_MAJOR.least_cost(problem, gpu)
        found.append((chosen, float(others[chosen]) / cost, cost, prepared))
    least = min((time for *_, time in found), default=1.0)
    return [_Option(x, share, math.log(cost), min(math.log(time / least), _MOST)) for x, share, cost, time in found]


def timed(record: dict[str, Any], configs: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, Any, float]]:
    """Yield the kernel, config and time of what a product was timed by; of `simt_times` with the driver's carve-out."""
    if record["record"] == "config_times":
        for number, time in record["times_us"].items():
            yield (*configs[int(number)], time)
    elif record["record"] == "simt_times" and record.get("carve_out", _DRIVERS) == _DRIVERS:
        for one in record["times"]:
            yield one["kernel"], one["config"], one["median_us"]


def products(paths: Sequence[Path], other_k_major: Sequence[Path], by_now: Sequence[Path]) -> list[_Product]:
    """Return the products of records with two options or more."""
    found = []
    for path in dict.fromkeys((*paths, *other_k_major, *by_now)):
        records = read_records(path)
        every = next((one for one in records if one["record"] == "configs"), {"configs": []})
        configs = list(zip(every.get("kernels", [SPEC.name] * len(every["configs"])), every["configs"], strict=True))
        for one in records:
            if one["record"] not in ("config_times", "simt_times"):
                continue
            problem = gemm_problem(one["m"], one["n"], one["k"], "float32", "float32", one["layout"])
            # As they are timed now.
            as_is = path not in other_k_major or one["layout"] == "tn" or one["k"] % 2
            times, prepared = {}, None
            for kernel, config, time in timed(one, configs):
                if kernel == SPEC.name and as_is and SimtConfig(**config) in _CONFIGS:
                    times[SimtConfig(**config)] = time
                elif kernel == MN_MAJOR.name and path in by_now:
                    prepared = min(time, prepared or math.inf)
            if len(several := options(problem, times, prepared, records[0]["gpu"])) > 1:
                found.append(_Product((one["m"], one["n"], one["k"]), records[0]["gpu"], several))
    return found


class Losses:
    """What choices among the options of products lose."""

    def __init__(self, several: Sequence[_Product]) -> None:
        shape = len(several), max(len(one.options) for one in several)
        self._factor, self._share = np.zeros(shape, int), np.zeros(shape)
        self._predicted, self._loss = np.full(shape, math.inf), np.zeros(shape)
        for row, one in enumerate(several):
            for column, option in enumerate(one.options):
                self._factor[row, column], self._share[row, column], *times = option
                self._predicted[row, column], self._loss[row, column] = times

    def _times(self, factors: Any) -> Any:
        return self._predicted + self._share * factors[self._factor]

    def of_choices(self, factors: Any) -> float:
        """Return the mean loss of choices, in percent."""
        chosen = self._times(factors).argmin(1)
        return float(100 * self._loss[np.arange(len(chosen)), chosen].mean())

    def expected(self, factors: Any) -> tuple[float, Any]:
        """Return the mean loss where each option has its probability, in percent, with factors held; the gradient."""
        times = self._times(factors)
        weights = np.exp((times.min(1, keepdims=True) - times) / _SPREAD)
        weights /= weights.sum(1, keepdims=True)
        mean = (weights * self._loss).sum(1, keepdims=True)
        slopes = -weights * (self._loss - mean) / _SPREAD * self._share
        gradient = np.bincount(self._factor.ravel(), slopes.ravel(), len(factors))
        scale = 100 / len(mean)
        return scale * mean.sum() + 100 * _HELD * (factors**2).sum(), scale * gradient + 200 * _HELD * factors

    def fitted(self) -> Any:
        """Return the logarithms of the factors that lower the expected loss."""
        return minimize(self.expected, np.zeros(2 * len(_CONFIGS)), jac=True, method="L-BFGS-B").x


def main() -> None:
    """Fit, judge, and print factors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="*", help="of times by config_times.py or simt_times.py")
    parser.add_argument(
        "--other-k-major", type=Path, nargs="*", default=[], metavar="RECORD",
        help="leave out aligned K-major operands of these: the kernel read them otherwise",
    )  # fmt: skip
    parser.add_argument(
        "--prepared", type=Path, nargs="*", default=[], metavar="RECORD",
        help="in these the product of prepared operands ran in the config of now",
    )  # fmt: skip
    given = parser.parse_args()
    every = products(given.records, given.other_k_major, given.prepared)
    as_is = np.zeros(2 * len(_CONFIGS))
    chips = sorted({one.chip for one in every})
    by_chip = {chip: Losses([one for one in every if one.chip == chip]) for chip in chips}
    for chip, losses in by_chip.items():
        for other in chips:
            if other != chip:
                factors = by_chip[other].fitted()
                print(f"{chip}: {losses.of_choices(as_is):.3f} %, fitted on {other} {losses.of_choices(factors):.3f} %")
    random, changes = np.random.default_rng(_SEED), []
    extents = sorted({one.extents for one in every})
    for _ in range(_HALVES):
        half = {extents[x] for x in random.permutation(len(extents))[: len(extents) // 2]}
        judged = Losses([one for one in every if one.extents not in half])
        factors = Losses([one for one in every if one.extents in half]).fitted()
        changes.append(judged.of_choices(factors) - judged.of_choices(as_is))
    print(f"halves: {np.mean(changes):+.3f} %, less {sum(x < 0 for x in changes)}, more {sum(x > 0 for x in changes)}")
    losses = Losses(every)
    factors = losses.fitted()
    print(f"{len(every)} products: {losses.of_choices(as_is):.3f} %, fitted {losses.of_choices(factors):.3f} %")
    for one, aligned, other in zip(_CONFIGS, *np.exp(factors).reshape(2, -1), strict=True):
        key = one.tile_m, one.tile_n, one.tile_k, one.warps_k, one.cluster_k
        known = FACTORS[key]
        print(f"    {key}: ({known[0] * aligned:.3f}, {known[1] * other:.3f}),")


if __name__ == "__main__":
    main()
