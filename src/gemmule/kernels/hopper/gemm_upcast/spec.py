"""Products of 8-bit floats by way of 16-bit floats, which hold them all: converted first, then another kernel."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, DType
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import MAP_ALIGNMENT, Launch, Param, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.spec import Config, Following, KernelSpec, Signature
from gemmule.kernels.hopper.gemm.spec import SPEC as PRODUCTION
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC as RAGGED_RESULT
from gemmule.kernels.hopper.repack_config import CopiedLines, VectorsConfig, copied_lines
from gemmule.kernels.ladder.h01_mma_sync.spec import SPEC as ANY_RESULT

#: Kernels that may multiply what was widened, best first; the last one takes every result, and predicts no times.
FOLLOWERS = (PRODUCTION, RAGGED_RESULT, ANY_RESULT)
_HOPPER, _MULTIPROCESSORS = Arch(9, 0, True), 132
#: Types that are widened, and those that they may become, bytes of an element.
NARROW, WIDE, _ITEM = (FLOAT8_E4M3, FLOAT8_E5M2), (FLOAT16, BFLOAT16), 2
#: Elements that widened pitches are a multiple of: 128 bytes, a line of the L2 cache.
_PITCH = 128 // _ITEM
_MAX_VECTORS = 2**31 - 1
_NONE = "none"


class WidenedConfig(VectorsConfig):
    """How the operands are widened, see `VectorsConfig`; vectors are of 16 bytes that are read."""


def _narrow(problem: GemmProblem) -> list[CopiedLines]:
    """Return the operands that are widened."""
    return [
        copied_lines(name, matrix, problem.batch)
        for name, matrix in (("a", problem.a), ("b", problem.b))
        if matrix.dtype in NARROW
    ]


def _wide(problem: GemmProblem) -> DType:
    """Return what is widened to: the type of the other operand, or what the kernels behind write the result from."""
    other = [matrix.dtype for matrix in (problem.a, problem.b) if matrix.dtype not in NARROW]
    return other[0] if other else BFLOAT16 if problem.d.dtype == BFLOAT16 else FLOAT16


def following(problem: GemmProblem, config: WidenedConfig) -> Following:
    """Return the product of the widened matrices, in the kernel and config that suit it."""
    del config
    return _following(problem)


# Selection, a plan and the launch ask for the same.
@functools.lru_cache(maxsize=256)
def _following(problem: GemmProblem) -> Following:
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
    then = problem.with_operands(problem.batch, widened)
    for spec in FOLLOWERS:
        if spec.refuses is not None and spec.refuses(then, _HOPPER):
            continue
        # Launches, which tell how many tiles there are, are asked for what a kernel takes alone.
        taken = [config for config in spec.configs if spec.why_not(then, _HOPPER, config) is None]
        if taken:
            return Following(spec, _best(spec, taken, then), then, operands, workspaces)
    reason = FOLLOWERS[-1].why_not(then, _HOPPER, FOLLOWERS[-1].default)
    raise ArgumentError(f"no kernel multiplies what is widened: {reason}")


def _best(spec: KernelSpec, configs: Sequence[Config], problem: GemmProblem) -> Config:
    """Return the best of a kernel's configs: by cost, or the largest tiles of which there are enough."""
    if spec.costs is not None:
        costs = spec.costs(problem, configs, _MULTIPROCESSORS)
        return configs[min(range(len(costs)), key=costs.__getitem__)]

    def few(config: Config) -> tuple[bool, int]:
        ctas = math.prod(spec.launch(problem, config).grid)
        return (False, -config.outputs) if ctas >= _MULTIPROCESSORS else (True, -ctas)

    return min(configs, key=few)


def why_not(problem: GemmProblem, arch: Arch, config: WidenedConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    if reason := refuses(inner, arch):
        return reason
    if sum(_ctas(found, config) for found in _narrow(inner)) * config.threads * config.vectors > _MAX_VECTORS:
        return f"there are more than {_MAX_VECTORS} vectors to widen, the most that the kernel's 32-bit indices take"
    return None


def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem of at most one batch dimension, or None where that depends on the config."""
    if arch.capability != (9, 0):
        return f"what is widened is multiplied by wgmma, an instruction of sm_90a; this GPU is {arch}"
    types = {problem.a.dtype, problem.b.dtype}
    if not types & set(NARROW) or not types <= {*NARROW, *WIDE}:
        return (
            f"A is {problem.a.dtype} and B is {problem.b.dtype}; this kernel takes {' and '.join(map(str, NARROW))}, "
            f"one of them with {' or '.join(map(str, WIDE))}"
        )
    for found in _narrow(problem):
        matrix = problem.operands()[found.operand]
        if not (matrix.is_row_major or matrix.is_col_major):
            return (
                f"{found.operand.upper()} has strides ({matrix.row_stride}, {matrix.col_stride}); this kernel takes "
                "row-major and column-major matrices"
            )
        if reason := found.why_not("widened"):
            return reason
    try:
        _following(problem)
    except ArgumentError as error:
        return str(error)
    return None


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


def cost(problem: GemmProblem, config: WidenedConfig, multiprocessors: int) -> float:
    """Return roughly the time in microseconds of widening and of the product."""
    return costs(problem, (config,), multiprocessors)[0]


def costs(problem: GemmProblem, configs: Sequence[WidenedConfig], multiprocessors: int) -> list[float]:
    """Return the times of many configs: the product is the same."""
    found = _following(problem)
    cost = found.spec.cost
    product = problem.flop / _RATE if cost is None else cost(found.problem, found.config, multiprocessors)
    moved = _MOVED * sum(found.workspaces.values()) / _BYTES

    def widening(config: WidenedConfig) -> float:
        ctas = sum(_ctas(one, config) * one.matrices for one in _narrow(problem))
        # Where few CTAs leave multiprocessors idle, fewer vectors for each of them are better.
        return moved * max(1.0, _ENOUGH * multiprocessors / max(ctas, 1)) if config.vectors > 1 else moved * 1.01

    return [product + _LAUNCH + widening(config) for config in configs]


SPEC = KernelSpec(
    name="hopper_gemm_upcast",
    operation="gemm",
    summary="8-bit floats, any layout, pitch and result: they become 16-bit floats first, for h09, h10 or h01",
    package=__package__,
    archs=(Arch(9, 0, True),),
    configs=(WidenedConfig(), WidenedConfig(threads=256, vectors=1)),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    epilogues=True,
    absmax=True,
    cost=cost,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
    following=following,
)
