"""Classes of lines: which lines each has, and for which products the larger operand is loaded as it is."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.arch import Arch
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.launch import TensorMapParam
from gemmule.core.spec import Choice
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm_line_classes.classes import line_classes
from gemmule.kernels.hopper.gemm_small_repacked.spec import SPEC
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")


def product(m, n, k, layout):
    return gemm_problem(m, n, k, "bfloat16", "bfloat16", layout)


@pytest.mark.parametrize("ld", [one for one in range(1, 40) if one % 8])
def test_every_line_is_in_one_class_which_begins_at_a_multiple_of_16_bytes(ld):
    found = line_classes(ld)
    assert sorted(one.first for one in found) == list(range(8))
    assert [one.shift for one in found] == sorted(one.shift for one in found)
    assert all((one.first * ld - one.shift) % 8 == 0 for one in found)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("large", "ab")
def test_a_large_operand_beside_a_small_one_is_loaded_as_it_is(large, layout):
    m, n = (6001, 57) if large == "a" else (57, 6001)
    problem = product(m, n, 5003, layout)
    choice = choose(problem, HOPPER, multiprocessors=132, tuned=False)
    assert choice.spec is SPEC
    launches, workspaces = choice.launches(problem)
    assert [one.spec.name for one in launches] == [SPEC.name, "hopper_gemm_line_classes"]
    assert list(workspaces) == [f"packed {'b' if large == 'a' else 'a'}"]
    maps = [one for one in launches[1].launch.params if isinstance(one, TensorMapParam)]
    assert sum(one.operand == large for one in maps) == 8


@pytest.mark.parametrize("shape", [(2047, 2047, 2047), (301, 77, 401), (1001, 3001, 79), (77, 6002, 5002)])
def test_other_products_are_not(shape):
    assert choose(product(*shape, "nn"), HOPPER, multiprocessors=132, tuned=False).spec is not SPEC
    # No times are predicted for them.
    assert SPEC.defers_to(product(*shape, "nn"), H200_RATES) is not None


def test_aligned_lines_have_no_classes():
    """Of two operands the one with aligned lines is copied, even if it is larger, where this kernel is named."""
    problem = product(77, 6008, 5003, "nn")
    assert SPEC.why_not(problem, HOPPER, SPEC.default) is None
    assert list(Choice(SPEC, SPEC.default).launches(problem)[1]) == ["packed b"]
    aligned = product(72, 6008, 5003, "tn")
    assert "elements apart" in SPEC.why_not(aligned, HOPPER, SPEC.default)
    odd = product(77, 6001, 5003, "nn")
    late = (dataclasses.replace(x, alignment=2) for x in (odd.a, odd.b))
    odd = dataclasses.replace(odd, **dict(zip("ab", late, strict=True)))
    assert "multiple of 16 bytes" in SPEC.why_not(odd, HOPPER, SPEC.default)


@pytest.mark.parametrize("sides", [(101, 33, 1501), (5481, 55, 4291)])
@pytest.mark.parametrize("count", [3, 20])
def test_batches_are_not(sides, count):
    """Each matrix would take two launches, and no kernel that takes all of them was compared."""
    m, n, k = sides
    a, b = np.broadcast_to(np.empty((m, k), np.float16), (count, m, k)), np.empty((count, k, n), np.float16)
    assert gm.matmul.plan(a, b, chip="h200").kernel != SPEC.name
    # Batches of one matrix, and rows of many of them that follow each other, are one product.
    assert (
        gm.matmul.plan(np.empty((1, 57, 5003), np.float16), np.empty((5003, 6001), np.float16), chip="h200").kernel
        == SPEC.name
    )
