"""Products of operands that TMA cannot load: they are repacked, then another kernel multiplies."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32, Precision, opaque_dtype
from gemmule.core.epilogue import SECOND
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes, inner_problem
from gemmule.core.row_major import row_result
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.hopper.gemm.spec import SPEC as GEMM
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC as GEMM_UNALIGNED
from gemmule.kernels.hopper.next_kernel import NextProduct, Prepared, with_copies
from gemmule.kernels.hopper.operand_copies import (
    OperandCopy,
    are_strided,
    copied_lines,
    copy_launch,
    in_order,
    is_mirrored,
    is_strided,
    nearer_rows,
    operand_copy,
    read_bytes,
    strided_key,
    why_not_copied,
)
from gemmule.kernels.hopper.refusals import HOPPER, MN_MAJOR_BYTES, refuse_hopper, why_not_arch, why_not_elements
from gemmule.kernels.hopper.repack_config import RepackConfig
from gemmule.kernels.hopper.syrk.spec import SPEC as SYRK
from gemmule.kernels.hopper.tma_tiles import why_not_stored, why_not_tma
from gemmule.kernels.mma_sync.cost import is_faster
from gemmule.kernels.mma_sync.small.spec import SPEC as MMA_SYNC_SMALL
from gemmule.kernels.mma_sync.small.spec import is_faster as is_faster_small
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC
from gemmule.kernels.simt.gemm.spec import SPEC as SIMT_GEMM
from gemmule.kernels.simt.gemm.spec import is_small, outdoes, predict_with_copies

from . import smaller_operand
from .config import PackingConfig

_ITEMSIZES = (1, 2, 4)


@cache_last_call
def _to_pack(problem: GemmProblem) -> tuple[OperandCopy, ...]:
    """Return the copies of operands that TMA cannot load: one, where the other is its transpose."""
    factors = problem.factors()
    needed = in_order(
        [
            operand_copy(name, factors[name], problem.batch, "packed", rows=rows)
            for name, rows in copied_lines(problem, functools.partial(_copied_rows, problem)).items()
        ]
    )
    return needed[:1] if is_mirrored(problem) else needed


def _copied_rows(problem: GemmProblem, name: str, matrix: StridedMatrix) -> bool | None:
    """Return whether the lines of a copy are rows; None where TMA can load the operand.

    They are what has the smaller stride, or K, as wgmma wants it. Beside such an operand an MN-major one is gathered
    too, and one of 8 bits that TMA cannot load.
    """
    if is_strided(matrix) and matrix.dtype.itemsize == MN_MAJOR_BYTES:
        return nearer_rows(matrix)
    k_major = matrix.has_contiguous_rows if name == "a" else matrix.has_contiguous_cols
    if not k_major and matrix.dtype.itemsize != MN_MAJOR_BYTES and _gathers(problem):
        return name == "a"
    return matrix.has_contiguous_rows if why_not_tma(name, matrix, problem.batch) else None


def _gathers(problem: GemmProblem) -> bool:
    """Return whether an operand is strided, or of 8 bits, MN-major, and none that TMA can load."""
    if _has_strided(problem):
        return True
    if problem.a.dtype.itemsize > 1:
        return False
    return any(
        not (matrix.has_contiguous_rows if name == "a" else matrix.has_contiguous_cols)
        and why_not_tma("a" if name == "a" else "b", matrix, problem.batch) is not None
        for name, matrix in problem.factors().items()
    )


def _has_strided(problem: GemmProblem) -> bool:
    return any(map(is_strided, problem.factors().values()))


def _repacked(problem: GemmProblem) -> Prepared:
    """Return the product of the repacked matrices."""
    copies = _to_pack(problem)
    if is_mirrored(problem):
        copies += tuple(dataclasses.replace(one, operand="b", copy=one.copy.transposed()) for one in copies)
    return with_copies(problem, copies)


#: Kernels that multiply repacked operands; mma.sync where it splits K among CTAs, and that pays.
_WGMMA = (SYRK, GEMM, GEMM_UNALIGNED)


@cache_last_call
def _predicted(problem: GemmProblem, gpu: GpuRates) -> tuple[KernelSpec, Any] | None:
    if not _by_fma(problem):
        return None
    copied = "ab" if problem.own_transpose else [one.operand for one in _to_pack(problem)]
    return predict_with_copies(problem, copied, gpu)


_PRODUCT = NextProduct(_repacked, (*_WGMMA, MMA_SYNC, SIMT_GEMM), _predicted)


def next_kernel(problem: GemmProblem, config: PackingConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the product of the repacked matrices, in the kernel and config that suit it."""
    if config.packs == 1:
        return smaller_operand.next_kernel(problem, gpu)
    return _PRODUCT.kernel(problem, gpu)


