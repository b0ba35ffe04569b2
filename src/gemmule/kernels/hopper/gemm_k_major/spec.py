"""Products whose operands wgmma takes K-major only: MN-major ones are transposed first.

The other operand is repacked, where TMA cannot load it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32, INT8, DType, Precision, opaque_dtype
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem, OperandTypes, inner_problem
from gemmule.core.row_major import row_result
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.hopper.gemm.spec import SPEC as GEMM
from gemmule.kernels.hopper.gemm.spec import costs_with_k_major_copies
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.hopper.gemm_repacked.spec import packing_us, unaligned_tf32_factor, written_back_us
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC as GEMM_UNALIGNED
from gemmule.kernels.hopper.gemm_upcast.spec import SPEC as UPCAST
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, why_not_arch
from gemmule.kernels.hopper.tma_tiles import why_not_stored, why_not_tma
from gemmule.kernels.hopper.transposed_operands import TransposedOperands, least_transpose_us
from gemmule.kernels.mma_sync.cost import is_faster
from gemmule.kernels.mma_sync.small.spec import SPEC as MMA_SYNC_SMALL
from gemmule.kernels.mma_sync.small.spec import is_faster as is_faster_small
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC
from gemmule.kernels.transpose.tile_config import ByteTileConfig
from gemmule.kernels.transpose.tiled.spec import SPEC as TRANSPOSE


def takes(dtype: DType, precision: Precision) -> bool:
    """Return whether wgmma multiplies a type, and takes it K-major only."""
    if dtype == FLOAT32:
        return precision is Precision.TF32
    return dtype == INT8 or (dtype.is_float8 and precision is Precision.FLOAT8)


def _takes_one(problem: GemmProblem) -> bool:
    """Return whether `hopper_gemm` takes one MN-major operand from registers, and C and D as they are."""
    oriented = row_result(problem)[0]
    results = [("d", oriented.d), *([("c", oriented.c)] if oriented.c is not None else [])]
    return (
        problem.a.dtype == FLOAT32
        and why_not_stored(oriented.d) is None
        and not any(why_not_tma(name, matrix, problem.batch) for name, matrix in results)
    )


def _predicted(problem: GemmProblem, gpu: GpuRates) -> tuple[KernelSpec, Any] | None:
    """Return `hopper_gemm` and its costs of K-major operands, where it takes one from registers too."""
    return (GEMM, _times(problem, gpu)[1]) if _may_be_direct(problem) else None


_OPERANDS = TransposedOperands(True, (GEMM, GEMM_UNALIGNED), TRANSPOSE, REPACKED, packing_us, _takes_one, _predicted)


def next_kernel(problem: GemmProblem, config: ByteTileConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the transpose of the second operand, if that is MN-major too, or its repacking, and then the product."""
    return _OPERANDS.next_kernel(problem, config, gpu)


def why_not(problem: GemmProblem, arch: Arch, config: ByteTileConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    return _OPERANDS.why_not(inner_problem(problem, SPEC.batch_dims), config)


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
    return refuse_hopper(problem, arch, "ab") or _OPERANDS.refuses(problem)


def signature(problem: GemmProblem, config: ByteTileConfig) -> Signature:
    """Specialise as the first transpose does; a refused problem as any."""
    transposed = _OPERANDS.transposed(problem)
    return TRANSPOSE.signature(transposed[0].problem, config) if transposed else signatures(HOPPER)[0]


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return those of elements of one and four bytes."""
    return tuple(one for one in TRANSPOSE.signatures(arch) if dict(one)["element"] in _ELEMENTS)


def launch(problem: GemmProblem, config: ByteTileConfig) -> Launch:
    """Return the launch recipe of the first transpose, from the operand to its workspace."""
    return _OPERANDS.launch(problem, config)


def costs(problem: GemmProblem, configs: Sequence[ByteTileConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds of the transposes and of the product, which is that of all configs."""
    copied = sum([one.nbytes for one in _OPERANDS.copies(problem)])
    factor = unaligned_tf32_factor(problem)
    more = written_back_us(copied, gpu) + (_FILLED * gpu.launch if _fills(problem, gpu) else 0.0)
    return [factor * us for us in _OPERANDS.costs(problem, configs, gpu, more)]


#: Microseconds more that a product of single bytes takes after a transpose where it has a CTA for about each SM, and
#: the share of SMs: the mean of 20 among 68 products of 11 records of H200s, 20261123T142532 to 20261130T093510.
_FILLED, _SHARE = 5.0, 0.95


def _fills(problem: GemmProblem, gpu: GpuRates) -> bool:
    """Return whether a product of single bytes has a CTA for about each SM."""
    if problem.a.dtype.itemsize > 1:
        return False
    last = _OPERANDS.product.chosen(problem, gpu).launches[-1]
    return math.prod(last.spec.launch(last.problem, last.config).grid) >= _SHARE * gpu.multiprocessors


def defers_to(problem: GemmProblem, gpu: GpuRates) -> str | None:
    """Return the kernel that takes an operand of TF32 as it is, where the fastest transpose would not pay."""
    if not _may_be_direct(problem):
        return None
    own, prepared = (float(times[times.argmin()]) for times in _times(problem, gpu))
    lines = problem.m if problem.a.is_col_major else problem.n
    nbytes = problem.k * lines * (problem.batch or (1,))[0] * problem.a.dtype.itemsize
    return GEMM.name if prepared + least_transpose_us(nbytes, gpu) > own else None


def _may_be_direct(problem: GemmProblem) -> bool:
    """Return whether `hopper_gemm` takes the product of TF32 with an operand from registers."""
    return problem.a.dtype == FLOAT32 and not GEMM.is_refused(problem, HOPPER)


#: The times of `hopper_gemm` with an operand from registers, and of K-major operands.
_times = cache_last_call(costs_with_k_major_copies)


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel that takes operands as they are, or converts 8-bit floats, where transposing does not pay."""
    if problem.a.dtype.is_float8:
        return UPCAST.name if _least_us(UPCAST, problem, gpu) < cost else None
    if problem.a.dtype == FLOAT32 and _least_us(GEMM, problem, gpu) < cost:
        return GEMM.name
    if problem.a.dtype == FLOAT32 and is_faster_small(problem, cost, gpu):
        return MMA_SYNC_SMALL.name
    return MMA_SYNC.name if is_faster(problem, cost, gpu) else None


def _least_us(spec: KernelSpec, problem: GemmProblem, gpu: GpuRates) -> float:
    """Return the least predicted time of a kernel that may refuse a product."""
    return math.inf if spec.is_refused(problem, HOPPER) else spec.least_cost(problem, gpu)


_ELEMENTS = {opaque_dtype(size).name for size in (1, 4)}
SPEC = KernelSpec(
    name="hopper_gemm_k_major",
    operation="gemm",
    summary="int8, and TF32 and float8 on request, in any layout: MN-major operands are transposed first",
    package=TRANSPOSE.package,
    archs=(HOPPER,),
    configs=TRANSPOSE.configs,
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    build=TRANSPOSE.build,
    epilogues=True,
    gated=True,
    absmax=True,
    block_scales=True,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    next_kernel=next_kernel,
    faster_alternative=faster_alternative,
    defers_to=defers_to,
)
