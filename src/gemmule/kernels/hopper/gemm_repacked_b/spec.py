"""Products of two matrices that TMA cannot load, of which one need not be copied: `hopper_gemm_unaligned_a` takes it."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.hopper.gemm_repacked.spec import packing_us
from gemmule.kernels.hopper.gemm_unaligned_a.spec import SPEC as UNALIGNED_A
from gemmule.kernels.hopper.next_kernel import NextProduct, Prepared, with_copies
from gemmule.kernels.hopper.operand_copies import OperandCopy, copy_launch, is_strided, operand_copy, why_not_copied
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper
from gemmule.kernels.hopper.repack_config import RepackConfig
from gemmule.kernels.hopper.tma_tiles import why_not_tma


@cache_last_call
def _to_pack(problem: GemmProblem) -> OperandCopy:
    """Return the copy of the kernel's B, which is A where the result is column-major."""
    _, _, second = row_result(problem)
    return operand_copy(second, problem.operands()[second], problem.batch, "packed")


def _repacked(problem: GemmProblem) -> Prepared:
    """Return the product with that copy."""
    return with_copies(problem, (_to_pack(problem),))


_PRODUCT = NextProduct(_repacked, (UNALIGNED_A,))


def next_kernel(problem: GemmProblem, config: RepackConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the product with B repacked, in the config that suits it."""
    del config
    return _PRODUCT.kernel(problem, gpu)


def why_not(problem: GemmProblem, arch: Arch, config: RepackConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    return why_not_copied((_to_pack(problem),), config, "repack")


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem, or None where that depends on the config."""
    if reason := refuse_hopper(problem, arch, ("a", "b", "c", "d")):
        return reason
    oriented, _, second = row_result(problem)
    if why_not_tma(second, oriented.b, problem.batch) is None:
        return f"TMA can load {second.upper()} as it is"
    if is_strided(oriented.b):
        return f"{second.upper()} has no contiguous lines"
    return _to_pack(problem).why_not() or _PRODUCT.why_not(problem)


def signature(problem: GemmProblem, config: RepackConfig) -> Signature:
    """Specialise for the element size; one operand is packed."""
    del problem, config
    return signatures(HOPPER)[0]


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return the one of 16-bit elements."""
    del arch
    return ((("element", "uint16"), ("operands", "1")),)


def launch(problem: GemmProblem, config: RepackConfig) -> Launch:
    """Return the launch recipe of the copy."""
    return copy_launch((_to_pack(problem),), config)


def costs(problem: GemmProblem, configs: Sequence[RepackConfig], gpu: GpuRates) -> list[float]:
    """Return the times of many configs: the product is the same."""
    product, copied = _PRODUCT.cost(problem, gpu), _to_pack(problem).nbytes
    result = problem.d.distinct_bytes(problem.batch)
    return [product + packing_us(copied, result, config, gpu) for config in configs]


SPEC = KernelSpec(
    name="hopper_gemm_repacked_b",
    operation="gemm",
    summary="float16 and bfloat16, A of any leading dimension as it lies, B copied to lines at multiples of 16 bytes",
    package=REPACKED.package,
    archs=(HOPPER,),
    configs=REPACKED.configs,
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    build=REPACKED.build,
    refuses=refuses,
    refuses_types=UNALIGNED_A.refuses_types,
    costs=costs,
    cost_in_us=True,
    next_kernel=next_kernel,
)
