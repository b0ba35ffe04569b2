"""Large float32 products whose K-major operands are transposed first: MN-major ones are copied by 16 bytes at once.

The other operand is repacked, where its rows do not begin at multiples of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32, opaque_dtype
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem, OperandTypes, inner_problem
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.hopper.gemm_repacked.spec import packing_us
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, why_not_arch
from gemmule.kernels.hopper.transposed_operands import TransposedOperands
from gemmule.kernels.simt.gemm.spec import SPEC as GEMM
from gemmule.kernels.simt.gemm.spec import is_small, outdoes, predict_with_copies
from gemmule.kernels.transpose.tile_config import ByteTileConfig
from gemmule.kernels.transpose.tiled.spec import SPEC as TRANSPOSE


@cache_last_call
def _predicted(problem: GemmProblem, gpu: GpuRates) -> tuple[KernelSpec, Any]:
    return predict_with_copies(problem, [one.operand for one in _OPERANDS.copies(problem)], gpu)


_OPERANDS = TransposedOperands(False, (GEMM,), TRANSPOSE, REPACKED, packing_us, predicted=_predicted)


def next_kernel(problem: GemmProblem, config: ByteTileConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the transpose of the second operand, if that is K-major too, or its repacking, and then the product."""
    return _OPERANDS.next_kernel(problem, config, gpu)


def why_not(problem: GemmProblem, arch: Arch, config: ByteTileConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    return _OPERANDS.why_not(inner_problem(problem, SPEC.batch_dims), config)


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    assert GEMM.refuses_types is not None
    return why_not_arch(arch) or GEMM.refuses_types(types, arch)


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem of at most one batch dimension, or None where that depends on the config."""
    return refuse_hopper(problem, arch, "ab") or _OPERANDS.refuses(problem)


def signature(problem: GemmProblem, config: ByteTileConfig) -> Signature:
    """Specialise as the first transpose does; a refused problem as any."""
    transposed = _OPERANDS.transposed(problem)
    return TRANSPOSE.signature(transposed[0].problem, config) if transposed else signatures(HOPPER)[0]


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return those of elements of four bytes."""
    element = opaque_dtype(FLOAT32.itemsize).name
    return tuple(one for one in TRANSPOSE.signatures(arch) if dict(one)["element"] == element)


def launch(problem: GemmProblem, config: ByteTileConfig) -> Launch:
    """Return the launch recipe of the first transpose, from the operand to its workspace."""
    return _OPERANDS.launch(problem, config)


def costs(problem: GemmProblem, configs: Sequence[ByteTileConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds of the transposes and of the product, which is that of all configs."""
    return _OPERANDS.costs(problem, configs, gpu)


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel that copies operands as they are, where transposing does not pay."""
    return GEMM.name if outdoes(problem, cost, gpu) else None


def defers_to(problem: GemmProblem, gpu: GpuRates) -> str | None:
    """Return the same kernel for small products."""
    del gpu
    return GEMM.name if is_small(problem) else None


SPEC = KernelSpec(
    name="simt_gemm_mn_major",
    operation="gemm",
    summary="float32, large: K-major operands are transposed first, which FMA units multiply faster",
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
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    next_kernel=next_kernel,
    faster_alternative=faster_alternative,
    defers_to=defers_to,
)
