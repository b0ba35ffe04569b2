"""grouped_gemv, rows that name their matrices: its limits, launch recipe and cost."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType
from gemmule.core.epilogue import SECOND
from gemmule.core.epilogue_inputs import epilogue_params, epilogue_signature
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.grouped_problem import GroupedProblem
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import MAP_ALIGNMENT, Launch, Param, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.row_major import why_not_grid
from gemmule.core.signature import type_keys
from gemmule.core.spec import KernelSpec, Signature

from .config import LINE_BYTES, MMA_COLUMNS, GemvConfig

DTYPES = (FLOAT16, BFLOAT16)
#: Bytes of K that 32-bit numbers count, with what the warps of a CTA load at once.
_MOST_BYTES = 1 << 30


def why_not(problem: GroupedProblem, arch: Arch, config: GemvConfig) -> str | None:
    """Say why a config does not take `problem`, or None where it does."""
    del arch
    if problem.num_b > 1 and config.tile_n % (2 * MMA_COLUMNS):
        return (
            f"config {config}: a gated epilogue needs columns of both B; tile_n must be a multiple of {2 * MMA_COLUMNS}"
        )
    return why_not_grid(_grid(problem, config))


@cache_last_call
def refuses(problem: GroupedProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    del arch
    a, b, d = problem.a, problem.b, problem.d
    if problem.axis != "row":
        return "offsets divide a dimension; this kernel takes rows that name their matrices (matrices=)"
    if a.dtype not in DTYPES or b.dtype != a.dtype:
        return f"A is {a.dtype} and B is {b.dtype}; this kernel takes both as float16 or both as bfloat16"
    if d.dtype not in (a.dtype, FLOAT32):
        return f"the output is {d.dtype}; from {a.dtype} this kernel makes {a.dtype} and float32"
    if not all((problem.m, problem.n, problem.k, problem.groups)):
        return "there is nothing to multiply: an extent or the number of matrices is 0"
    if problem.epilogue is not None and problem.epilogue.matrices:
        return "each row has a matrix of its own; inputs of an epilogue are for groups of rows"
    second = None if problem.epilogue is None else problem.epilogue.second
    for name, matrix in (("a", a), ("b", b.transposed()), ("b", None if second is None else second.transposed())):
        if matrix is not None and (reason := _why_not_lines(name, matrix)):
            return reason
    if not d.is_row_major:
        return "D is not row-major; pass an output whose last dimension is contiguous"
    if problem.k * a.dtype.itemsize >= _MOST_BYTES:
        return f"K is {problem.k}: lines of {_MOST_BYTES} bytes and more are not counted by 32-bit numbers"
    return None


def _why_not_lines(name: str, matrix: StridedMatrix) -> str | None:
    item = matrix.dtype.itemsize
    if not matrix.is_row_major or matrix.cols * item % MAP_ALIGNMENT:
        return f"{name.upper()} has no contiguous lines of whole {MAP_ALIGNMENT} bytes along K"
    strides = (*((matrix.row_stride,) if matrix.rows > 1 else ()), *matrix.batch_strides)
    if matrix.alignment % MAP_ALIGNMENT or any(stride * item % MAP_ALIGNMENT for stride in strides):
        return f"lines of {name.upper()} do not begin at multiples of {MAP_ALIGNMENT} bytes"
    return None


def _grid(problem: GroupedProblem, config: GemvConfig) -> tuple[int, int, int]:
    return problem.m, -(-problem.n * problem.num_b // config.tile_n), 1


def signature(problem: GroupedProblem, config: GemvConfig) -> Signature:
    """Specialise for the types and the epilogue."""
    del config
    return (*_signature(problem.a.dtype, problem.d.dtype), *epilogue_signature(problem.epilogue))


def _signature(element: DType, out: DType) -> Signature:
    return (*type_keys(element, element, out), ("axis", "row"))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return each type, and a wider result."""
    del arch
    return _signature(BFLOAT16, BFLOAT16), _signature(FLOAT16, FLOAT32)


def launch(problem: GroupedProblem, config: GemvConfig) -> Launch:
    """Return the launch recipe: a CTA for each tile of columns of each row."""
    params: tuple[Param, ...] = (
        _param("a", problem.a, (1,)),
        _param("b", problem.b.transposed(), (problem.groups,)),
        _param("d", problem.d, (1,)),
        TensorParam(problem.divider, (problem.m,), ()),
        *epilogue_params(problem.epilogue, 1, FLOAT32),
    )
    if problem.epilogue is not None and problem.epilogue.second is not None:
        params += (_param(SECOND, problem.epilogue.second.transposed(), (problem.groups,)),)
    return Launch(
        grid=_grid(problem, config),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes,
        params=params,
        overlaps=True,
    )


def _param(operand: str, matrix: StridedMatrix, batch: tuple[int, ...]) -> TensorParam:
    strides = (matrix.row_stride, *(matrix.batch_strides or (0,)))
    return TensorParam(operand, (matrix.rows, matrix.cols, *batch), strides)


#: Fitted to the layers of two mixtures on an H200: microseconds of a launch, bytes a microsecond from memory; the share
#: of the time by which each round of loads after so many waits, for one piece in flight; microseconds by which deep
#: loads are too deep for short lines.
_LAUNCH, _MEMORY, _ROUND, _HIDDEN, _TOO_DEEP, _DEEP = 2.1, 4.27e6, 0.031, 2, 1.07, 4


def costs(problem: GroupedProblem, configs: Sequence[GemvConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: those of reading each row's matrix."""
    line = problem.k * problem.b.dtype.itemsize
    read = problem.m * problem.n * problem.num_b * line / gpu.memory_rate(_MEMORY)

    def time(config: GemvConfig) -> float:
        rounds = line / (LINE_BYTES * config.warps * config.unroll)
        waits = _ROUND * max(rounds - _HIDDEN, 0.0) / config.unroll**2
        short = _TOO_DEEP * gpu.load if config.unroll >= _DEEP and rounds < _HIDDEN else 0.0
        return _LAUNCH * gpu.launch + read * (1 + waits) + short

    return [time(config) for config in configs]


SPEC = KernelSpec(
    name="grouped_gemv",
    operation="grouped",
    summary="float16 and bfloat16 rows, each times the matrix of its index: mma.sync fed from device memory",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    # The third one is for gated epilogues, of 16 columns of each B.
    configs=(GemvConfig(), GemvConfig(unroll=4), GemvConfig(tile_n=32)),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
)
