"""Spec of the products of many small matrices on the FMA units."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from gemmule.core.arch import Arch
from gemmule.core.config import why_not_cluster
from gemmule.core.dtype import FLOAT32, FLOAT64, DType
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import FEW_BYTES, Launch, TensorParam, scalar_params
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes, inner_problem
from gemmule.core.row_major import MAX_EXTENT, row_result, why_not_extents, why_not_grid
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.float64.gemm.spec import SPEC as FLOAT64_GEMM
from gemmule.kernels.parts.batched_launch import copies_signature
from gemmule.kernels.parts.leading_dimension import LeadingDimension, address_multiple, leading_dimension
from gemmule.kernels.simt.gemm.spec import SPEC as SIMT_GEMM

from .config import VECTOR_BYTES, BatchedConfig
from .cost import costs, moving_us

#: What other kernels' predicted times must be of this one's: bound by memory, all take the same. Assumed.
_MARGIN = 0.99
#: Elements of a result whose time other kernels are not asked for: theirs is less.
_MOST_OUTPUTS = 1 << 16


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    del arch
    inner = inner_problem(problem, SPEC.batch_dims)
    if inner.batch and inner.batch[0] > MAX_EXTENT:
        return f"the batch is {inner.batch[0]}; this kernel takes at most {MAX_EXTENT} matrices"
    return why_not_extents(inner)


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    del arch
    if types.a not in (FLOAT32, FLOAT64):
        return f"A is {types.a}; this kernel takes {FLOAT32} and {FLOAT64} only"
    others = ((name, other) for name, other in types.by_name().items() if other != types.a)
    return next(
        (f"{name.upper()} is {other} and A {types.a}; this kernel takes one type" for name, other in others), None
    )


def why_not(problem: GemmProblem, arch: Arch, config: BatchedConfig) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    if reason := why_not_cluster(config, config.cluster_k, arch):
        return reason
    if config.cluster_k > 1 and problem.a.dtype == FLOAT64:
        return f"config {config}: float64 is taken without clusters; {FLOAT64_GEMM.name} has them"
    if not config.takes(problem.a.dtype.itemsize):
        return f"config {config}: accumulators of {problem.a.dtype} do not fit into a thread's registers"
    return why_not_grid(_grid(inner_problem(problem, SPEC.batch_dims), config))


def _grid(problem: GemmProblem, config: BatchedConfig) -> tuple[int, int, int]:
    oriented, _, _ = row_result(problem)
    tiles = -(-oriented.m // config.tile_m) * -(-oriented.n // config.tile_n)
    return tiles * -(-(problem.batch or (1,))[0] // config.matrices) * config.cluster_k, 1, 1


def _operand(matrix: StridedMatrix) -> LeadingDimension:
    """Return how an operand is copied; one without unit stride by elements, along its smaller stride."""
    if matrix.is_row_major or matrix.is_col_major:
        return leading_dimension(matrix, (VECTOR_BYTES, matrix.dtype.itemsize), ends=True)
    return LeadingDimension(abs(matrix.col_stride) <= abs(matrix.row_stride), matrix.dtype.itemsize, 0)


def _result_bytes(problem: GemmProblem) -> int:
    """Return the bytes of D, and of C, that are moved at once."""
    outputs = [matrix for matrix in (problem.c, problem.d) if matrix is not None]
    item = problem.d.dtype.itemsize
    aligned = all(x.is_row_major and address_multiple(x, x.rows, x.row_stride) % VECTOR_BYTES == 0 for x in outputs)
    return VECTOR_BYTES if aligned and problem.n * item % VECTOR_BYTES == 0 else item


def _copies(oriented: GemmProblem) -> tuple[int, int, int]:
    return _operand(oriented.a).copy_bytes, _operand(oriented.b).copy_bytes, _result_bytes(oriented)


def signature(problem: GemmProblem, config: BatchedConfig) -> Signature:
    """Specialise for the type, the major modes of A and B, and the widths of copies and of what is written."""
    del config
    oriented, _, _ = row_result(problem)
    a, b, dtype = _operand(oriented.a), _operand(oriented.b), oriented.d.dtype
    vector = _result_bytes(oriented) // dtype.itemsize
    return _signature(
        dtype, ("k" if a.row_major else "m", a.copy_bytes), ("n" if b.row_major else "k", b.copy_bytes), vector
    )


def _signature(dtype: DType, a: tuple[str, int], b: tuple[str, int], vector: int) -> Signature:
    return (("element", dtype.name), *copies_signature(a, b, vector))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return all layouts of both types, with rows that are aligned and with others."""
    del arch
    return tuple(
        _signature(dtype, (a, size), (b, size), size // dtype.itemsize)
        for dtype in (FLOAT32, FLOAT64)
        for size, a, b in itertools.product((VECTOR_BYTES, dtype.itemsize), "km", "nk")
    )


def launch(problem: GemmProblem, config: BatchedConfig) -> Launch:
    """Return the launch recipe: a CTA for a tile of each of several matrices of the batch."""
    types = dict(signature(problem, config))
    problem, first, second = row_result(problem)
    m, n, k, dtype = problem.m, problem.n, problem.k, problem.d.dtype
    batch = (problem.batch or (1,))[0]
    c = problem.c if problem.c is not None else problem.d

    def matrix(name: str, matrix: StridedMatrix, shape: tuple[int, int], unit: int, vector: int) -> TensorParam:
        strides = [matrix.row_stride, matrix.col_stride]
        if vector > 1:
            # A stride of 1 is compiled in, that of a single row or column too.
            del strides[unit]
        return TensorParam(name, (*shape, batch), (*strides, *(matrix.batch_strides or (0,))))

    copies = {name: int(types[f"{name}_copies"]) // dtype.itemsize for name in "ab"}
    vector = int(types["d_vector"])
    return Launch(
        grid=_grid(problem, config),
        block=(config.threads, 1, 1),
        cluster=(config.cluster_k, 1, 1),
        shared_bytes=config.shared_bytes(types["a_major"] == "k", types["b_major"] == "k", dtype.itemsize, k),
        params=(
            matrix(first, problem.a, (m, k), 1 if types["a_major"] == "k" else 0, copies["a"]),
            # B is (K, N) in the API, and (N, K) in CuTe.
            matrix(second, problem.b.transposed(), (n, k), 1 if types["b_major"] == "k" else 0, copies["b"]),
            matrix("d" if problem.c is None else "c", c, (m, n), 1, vector),
            matrix("d", problem.d, (m, n), 1, vector),
            *scalar_params(dtype, problem.alpha, problem.beta if problem.c is not None else 0),
        ),
        overlaps=problem.bytes_min <= FEW_BYTES,
    )


def _costs(problem: GemmProblem, configs: Sequence[BatchedConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds."""
    oriented, _, _ = row_result(problem)
    return costs(oriented, configs, gpu, _copies(oriented))


def _faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel of the type for larger matrices, where it is expected to be faster."""
    other = _larger(problem)
    if other.costs is None or other.is_refused(problem, other.archs[0]):
        return None
    # Its predictions were fitted to single products: of many small ones they may be less than their bytes take.
    least = max(other.least_cost(problem, gpu), moving_us(problem, gpu))
    return other.name if least <= cost * _MARGIN else None


def _defers_to(problem: GemmProblem, gpu: GpuRates) -> str | None:
    """Return the kernel of the type for larger matrices, for those that are surely larger."""
    del gpu
    return _larger(problem).name if problem.m * problem.n > _MOST_OUTPUTS else None


def _larger(problem: GemmProblem) -> KernelSpec:
    """Return the kernel of the type for larger matrices."""
    return SIMT_GEMM if problem.d.dtype == FLOAT32 else FLOAT64_GEMM


def _skinny() -> Iterator[BatchedConfig]:
    """Yield configs for up to 16 rows or columns: of single products, clusters along K fill the GPU."""
    for few, thread in ((8, 4), (16, 8)):
        for cluster_k in (1, 4, 8, 16):
            rows = BatchedConfig(few, 64, 32, thread, 4, matrices=1, stages=2, cluster_k=cluster_k)
            yield rows
            yield dataclasses.replace(rows, tile_m=64, tile_n=few, thread_m=4, thread_n=thread)


SPEC = KernelSpec(
    name="simt_batched",
    operation="gemm",
    summary="float32 and float64, small matrices in batches, any strides: several matrices per CTA, FMA units",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        BatchedConfig(),
        BatchedConfig(tile_m=8, tile_n=8, tile_k=8, matrices=32),
        BatchedConfig(tile_m=32, tile_n=32, thread_m=8, matrices=4),
        BatchedConfig(tile_m=32, tile_n=32, matrices=2),
        BatchedConfig(tile_m=64, tile_n=64, thread_m=8, matrices=1, stages=4),
        BatchedConfig(tile_m=8, tile_n=32, matrices=8),
        BatchedConfig(tile_m=32, tile_n=8, matrices=8),
        *_skinny(),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=_costs,
    cost_in_us=True,
    faster_alternative=_faster_alternative,
    defers_to=_defers_to,
)