def why_not(problem: GemmProblem, arch: Arch, config: PackingConfig) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    if config.packs == 1 and not smaller_operand.takes_smaller(problem, arch):
        return smaller_operand.why_not_smaller(problem, arch)
    return why_not_copied(_to_pack(inner_problem(problem, SPEC.batch_dims)), config, "repack")


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    for name, dtype in (("A", types.a), ("B", types.b)):
        if dtype.itemsize not in _ITEMSIZES:
            return f"{name} is {dtype}; this kernel takes elements of 1, 2 and 4 bytes"
    return why_not_arch(arch)


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem of at most one batch dimension, or None where that depends on the config."""
    if not _to_pack(problem):
        return "TMA can load A and B as they are"
    if problem.a.dtype == FLOAT32 and _has_strided(problem):
        return "A or B is float32 without contiguous lines, which hopper_gemm_upcast copies"
    gathered = are_strided(_to_pack(problem))
    if _by_fma(problem):
        if not (problem.a.is_col_major and problem.b.is_row_major):
            return "A is not column-major, or B not row-major; FMA units multiply float32 faster where it is transposed"
    elif (
        not gathered
        and problem.a.dtype.itemsize != MN_MAJOR_BYTES
        and not (problem.a.has_contiguous_rows and problem.b.has_contiguous_cols)
    ):
        return "wgmma takes only 16-bit operands MN-major, also of matrices that are repacked"
    if reason := refuse_hopper(problem, arch, () if gathered else ("a", "b", SECOND), takes_empty=True):
        return reason
    for one in _to_pack(problem):
        if reason := why_not_elements(one.operand, problem.operands()[one.operand]) or one.why_not():
            return reason
    # Where TMA cannot store D, mma.sync takes contiguous operands as they are, but no gathered ones; bytes at any
    # address it copies slowly.
    by_mma = gathered or problem.a.dtype.itemsize == 1
    specs = (SIMT_GEMM,) if _by_fma(problem) else (*_WGMMA, MMA_SYNC) if by_mma else _WGMMA
    return _PRODUCT.why_not(problem, specs)


def _by_fma(problem: GemmProblem) -> bool:
    """Return whether FMA units multiply: float32, without TF32."""
    return problem.a.dtype == FLOAT32 and problem.precision is Precision.IEEE


def signature(problem: GemmProblem, config: PackingConfig) -> Signature:
    """Specialise for the element size, the number of operands, and whether one is gathered, or the order of one."""
    if config.packs == 1:
        return _ordered(smaller_operand.to_pack(problem)[1])
    copies = _to_pack(problem)
    return _signature(problem.a.dtype.itemsize, len(copies), are_strided(copies))


def _signature(itemsize: int, count: int, strided: bool = False) -> Signature:
    return (("element", opaque_dtype(itemsize).name), ("operands", str(count)), *strided_key(strided))


def _ordered(order: str) -> Signature:
    """Return the signature of one operand in an order."""
    if order == smaller_operand.LINES:
        return _signature(MN_MAJOR_BYTES, 1)
    return (("element", opaque_dtype(MN_MAJOR_BYTES).name), ("order", order))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination for one operand and two, and every order; gated epilogues have three."""
    found = [_signature(size, count, strided) for strided in (False, True) for size in (2, 1, 4) for count in (2, 1)]
    orders = smaller_operand.ORDERS if arch == HOPPER else ()
    return tuple(dict.fromkeys((*found, *map(_ordered, orders))))


