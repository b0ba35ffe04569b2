"""Launch recipes of kernels with a CTA for each tile of a batched, row-major result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemmule.core.dtype import DType
from gemmule.core.launch import FEW_BYTES, Launch, Param, TensorParam, scalar_params
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result
from gemmule.core.spec import Signature

from .leading_dimension import LeadingDimension


def tile_grid(problem: GemmProblem, tile_m: int, tile_n: int, ctas: int = 1) -> tuple[int, int, int]:
    """Return the grid with `ctas` CTAs for each tile of each matrix of the batch."""
    tiles = -(-problem.n // tile_n) * -(-problem.m // tile_m)
    return (tiles * (problem.batch or (1,))[0] * ctas, 1, 1)


def tiles_divide(problem: GemmProblem, tile: tuple[int, int, int]) -> bool:
    """Whether a tile's extents divide M, N and K."""
    return all(extent % side == 0 for extent, side in zip((problem.m, problem.n, problem.k), tile, strict=True))


def types_signature(element: DType, out: DType, acc: DType) -> Signature:
    """Return the part of a signature for the types of A and B, of C and D, and of accumulators."""
    return (("a", element.name), ("b", element.name), ("c", out.name), ("d", out.name), ("acc", acc.name))


def copies_signature(a: tuple[str, int], b: tuple[str, int], vector: int) -> Signature:
    """Return the part of a signature for the major mode of A and B, the bytes of their copies, and D's vectors."""
    return (
        ("a_major", a[0]),
        ("a_copies", str(a[1])),
        ("b_major", b[0]),
        ("b_copies", str(b[1])),
        ("d_vector", str(vector)),
    )


def tiles_signature(whole: bool) -> Signature:
    """Return the part of a signature for tiles that are all inside the matrices."""
    return (("tiles", "whole" if whole else "ragged"),)


def tile_launch(
    problem: GemmProblem, config: Any, ld: Callable[[StridedMatrix], LeadingDimension], shared_bytes: int
) -> Launch:
    """Return the recipe with the CTAs of a cluster along K for each tile of C and matrix of the batch."""
    problem, first, second = row_result(problem)
    return Launch(
        grid=tile_grid(problem, config.tile_m, config.tile_n, config.cluster_k),
        block=(config.threads, 1, 1),
        shared_bytes=shared_bytes,
        cluster=(config.cluster_k, 1, 1),
        params=batched_params(problem, first, second, ld(problem.a).stride, ld(problem.b).stride),
        overlaps=problem.bytes_min <= FEW_BYTES,
    )


def batched_params(
    problem: GemmProblem, first: str, second: str, lda: int, ldb: int, *, batch_mode: bool = True
) -> tuple[Param, ...]:
    """Return the parameters A (M, K, L), B (N, K, L), row-major C and D (M, N, L), alpha, beta.

    Parameters
    ----------
    problem, first, second
        The problem with a row-major result, and the operands that are its A and B, as `row_result` gives them.
    lda, ldb : int
        Leading dimensions of A and of B; the other stride, of 1, is compiled in.
    batch_mode : bool
        Whether tensors have the mode L.
    """
    m, n, k = problem.m, problem.n, problem.k
    batch = (problem.batch or (1,)) if batch_mode else ()
    c = problem.c if problem.c is not None else problem.d

    def strides(matrix: StridedMatrix, ld: int) -> tuple[int, ...]:
        return (ld, *(matrix.batch_strides or (0,))[: len(batch)])

    return (
        TensorParam(first, (m, k, *batch), strides(problem.a, lda)),
        # B is (K, N) in the API, and (N, K) in CuTe.
        TensorParam(second, (n, k, *batch), strides(problem.b, ldb)),
        TensorParam("d" if problem.c is None else "c", (m, n, *batch), strides(c, c.row_stride)),
        TensorParam("d", (m, n, *batch), strides(problem.d, problem.d.row_stride)),
        *scalar_params(problem.accumulator, problem.alpha, problem.beta if problem.c is not None else 0),
    )
