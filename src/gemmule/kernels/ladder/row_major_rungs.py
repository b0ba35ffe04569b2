"""Specs of the ladder's kernels for row-major matrices: g01 to g06 in float32, d01 and d02 in float64."""

from __future__ import annotations

import functools

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32, FLOAT64, DType
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem, OperandTypes
from gemmule.core.row_major import is_vectorised, why_not_extents, why_not_grid, why_not_types
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.parts.batched_launch import batched_params, tiles_divide

from .row_major_rung_config import (
    BInRegistersConfig,
    ConflictFreeConfig,
    DoubleBufferConfig,
    NaiveUncoalescedConfig,
    RowMajorConfig,
    SharedABConfig,
    SharedTileConfig,
    ThreadBlockConfig,
    VectorTileConfig,
)


def _rung(name: str, summary: str, *configs: RowMajorConfig) -> KernelSpec:
    """Return the spec of a kernel for row-major A (M, K), B (K, N), C and D (M, N), all of one type.

    It is specialised twice: for tiles that divide the problem, in matrices whose rows start at multiples of 16 bytes
    (``whole``: wide copies, no predicates), and for all others (``ragged``).
    """
    dtype = FLOAT64 if name.startswith("d") else FLOAT32
    return KernelSpec(
        name=name,
        operation="gemm",
        summary=f"{dtype}, row-major: {summary}",
        package=f"{__package__}.{name}",
        archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
        configs=configs,
        signatures=functools.partial(_signatures, dtype),
        refuses=functools.partial(_refuses, dtype),
        refuses_types=functools.partial(_refuses_types, dtype),
        why_not=_why_not,
        signature=_problem_signature,
        launch=_launch,
        batch_dims=0,
    )


def _refuses(dtype: DType, problem: GemmProblem, arch: Arch) -> str | None:
    del arch
    return _why_not_row_major(problem, dtype) or why_not_extents(problem)


def _refuses_types(dtype: DType, types: OperandTypes, arch: Arch) -> str | None:
    # A's strides are checked before the types of the others.
    return why_not_types(dtype, types._replace(b=dtype, c=dtype, d=dtype), arch)


def _why_not(problem: GemmProblem, arch: Arch, config: RowMajorConfig) -> str | None:
    del arch
    return why_not_grid(config.grid(problem.m, problem.n))


def _problem_signature(problem: GemmProblem, config: RowMajorConfig) -> Signature:
    return _signature(problem.d.dtype, _is_whole(problem, config.divides))


def _signatures(dtype: DType, arch: Arch) -> tuple[Signature, ...]:
    del arch
    return tuple(_signature(dtype, whole) for whole in (True, False))


def _launch(problem: GemmProblem, config: RowMajorConfig) -> Launch:
    return Launch(
        grid=config.grid(problem.m, problem.n),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes,
        params=batched_params(problem, "a", "b", problem.a.row_stride, problem.b.row_stride, batch_mode=False),
    )


@cache_last_call
def _why_not_row_major(problem: GemmProblem, dtype: DType) -> str | None:
    """Say which operand is not a row-major matrix of that type, or None where all are."""
    for name, matrix in problem.operands().items():
        if matrix.dtype != dtype:
            return f"{name.upper()} is {matrix.dtype}; this kernel takes {dtype} only"
        if matrix.cols > 1 and matrix.col_stride != 1:
            return (
                f"{name.upper()} has strides ({matrix.row_stride}, {matrix.col_stride}); this kernel takes row-major "
                "matrices only, whose rows are contiguous"
            )
    return None


def _is_whole(problem: GemmProblem, tile: tuple[int, int, int]) -> bool:
    """Whether tiles divide the problem and every row of every operand starts where a 16-byte copy may."""
    return tiles_divide(problem, tile) and all(
        is_vectorised(matrix, row_major=True) for matrix in problem.operands().values()
    )


def _signature(dtype: DType, whole: bool) -> Signature:
    return (("element", dtype.name), ("tiles", "whole" if whole else "ragged"))


G01 = _rung(
    "g01_naive_uncoalesced", "one thread an element, consecutive threads in different rows", NaiveUncoalescedConfig()
)
G02 = _rung(
    "g02_naive_coalesced",
    "one thread an element, consecutive threads along a row of C",
    ThreadBlockConfig(),
    ThreadBlockConfig(16, 16),
)
G03 = _rung(
    "g03_shared_tile",
    "square tiles of A and B in shared memory, one thread an element",
    SharedTileConfig(),
    SharedTileConfig(16),
)
G04 = _rung("g04_register_tile", "128 x 128 tiles, 8 x 8 elements a thread, 16-byte copies", VectorTileConfig())
G05 = _rung(
    "g05_conflict_free",
    "A stored transposed, the thread tile split in halves",
    ConflictFreeConfig(),
    ConflictFreeConfig(tile_k=16),
)
G06 = _rung("g06_double_buffer", "two buffers in shared memory, one barrier a k-tile", DoubleBufferConfig())
D01 = _rung(
    "d01_shared_ab",
    "k-tiles of A and B in shared memory, accumulators in registers",
    SharedABConfig(),
    SharedABConfig(64, 128, 16, 8, 8),
)
D02 = _rung(
    "d02_b_in_registers",
    "a thread owns columns of C and keeps its part of B in registers",
    BInRegistersConfig(),
    BInRegistersConfig(64, 128, 16, 16, 4, 32, 2, 16),
)
