"""Products whose operands wgmma takes K-major only: MN-major ones are transposed first.

The other operand is repacked, where TMA cannot load it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32, INT8, DType, Precision, opaque_dtype
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import MAP_ALIGNMENT, Launch, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes, TransposeProblem, inner_problem
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.hopper.gemm.spec import SPEC as GEMM
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.hopper.gemm_repacked.spec import packing_us
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC as GEMM_UNALIGNED
from gemmule.kernels.hopper.gemm_upcast.spec import SPEC as UPCAST
from gemmule.kernels.hopper.next_kernel import NextProduct, WorkspaceCopy, with_copies
from gemmule.kernels.hopper.operand_copies import REPACKED_BYTES, OperandCopy, operand_copy, why_not_copied
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, why_not_arch
from gemmule.kernels.hopper.repack_config import RepackConfig
from gemmule.kernels.hopper.tma_tiles import why_not_tma
from gemmule.kernels.ladder.h01_mma_sync.spec import SPEC as MMA_SYNC
from gemmule.kernels.ladder.h01_mma_sync.spec import predicted_us as mma_sync_us
from gemmule.kernels.transpose.cost import tile_costs
from gemmule.kernels.transpose.tile_config import ByteTileConfig
from gemmule.kernels.transpose.tiled.spec import SPEC as TRANSPOSE

#: How K-major operands are repacked.
_PACKING = RepackConfig()


def takes(dtype: DType, precision: Precision) -> bool:
    """Return whether wgmma multiplies a type, and takes it K-major only."""
    if dtype == FLOAT32:
        return precision is Precision.TF32
    return dtype == INT8 or (dtype.is_float8 and precision is Precision.FLOAT8)


@dataclasses.dataclass(frozen=True)
class _MnMajor(WorkspaceCopy):
    """An MN-major operand and its K-major copy.

    Attributes
    ----------
    problem : TransposeProblem
        The transpose, of every matrix of the batch.
    """

    problem: TransposeProblem


def _is_k_major(name: str, matrix: StridedMatrix) -> bool:
    return matrix.is_row_major if name == "a" else matrix.is_col_major


@cache_last_call
def _mn_major(problem: GemmProblem) -> tuple[_MnMajor, ...]:
    """Return the MN-major operands."""
    found = []
    for name, matrix in (("a", problem.a), ("b", problem.b)):
        if _is_k_major(name, matrix):
            continue
        rows, stride = (problem.m, matrix.col_stride) if name == "a" else (problem.n, matrix.row_stride)
        unit = REPACKED_BYTES // matrix.dtype.itemsize
        ld = -(-problem.k // unit) * unit
        steps, after = matrix.batch_strides, (ld * rows,) if problem.batch else ()
        source = StridedMatrix(matrix.dtype, rows, problem.k, 1, stride, steps, matrix.alignment)
        target = StridedMatrix(matrix.dtype, rows, problem.k, ld, 1, after, MAP_ALIGNMENT)
        copy = target if name == "a" else target.transposed()
        nbytes = ld * rows * (problem.batch or (1,))[0] * matrix.dtype.itemsize
        transpose = TransposeProblem(rows, problem.k, problem.batch, source, target)
        found.append(_MnMajor(name, f"{name} along k", copy, nbytes, transpose))
    return tuple(found)


@cache_last_call
def _packed(problem: GemmProblem) -> tuple[OperandCopy, ...]:
    """Return the copies of K-major operands that TMA cannot load."""
    return tuple(
        operand_copy(name, matrix, problem.batch, "packed")
        for name, matrix in (("a", problem.a), ("b", problem.b))
        if _is_k_major(name, matrix) and why_not_tma(name, matrix, problem.batch)
    )


_PRODUCT = NextProduct(
    lambda problem: with_copies(problem, (*_mn_major(problem), *_packed(problem))), (GEMM, GEMM_UNALIGNED)
)


def next_kernel(problem: GemmProblem, config: ByteTileConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the transpose of the second operand, if that is MN-major too, or its repacking, and then the product."""
    found = _PRODUCT.kernel(problem, gpu)
    if packed := _packed(problem):
        operands = {one.workspace: one.workspace for one in packed}
        prepared = with_copies(problem, _mn_major(problem))
        found = NextKernel(
            REPACKED,
            _PACKING,
            prepared.problem,
            {**prepared.operands, **operands},
            found.workspaces,
            then=found,
        )
    for one in _mn_major(problem)[1:]:
        operands = {"a": one.operand, "d": one.workspace}
        found = NextKernel(TRANSPOSE, config, one.problem, operands, found.workspaces, then=found)
    return found