def launch(problem: GemmProblem, config: PackingConfig) -> Launch:
    """Return the launch recipe of the copies."""
    if config.packs == 1:
        return smaller_operand.launch(problem, config)
    copies = _to_pack(problem)
    # As the product has it, so that both are resident on an SM at once; gathers need the first-level cache.
    return dataclasses.replace(copy_launch(copies, config), carve_out=None if are_strided(copies) else _CARVE_OUT)


#: Percent of an SM's largest shared memory.
_CARVE_OUT = 100
#: Microseconds on an H200: the second launch; each further vector of a CTA of 256 threads, as there are fewer CTAs;
#: bytes that packing reads and writes in one, by CTAs of 128 threads and of more; and bytes of a result, up to so many,
#: as packing waits for that of the product before it to be written.
_LAUNCH, _VECTOR, _BYTES, _FEW_THREADS, _MANY_THREADS = 1.3, 0.3, (3.67e6, 3.6e6), 128, 256
_SETTLED, _UNSETTLED = 2.91e6, 8e6
#: The second launch by bytes of an element: of 16 bits and TF32, by 465 small products (interleaved, not recorded).
_LAUNCHES = {2: 1.0, 4: 1.65}
#: The second launch of 16-bit products without C and epilogue, whose small tiles leave registers for the copies.
_RESIDENT_LAUNCH = 0.35
#: Bytes of copies that the L2 cache holds while the product begins, and how many beyond are written back in one while
#: it reads: records 20261125T121807 and 20261125T131244 (an H100 and an H200, copies of 83 to 112 MB).
_HELD, _WRITTEN_BACK = 32e6, 2.4e6


#: Products that leave the larger operand as it is and were timed: least and largest extent of the other one, least K,
#: how many times as large it is, and the most elements that it has.
_TIMED = (200, math.inf, 200, 6, math.inf), (64, 420, 700, 3, 40e6)
#: Share of the time with both packed that these must be predicted to take less than; and how much longer permuting
#: contiguous K takes.
_SMALLER_MARGIN, _PERMUTING = 0.9, 1.715
#: Microseconds on an H200 of the second launch of these.
_SMALLER_LAUNCH = 1.0
#: Bytes of operands of which TF32 takes as long as predicted, where lines of D begin anywhere, and the power of others
#: by which it takes longer: of 66 products of record 20261129T210838 from 0.8 at 2 MB to 1.2 at 80 MB.
_TF32_BYTES, _TF32_POWER, _TF32_RANGE = 10e6, 0.085, (1e6, 100e6)


def unaligned_tf32_factor(problem: GemmProblem) -> float:
    """Return how much longer a packed product takes than predicted: of TF32, where lines of D begin anywhere."""
    if problem.a.dtype != FLOAT32 or _by_fma(problem) or why_not_stored(row_result(problem)[0].d) is None:
        return 1.0
    nbytes = (problem.m + problem.n) * problem.k * (problem.batch or (1,))[0] * problem.a.dtype.itemsize
    factor: float = (min(max(nbytes, _TF32_RANGE[0]), _TF32_RANGE[1]) / _TF32_BYTES) ** _TF32_POWER
    return factor


def written_back_us(nbytes: int, gpu: GpuRates) -> float:
    """Return how much longer a product takes of copies of so many bytes, which memory writes meanwhile."""
    return gpu.moved_us(max(nbytes - _HELD, 0), _WRITTEN_BACK)


def _is_plain(problem: GemmProblem) -> bool:
    return problem.a.dtype.itemsize == MN_MAJOR_BYTES and problem.epilogue is None and problem.c is None


def packing_us(nbytes: int, result: int, config: RepackConfig, gpu: GpuRates) -> float:
    """Return roughly the time of packing so many bytes, and of writing a result of so many."""
    moved = gpu.moved_us(2 * nbytes, _BYTES[config.threads > _FEW_THREADS])
    return _LAUNCH * gpu.launch + _vectors_us(config) + moved + min(result, _UNSETTLED) / _SETTLED


def _vectors_us(config: RepackConfig) -> float:
    return _VECTOR * (config.vectors - 1) * config.threads / _MANY_THREADS


