"""8-bit floats beside matrices that no tensor-core kernel takes: they are refused, and the reference multiplies."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT32
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm_upcast.spec import SPEC
from gemmule.kernels.mma_sync.cost import predicted_us

HOPPER = Arch.parse("sm_90a")


def mixed(m=256, n=256, k=256):
    operands = contiguous(FLOAT8_E4M3, m, k), contiguous(BFLOAT16, k, n), None, contiguous(BFLOAT16, m, n)
    return GemmProblem(m, n, k, (), *operands)


@pytest.mark.parametrize(
    "change",
    [
        {"b": StridedMatrix(BFLOAT16, 256, 256, 512, 2)},
        {"b": StridedMatrix(BFLOAT16, 256, 256, 0, 0)},
        {"d": StridedMatrix(BFLOAT16, 256, 256, 512, 2)},
    ],
    ids=str,
)
def test_elements_that_do_not_touch_are_refused(change):
    problem = dataclasses.replace(mixed(), **change)
    assert SPEC.why_not(mixed(), HOPPER, SPEC.default) is None
    assert "has strides" in SPEC.why_not(problem, HOPPER, SPEC.default)
    choice = choose(problem, HOPPER, multiprocessors=132)
    if "d" in change:
        assert (choice.spec.name, choice.form.name) == (SPEC.name, "sums")
    else:
        assert (choice.spec.name, choice.form) == ("gemm_reference", None)


def test_the_cheapest_config_multiplies():
    problem = mixed(128, 4096, 4096)
    then = SPEC.next_kernel(problem, SPEC.default)
    costs = then.spec.costs(then.problem, then.spec.configs, H200_RATES)
    able = [then.spec.why_not(then.problem, HOPPER, config) is None for config in then.spec.configs]
    least = min(cost for cost, takes in zip(costs, able, strict=True) if takes)
    assert costs[then.spec.configs.index(then.config)] == least


def test_products_by_mma_sync_take_the_time_that_it_predicts():
    operands = (
        contiguous(FLOAT8_E4M3, 256, 4096),
        contiguous(FLOAT8_E4M3, 4096, 255),
        None,
        contiguous(FLOAT32, 256, 255),
    )
    problem = GemmProblem(256, 255, 4096, (), *operands)
    then = SPEC.next_kernel(problem, SPEC.default)
    assert then.spec.name == "mma_sync_gemm"
    product = predicted_us(then.problem, H200_RATES)
    assert product < min(SPEC.costs(problem, SPEC.configs, H200_RATES)) < product + 5
