"""float32 with precision='bf16x6': operands are split into three parts of bfloat16, then these are multiplied."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT32, Precision
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import MAP_ALIGNMENT, Launch, Param, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.spec import Buildable, KernelSpec, NextKernel, Signature
from gemmule.kernels.emulation.bf16x6_products.config import PARTS, SLICE
from gemmule.kernels.emulation.bf16x6_products.spec import SPEC as PRODUCTS
from gemmule.kernels.hopper.next_kernel import Prepared, choose_next, why_no_next
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper
from gemmule.kernels.ladder.g07_cp_async.spec import SPEC as PLAIN

from .config import RUN, SplitConfig

_MAX_RUNS = 2**31 - 1
_SIGNATURE: Signature = (("element", FLOAT32.name),)


@dataclasses.dataclass(frozen=True)
class _Split:
    """A matrix as the kernel sees it, lines of neighbours, and the lines of its parts.

    Attributes
    ----------
    operand : str
        Its name.
    length, lines, matrices : int
        Elements of a line, lines of a matrix, and matrices.
    pitch, step : int
        Elements from one line, and one matrix, to the next.
    part_length, part_lines : int
        Elements and lines of a part that are written, zeros beyond the matrix.
    part_strides : tuple of int
        Elements from a line, a part and a matrix of the parts to the next.
    along_k : bool
        Whether lines go along K: then the parts of a line are one line. Else a part is lines behind those of the last.
    """

    operand: str
    length: int
    lines: int
    matrices: int
    pitch: int
    step: int
    part_length: int
    part_lines: int
    part_strides: tuple[int, int, int]
    along_k: bool

    @property
    def runs(self) -> int:
        """What threads are needed for."""
        return self.part_length // RUN * self.part_lines * self.matrices

    @property
    def nbytes(self) -> int:
        """Bytes of the parts."""
        return self.part_strides[2] * self.matrices * BFLOAT16.itemsize


def _rounded(extent: int, unit: int) -> int:
    return -(-extent // unit) * unit


def _split(operand: str, matrix: StridedMatrix, along_k: bool, batch: tuple[int, ...]) -> _Split:
    rows = matrix.lies_in_rows
    lines, length = (matrix.rows, matrix.cols) if rows else (matrix.cols, matrix.rows)
    pitch = matrix.row_stride if rows else matrix.col_stride
    step = (matrix.batch_strides or (0,))[0]
    # One matrix for all of the batch is split once.
    matrices = (batch or (1,))[0] if step else 1
    if along_k:
        part = _rounded(length, SLICE)
        sizes = (part, lines, (PARTS * part, part, PARTS * part * lines))
    else:
        # Lines of whole 128 bytes; beyond the matrix TMA does not read them.
        line, part = _rounded(length, SLICE), _rounded(lines, SLICE)
        sizes = (_rounded(length, RUN), part, (line, line * part, PARTS * line * part))
    return _Split(operand, length, lines, matrices, pitch, step, *sizes, along_k)


def _splits(problem: GemmProblem) -> tuple[_Split, _Split]:
    a, b = problem.a, problem.b
    return (
        _split("a", a, a.lies_in_rows, problem.batch),
        _split("b", b, not b.lies_in_rows, problem.batch),
    )


@cache_last_call
def _parts(problem: GemmProblem) -> Prepared:
    """Return the product of the parts."""
    parts = dict(problem.operands())
    splits = _splits(problem)
    k = PARTS * _rounded(problem.k, SLICE)
    for found, rows, cols in zip(splits, (problem.m, k), (k, problem.n), strict=True):
        line, _, step = found.part_strides
        strides = (line, 1) if parts[found.operand].lies_in_rows else (1, line)
        batch = (step if found.step else 0,) if problem.batch else ()
        parts[found.operand] = StridedMatrix(BFLOAT16, rows, cols, *strides, batch, MAP_ALIGNMENT)
    then = dataclasses.replace(problem.with_operands(problem.batch, parts), k=k)
    operands = {name: name for name in parts} | {found.operand: f"parts of {found.operand}" for found in splits}
    return Prepared(then, operands, {f"parts of {found.operand}": found.nbytes for found in splits})


def next_kernel(problem: GemmProblem, config: SplitConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the product of the parts, in the config that suits it."""
    del config
    return _product(problem, gpu)[0]


