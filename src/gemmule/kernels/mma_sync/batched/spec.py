"""Spec of small matrices of a batch by mma.sync."""

from __future__ import annotations

import itertools

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import FEW_BYTES, Launch, TensorParam, scalar_params
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes, inner_problem
from gemmule.core.row_major import MAX_EXTENT, row_result, why_not_extents, why_not_grid
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.mma_sync.operand_types import refuse_types
from gemmule.kernels.parts.batched_launch import copies_signature, types_signature
from gemmule.kernels.parts.leading_dimension import LeadingDimension, address_multiple, leading_dimension

from .config import BatchedMmaConfig
from .cost import cost

#: Types that C and D may have for each type of A and B.
OUTPUTS: dict[DType, tuple[DType, ...]] = {FLOAT16: (FLOAT16, FLOAT32), BFLOAT16: (BFLOAT16, FLOAT32)}
#: Bytes that a load may move at once, and elements of D.
_COPIES, _VECTORS = (8, 4, 2), (8, 4, 2)


def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    del arch
    inner = inner_problem(problem, SPEC.batch_dims)
    if inner.batch and inner.batch[0] > MAX_EXTENT:
        return f"the batch is {inner.batch[0]}; this kernel takes at most {MAX_EXTENT} matrices"
    return why_not_extents(inner)


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    return refuse_types(types, OUTPUTS, arch)


def why_not(problem: GemmProblem, arch: Arch, config: BatchedMmaConfig) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    del arch
    # Tiles are numbered by 32 bits.
    return why_not_grid((_tiles(_oriented(problem), config), 1, 1))


@cache_last_call
def _oriented(problem: GemmProblem) -> GemmProblem:
    """Return a launch's problem, a column-major result in rows."""
    return row_result(inner_problem(problem, SPEC.batch_dims))[0]


def _tiles(problem: GemmProblem, config: BatchedMmaConfig) -> int:
    return -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n) * (problem.batch or (1,))[0]


def _operand(matrix: StridedMatrix) -> LeadingDimension:
    """Return how an operand is loaded; one without unit stride by elements."""
    if matrix.is_row_major or matrix.is_col_major:
        return leading_dimension(matrix, _COPIES, ends=True)
    return LeadingDimension(True, matrix.dtype.itemsize, 0)


def _result_vector(problem: GemmProblem) -> int:
    """Return how many elements of D are written at once; C is read by elements."""
    d = problem.d
    known = address_multiple(d, d.rows, d.row_stride) // d.dtype.itemsize if d.is_row_major else 1
    return next((size for size in _VECTORS if known % size == 0 and problem.n % size == 0), 1)


def loads_of(problem: GemmProblem) -> tuple[tuple[bool, int], tuple[bool, int], int]:
    """Return whether loads of A and of B are along K, and their bytes; and the elements of D written at once."""
    oriented = _oriented(problem)
    a, b = _operand(oriented.a), _operand(oriented.b)
    return (a.row_major, a.copy_bytes), (not b.row_major, b.copy_bytes), _result_vector(oriented)


def signature(problem: GemmProblem, config: BatchedMmaConfig) -> Signature:
    """Specialise for types, the major modes of A and B, and the widths of loads and of what is written."""
    del config
    (a_along_k, a_bytes), (b_along_k, b_bytes), vector = loads_of(problem)
    majors = ("k" if a_along_k else "m", a_bytes), ("k" if b_along_k else "n", b_bytes)
    return _signature(problem.a.dtype, problem.d.dtype, *majors, vector)


def _signature(element: DType, out: DType, a: tuple[str, int], b: tuple[str, int], vector: int) -> Signature:
    return (*types_signature(element, out, FLOAT32), *copies_signature(a, b, vector))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return the layouts with lines that begin anywhere, then with wider loads."""
    del arch
    return (
        *(_signature(BFLOAT16, BFLOAT16, (a, 8), (b, 8), 8) for a, b in itertools.product("km", "nk")),
        _signature(FLOAT16, FLOAT16, ("k", 2), ("n", 2), 1),
        _signature(BFLOAT16, FLOAT32, ("m", 8), ("k", 8), 4),
    )


def launch(problem: GemmProblem, config: BatchedMmaConfig) -> Launch:
    """Return the launch recipe: a warp for each tile of each matrix of the batch."""
    oriented, first, second = row_result(problem)
    m, n, k = oriented.m, oriented.n, oriented.k
    batch = (oriented.batch or (1,))[0]
    c = oriented.c if oriented.c is not None else oriented.d

    def matrix(name: str, matrix: StridedMatrix, shape: tuple[int, int]) -> TensorParam:
        return TensorParam(
            name, (*shape, batch), (matrix.row_stride, matrix.col_stride, *(matrix.batch_strides or (0,)))
        )

    return Launch(
        grid=(-(-_tiles(oriented, config) // config.warps), 1, 1),
        block=(config.threads, 1, 1),
        params=(
            matrix(first, oriented.a, (m, k)),
            # B is (K, N) in the API, and (N, K) in CuTe.
            matrix(second, oriented.b.transposed(), (n, k)),
            matrix("d" if oriented.c is None else "c", c, (m, n)),
            matrix("d", oriented.d, (m, n)),
            *scalar_params(oriented.accumulator, oriented.alpha, oriented.beta if oriented.c is not None else 0),
        ),
        overlaps=problem.bytes_min <= FEW_BYTES,
    )


def _cost(problem: GemmProblem, config: BatchedMmaConfig, gpu: GpuRates) -> float:
    """Return roughly the time in microseconds."""
    return cost(_oriented(problem), config, gpu, loads_of(problem))


SPEC = KernelSpec(
    name="mma_sync_batched",
    operation="gemm",
    summary="float16 and bfloat16, small matrices in batches, any strides: mma.sync, a warp for each matrix",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        BatchedMmaConfig(16, 8, 1),
        BatchedMmaConfig(16, 8, 4),
        BatchedMmaConfig(16, 16, 1),
        BatchedMmaConfig(16, 16, 2),
        BatchedMmaConfig(32, 32, 1),
        BatchedMmaConfig(32, 32, 2),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=_refuses_types,
    cost=_cost,
    cost_in_us=True,
)
