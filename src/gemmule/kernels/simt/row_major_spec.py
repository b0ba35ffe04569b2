"""Spec of a kernel for row-major matrices of one type."""

from __future__ import annotations

import functools

from gemmule.core.arch import Arch
from gemmule.core.dtype import DType
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch, Param, ScalarParam, TensorParam
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import is_vectorised, why_not_extents, why_not_grid
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.parts.batched_launch import tiles_divide

from .row_major_config import RowMajorConfig


def row_major_spec(
    *, package: str, dtype: DType, summary: str, configs: tuple[RowMajorConfig, ...], archs: tuple[Arch, ...]
) -> KernelSpec:
    """Return the spec of a kernel for row-major A (M, K), B (K, N), C and D (M, N), all of one type.

    It is specialised twice: for tiles that divide the problem, in matrices whose rows start at multiples of 16 bytes
    (``whole``: wide copies, no predicates), and for all others (``ragged``).

    Parameters
    ----------
    package : str
        The kernel's package; its last name is the kernel's. Its module ``kernel`` has ``buildable(config, types)``.
    dtype : DType
        Type of all operands.
    summary : str
        One line.
    configs : tuple of RowMajorConfig
        Every config, the default one first.
    archs : tuple of Arch
        As of KernelSpec.
    """
    return KernelSpec(
        name=package.rpartition(".")[2],
        operation="gemm",
        summary=summary,
        package=package,
        archs=archs,
        configs=configs,
        signatures=functools.partial(_signatures, dtype),
        refuses=functools.partial(_refuses, dtype),
        why_not=_why_not,
        signature=_problem_signature,
        launch=_launch,
        batch_dims=0,
    )


def _refuses(dtype: DType, problem: GemmProblem, arch: Arch) -> str | None:
    del arch
    return why_not_row_major(problem, dtype) or why_not_extents(problem)


def _why_not(problem: GemmProblem, arch: Arch, config: RowMajorConfig) -> str | None:
    del arch
    return why_not_grid(config.grid(problem.m, problem.n))


def _problem_signature(problem: GemmProblem, config: RowMajorConfig) -> Signature:
    return _signature(problem.d.dtype, is_whole(problem, config.divides))


def _signatures(dtype: DType, arch: Arch) -> tuple[Signature, ...]:
    del arch
    return tuple(_signature(dtype, whole) for whole in (True, False))


def _launch(problem: GemmProblem, config: RowMajorConfig) -> Launch:
    return Launch(
        grid=config.grid(problem.m, problem.n),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes,
        params=row_major_params(problem),
    )


@cache_last_call
def why_not_row_major(problem: GemmProblem, dtype: DType) -> str | None:
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


def is_whole(problem: GemmProblem, tile: tuple[int, int, int]) -> bool:
    """Whether tiles divide the problem and every row of every operand starts where a 16-byte copy may."""
    return tiles_divide(problem, tile) and all(
        is_vectorised(matrix, row_major=True) for matrix in problem.operands().values()
    )


def row_major_params(problem: GemmProblem) -> tuple[Param, ...]:
    """Return the parameters A (M, K), B (N, K), C and D (M, N), alpha, beta.

    Unit strides are compiled in, so a tensor is its pointer, two extents and one stride.
    """
    m, n, k = problem.m, problem.n, problem.k
    acc = problem.accumulator
    c = problem.c if problem.c is not None else problem.d
    return (
        TensorParam("a", (m, k), (problem.a.row_stride,)),
        # B is (K, N) in the API, and (N, K) in CuTe.
        TensorParam("b", (n, k), (problem.b.row_stride,)),
        TensorParam("d" if problem.c is None else "c", (m, n), (c.row_stride,)),
        TensorParam("d", (m, n), (problem.d.row_stride,)),
        ScalarParam("alpha", acc, problem.alpha),
        ScalarParam("beta", acc, problem.beta if problem.c is not None else 0),
    )


def _signature(dtype: DType, whole: bool) -> Signature:
    return (("element", dtype.name), ("tiles", "whole" if whole else "ragged"))