def costs(problem: GemmProblem, configs: Sequence[PackingConfig], gpu: GpuRates) -> list[float]:
    """Return the times of many configs: the product is the same, but where one operand is not packed."""
    copies, result = _to_pack(problem), problem.d.distinct_bytes(problem.batch)
    packed, read = sum(one.nbytes for one in copies), sum(read_bytes(one, one.copy.dtype.itemsize) for one in copies)
    launch = _RESIDENT_LAUNCH if _is_plain(problem) else _LAUNCHES.get(problem.a.dtype.itemsize, _LAUNCH)
    product = _PRODUCT.cost(problem, gpu) + launch * gpu.launch + min(result, _UNSETTLED) / _SETTLED
    if not _by_fma(problem):
        product += written_back_us(packed, gpu)
    moved = [gpu.moved_us(packed + read, rate) for rate in _BYTES]
    factor = unaligned_tf32_factor(problem)
    found = [factor * (product + moved[config.threads > _FEW_THREADS] + _vectors_us(config)) for config in configs]
    if any(one.packs == 1 for one in configs):
        smaller = _smaller_us(problem, gpu)
        most = _SMALLER_MARGIN * min(found)
        for number, config in enumerate(configs):
            if config.packs == 1:
                us = smaller[config.threads > _FEW_THREADS] + _vectors_us(config)
                found[number] = us if us < most else math.inf
    return found


def _smaller_us(problem: GemmProblem, gpu: GpuRates) -> list[float]:
    """Return the times of packing the smaller operand, by CTAs of few threads and of more, and of the product."""
    (shorter, longer), k = sorted((problem.m, problem.n)), problem.k
    if not any(
        least <= shorter <= largest and k >= least_k and longer >= times * shorter and longer * k <= most
        for least, largest, least_k, times, most in _TIMED
    ):
        return [math.inf] * len(_BYTES)
    if not smaller_operand.takes_smaller(problem, HOPPER):
        return [math.inf] * len(_BYTES)
    (copy, order), result = smaller_operand.to_pack(problem), problem.d.distinct_bytes(problem.batch)
    nbytes, factor = copy.nbytes, _PERMUTING if order == smaller_operand.K_ELEMENTS else 1.0
    product = smaller_operand.product_us(problem, gpu) + _SMALLER_LAUNCH * gpu.launch
    product += min(result, _UNSETTLED) / _SETTLED
    return [product + written_back_us(nbytes, gpu) + factor * gpu.moved_us(2 * nbytes, rate) for rate in _BYTES]


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel that needs no repacking, where that does not pay: for a short K or a small result."""
    if _has_strided(problem):
        return None
    if _by_fma(problem):
        return SIMT_GEMM.name if outdoes(problem, cost, gpu) else None
    if is_faster(problem, cost, gpu):
        return MMA_SYNC.name
    return MMA_SYNC_SMALL.name if is_faster_small(problem, cost, gpu) else None


#: Microseconds on an H200 that no repacked product takes less than: two launches, of plain 16-bit products and others.
_LEAST = 3.7, 4.5


def defers_to(problem: GemmProblem, gpu: GpuRates) -> str | None:
    """Return the kernel of small products by FMA units, or of 16-bit ones that takes less than two launches."""
    if _has_strided(problem):
        return None
    if _by_fma(problem):
        return SIMT_GEMM.name if is_small(problem) else None
    least = _LEAST[not _is_plain(problem)] * min(gpu.launch, gpu.load)
    return MMA_SYNC_SMALL.name if is_faster_small(problem, least, gpu) else None


SPEC = KernelSpec(
    name="hopper_gemm_repacked",
    operation="gemm",
    summary="any alignment and strides of A and B: copied to lines at multiples of 16 bytes first, for another kernel",
    package=__package__,
    archs=(HOPPER,),
    configs=(
        PackingConfig(),
        PackingConfig(threads=256),
        PackingConfig(threads=256, vectors=1),
        PackingConfig(packs=1),
        PackingConfig(threads=256, vectors=1, packs=1),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
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
