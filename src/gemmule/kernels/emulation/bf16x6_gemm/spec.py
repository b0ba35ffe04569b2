"""float32 with precision='bf16x6': operands are split into three parts of bfloat16, then these are multiplied."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT32, Precision
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import MAP_ALIGNMENT, Launch, Param, TensorParam, Workspace
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes, inner_problem
from gemmule.core.signature import every_signature
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.emulation.bf16x6_config import PARTS, RUN, SLICE, SplitConfig
from gemmule.kernels.emulation.bf16x6_products.spec import PRECISIONS, batch_of
from gemmule.kernels.emulation.bf16x6_products.spec import SPEC as PRODUCTS
from gemmule.kernels.emulation.guard_words import SHORTFALL, SHORTFALL_WORDS, guarded_key, with_guarded, word_param
from gemmule.kernels.emulation.guarded_native.spec import guarded_native
from gemmule.kernels.hopper.next_kernel import NextProduct, Prepared, choose_next, why_no_next
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, refuse_types
from gemmule.kernels.simt.gemm.spec import SPEC as PLAIN

_MAX_RUNS = 2**31 - 1
NATIVE = guarded_native(PLAIN, "simt_guarded")


class _Split(NamedTuple):
    """A matrix as lines of contiguous elements, (length, lines, matrices), and its parts, (length, lines, 3, matrices).

    Parts are padded with zeros.
    """

    source: TensorParam
    parts: TensorParam

    @property
    def vectors(self) -> int:
        """Vectors of the result of each part."""
        return math.prod(self.parts.shape) // (PARTS * RUN)

    @property
    def nbytes(self) -> int:
        """Bytes of the parts."""
        return self.parts.strides[2] * self.parts.shape[3] * BFLOAT16.itemsize


def _rounded(extent: int, unit: int) -> int:
    return -(-extent // unit) * unit


def _split(operand: str, matrix: StridedMatrix, k_major: bool, batch: tuple[int, ...]) -> _Split:
    rows = matrix.has_contiguous_rows
    lines, length = (matrix.rows, matrix.cols) if rows else (matrix.cols, matrix.rows)
    step, matrices = (matrix.batch_strides or (0,))[0], (batch_of(matrix, batch) or (1,))[0]
    part = _rounded(length, SLICE)
    if k_major:
        # The parts of a line are one line.
        shape, strides = (part, lines), (PARTS * part, part, PARTS * part * lines)
    else:
        # A part is lines after those of the last, of whole 128 bytes; beyond the matrix TMA does not read them.
        shape = _rounded(length, RUN), _rounded(lines, SLICE)
        strides = (part, part * shape[1], PARTS * part * shape[1])
    ld = matrix.row_stride if rows else matrix.col_stride
    return _Split(
        TensorParam(operand, (length, lines, matrices), (ld, step)),
        TensorParam(f"parts of {operand}", (*shape, PARTS, matrices), strides),
    )


@cache_last_call
def _splits(problem: GemmProblem) -> tuple[_Split, _Split]:
    a, b, batch = problem.a, problem.b, problem.batch
    return _split("a", a, a.has_contiguous_rows, batch), _split("b", b, not b.has_contiguous_rows, batch)


def _parts(problem: GemmProblem) -> Prepared:
    """Return the product of the parts."""
    matrices = dict(problem.operands())
    operands = {name: name for name in matrices}
    k = PARTS * _rounded(problem.k, SLICE)
    for (source, parts), rows, cols in zip(_splits(problem), (problem.m, k), (k, problem.n), strict=True):
        name = source.operand
        strides = (parts.strides[0], 1) if matrices[name].has_contiguous_rows else (1, parts.strides[0])
        batch = (parts.strides[2] if source.strides[1] else 0,) if problem.batch else ()
        matrices[name] = StridedMatrix(BFLOAT16, rows, cols, *strides, batch, MAP_ALIGNMENT)
        operands[name] = parts.operand
    workspaces = {one.parts.operand: one.nbytes for one in _splits(problem)}
    return Prepared(dataclasses.replace(problem.with_operands(problem.batch, matrices), k=k), operands, workspaces)


_PRODUCT = NextProduct(_parts, (PRODUCTS,))


def next_kernel(problem: GemmProblem, config: SplitConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the product of the parts, in the config that suits it."""
    del config
    return _guarded(problem, gpu) if problem.precision is Precision.OZAKI else _PRODUCT.kernel(problem, gpu)


