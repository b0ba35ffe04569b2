"""8-bit floats converted to 16-bit floats, which hold them all, before another kernel multiplies them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, DType
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
from gemmule.kernels.ladder.h01_mma_sync.spec import SPEC as MMA_SYNC

from .config import WidenedConfig

#: Kernels that may multiply converted operands, best first; the last one takes every result, and predicts no times.
NEXT_KERNELS = (GEMM, GEMM_UNALIGNED, MMA_SYNC)
#: Types that are converted, those that they may become, and bytes of an element of these.
NARROW, WIDE, _ITEM = (FLOAT8_E4M3, FLOAT8_E5M2), (FLOAT16, BFLOAT16), 2
#: Elements that leading dimensions of converted matrices are a multiple of.
_PITCH = REPACKED_BYTES // _ITEM
_MAX_VECTORS = 2**31 - 1
_NONE = "none"


@cache_last_call
def _narrow(problem: GemmProblem) -> list[CopiedLines]:
    """Return the operands that are converted."""
    return [
        copied_lines(name, matrix, problem.batch)
        for name, matrix in (("a", problem.a), ("b", problem.b))
        if matrix.dtype in NARROW
    ]


def _wide(problem: GemmProblem) -> DType:
    """Return what is widened to: the type of the other operand, or what the kernels behind write the result from."""
    other = [matrix.dtype for matrix in (problem.a, problem.b) if matrix.dtype not in NARROW]
    return other[0] if other else BFLOAT16 if problem.d.dtype == BFLOAT16 else FLOAT16


@cache_last_call
def _converted(problem: GemmProblem) -> Prepared:
    """Return the product of the converted matrices."""
    wide = _wide(problem)
    widened, operands, workspaces = dict(problem.operands()), {name: name for name in problem.operands()}, {}
    for found in _narrow(problem):
        matrix, name = widened[found.operand], f"wide {found.operand}"
        pitch = found.padded(_PITCH)
        strides = (pitch, 1) if found.rows else (1, pitch)
        step = pitch * found.lines
        widened[found.operand] = StridedMatrix(
            wide, matrix.rows, matrix.cols, *strides, (step,) if problem.batch else (), MAP_ALIGNMENT
        )
        operands[found.operand] = name
        workspaces[name] = step * found.matrices * _ITEM
    return Prepared(problem.with_operands(problem.batch, widened), operands, workspaces)


def next_kernel(problem: GemmProblem, config: WidenedConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the product of the converted matrices, in the kernel and config that suit it."""
    del config
    return _product(problem, gpu)[0]


# A choice needs it several times in a row; a plan and the launch need that of an equal problem later.
@cache_last_call
@functools.lru_cache(maxsize=256)
def _product(problem: GemmProblem, gpu: GpuRates) -> tuple[NextKernel, float]:
    """Return the product of the converted matrices, and the microseconds that it is expected to take."""
    product = _converted(problem)
    spec, config, cost = choose_next(product.problem, NEXT_KERNELS, gpu)
    return NextKernel(spec, config, *product), problem.flop / _RATE if cost is None else cost


def why_not(problem: GemmProblem, arch: Arch, config: WidenedConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    if sum(_ctas(found, config) for found in _narrow(inner)) * config.threads * config.vectors > _MAX_VECTORS:
        return f"there are more than {_MAX_VECTORS} vectors to convert, the most that the kernel's 32-bit indices take"
    return None


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem of at most one batch dimension, or None where that depends on the config."""
    types = {problem.a.dtype, problem.b.dtype}
    if not types & set(NARROW) or not types <= {*NARROW, *WIDE}:
        return (
            f"A is {problem.a.dtype} and B is {problem.b.dtype}; this kernel takes {' and '.join(map(str, NARROW))}, "
            f"one of them with {' or '.join(map(str, WIDE))}"
        )
    if reason := refuse_hopper(problem, arch, [found.operand for found in _narrow(problem)], takes_empty=True):
        return reason
    for found in _narrow(problem):
        if reason := found.why_not("converted"):
            return reason
    return why_no_next(_converted(problem).problem, NEXT_KERNELS)


def _ctas(found: CopiedLines, config: WidenedConfig) -> int:
    vectors = -(-found.length // MAP_ALIGNMENT) * found.lines
    return -(-vectors // (config.threads * config.vectors))


def signature(problem: GemmProblem, config: WidenedConfig) -> Signature:
    """Specialise for the types of what is widened, and for what it becomes."""
    del config
    return _signature([problem.operands()[found.operand].dtype for found in _narrow(problem)], _wide(problem))


def _signature(types: Sequence[DType], wide: DType) -> Signature:
    first, second = (*(dtype.name for dtype in types), _NONE)[:2]
    return (("element", first), ("second", second), ("wide", wide.name))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return both types, to float16."""
    del arch
    return tuple(_signature((dtype, dtype), FLOAT16) for dtype in NARROW)


def launch(problem: GemmProblem, config: WidenedConfig) -> Launch:
    """Return the launch recipe of the widening: one CTA for so many vectors of an operand, operands side by side."""
    narrow = _narrow(problem)
    params: list[Param] = []
    for found in narrow:
        extents = (found.length, found.lines, found.matrices)
        params.append(TensorParam(found.operand, extents, (found.pitch, found.step)))
        pitch = found.padded(_PITCH)
        params.append(TensorParam(f"wide {found.operand}", extents, (pitch, pitch * found.lines)))
    ctas = sum(_ctas(found, config) for found in narrow)
    matrices = narrow[0].matrices if narrow else 1
    return Launch(grid=(ctas, 1, matrices), block=(config.threads, 1, 1), params=tuple(params), overlaps=True)


#: Microseconds of the second launch, and bytes that are read and written in one: as h11 was measured on an H200.
_LAUNCH, _BYTES = 1.8, 3.3e6
#: Operations in one by the kernel that predicts no times: roughly, from what it was beside cuBLAS, see h11's page.
_RATE = 2e8
#: Bytes that are moved for two that are written, and CTAs of many vectors for each of the multiprocessors, at least.
_MOVED, _ENOUGH = 1.5, 4


def costs(problem: GemmProblem, configs: Sequence[WidenedConfig], gpu: GpuRates) -> list[float]:
    """Return the times of many configs: the product is the same."""
    found, product = _product(problem, gpu)
    moved = gpu.moved_us(_MOVED * sum(found.workspaces.values()), _BYTES)

    def widening(config: WidenedConfig) -> float:
        ctas = sum(_ctas(one, config) * one.matrices for one in _narrow(problem))
        # Where few CTAs leave multiprocessors idle, fewer vectors for each of them are better.
        return moved * max(1.0, _ENOUGH * gpu.multiprocessors / max(ctas, 1)) if config.vectors > 1 else moved * 1.01

    return [product + _LAUNCH * gpu.launch + widening(config) for config in configs]


SPEC = KernelSpec(
    name="hopper_gemm_upcast",
    operation="gemm",
    summary="8-bit floats, any layout, pitch and result: they become 16-bit floats first, for h09, h10 or h01",
    package=__package__,
    archs=(HOPPER,),
    configs=(WidenedConfig(), WidenedConfig(threads=256, vectors=1)),
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
)
