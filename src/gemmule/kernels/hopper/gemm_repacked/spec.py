"""Products of operands that TMA cannot load: they are repacked, then another kernel multiplies."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import opaque_dtype
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import MAP_ALIGNMENT, Launch, Param, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.hopper.gemm.spec import SPEC as GEMM
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC as GEMM_UNALIGNED
from gemmule.kernels.hopper.next_kernel import Prepared, choose_next, why_no_next
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper
from gemmule.kernels.hopper.repack_config import REPACKED_BYTES, CopiedLines, copied_lines
from gemmule.kernels.hopper.syrk.spec import SPEC as SYRK
from gemmule.kernels.ladder.h01_mma_sync.spec import SPEC as MMA_SYNC
from gemmule.kernels.ladder.h01_mma_sync.spec import predicted_us as mma_sync_us

from .config import PackedConfig

#: Kernels that may multiply repacked operands, best first.
NEXT_KERNELS = (SYRK, GEMM, GEMM_UNALIGNED)
_MAX_VECTORS = 2**31 - 1
_ITEMSIZES = (1, 2, 4)


def _packed_pitch(found: CopiedLines, itemsize: int) -> int:
    """Return the leading dimension of a repacked matrix in elements: a multiple of `REPACKED_BYTES`."""
    return found.padded(REPACKED_BYTES // itemsize)


def _ready(found: CopiedLines, matrix: StridedMatrix) -> bool:
    """Whether TMA can load a matrix as it is."""
    if matrix.alignment % MAP_ALIGNMENT:
        return False
    steps = ((found.lines, found.pitch), (found.matrices, found.step))
    item = matrix.dtype.itemsize
    return all(extent <= 1 or (step > 0 and step * item % MAP_ALIGNMENT == 0) for extent, step in steps)


@cache_last_call
def _lines(problem: GemmProblem) -> tuple[CopiedLines, CopiedLines]:
    """Return the lines of A and of B."""
    return copied_lines("a", problem.a, problem.batch), copied_lines("b", problem.b, problem.batch)


@cache_last_call
def _to_pack(problem: GemmProblem) -> tuple[CopiedLines, ...]:
    """Return the operands that must be repacked: one, where the other is its transpose."""
    every = zip(_lines(problem), (problem.a, problem.b), strict=True)
    needed = tuple(found for found, matrix in every if not _ready(found, matrix))
    return needed[:1] if problem.own_transpose else needed


@cache_last_call
def _repacked(problem: GemmProblem) -> Prepared:
    """Return the product of the repacked matrices."""
    packed, operands, workspaces = dict(problem.operands()), {name: name for name in problem.operands()}, {}
    for found in _to_pack(problem):
        matrix = packed[found.operand]
        pitch = _packed_pitch(found, matrix.dtype.itemsize)
        strides = (pitch, 1) if found.rows else (1, pitch)
        step = pitch * found.lines
        packed[found.operand] = StridedMatrix(
            matrix.dtype, matrix.rows, matrix.cols, *strides, (step,) if problem.batch else (), MAP_ALIGNMENT
        )
        operands[found.operand] = f"packed {found.operand}"
        workspaces[f"packed {found.operand}"] = step * found.matrices * matrix.dtype.itemsize
    if problem.own_transpose:
        packed["b"], operands["b"] = packed["a"].transposed(), operands["a"]
    return Prepared(problem.with_operands(problem.batch, packed), operands, workspaces)


def next_kernel(problem: GemmProblem, config: PackedConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the product of the repacked matrices, in the kernel and config that suit it."""
    del config
    return _product(problem, gpu)[0]


# A choice needs it several times in a row; a plan and the launch need that of an equal problem later.
@cache_last_call
@functools.lru_cache(maxsize=256)
def _product(problem: GemmProblem, gpu: GpuRates) -> tuple[NextKernel, float]:
    """Return the product of the repacked matrices, and the microseconds that it is expected to take."""
    product = _repacked(problem)
    spec, config, cost = choose_next(product.problem, NEXT_KERNELS, gpu)
    assert cost is not None
    return NextKernel(spec, config, *product), cost


