"""8-bit floats converted to 16-bit floats, which hold them all, before another kernel multiplies them."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, DType
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem, OperandTypes, inner_problem
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.hopper.gemm.spec import SPEC as GEMM
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC as GEMM_UNALIGNED
from gemmule.kernels.hopper.next_kernel import NextProduct, with_copies
from gemmule.kernels.hopper.operand_copies import (
    OperandCopy,
    are_strided,
    copy_launch,
    is_strided,
    nearer_rows,
    operand_copy,
    strided_key,
    why_not_copied,
)
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, why_not_arch
from gemmule.kernels.hopper.repack_config import RepackConfig
from gemmule.kernels.mma_sync.cost import predicted_us as mma_sync_us
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC

#: Types that are converted, and those that they may become.
NARROW, WIDE = (FLOAT8_E4M3, FLOAT8_E5M2), (FLOAT16, BFLOAT16)
_NONE = "none"


@cache_last_call
def _narrow(problem: GemmProblem) -> list[OperandCopy]:
    """Return the converted copies."""
    wide = _wide(problem)
    return [
        operand_copy(
            name, matrix, problem.batch, "wide", wide, rows=nearer_rows(matrix) if is_strided(matrix) else None
        )
        for name, matrix in (("a", problem.a), ("b", problem.b))
        if matrix.dtype in NARROW
    ]


def _wide(problem: GemmProblem) -> DType:
    """Return the type that is converted to: the other operand's, or one from which the result can be written."""
    other = [matrix.dtype for matrix in (problem.a, problem.b) if matrix.dtype not in NARROW]
    return other[0] if other else BFLOAT16 if problem.d.dtype == BFLOAT16 else FLOAT16


#: The last kernel takes every result.
_PRODUCT = NextProduct(lambda problem: with_copies(problem, _narrow(problem)), (GEMM, GEMM_UNALIGNED, MMA_SYNC))


def next_kernel(problem: GemmProblem, config: RepackConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the product of the converted matrices, in the kernel and config that suit it."""
    del config
    return _PRODUCT.kernel(problem, gpu)


def why_not(problem: GemmProblem, arch: Arch, config: RepackConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    return why_not_copied(_narrow(inner_problem(problem, SPEC.batch_dims)), config, "convert")


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    both = {types.a, types.b}
    if not both & set(NARROW) or not both <= {*NARROW, *WIDE}:
        return (
            f"A is {types.a} and B is {types.b}; this kernel takes {' and '.join(map(str, NARROW))}, "
            f"one of them with {' or '.join(map(str, WIDE))}"
        )
    return why_not_arch(arch)


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem of at most one batch dimension, or None where that depends on the config."""
    contiguous = [one.operand for one in _narrow(problem) if one.step == 1]
    if reason := refuse_hopper(problem, arch, contiguous, takes_empty=True):
        return reason
    for one in _narrow(problem):
        if reason := one.why_not("converted"):
            return reason
    return _PRODUCT.why_not(problem)


def signature(problem: GemmProblem, config: RepackConfig) -> Signature:
    """Specialise for the types before and after the conversion, and whether an operand is gathered."""
    del config
    types = [problem.operands()[one.operand].dtype for one in _narrow(problem)]
    return _signature(types, _wide(problem), are_strided(_narrow(problem)))


def _signature(types: Sequence[DType], wide: DType, strided: bool = False) -> Signature:
    first, second = (*(dtype.name for dtype in types), _NONE)[:2]
    return (("element", first), ("second", second), ("wide", wide.name), *strided_key(strided))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return both types, to float16."""
    del arch
    return tuple(_signature((dtype, dtype), FLOAT16, strided) for strided in (False, True) for dtype in NARROW)


def launch(problem: GemmProblem, config: RepackConfig) -> Launch:
    """Return the launch recipe of the conversion."""
    return copy_launch(_narrow(problem), config)


#: Microseconds of the second launch, and bytes that are read and written in one: as `hopper_gemm_repacked` was measured
#: on an H200.
_LAUNCH, _BYTES = 1.8, 3.3e6
#: Bytes that are moved for two that are written, and CTAs of many vectors for each of the SMs, at least.
_MOVED, _ENOUGH = 1.5, 4


def costs(problem: GemmProblem, configs: Sequence[RepackConfig], gpu: GpuRates) -> list[float]:
    """Return the times of many configs: the product is the same."""
    prepared, (*_, product) = _PRODUCT.prepare(problem), _PRODUCT.chosen(problem, gpu)
    if product is None:
        product = mma_sync_us(prepared.problem, gpu)
    moved = gpu.moved_us(_MOVED * sum(prepared.workspaces.values()), _BYTES)

    def conversion(config: RepackConfig) -> float:
        ctas = sum(one.ctas(config) * one.matrices for one in _narrow(problem))
        # Where few CTAs leave SMs idle, fewer vectors for each of them are better.
        return moved * max(1.0, _ENOUGH * gpu.multiprocessors / max(ctas, 1)) if config.vectors > 1 else moved * 1.01

    return [product + _LAUNCH * gpu.launch + conversion(config) for config in configs]


SPEC = KernelSpec(
    name="hopper_gemm_upcast",
    operation="gemm",
    summary="8-bit floats, any layout, leading dimension and result: upcast to 16 bits first, for another kernel",
    package=__package__,
    archs=(HOPPER,),
    configs=(RepackConfig(), RepackConfig(threads=256, vectors=1)),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    epilogues=True,
    absmax=True,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    next_kernel=next_kernel,
)
