"""Products of two matrices that TMA cannot load, of which one need not be copied: `hopper_gemm_unaligned_a` takes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import opaque_dtype
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.hopper.gemm_repacked.spec import packing_us
from gemmule.kernels.hopper.gemm_unaligned_a.spec import SPEC as UNALIGNED_A
from gemmule.kernels.hopper.gemm_unaligned_a.spec import TILE_K
from gemmule.kernels.hopper.next_kernel import NextProduct, Prepared, with_copies
from gemmule.kernels.hopper.operand_copies import OperandCopy, is_strided, operand_copy, why_not_copied
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper
from gemmule.kernels.hopper.repack_config import RepackConfig
from gemmule.kernels.hopper.tma_tiles import why_not_tma

_ITEM, _VECTOR = 2, 8
#: Orders of the copy, as of the kernel: of lines; of K, which lines are rows of, or have contiguous.
_LINES, _K_LINES, _K_ELEMENTS = "lines", "k_lines", "k_elements"


def _as_it_lies(problem: GemmProblem) -> str:
    """Return the operand that is not copied: the larger one."""
    return "a" if problem.m >= problem.n else "b"


def _is_k_major(name: str, matrix: StridedMatrix) -> bool:
    return matrix.has_contiguous_rows if name == "a" else matrix.has_contiguous_cols


@cache_last_call
def _to_pack(problem: GemmProblem) -> tuple[OperandCopy, str]:
    """Return the copy of the other operand, and its order."""
    name = _as_it_lies(problem)
    other = "ba"["ab".index(name)]
    matrix = problem.operands()[other]
    copy = operand_copy(other, matrix, problem.batch, "packed")
    if _is_k_major(name, problem.operands()[name]):
        return copy, _LINES
    if _is_k_major(other, matrix):
        return copy, _K_ELEMENTS
    # Whole k-tiles.
    lines = -(-copy.lines // TILE_K) * TILE_K
    return dataclasses.replace(copy, nbytes=copy.nbytes // copy.lines * lines), _K_LINES


def _repacked(problem: GemmProblem) -> Prepared:
    """Return the product with that copy."""
    return with_copies(problem, (_to_pack(problem)[0],))


_PRODUCT = NextProduct(_repacked, (UNALIGNED_A,))


def next_kernel(problem: GemmProblem, config: RepackConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the product with the other operand repacked, in the config that suits it."""
    del config
    return _PRODUCT.kernel(problem, gpu)


def why_not(problem: GemmProblem, arch: Arch, config: RepackConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    return why_not_copied((_to_pack(problem)[0],), config, "repack")


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem, or None where that depends on the config."""
    if reason := refuse_hopper(problem, arch):
        return reason
    if problem.batch:
        return "there is a batch; this kernel multiplies two matrices"
    for name, matrix in (("a", problem.a), ("b", problem.b)):
        if is_strided(matrix):
            return f"{name.upper()} has no contiguous lines"
        if why_not_tma(name, matrix, ()) is None:
            return f"TMA can load {name.upper()} as it is"
    return _to_pack(problem)[0].why_not() or _PRODUCT.why_not(problem)


def signature(problem: GemmProblem, config: RepackConfig) -> Signature:
    """Specialise for the order of the copy."""
    del config
    return _signature(_to_pack(problem)[1])


def _signature(order: str) -> Signature:
    return (("element", opaque_dtype(_ITEM).name), ("order", order))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return those of every order."""
    del arch
    return tuple(map(_signature, (_LINES, _K_LINES, _K_ELEMENTS)))


def launch(problem: GemmProblem, config: RepackConfig) -> Launch:
    """Return the launch recipe of the copy."""
    copy, order = _to_pack(problem)
    lines, vectors = copy.lines, copy.vectors
    if order == _K_LINES:
        lines = -(-lines // TILE_K) * TILE_K
    elif order == _K_ELEMENTS:
        vectors = -(-copy.length // TILE_K) * (TILE_K // _VECTOR)
    extents = (copy.length, copy.lines, 1)
    return Launch(
        grid=(-(-lines * vectors // (config.threads * config.vectors)), 1, 1),
        block=(config.threads, 1, 1),
        params=(
            TensorParam(copy.operand, extents, copy.strides),
            TensorParam(copy.workspace, extents, copy.copy_strides),
        ),
        overlaps=True,
    )


def costs(problem: GemmProblem, configs: Sequence[RepackConfig], gpu: GpuRates) -> list[float]:
    """Return the times of many configs: the product is the same."""
    product, copied = _PRODUCT.cost(problem, gpu), _to_pack(problem)[0].nbytes
    result = problem.d.distinct_bytes(problem.batch)
    return [product + packing_us(copied, result, config, gpu) for config in configs]


SPEC = KernelSpec(
    name="hopper_gemm_repacked_b",
    operation="gemm",
    summary="float16 and bfloat16, one operand of any leading dimension as it lies, the other copied",
    package=__package__,
    archs=(HOPPER,),
    configs=REPACKED.configs,
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=UNALIGNED_A.refuses_types,
    costs=costs,
    cost_in_us=True,
    next_kernel=next_kernel,
)