# A choice needs it several times in a row; a plan and the launch need that of an equal problem later.
@cache_last_call
@functools.lru_cache(maxsize=256)
def _product(problem: GemmProblem, gpu: GpuRates) -> tuple[NextKernel, float]:
    """Return the product of the parts, and the microseconds that it is expected to take."""
    product = _parts(problem)
    spec, config, cost = choose_next(product.problem, (PRODUCTS,), gpu)
    assert cost is not None
    return NextKernel(spec, config, *product), cost


def why_not(problem: GemmProblem, arch: Arch, config: SplitConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    if sum(found.runs for found in _splits(inner)) + 2 * config.threads * config.runs > _MAX_RUNS:
        return f"A and B are more than {_MAX_RUNS} vectors of {RUN} elements, the most that the kernel's indices take"
    return None


def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem of at most one batch dimension, or None where that depends on the config."""
    if problem.precision is not Precision.BF16X6:
        return f"precision is {problem.precision.value!r}; this kernel is for 'bf16x6'"
    if reason := refuse_hopper(problem, arch, dtypes=(FLOAT32,)):
        return reason
    return why_no_next(_parts(problem).problem, (PRODUCTS,))


def signature(problem: GemmProblem, config: SplitConfig) -> Signature:
    """Return that nothing is specialised: lines are lines."""
    del problem, config
    return _SIGNATURE


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return the only one."""
    del arch
    return (_SIGNATURE,)


def launch(problem: GemmProblem, config: SplitConfig) -> Launch:
    """Return the launch recipe of the splitting: a thread for 8 neighbours, those of A first."""
    params: list[Param] = []
    ctas = 0
    for found in _splits(problem):
        source = (found.length, found.lines, found.matrices)
        params.append(TensorParam(found.operand, source, (found.pitch, found.step)))
        target = (found.part_length, found.part_lines, PARTS, found.matrices)
        params.append(TensorParam(f"parts of {found.operand}", target, found.part_strides))
        ctas += -(-found.runs // (config.threads * config.runs))
    return Launch(grid=(ctas, 1, 1), block=(config.threads, 1, 1), params=tuple(params), overlaps=True)


#: Microseconds on an H200: a launch; and bytes that are read and written in one.
_LAUNCH, _BYTES = 1.8, 3.0e6
#: What the float32 kernel takes of what it says, on products that fill the chip and on others.
_PLAIN_SHARE = 0.85


def costs(problem: GemmProblem, configs: Sequence[SplitConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the time in microseconds of splitting and of the products, which is that of all configs."""
    _, product = _product(problem, gpu)
    moved = sum(one.length * one.lines * one.matrices * FLOAT32.itemsize + one.nbytes for one in _splits(problem))
    return [gpu.launch * _LAUNCH + moved / min(_BYTES, gpu.memory) + product for _ in configs]


def outdone(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel of plain float32, where splitting does not pay."""
    assert PLAIN.cost is not None
    nanoseconds = min(PLAIN.cost(problem, config, gpu) for config in PLAIN.configs)
    return PLAIN.name if _PLAIN_SHARE * nanoseconds / 1e3 < cost else None


def build(config: SplitConfig, signature: Signature) -> Buildable:
    """Return the kernel and its stand-in arguments."""
    from .kernel import buildable

    del signature
    return buildable(config)


SPEC = KernelSpec(
    name="bf16x6_gemm",
    operation="gemm",
    summary="float32 with precision='bf16x6', any pitches: three parts of bfloat16 each, six products by wgmma",
    package=__package__,
    archs=(HOPPER,),
    configs=(SplitConfig(), SplitConfig(runs=2), SplitConfig(threads=128), SplitConfig(threads=128, runs=2)),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    build=build,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
    next_kernel=next_kernel,
    outdone=outdone,
)
