"""The rates with which predicted times come closest to measured ones."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gemmule.core.gpu_rates import FARTHEST, H200_RATES, RATES, GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.kernels.hopper.cost.correction import learned_chips
from gemmule.kernels.hopper.cost.operation import operation_of
from gemmule.kernels.hopper.cost.rates import Operation, TileRates
from gemmule.kernels.hopper.cost.times import times_us
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig

Numbers = np.ndarray[Any, np.dtype[Any]]

#: One of so many products is held out of the fit.
HELD_OUT = 4
#: Errors that differ by less are alike: predicted times are not exact to the last bit.
_ALIKE = 1e-6
#: Errors count linearly beyond this, as logarithms; the weight of a rate's distance from its first value,
#: for rates that no time depends on; and the largest such distance.
_HUBER, _PRIOR, _FARTHEST = 0.1, 0.03, math.log(32)
#: Largest distance from an H200's rates: derivatives are found within what rates may be.
_LIMIT = math.log(FARTHEST) - 0.01
#: Steps of the fit, the change by which derivatives are found, and the first damping, and how it changes.
_STEPS, _CHANGE, _DAMPING, _LESS, _MORE = 40, 1e-3, 1e-2, 0.3, 4.0


@dataclasses.dataclass(frozen=True)
class Timed:
    """A product with times of configs."""

    problem: GemmProblem  #: The product.
    us: Mapping[Any, float]  #: Microseconds that were measured.


@dataclasses.dataclass(frozen=True)
class Fit:
    """Rates that were fitted."""

    rates: GpuRates  #: The rates: those before, where these predict the products that were left out as well.
    #: products, held_out: Products that they were fitted to, and that were left out.
    products: int
    held_out: int
    #: error, error_before: Median relative error of the predicted times of products that were left out, and with the
    #: rates before.
    error: float
    error_before: float


def fit(timed: Sequence[Timed], before: GpuRates) -> Fit:
    """Return the rates that fit times best, starting from those before.

    Every fourth product is left out, and judged. For each chip that the learned correction knows, rates are fitted with
    its biases; the best are taken.

    Parameters
    ----------
    timed : sequence of Timed
        Products with times of configs, of one GPU.
    before : GpuRates
        Rates to begin with.
    """
    left = timed[HELD_OUT - 1 :: HELD_OUT]
    fitted_to = [one for number, one in enumerate(timed) if number % HELD_OUT != HELD_OUT - 1]
    found = [_fitted(fitted_to, dataclasses.replace(before, learned=chip)) for chip in learned_chips()]
    rates = min(found, key=lambda one: one[1])[0]
    if error(left, before) <= error(left, rates) + _ALIKE:
        rates = before
    return Fit(rates, len(fitted_to), len(left), error(left, rates), error(left, before))


def error(timed: Iterable[Timed], rates: GpuRates) -> float:
    """Return the median relative error of predicted times; 0 of none."""
    return statistics.median([abs(math.expm1(one)) for one in _logs(_measured(timed), rates)] or [0.0])


@dataclasses.dataclass(frozen=True)
class _Measured:
    """The part of a product that no rate changes: its operation, its configs, and the logarithms of their times."""

    operation: Operation
    configs: tuple[HopperGemmConfig, ...]
    logs: Numbers


def _measured(timed: Iterable[Timed]) -> list[_Measured]:
    return [_Measured(operation_of(one.problem), tuple(one.us), np.log(list(one.us.values()))) for one in timed]


def _logs(measured: Iterable[_Measured], rates: GpuRates) -> list[float]:
    """Return the logarithms of predicted times as shares of measured ones."""
    of: dict[tuple[HopperGemmConfig, ...], TileRates] = {}
    found: list[float] = []
    for one in measured:
        if one.configs not in of:
            of[one.configs] = TileRates(one.configs, rates)
        found += (np.log(times_us(one.operation, of[one.configs])) - one.logs).tolist()
    return found


def _fitted(timed: Sequence[Timed], before: GpuRates) -> tuple[GpuRates, float]:
    """Return rates, and the loss that they leave, by damped least squares of logarithms."""
    first, h200 = (np.log([getattr(rates, name) for name in RATES]) for rates in (before, H200_RATES))
    measured = _measured(timed)
    least = np.maximum(first - _FARTHEST, h200 - _LIMIT)
    most = np.minimum(first + _FARTHEST, h200 + _LIMIT)

    def rates_at(place: Numbers) -> GpuRates:
        return dataclasses.replace(before, **dict(zip(RATES, np.exp(place).tolist(), strict=True)))

    def residuals(place: Numbers) -> Numbers:
        return np.array([*_logs(measured, rates_at(place)), *(_PRIOR * (place - first))])

    def slopes_at(place: Numbers, left: Numbers) -> Numbers:
        steps = np.eye(len(first)) * _CHANGE
        return np.column_stack([(residuals(place + step) - left) / _CHANGE for step in steps])

    place, damping = first, _DAMPING
    left = residuals(place)
    slopes = slopes_at(place, left)
    for _ in range(_STEPS):
        weights = np.minimum(1.0, _HUBER / np.maximum(np.abs(left), 1e-9))
        normal, gradient = slopes.T @ (slopes * weights[:, None]), slopes.T @ (weights * left)
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
        tried = np.clip(place + step, least, most)
        now = residuals(tried)
        if _loss(now) < _loss(left):
            nearer = _loss(left) - _loss(now) < 1e-6 * _loss(left)
            place, left, damping = tried, now, damping * _LESS
            if nearer:
                break
            slopes = slopes_at(place, left)
        else:
            damping *= _MORE
    return rates_at(place), _loss(left)


def _loss(left: Numbers) -> float:
    size = np.abs(left)
    return float(np.where(size < _HUBER, left * left / 2, _HUBER * (size - _HUBER / 2)).sum())
