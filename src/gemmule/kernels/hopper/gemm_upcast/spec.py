"""Products of mixed types, or of operands without contiguous lines: copied as one type before another kernel."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import (
    BFLOAT16,
    FLOAT8_E4M3,
    FLOAT8_E5M2,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    DType,
    Kind,
    Precision,
)
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.problem import GemmProblem, OperandTypes
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.float64.gemm.spec import SPEC as FLOAT64_GEMM
from gemmule.kernels.hopper.gemm.spec import SPEC as GEMM
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC as GEMM_UNALIGNED
from gemmule.kernels.hopper.operand_copies import is_strided
from gemmule.kernels.hopper.refusals import HOPPER, why_not_arch
from gemmule.kernels.hopper.repack_config import RepackConfig
from gemmule.kernels.hopper.upcast_operands import (
    UpcastOperands,
    faster_reference,
    launch,
    signature,
    types_signature,
    why_not,
)
from gemmule.kernels.mma_sync.small.spec import SPEC as MMA_SYNC_SMALL
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC
from gemmule.kernels.simt.batched.spec import SPEC as SIMT_BATCHED
from gemmule.kernels.simt.gemm.spec import SPEC as SIMT_GEMM

#: 8-bit floats, which are converted also where both operands are of them.
NARROW = (FLOAT8_E4M3, FLOAT8_E5M2)
#: Types whose operands without contiguous lines are copied here; of others `hopper_gemm_repacked` does.
_GATHERED = (FLOAT32, FLOAT64, INT32)
#: The third kernel takes every result; the last one is faster for small products.
_TENSOR_CORES = (GEMM, GEMM_UNALIGNED, MMA_SYNC, MMA_SYNC_SMALL)
_OPERANDS = UpcastOperands(
    {
        FLOAT16: _TENSOR_CORES,
        BFLOAT16: _TENSOR_CORES,
        FLOAT32: (*_TENSOR_CORES, SIMT_BATCHED, SIMT_GEMM),
        FLOAT64: (SIMT_BATCHED, FLOAT64_GEMM),
        INT32: (SIMT_GEMM,),
    }
)


def next_kernel(problem: GemmProblem, config: RepackConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the product of the copies, in the kernel and config that suit it."""
    del config
    return _OPERANDS.next_kernel(problem, gpu)


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    return refuse_types(types, _GATHERED) or why_not_arch(arch)


def refuse_types(types: OperandTypes, gathered: Collection[DType]) -> str | None:
    """Say why operands of such types are not converted, or of one type among `gathered` copied, or None."""
    a, b, precision = types.a, types.b, types.precision
    if Kind.COMPLEX in (a.kind, b.kind):
        return f"A is {a} and B is {b}; this kernel takes real numbers"
    if a == b and a not in (*NARROW, *gathered):
        return (
            f"A and B are {a}; this kernel takes mixed types, 8-bit floats, and of "
            f"{', '.join(map(str, gathered))} operands without contiguous lines"
        )
    # Those of one type are gathered for kernels that are as exact as any precision.
    if precision not in (Precision.IEEE, Precision.TF32, Precision.FLOAT8) and a not in gathered:
        return f"precision={precision.value!r} is computed by kernels of its own"
    return None


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem of at most one batch dimension, or None where that depends on the config."""
    if problem.a.dtype == problem.b.dtype == FLOAT32 and not any(map(is_strided, problem.factors().values())):
        return "A and B are float32 with contiguous lines: other kernels copy what is to be copied"
    return _OPERANDS.refuses(problem, arch)


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return 8-bit floats to float16, what mixed types need to be converted, and gathered operands of one type."""
    del arch
    contiguous = tuple(
        types_signature(types, wide)
        for wide, every in {
            FLOAT16: (*((dtype, dtype) for dtype in NARROW), (INT8,)),
            BFLOAT16: ((INT8,),),
            FLOAT32: ((BFLOAT16,), (FLOAT16,), (INT8,), (BFLOAT16, FLOAT16), (FLOAT16, BFLOAT16)),
            FLOAT64: ((FLOAT32,), (INT32, FLOAT32), (FLOAT32, INT32)),
            INT32: ((INT8,),),
        }.items()
        for types in every
    )
    gathered = tuple(types_signature((dtype,), dtype, strided=True) for dtype in _GATHERED)
    return (*contiguous, *(types_signature((dtype, dtype), FLOAT16, strided=True) for dtype in NARROW), *gathered)


def costs(problem: GemmProblem, configs: Sequence[RepackConfig], gpu: GpuRates) -> list[float]:
    """Return the times of many configs: the product is the same."""
    return _OPERANDS.costs(problem, configs, gpu)


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel that takes operands as they are, where copies do not pay: few rows, small products, batches."""
    if not SIMT_BATCHED.is_refused(problem, gpu.arch):
        found = SIMT_BATCHED.cheapest(problem, gpu.arch, gpu)
        return SIMT_BATCHED.name if found is not None and found[1] < cost else None
    return faster_reference(problem, cost, gpu)


SPEC = KernelSpec(
    name="hopper_gemm_upcast",
    operation="gemm",
    summary="mixed types, 8-bit floats, strided 32- and 64-bit numbers: copied as one type first, for another kernel",
    package=__package__,
    archs=(HOPPER,),
    configs=(RepackConfig(), RepackConfig(threads=256, vectors=1)),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    epilogues=True,
    gated=True,
    absmax=True,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    next_kernel=next_kernel,
    faster_alternative=faster_alternative,
)
