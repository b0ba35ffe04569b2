"""Spec of the complex128 GEMM by three real products, for `precision="3m"`."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.dtype import COMPLEX128, Precision
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem, OperandTypes
from gemmule.core.row_major import why_not_types
from gemmule.core.spec import KernelSpec
from gemmule.kernels.complex.complex128.spec import SPEC as COMPLEX128_GEMM
from gemmule.kernels.complex.complex128.spec import launch, refuses, signature, signatures, why_not
from gemmule.kernels.complex.config import Complex128ThreeMConfig
from gemmule.kernels.complex.cost import complex128_3m_costs


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    if types.precision is not Precision.THREE_M:
        return f"precision is {types.precision.value!r}; this kernel is for '3m'"
    return why_not_types(COMPLEX128, types, arch)


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel of four real products, where that is expected to be faster."""
    return COMPLEX128_GEMM.name if COMPLEX128_GEMM.least_cost(problem, gpu) <= cost else None


SPEC = KernelSpec(
    name="complex128_3m",
    operation="gemm",
    summary="complex128 with precision='3m': three real multiplications (3M) on float64 tensor cores",
    package=__package__,
    archs=(Arch(9, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        *(Complex128ThreeMConfig(tile_m=32, mma_k=k, stream_k=shared) for k in (8, 4) for shared in (0, 1)),
        *(Complex128ThreeMConfig(tile_n=96, warps_n=4, mma_k=8, stages=6, stream_k=shared) for shared in (0, 1)),
        Complex128ThreeMConfig(tile_n=96, warps_n=4, mma_k=8, tile_k=16, stages=4),
        Complex128ThreeMConfig(tile_m=32, mma_k=8, tile_k=16, stages=3),
        Complex128ThreeMConfig(tile_n=48, mma_k=8),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=complex128_3m_costs,
    cost_in_us=True,
    faster_alternative=faster_alternative,
)
