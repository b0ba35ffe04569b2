"""Predicted times are at least those at the chip's peak rates: of each pair of types, result and precision."""

from __future__ import annotations

import itertools

import pytest

from gemmule.core.arch import Arch
from gemmule.core.chips import CHIPS
from gemmule.core.dtype import DTYPES, Precision
from gemmule.core.errors import DTypeError, NoKernelError, UnsupportedError
from gemmule.core.problem import contiguous_gemm
from gemmule.core.roofline import problem_bound
from gemmule.dispatch.select import choose

HOPPER = Arch.parse("sm_90a")


def is_allowed(precision, a, b):
    try:
        Precision.of_inputs(precision, (a.name, b.name))
    except DTypeError:
        return False
    return True


def least_us(problem, chip):
    try:
        return 1e6 * problem_bound(problem, chip).seconds
    except UnsupportedError:
        return 0.0


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA H200"])
def test_no_product_is_predicted_to_beat_the_peak_rates(name, precision, rng):
    chip = next(one for one in CHIPS if name in one.aliases)
    seen = 0
    for a, b in itertools.product(DTYPES, DTYPES):
        if not is_allowed(precision, a, b):
            continue
        large = (4096,) * 3, tuple(int(extent) for extent in rng.integers(1, 5000, 3))
        for d, extents in itertools.product({a, b} | set(rng.choice(DTYPES, 2)), large):
            problem = contiguous_gemm(*extents, (a.name, b.name, d.name), precision=precision)
            try:
                choice = choose(problem, HOPPER, multiprocessors=132, chip=name, tuned=False)
            except NoKernelError:
                continue
            assert choice.predicted_us is not None
            assert choice.predicted_us >= least_us(problem, chip), f"{problem.types} {extents}: {choice.spec.name}"
            seen += 1
    assert seen