def why_not(problem: GemmProblem, arch: Arch, config: PackedConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    ctas = sum(_ctas(found, inner.a.dtype.itemsize, config) for found in _to_pack(inner))
    if ctas * config.threads * config.vectors > _MAX_VECTORS:
        return f"there are more than {_MAX_VECTORS} vectors to repack, the most that the kernel's 32-bit indices take"
    return None


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem of at most one batch dimension, or None where that depends on the config."""
    for name, matrix in (("a", problem.a), ("b", problem.b)):
        if matrix.dtype.itemsize not in _ITEMSIZES:
            return f"{name.upper()} is {matrix.dtype}; this kernel takes elements of 1, 2 and 4 bytes"
    if reason := refuse_hopper(problem, arch, "ab", takes_empty=True):
        return reason
    for found in _lines(problem):
        if reason := found.why_not("repacked"):
            return reason
    if not _to_pack(problem):
        return "TMA can load A and B as they are"
    return why_no_next(_repacked(problem).problem, NEXT_KERNELS)


def _ctas(found: CopiedLines, itemsize: int, config: PackedConfig) -> int:
    vectors = -(-found.length * itemsize // MAP_ALIGNMENT) * found.lines
    return -(-vectors // (config.threads * config.vectors))


def signature(problem: GemmProblem, config: PackedConfig) -> Signature:
    """Specialise for the element size and the number of operands that are packed."""
    del config
    return _signature(problem.a.dtype.itemsize, len(_to_pack(problem)))


def _signature(itemsize: int, count: int) -> Signature:
    return (("element", opaque_dtype(itemsize).name), ("operands", str(count)))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    return tuple(_signature(size, count) for size in (2, 1, 4) for count in (2, 1))


def launch(problem: GemmProblem, config: PackedConfig) -> Launch:
    """Return the launch recipe of the packing: one CTA for so many vectors of an operand, operands side by side."""
    to_pack = _to_pack(problem)
    item = problem.a.dtype.itemsize
    params: list[Param] = []
    for found in to_pack:
        extents = (found.length, found.lines, found.matrices)
        params.append(TensorParam(found.operand, extents, (found.pitch, found.step)))
        pitch = _packed_pitch(found, item)
        params.append(TensorParam(f"packed {found.operand}", extents, (pitch, pitch * found.lines)))
    ctas = sum(_ctas(found, item, config) for found in to_pack)
    matrices = to_pack[0].matrices if to_pack else 1
    return Launch(grid=(ctas, 1, matrices), block=(config.threads, 1, 1), params=tuple(params), overlaps=True)


#: Microseconds on an H200: the second launch; each further vector of a CTA of 256 threads, as there are fewer CTAs;
#: bytes that packing reads and writes in one, by CTAs of 128 threads and of more; and bytes of a result, up to so many,
#: as packing waits for that of the product before it to be written.
_LAUNCH, _VECTOR, _BYTES, _FEW_THREADS, _MANY_THREADS = 1.3, 0.3, (3.67e6, 3.6e6), 128, 256
_SETTLED, _UNSETTLED = 2.91e6, 8e6


def _packing_us(nbytes: int, result: int, config: PackedConfig, gpu: GpuRates) -> float:
    """Return roughly the time of packing so many bytes, beside a result of so many."""
    rate = _BYTES[0 if config.threads <= _FEW_THREADS else 1]
    vectors = _VECTOR * (config.vectors - 1) * config.threads / _MANY_THREADS
    settled = min(result, _UNSETTLED) / _SETTLED
    return _LAUNCH * gpu.launch + vectors + gpu.moved_us(2 * nbytes, rate) + settled


def costs(problem: GemmProblem, configs: Sequence[PackedConfig], gpu: GpuRates) -> list[float]:
    """Return the times of many configs: the product is the same."""
    found, product = _product(problem, gpu)
    packed, result = sum(found.workspaces.values()), problem.d.distinct_bytes(problem.batch)
    return [product + _packing_us(packed, result, config, gpu) for config in configs]


def outdone(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel that needs no repacking, where that does not pay: for a short K or a small result."""
    return MMA_SYNC.name if mma_sync_us(problem, gpu) < cost else None


SPEC = KernelSpec(
    name="hopper_gemm_repacked",
    operation="gemm",
    summary="as h09 and h10, whatever the pitches of A and B: they are copied to pitches of whole 16 bytes first",
    package=__package__,
    archs=(HOPPER,),
    configs=(PackedConfig(), PackedConfig(threads=256), PackedConfig(threads=256, vectors=1), PackedConfig(vectors=4)),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    epilogues=True,
    absmax=True,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
    next_kernel=next_kernel,
    outdone=outdone,
)
