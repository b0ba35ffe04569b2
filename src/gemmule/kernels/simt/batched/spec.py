"""Spec of the products of many small matrices on the FMA units."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from gemmule.core.arch import Arch
from gemmule.core.config import why_not_cluster
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FLOAT32, FLOAT64, INT8, DType
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

from .config import VECTOR_BYTES, BatchedConfig, BatchedStage
from .cost import costs, moving_us

#: Types of operands of float32 results that threads convert where they read them.
NARROW = (BFLOAT16, FLOAT16, INT8, FLOAT8_E4M3, FLOAT8_E5M2)
#: Another kernel is chosen below this share of this one's predicted time: all are bound by memory. Assumed.
_MARGIN = 0.99
#: Elements of a result from which other kernels are faster, without a prediction.
_MOST_OUTPUTS = 1 << 16


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    del arch
    inner = inner_problem(problem, SPEC.batch_dims)
    oriented, *names = row_result(inner)
    for name, matrix in zip(names, (oriented.a, oriented.b), strict=True):
        if matrix.dtype != problem.d.dtype and _operand(matrix, problem.d.dtype).copy_bytes < VECTOR_BYTES:
            return f"{name.upper()} is {matrix.dtype}, and not of lines that begin at multiples of {VECTOR_BYTES} bytes"
    if inner.batch and inner.batch[0] > MAX_EXTENT:
        return f"the batch is {inner.batch[0]}; this kernel takes at most {MAX_EXTENT} matrices"
    return why_not_extents(inner)


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    if types.d not in (FLOAT32, FLOAT64):
        return f"the output is {types.d}; this kernel makes {FLOAT32} and {FLOAT64} only"
    if types.a != types.d and (types.a == types.b or (types.a.is_float8 and types.b.is_float8)):
        return f"A and B are {types.a} and {types.b}; this kernel takes one type with the output's, or different ones"
    for name, other in types.by_name().items():
        if other != types.d and (types.d != FLOAT32 or name == "c" or other not in NARROW):
            return f"{name.upper()} is {other} and the output {types.d}; this kernel takes one type, or narrower A or B"
        if other.is_float8 and not arch.has_float8:
            return f"{name.upper()} is {other}, which {arch} does not convert"
    return None


def why_not(problem: GemmProblem, arch: Arch, config: BatchedConfig) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    if reason := why_not_cluster(config, config.cluster_k, arch):
        return reason
    if config.cluster_k > 1 and problem.d.dtype == FLOAT64:
        return f"config {config}: float64 is taken without clusters; {FLOAT64_GEMM.name} has them"
    if not config.takes(problem.d.dtype.itemsize):
        return f"config {config}: accumulators of {problem.d.dtype} do not fit into a thread's registers"
    inner = inner_problem(problem, SPEC.batch_dims)
    if problem.a.dtype != problem.d.dtype or problem.b.dtype != problem.d.dtype:
        oriented, _, _ = row_result(inner)
        for matrix, stage in zip((oriented.a, oriented.b), _stages(oriented, config), strict=True):
            if matrix.dtype != problem.d.dtype and (reason := config.why_not_narrow(stage)):
                return reason
    return why_not_grid(_grid(row_result(inner)[0], config))


def _stages(oriented: GemmProblem, config: BatchedConfig) -> tuple[BatchedStage, BatchedStage]:
    """Return the stages of both operands."""
    a, b, wide = oriented.a, oriented.b, oriented.d.dtype
    return (
        config.stage("a", _operand(a, wide).row_major, a.dtype.itemsize, wide.itemsize),
        config.stage("b", not _operand(b, wide).row_major, b.dtype.itemsize, wide.itemsize),
    )


def _grid(oriented: GemmProblem, config: BatchedConfig) -> tuple[int, int, int]:
    """Return the grid of an oriented problem: `row_result` would transpose that of a strided result again."""
    tiles = -(-oriented.m // config.tile_m) * -(-oriented.n // config.tile_n)
    return tiles * -(-(oriented.batch or (1,))[0] // config.matrices) * config.cluster_k, 1, 1


def _operand(matrix: StridedMatrix, wide: DType) -> LeadingDimension:
    """Return how an operand is copied; one without unit stride by elements, along its smaller stride.

    Lines of types narrower than the accumulators' may end within a copy.
    """
    if matrix.is_row_major or matrix.is_col_major:
        return leading_dimension(matrix, (VECTOR_BYTES, matrix.dtype.itemsize), ends=matrix.dtype == wide)
    return LeadingDimension(abs(matrix.col_stride) <= abs(matrix.row_stride), matrix.dtype.itemsize, 0)


def _result_bytes(problem: GemmProblem) -> int:
    """Return the bytes of D, and of C, that are moved at once."""
    outputs = [matrix for matrix in (problem.c, problem.d) if matrix is not None]
    item = problem.d.dtype.itemsize
    aligned = all(x.is_row_major and address_multiple(x, x.rows, x.row_stride) % VECTOR_BYTES == 0 for x in outputs)
    return VECTOR_BYTES if aligned and problem.n * item % VECTOR_BYTES == 0 else item


def _copies(oriented: GemmProblem) -> tuple[int, int, int]:
    a, b = _operand(oriented.a, oriented.d.dtype), _operand(oriented.b, oriented.d.dtype)
    return a.copy_bytes, b.copy_bytes, _result_bytes(oriented)


def signature(problem: GemmProblem, config: BatchedConfig) -> Signature:
    """Specialise for the type, the major modes of A and B, and the widths of copies and of what is written."""
    del config
    oriented, _, _ = row_result(problem)
    dtype = oriented.d.dtype
    a, b = _operand(oriented.a, dtype), _operand(oriented.b, dtype)
    vector = _result_bytes(oriented) // dtype.itemsize
    plain = _signature(
        dtype, ("k" if a.row_major else "m", a.copy_bytes), ("n" if b.row_major else "k", b.copy_bytes), vector
    )
    return (*plain, *_narrow_keys((oriented.a.dtype, oriented.b.dtype), dtype))


def _signature(dtype: DType, a: tuple[str, int], b: tuple[str, int], vector: int) -> Signature:
    return (("element", dtype.name), *copies_signature(a, b, vector))


def _narrow_keys(types: tuple[DType, DType], wide: DType) -> Signature:
    """Return the keys for types of operands other than the accumulators'."""
    return tuple((name, dtype.name) for name, dtype in zip("ab", types, strict=True) if dtype != wide)


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return all layouts of both types, with rows that are aligned and with others; then mixed types."""
    one_type = tuple(
        _signature(dtype, (a, size), (b, size), size // dtype.itemsize)
        for dtype in (FLOAT32, FLOAT64)
        for size, a, b in itertools.product((VECTOR_BYTES, dtype.itemsize), "km", "nk")
    )
    mixed = (
        ((FLOAT32, BFLOAT16), ("k", VECTOR_BYTES), ("n", VECTOR_BYTES)),
        ((FLOAT32, BFLOAT16), ("k", VECTOR_BYTES), ("k", VECTOR_BYTES)),
        ((FLOAT16, FLOAT32), ("m", VECTOR_BYTES), ("n", FLOAT32.itemsize)),
        ((FLOAT32, INT8), ("k", VECTOR_BYTES), ("n", VECTOR_BYTES)),
    )
    del arch
    return (*one_type, *((*_signature(FLOAT32, a, b, 1), *_narrow_keys(types, FLOAT32)) for types, a, b in mixed))


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

    copies = {
        name: int(types[f"{name}_copies"]) // operand.dtype.itemsize
        for name, operand in (("a", problem.a), ("b", problem.b))
    }
    vector = int(types["d_vector"])
    return Launch(
        grid=_grid(problem, config),
        block=(config.threads, 1, 1),
        cluster=(config.cluster_k, 1, 1),
        shared_bytes=config.shared_bytes(_stages(problem, config), dtype.itemsize, k),
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
    summary="float32 and float64, small matrices in batches, any strides; few rows of float32 by narrower weights",
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
