"""Complex products of mixed types, or of operands without contiguous lines: copied as one type first.

complex64 with a complex128 result is multiplied as complex128: tensor cores take less time for that.
"""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, Kind, Precision
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.problem import GemmProblem, OperandTypes
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.complex.complex64.spec import SPEC as COMPLEX64_GEMM
from gemmule.kernels.complex.complex128.spec import SPEC as COMPLEX128_GEMM
from gemmule.kernels.hopper.gemm_upcast.spec import SPEC as UPCAST
from gemmule.kernels.hopper.repack_config import RepackConfig
from gemmule.kernels.hopper.upcast_operands import (
    UpcastOperands,
    faster_reference,
    launch,
    signature,
    types_signature,
    why_not,
)

_OPERANDS = UpcastOperands({COMPLEX64: (COMPLEX64_GEMM,), COMPLEX128: (COMPLEX128_GEMM,)})


def next_kernel(problem: GemmProblem, config: RepackConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the product of the copies, in the config that suits it."""
    del config
    return _OPERANDS.next_kernel(problem, gpu)


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    if Kind.COMPLEX not in (types.a.kind, types.b.kind):
        return f"A is {types.a} and B is {types.b}; this kernel takes products of complex numbers"
    # The guarded form may be computed natively.
    if types.precision not in (Precision.IEEE, Precision.OZAKI):
        return f"precision={types.precision.value!r} is computed by kernels of its own"
    return arch.why_not_float8(filter(None, (types.a, types.b, types.c)), types.d)


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem of at most one batch dimension, or None where that depends on the config."""
    return _OPERANDS.refuses(problem, arch)


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return real operands and complex64 to the types of their products, and both types of strided ones."""
    del arch
    pairs = ((FLOAT32, COMPLEX64), (FLOAT64, COMPLEX128), (COMPLEX64, COMPLEX128))
    mixed = tuple(types_signature((narrow,), wide) for narrow, wide in pairs)
    both = types_signature((COMPLEX64, COMPLEX64), COMPLEX128)
    return (*mixed, both, *(types_signature((dtype,), dtype, strided=True) for dtype in (COMPLEX64, COMPLEX128)))


def costs(problem: GemmProblem, configs: Sequence[RepackConfig], gpu: GpuRates) -> list[float]:
    """Return the times of many configs: the product is the same."""
    return _OPERANDS.costs(problem, configs, gpu)


SPEC = KernelSpec(
    name="complex_gemm_upcast",
    operation="gemm",
    summary="complex numbers of mixed types, and strided ones: copied as one type first",
    package=UPCAST.package,
    archs=COMPLEX64_GEMM.archs,
    configs=UPCAST.configs,
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    build=UPCAST.build,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    next_kernel=next_kernel,
    faster_alternative=faster_reference,
)
