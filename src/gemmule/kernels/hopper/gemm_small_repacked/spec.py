"""Products of a large operand with odd lines, which is loaded as it is, and a small one, which is repacked first."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem, OperandTypes, inner_problem
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.hopper.gemm_line_classes.classes import why_not_classes
from gemmule.kernels.hopper.gemm_line_classes.spec import DTYPES
from gemmule.kernels.hopper.gemm_line_classes.spec import SPEC as LINE_CLASSES
from gemmule.kernels.hopper.gemm_repacked.config import PackingConfig
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.hopper.gemm_repacked.spec import defers_to as repacked_defers_to
from gemmule.kernels.hopper.next_kernel import NextProduct, Prepared, with_copies
from gemmule.kernels.hopper.operand_copies import (
    OperandCopy,
    are_strided,
    copy_launch,
    operand_copy,
    strided_key,
    why_not_copied,
)
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, refuse_types
from gemmule.kernels.hopper.repack_config import RepackConfig
from gemmule.kernels.mma_sync.cost import is_faster
from gemmule.kernels.mma_sync.small.spec import SPEC as MMA_SYNC_SMALL
from gemmule.kernels.mma_sync.small.spec import is_faster as is_faster_small
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC


@cache_last_call
def _copy(problem: GemmProblem) -> OperandCopy:
    """Return the copy of the operand that is not loaded as it is; its lines are along M or N."""
    return operand_copy(
        *(("b", problem.b) if _keeps_a(problem) else ("a", problem.a)), problem.batch, "packed", rows=_keeps_a(problem)
    )


def _keeps_a(problem: GemmProblem) -> bool:
    """Return whether A is loaded as it is: of two operands with classes of lines the larger one."""
    if why_not_classes("A", problem.a) is not None:
        return False
    return problem.m >= problem.n or why_not_classes("B", problem.b) is not None


def _prepared(problem: GemmProblem) -> Prepared:
    return with_copies(problem, (_copy(problem),))


_PRODUCT = NextProduct(_prepared, (LINE_CLASSES,))


def next_kernel(problem: GemmProblem, config: RepackConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the product with the copy."""
    del config
    return _PRODUCT.kernel(problem, gpu)


def why_not(problem: GemmProblem, arch: Arch, config: RepackConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    return why_not_copied((_copy(inner_problem(problem, SPEC.batch_dims)),), config, "repack")


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    return refuse_types(DTYPES, types, arch)


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem, or None where that depends on the config."""
    if reason := refuse_hopper(problem, arch, "ab"):
        return reason
    if problem.batch:
        return "there is a batch; one operand is copied of two matrices only"
    reason = None if _keeps_a(problem) else why_not_classes("B", problem.b)
    return reason or _copy(problem).why_not() or _PRODUCT.why_not(problem)


def signature(problem: GemmProblem, config: RepackConfig) -> Signature:
    """Specialise as the copy of one operand."""
    del config
    return _signature(are_strided((_copy(problem),)))


def _signature(strided: bool) -> Signature:
    return (("element", "uint16"), ("operands", "1"), *strided_key(strided))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return those of contiguous lines and of others."""
    del arch
    return _signature(False), _signature(True)


def launch(problem: GemmProblem, config: RepackConfig) -> Launch:
    """Return the launch recipe of the copy."""
    return copy_launch((_copy(problem),), config)


#: Microseconds on an H200 of the copy's launch, and bytes that it reads in one, along lines and across them.
_LAUNCH, _BYTES, _GATHERED = 1.3, 1.53e6, 0.454e6


def costs(problem: GemmProblem, configs: Sequence[RepackConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds of the copy and the product, which are those of all configs."""
    copy = _copy(problem)
    moved = gpu.moved_us(copy.nbytes, _GATHERED if are_strided((copy,)) else _BYTES)
    return [_PRODUCT.cost(problem, gpu) + _LAUNCH * gpu.launch + moved] * len(configs)


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel that repacks operands, or multiplies by mma.sync, where that is faster."""
    if not REPACKED.is_refused(problem, HOPPER) and (found := REPACKED.cheapest(problem, HOPPER, gpu)) is not None:
        # Where the larger operand is not copied, its times are predicted as well as this kernel's.
        config, repacked = found
        one = isinstance(config, PackingConfig) and config.packs == 1
        if repacked < (cost if one else cost / _MARGIN):
            return REPACKED.name
    if is_faster(problem, cost, gpu):
        return MMA_SYNC.name
    return MMA_SYNC_SMALL.name if is_faster_small(problem, cost * _MARGIN, gpu) else None


def _defers_to(problem: GemmProblem, gpu: GpuRates) -> str | None:
    """Return the kernel that repacks operands, or what that one defers to, where this one was not measured faster."""
    if not _is_timed(problem) and not REPACKED.is_refused(problem, HOPPER):
        return REPACKED.name
    return repacked_defers_to(problem, gpu)


def _is_timed(problem: GemmProblem) -> bool:
    """Return whether products of so many rows, of such a K and such lines were measured to be faster."""
    large = problem.a if _keeps_a(problem) else problem.b
    ld = large.row_stride if large.has_contiguous_rows else large.col_stride
    return min(problem.m, problem.n) <= _MOST_ROWS and problem.k >= _LEAST_K and ld % 2 == 1


#: Share of the predicted times of other kernels that this one's must be less than; the most rows and the least K of
#: products of which times were measured to be less.
_MARGIN, _MOST_ROWS, _LEAST_K = 0.9, 512, 512

SPEC = KernelSpec(
    name="hopper_gemm_small_repacked",
    operation="gemm",
    summary="float16 and bfloat16, unaligned, skinny: the larger operand as it is, the other is copied",
    package=REPACKED.package,
    archs=(HOPPER,),
    configs=(RepackConfig(),),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    next_kernel=next_kernel,
    faster_alternative=faster_alternative,
    defers_to=_defers_to,
)