@functools.lru_cache(maxsize=256)
def _guarded(problem: GemmProblem, gpu: GpuRates) -> NextKernel:
    """Return the product of the parts, and the native kernel."""
    product = _PRODUCT.kernel(problem, gpu)
    spec, config, _ = choose_next(problem, (NATIVE,), gpu)
    return dataclasses.replace(product, then=NextKernel(spec, config, problem, {}, {}))


def why_not(problem: GemmProblem, arch: Arch, config: SplitConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    inner = inner_problem(problem, SPEC.batch_dims)
    if sum(found.vectors for found in _splits(inner)) + 2 * config.threads * config.runs > _MAX_RUNS:
        return f"A and B are more than {_MAX_RUNS} vectors of {RUN} elements, the most that the kernel's indices take"
    return None


def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem of at most one batch dimension, or None where that depends on the config."""
    guarded = problem.precision is Precision.OZAKI
    return (
        refuse_hopper(problem, arch)
        or _PRODUCT.why_not(problem)
        or (why_no_next(problem, (NATIVE,)) if guarded else None)
    )


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    if types.precision not in PRECISIONS:
        return f"precision is {types.precision.value!r}; this kernel is for 'bf16x6' and 'ozaki'"
    return refuse_types((FLOAT32,), types, arch)


def signature(problem: GemmProblem, config: SplitConfig) -> Signature:
    """Return that only the guard is specialised: lines are lines."""
    del config
    return (("element", FLOAT32.name), *guarded_key(problem.precision))


def launch(problem: GemmProblem, config: SplitConfig) -> Launch:
    """Return the launch recipe of the splitting: a thread for 8 contiguous elements, those of A first."""
    splits = _splits(problem)
    ctas = sum(-(-found.vectors // (config.threads * config.runs)) for found in splits)
    params: tuple[Param, ...] = tuple(param for found in splits for param in found)
    workspaces: tuple[Workspace, ...] = ()
    if problem.precision is Precision.OZAKI:
        params, workspaces = (*params, word_param(SHORTFALL)), (Workspace(SHORTFALL, 4 * SHORTFALL_WORDS, zeroed=True),)
    block = (config.threads, 1, 1)
    return Launch(grid=(ctas, 1, 1), block=block, params=params, overlaps=True, workspaces=workspaces)


#: Microseconds on an H200: a launch; and bytes that are read and written in one.
_LAUNCH, _BYTES = 1.8, 3.0e6


def times_us(problem: GemmProblem, gpu: GpuRates) -> tuple[float, float]:
    """Return roughly the microseconds of all launches where the product is emulated, and where the guard refuses it.

    Without a guard both are the same.
    """
    moved = sum(math.prod(one.source.shape) * FLOAT32.itemsize + one.nbytes for one in _splits(problem))
    split, skipped = gpu.launch * _LAUNCH + moved / min(_BYTES, gpu.memory), gpu.launch * _LAUNCH
    product = _PRODUCT.cost(problem, gpu)
    if problem.precision is not Precision.OZAKI:
        return split + product, split + product
    # CTAs of the launch that the guard makes needless return at once.
    return split + product + skipped, split + NATIVE.least_cost(problem, gpu) + skipped


def costs(problem: GemmProblem, configs: Sequence[SplitConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the time in microseconds of splitting and of the products, which is that of all configs."""
    emulated, _ = times_us(problem, gpu)
    return [emulated for _ in configs]


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel of plain float32, where splitting does not pay."""
    return PLAIN.name if PLAIN.least_cost(problem, gpu) < cost else None


SPEC = KernelSpec(
    name="bf16x6_gemm",
    operation="gemm",
    summary="float32 with precision='bf16x6' or 'ozaki', any leading dimensions: three bfloat16 parts, six GEMMs",
    package=__package__,
    archs=(HOPPER,),
    configs=(SplitConfig(),),
    signatures=with_guarded(every_signature(element=[FLOAT32])),
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    next_kernel=next_kernel,
    faster_alternative=faster_alternative,
)
