"""Products off Hopper of mixed types, or of operands without contiguous lines: copied as one type first."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT8, INT32, DType, Precision
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.problem import GemmProblem, OperandTypes
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.float64.gemm.spec import SPEC as FLOAT64_GEMM
from gemmule.kernels.hopper.gemm_upcast.spec import NARROW, faster_alternative, refuse_types
from gemmule.kernels.hopper.gemm_upcast.spec import SPEC as OF_HOPPER
from gemmule.kernels.hopper.operand_copies import is_strided
from gemmule.kernels.hopper.refusals import why_not_arch
from gemmule.kernels.hopper.repack_config import RepackConfig
from gemmule.kernels.hopper.upcast_operands import UpcastOperands, launch, signature, types_signature, why_not
from gemmule.kernels.mma_sync.small.spec import SPEC as MMA_SYNC_SMALL
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC
from gemmule.kernels.simt.batched.spec import SPEC as SIMT_BATCHED
from gemmule.kernels.simt.gemm.spec import SPEC as SIMT_GEMM

_TENSOR_CORES = (MMA_SYNC, MMA_SYNC_SMALL)
#: For each common type the kernels that multiply the copies, best first.
_PRODUCTS: dict[DType, tuple[KernelSpec, ...]] = {
    FLOAT16: _TENSOR_CORES,
    BFLOAT16: _TENSOR_CORES,
    FLOAT32: (*_TENSOR_CORES, SIMT_BATCHED, SIMT_GEMM),
    FLOAT64: (SIMT_BATCHED, FLOAT64_GEMM),
    INT8: (MMA_SYNC,),
    INT32: (SIMT_GEMM,),
}
_OPERANDS = UpcastOperands(_PRODUCTS)
_ARCHS = (Arch(8, 0), Arch(10, 0, True))
_OLDEST = H200_RATES.on(_ARCHS[0])


def next_kernel(problem: GemmProblem, config: RepackConfig, gpu: GpuRates = _OLDEST) -> NextKernel:
    """Return the product of the copies, in the kernel and config that suit it."""
    del config
    return _OPERANDS.next_kernel(problem, gpu)


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    if why_not_arch(arch) is None:
        return f"on {arch} {OF_HOPPER.name} prepares operands"
    # The guarded form may be computed natively, and is off Hopper.
    native = types._replace(precision=Precision.IEEE) if types.precision is Precision.OZAKI else types
    if reason := refuse_types(native, _PRODUCTS):
        return reason
    return arch.why_not_float8(filter(None, (types.a, types.b, types.c)), types.d)


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem of at most one batch dimension, or None where that depends on the config."""
    a, b = problem.a.dtype, problem.b.dtype
    if a == b and a not in NARROW and not any(map(is_strided, problem.factors().values())):
        return f"A and B are {a} with contiguous lines: nothing is to be copied"
    return _OPERANDS.refuses(problem, arch)


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return those of Hopper's that the architecture converts, and gathered operands of 16 and 8 bits."""
    if why_not_arch(arch) is None:
        return ()
    eight = set() if arch.has_float8 else {dtype.name for dtype in NARROW}
    known = (one for one in OF_HOPPER.signatures(arch) if eight.isdisjoint(dict(one).values()))
    return (*known, *(types_signature((dtype,), dtype, strided=True) for dtype in (FLOAT16, BFLOAT16, INT8)))


def costs(problem: GemmProblem, configs: Sequence[RepackConfig], gpu: GpuRates) -> list[float]:
    """Return the times of many configs: the product is the same."""
    return _OPERANDS.costs(problem, configs, gpu)


SPEC = KernelSpec(
    name="gemm_upcast",
    operation="gemm",
    summary="mixed types, 8-bit floats, strided operands off Hopper: copied as one type first, for another kernel",
    package=OF_HOPPER.package,
    archs=_ARCHS,
    configs=OF_HOPPER.configs,
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    build=OF_HOPPER.build,
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
