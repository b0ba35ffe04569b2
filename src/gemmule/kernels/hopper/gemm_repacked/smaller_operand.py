"""The smaller of two operands repacked, for hopper_gemm_unaligned_a, which takes the larger one as it lies."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.problem_kind import CachedForKinds
from gemmule.core.spec import NextKernel
from gemmule.kernels.hopper.gemm_line_classes.config import CLASSES, TILE_K
from gemmule.kernels.hopper.gemm_unaligned_a.spec import SPEC as UNALIGNED_A
from gemmule.kernels.hopper.next_kernel import NextProduct, Prepared, with_copies
from gemmule.kernels.hopper.operand_copies import OperandCopy, is_strided, operand_copy
from gemmule.kernels.hopper.repack_config import RepackConfig
from gemmule.kernels.hopper.tma_tiles import why_not_tma

_VECTOR = 8
#: Orders of a copy, as of the kernel: as it is; of K by classes, which lines are rows of, or have contiguous.
LINES, K_LINES, K_ELEMENTS = "lines", "k_lines", "k_elements"
ORDERS = (LINES, K_LINES, K_ELEMENTS)


@cache_last_call
def to_pack(problem: GemmProblem) -> tuple[OperandCopy, str]:
    """Return the copy of the smaller operand, and its order."""
    name, other = ("a", "b") if problem.m >= problem.n else ("b", "a")
    matrix = problem.operands()[other]
    copy = operand_copy(other, matrix, problem.batch, "packed")
    if _is_k_major(name, problem.operands()[name]):
        return copy, LINES
    if _is_k_major(other, matrix):
        return copy, K_ELEMENTS
    lines = _whole_tiles(copy.lines)
    return dataclasses.replace(copy, nbytes=copy.nbytes // copy.lines * lines), K_LINES


def _whole_tiles(extent: int) -> int:
    return -(-extent // TILE_K) * TILE_K


def _is_k_major(name: str, matrix: StridedMatrix) -> bool:
    return matrix.has_contiguous_rows if name == "a" else matrix.has_contiguous_cols


def _repacked(problem: GemmProblem) -> Prepared:
    return with_copies(problem, to_pack(problem)[:1])


_PRODUCT = NextProduct(_repacked, (UNALIGNED_A,))


def next_kernel(problem: GemmProblem, gpu: GpuRates) -> NextKernel:
    """Return the product with the smaller operand repacked, in the config that suits it."""
    return _PRODUCT.kernel(problem, gpu)


@cache_last_call
def why_not_smaller(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why the larger operand must be repacked, too, or None where not."""
    if problem.batch:
        return "there is a batch; one operand is repacked of two matrices only"
    if UNALIGNED_A.refuses_types is not None and (reason := UNALIGNED_A.refuses_types(problem.types, arch)):
        return reason
    if min(problem.m, problem.n, problem.k) < CLASSES:
        return f"an extent is less than {CLASSES}, the classes of lines"
    for name, matrix in (("a", problem.a), ("b", problem.b)):
        if is_strided(matrix):
            return f"{name.upper()} has no contiguous lines"
        if why_not_tma(name, matrix, ()) is None:
            return f"TMA can load {name.upper()} as it is"
    return _PRODUCT.why_not(problem)


def _takes(problem: GemmProblem, arch: Arch) -> bool:
    return why_not_smaller(problem, arch) is None


#: By whether A is the larger operand, of which the result depends besides the kind of the product.
_TAKES = CachedForKinds(_takes), CachedForKinds(_takes)


def takes_smaller(problem: GemmProblem, arch: Arch) -> bool:
    """Return whether the smaller operand may be repacked alone: one look-up for a product of a known kind."""
    if min(problem.m, problem.n, problem.k) < CLASSES:
        return False
    return _TAKES[problem.m >= problem.n](problem, arch)


def product_us(problem: GemmProblem, gpu: GpuRates) -> float:
    """Return the predicted time of the product."""
    return _PRODUCT.cost(problem, gpu)


def launch(problem: GemmProblem, config: RepackConfig) -> Launch:
    """Return the launch recipe of the copy."""
    copy, order = to_pack(problem)
    lines, vectors = copy.lines, copy.vectors
    if order == K_LINES:
        lines = _whole_tiles(lines)
    elif order == K_ELEMENTS:
        vectors = _whole_tiles(copy.length) // _VECTOR
    extents = (copy.length, copy.lines, 1)
    return Launch(
        grid=(-(-lines * vectors // (config.threads * config.vectors)), 1, 1),
        block=(config.threads, 1, 1),
        params=(
            TensorParam(copy.operand, extents, copy.strides),
            TensorParam(copy.workspace, extents, copy.copy_strides),
        ),
        overlaps=True,
    )