def why_not(problem: GemmProblem, arch: Arch, config: ByteTileConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    inner = inner_problem(problem, SPEC.batch_dims)
    if reason := why_not_copied(_packed(inner), _PACKING, "repack"):
        return reason
    reasons = (TRANSPOSE.why_not(one.problem, arch, config) for one in _mn_major(inner))
    return next((reason for reason in reasons if reason), None)


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    for name, dtype in (("A", types.a), ("B", types.b)):
        if not takes(dtype, types.precision):
            return (
                f"{name} is {dtype} and precision is {types.precision.value!r}; this kernel is for "
                "int8, float32 with 'tf32' and 8-bit floats with 'float8'"
            )
    return why_not_arch(arch)


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem of at most one batch dimension, or None where that depends on the config."""
    if reason := refuse_hopper(problem, arch, "ab"):
        return reason
    if not _mn_major(problem):
        return "A and B are K-major"
    for one in _mn_major(problem):
        if problem.batch and not one.problem.source.batch_strides[0]:
            return f"{one.operand.upper()} is one matrix for all of the batch; it would be transposed for each"
    for copy in _packed(problem):
        if reason := copy.why_not("repacked"):
            return reason
    return _PRODUCT.why_not(problem)


def signature(problem: GemmProblem, config: ByteTileConfig) -> Signature:
    """Specialise as the first transpose does; a refused problem as any."""
    mn_major = _mn_major(problem)
    return TRANSPOSE.signature(mn_major[0].problem, config) if mn_major else signatures(HOPPER)[0]


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return those of elements of one and four bytes."""
    return tuple(one for one in TRANSPOSE.signatures(arch) if dict(one)["element"] in _ELEMENTS)


def launch(problem: GemmProblem, config: ByteTileConfig) -> Launch:
    """Return the launch recipe of the first transpose, from the operand to its workspace."""
    first = _mn_major(problem)[0]
    recipe = TRANSPOSE.launch(first.problem, config)
    names = {"a": first.operand, "d": first.workspace}
    params = tuple(
        dataclasses.replace(one, operand=names[one.operand]) if isinstance(one, TensorParam) else one
        for one in recipe.params
    )
    return dataclasses.replace(recipe, params=params)


#: Microseconds on an H200 between one launch and the next.
_LAUNCH = 1.3


def costs(problem: GemmProblem, configs: Sequence[ByteTileConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds of the transposes and of the product, which is that of all configs."""
    mn_major = _mn_major(problem)
    product = _PRODUCT.cost(problem, gpu) + _LAUNCH * gpu.launch * len(mn_major)
    if packed := _packed(problem):
        product += packing_us(sum(one.nbytes for one in packed), 0, _PACKING, gpu)
    seconds = zip(*(tile_costs(one.problem, configs, gpu) for one in mn_major), strict=True)
    return [product + 1e6 * sum(one) for one in seconds]


def outdone(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel that reads operands as they are, or converts 8-bit floats, where transposing does not pay."""
    if problem.a.dtype.is_float8:
        return UPCAST.name if _upcast_us(problem, gpu) < cost else None
    return MMA_SYNC.name if mma_sync_us(problem, gpu) < cost else None


def _upcast_us(problem: GemmProblem, gpu: GpuRates) -> float:
    if UPCAST.refuses is not None and UPCAST.refuses(problem, HOPPER):
        return math.inf
    assert UPCAST.costs is not None
    return min(UPCAST.costs(problem, UPCAST.configs, gpu))


_ELEMENTS = {opaque_dtype(size).name for size in (1, 4)}
SPEC = KernelSpec(
    name="hopper_gemm_k_major",
    operation="gemm",
    summary="int8, and TF32 and float8 where asked for, in any layout: MN-major operands are transposed first",
    package=TRANSPOSE.package,
    archs=(HOPPER,),
    configs=TRANSPOSE.configs,
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    build=TRANSPOSE.build,
    epilogues=True,
    absmax=True,
    block_scales=True,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    next_kernel=next_kernel,
    outdone=outdone,
)
