"""What grouped_gemv takes and refuses, and where a call gets it."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32
from gemmule.core.errors import ArgumentError, UnsupportedError
from gemmule.core.grouped_problem import GroupedProblem
from gemmule.core.layout import contiguous
from gemmule.dispatch.grouped import choose_grouped
from gemmule.kernels.mma_sync.grouped_gemv.config import GemvConfig
from gemmule.kernels.mma_sync.grouped_gemv.spec import SPEC

HOPPER, AMPERE = Arch.parse("sm_90a"), Arch.parse("sm_80")


def rows(m=8, n=1536, k=2048, groups=128, dtype=BFLOAT16):
    """Rows that each name one of a layer's experts."""
    weights = contiguous(dtype, n, k, (groups,)).transposed()
    return GroupedProblem("row", m, n, k, groups, contiguous(dtype, m, k), weights, contiguous(dtype, m, n))


@pytest.mark.parametrize("arch", [HOPPER, AMPERE, Arch.parse("sm_100a")], ids=str)
@pytest.mark.parametrize("shape", [(8, 1536, 2048, 128), (2, 4096, 14336, 8), (8, 2048, 768, 128)])
def test_rows_of_experts_run_by_it(arch, shape):
    problem = rows(*shape)
    choice = choose_grouped(problem, arch, multiprocessors=132)
    assert choice.spec is SPEC
    columns, width, recipe = problem.n, choice.config.tile_n, SPEC.launch(problem, choice.config)
    assert recipe.grid == (problem.m, -(-columns // width), 1)


def test_a_row_for_every_slot_may_have_a_stride_of_zero():
    problem = rows()
    repeated = dataclasses.replace(problem, a=dataclasses.replace(problem.a, row_stride=0))
    assert choose_grouped(repeated, HOPPER, multiprocessors=132).spec is SPEC


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (dataclasses.replace(rows(), axis="m"), "offsets divide a dimension"),
        (dataclasses.replace(rows(), b=rows(dtype=FLOAT16).b), "A is bfloat16 and B is float16"),
        (dataclasses.replace(rows(), d=contiguous(FLOAT16, 8, 1536)), "the output is float16"),
        (rows(k=0), "nothing to multiply"),
        (rows(k=2044), "no contiguous lines of whole 16 bytes"),
        (dataclasses.replace(rows(), b=contiguous(BFLOAT16, 2048, 1536, (128,))), "B has no contiguous lines"),
        (dataclasses.replace(rows(), a=dataclasses.replace(rows().a, row_stride=2052)), "lines of A do not begin"),
        (dataclasses.replace(rows(), b=dataclasses.replace(rows().b, batch_strides=(4,))), "lines of B do not begin"),
        (dataclasses.replace(rows(), d=contiguous(BFLOAT16, 1536, 8).transposed()), "D is not row-major"),
        (rows(m=1, n=8, k=1 << 29, groups=1), "are not counted by 32-bit numbers"),
    ],
)
def test_one_reason(problem, reason):
    assert reason in (SPEC.refuses(problem, HOPPER) or "")


def test_what_no_kernel_takes_has_the_reason_of_one_that_the_gpu_has():
    lines = rows(k=2044)
    assert choose_grouped(rows(k=2040), AMPERE).spec is SPEC
    with pytest.raises(UnsupportedError, match="no contiguous lines of whole 16 bytes"):
        choose_grouped(lines, AMPERE)
    with pytest.raises(UnsupportedError, match="TMA needs positive multiples of 16"):
        choose_grouped(lines, HOPPER)


def test_more_columns_than_a_grid_has():
    wide = rows(n=16 << 17, k=8, groups=1)
    assert choose_grouped(wide, HOPPER, multiprocessors=132).spec is not SPEC
    for multiprocessors in (None, 132):
        with pytest.raises(UnsupportedError, match=r"131072 CTAs along y|no config of grouped_gemv for 132 SMs"):
            choose_grouped(wide, AMPERE, multiprocessors=multiprocessors)


def test_rows_of_wide_results_have_configs_on_every_chip():
    wide = rows(m=1, n=2048, dtype=BFLOAT16)
    assert choose_grouped(dataclasses.replace(wide, d=contiguous(FLOAT32, 1, 2048)), AMPERE, multiprocessors=108)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tile_n": 24}, "multiple of 16"),
        ({"warps": 3}, "power of two"),
        ({"warps": 64}, "1024 threads"),
        ({"tile_n": 64, "warps": 1}, "1024 threads"),
        ({"tile_n": 64, "unroll": 2}, "32 pieces in flight"),
    ],
)
def test_configs_that_do_not_fit(fields, reason):
    with pytest.raises(ArgumentError, match=reason):
        GemvConfig(**fields)
