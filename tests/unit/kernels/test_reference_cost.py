"""Predicted times of gemm_reference."""

import dataclasses

import pytest

from gemmule.core.gpu_rates import H100_RATES, H200_RATES
from gemmule.kernels.simt.reference.spec import SPEC
from gemmule.lab.products import gemm_problem

#: Microseconds of K-major products, to which nothing was fitted, on an H200 (record 20261129T141734), and of row-major
#: ones on an H100 (20261121T071427).
MEASURED = [
    (H200_RATES, ("int32", "nt"), (200, 300, 400), 88.6),
    (H200_RATES, ("int32", "nt"), (700, 900, 3000), 646.9),
    (H200_RATES, ("int32", "nt"), (1900, 1900, 1900), 984.7),
    (H200_RATES, ("int32", "nt"), (33, 2000, 7000), 1543.8),
    (H100_RATES, ("float32", "nn"), (1536, 1536, 1024), 498.5),
    (H100_RATES, ("float32", "nn"), (16384, 16384, 1024), 35297.9),
]


@pytest.mark.parametrize(("gpu", "types", "shape", "us"), MEASURED)
def test_it_predicts_what_was_measured(gpu, types, shape, us):
    dtype, layout = types
    problem = gemm_problem(*shape, dtype, dtype, layout)
    assert SPEC.cost(problem, SPEC.default, gpu) == pytest.approx(us, rel=0.16)


def test_without_terms_a_product_takes_what_memory_takes():
    problem = gemm_problem(8192, 8192, 0, "int32", "int32", "nn")
    memory_us = 4 * 8192**2 / H200_RATES.memory
    assert memory_us < SPEC.cost(problem, SPEC.default, H200_RATES) < 3 * memory_us
    assert SPEC.cost(dataclasses.replace(problem, m=0, n=0, k=64), SPEC.default, H200_RATES) > 0
