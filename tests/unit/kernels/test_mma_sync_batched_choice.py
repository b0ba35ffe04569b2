"""Where calls take mma_sync_batched, its vectors, and what it refuses."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32
from gemmule.core.errors import ArgumentError
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import contiguous_gemm
from gemmule.dispatch.select import choose
from gemmule.kernels.mma_sync.batched.config import BatchedMmaConfig
from gemmule.kernels.mma_sync.batched.spec import SPEC, loads_of

HOPPER, H200 = Arch.parse("sm_90a"), {"multiprocessors": 132, "chip": "NVIDIA H200", "tuned": False}


def gemm(m, n, k, batch, dtype="bfloat16"):
    return contiguous_gemm(m, n, k, (dtype,) * 3, batch=batch)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("shape", [(4, 4, 4), (8, 8, 8), (12, 12, 12), (16, 16, 16), (24, 24, 24), (3, 1, 33)])
def test_large_batches_of_small_matrices_take_it(shape, dtype):
    assert choose(gemm(*shape, (20000,), dtype.name), HOPPER, **H200).spec is SPEC


@pytest.mark.parametrize(
    ("shape", "batch"),
    [((16, 16, 16), ()), ((16, 16, 16), (64,)), ((64, 64, 64), (20000,)), ((16, 16, 65), (20000,)), ((128,) * 3, (9,))],
)
def test_others_do_not(shape, batch):
    assert choose(gemm(*shape, batch), HOPPER, **H200).spec is not SPEC


def test_single_results_without_unit_stride_do_not():
    plain = gemm(512, 512, 512, ())
    strided = StridedMatrix(BFLOAT16, 512, 512, 2048, 2, (), 16)
    assert choose(dataclasses.replace(plain, d=strided), HOPPER, **H200).spec is not SPEC


@pytest.mark.parametrize(("size", "expected"), [(16, (8, 8, 8)), (12, (8, 8, 4)), (6, (4, 4, 2)), (17, (2, 2, 1))])
def test_vectors_are_what_every_line_of_every_matrix_allows(size, expected):
    (_, a_bytes), (_, b_bytes), vector = loads_of(gemm(size, size, size, (8,)))
    assert (a_bytes, b_bytes, vector) == expected


def test_tiles_are_numbered_by_32_bits():
    assert SPEC.why_not(gemm(16, 16, 16, (2**29,)), HOPPER, SPEC.default) is None
    assert "CTAs along x" in SPEC.why_not(gemm(160, 160, 16, (2**29,)), HOPPER, SPEC.default)


def test_types():
    assert "A is float32" in SPEC.refuses_types(gemm(4, 4, 4, (8,), FLOAT32.name).types, HOPPER)


@pytest.mark.parametrize("fields", [{"tile_m": 8}, {"tile_n": 24}, {"warps": 64}, {"tile_m": 64, "tile_n": 64}])
def test_configs_that_no_warp_has_registers_or_fragments_for(fields):
    with pytest.raises(ArgumentError, match="config"):
        BatchedMmaConfig(**fields)
