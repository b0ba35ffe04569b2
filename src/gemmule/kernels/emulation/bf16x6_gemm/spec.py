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
from gemmule.core.row_major import row_result
from gemmule.core.signature import adds_key, every_signature, major_keys, majors_of
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.emulation.bf16x6_config import ASIDE, PARTS, RUN, SLICE, SixProductsConfig, SplitConfig
from gemmule.kernels.emulation.guard_steps import DECISION, guarded_native
from gemmule.kernels.emulation.guard_words import (
    DECISION_WORD,
    SHORTFALL,
    guard_params,
    guarded_key,
    with_guarded,
    word_param,
)
from gemmule.kernels.hopper.next_kernel import NextProduct, Prepared, choose_next, why_no_next
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, refuse_no_config, refuse_types
from gemmule.kernels.hopper.tile_config import THREADS
from gemmule.kernels.hopper.tma_tiles import operand_params, row_params, scale_params, why_not_tma
from gemmule.kernels.parts.batched_launch import tile_grid
from gemmule.kernels.simt.gemm.spec import SPEC as PLAIN

_MAX_RUNS = 2**31 - 1
#: Precisions that allow it.
PRECISIONS = (Precision.BF16X6, Precision.OZAKI)
NATIVE = guarded_native(PLAIN, "simt_guarded")


def _why_not_products(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where all do.

    Its A (M, K) and B (K, N) hold three parts of K / 3 columns or rows, one after the other.
    """
    if (problem.a.dtype, problem.b.dtype) != (BFLOAT16, BFLOAT16) or problem.precision not in PRECISIONS:
        return f"A is {problem.a.dtype} and B {problem.b.dtype}; this kernel takes the parts that bf16x6_gemm makes"
    if problem.k % (PARTS * SLICE):
        return f"K={problem.k} is not {PARTS} parts of whole k-tiles of {SLICE}"
    for name, matrix in problem.operands().items():
        if name in "cd" and matrix.dtype != FLOAT32:
            return f"{name.upper()} is {matrix.dtype}; this kernel writes float32 and adds it"
    inner = inner_problem(problem, PRODUCTS.batch_dims)
    for name, matrix in (("a", inner.a), ("b", inner.b)):
        if reason := why_not_tma(name, matrix, _batch_of(matrix, inner.batch)):
            return reason
    return refuse_hopper(problem, arch)


def _batch_of(matrix: StridedMatrix, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Return the batch of an operand: 1 where one matrix is for all of the batch; it is split once."""
    return batch if any(matrix.batch_strides) else (1,) * len(batch)


def _products_signature(problem: GemmProblem, config: SixProductsConfig) -> Signature:
    """Specialise for the direction in which A and B are contiguous, and whether there is a C."""
    del config
    oriented, _, _ = row_result(problem)
    return (*major_keys(*majors_of(oriented)), *adds_key(problem.c is not None), *guarded_key(problem.precision))


def _products_launch(problem: GemmProblem, config: SixProductsConfig) -> Launch:
    """Return the launch recipe: as many CTAs as share the tiles, maps of the parts, and C and D as they lie."""
    problem, first, second = row_result(problem)
    batch = problem.batch or (1,)
    # The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
    a, b = problem.a, problem.b.transposed()
    params: tuple[Param, ...] = (
        *operand_params(first, a, _batch_of(a, batch), config.tile_m),
        *operand_params(second, b, _batch_of(b, batch), config.tile_n),
        *row_params(problem, batch),
        *scale_params(problem),
    )
    ctas = min(tile_grid(problem, config.tile_m, config.tile_n)[0], config.ctas)
    workspaces: tuple[Workspace, ...] = ()
    if problem.k > PARTS * SLICE * ASIDE:
        workspaces = (Workspace("long sums", ctas * config.tile_elements * FLOAT32.itemsize),)
    # For a short K nothing is stored there, and any address will do.
    aside = ("long sums", ctas * config.tile_elements) if workspaces else ("d", 0)
    return Launch(
        grid=(ctas, 1, 1),
        block=(THREADS, 1, 1),
        shared_bytes=config.shared_bytes,
        params=(*params, TensorParam(aside[0], (aside[1],), ()), *guard_params(problem.precision)),
        overlaps=True,
        workspaces=workspaces,
    )


#: Microseconds on an H200: a launch; writing 128 x 128; and six products of a k-tile by columns of the tile.
_PRODUCTS_LAUNCH, _WRITE = 1.9, 1.0
_K_TILE = {192: 2.94, 128: 1.98, 64: 1.04}


def _products_costs(problem: GemmProblem, configs: Sequence[SixProductsConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: tiles that an SM computes one after another."""
    problem, _, _ = row_result(problem)
    k_tiles = problem.k // (PARTS * SLICE)
    found = []
    for config in configs:
        tiles, _, _ = tile_grid(problem, config.tile_m, config.tile_n)
        waves = -(-tiles // min(gpu.multiprocessors, config.ctas))
        written = _WRITE * config.tile_n / 128 * (1 if problem.c is None else 2)
        each = gpu.multiply * k_tiles * _K_TILE[config.tile_n] + gpu.load * written
        found.append(gpu.launch * _PRODUCTS_LAUNCH + waves * each)
    return found


PRODUCTS = KernelSpec(
    name="bf16x6_products",
    operation="gemm",
    summary="three parts of float32 in bfloat16 each, six of their products: wgmma, TMA, "
    "accumulators rounded every 32 of K",
    package="gemmule.kernels.emulation.bf16x6_products",
    archs=(HOPPER,),
    configs=(
        SixProductsConfig(),
        SixProductsConfig(tile_n=128, stages=6),
        SixProductsConfig(tile_n=64, stages=9),
    ),
    signatures=with_guarded(every_signature(a_major="km", b_major="nk", adds=("no", "yes"))),
    why_not=refuse_no_config,
    signature=_products_signature,
    launch=_products_launch,
    refuses=_why_not_products,
    costs=_products_costs,
    cost_in_us=True,
)


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
    step, matrices = (matrix.batch_strides or (0,))[0], (_batch_of(matrix, batch) or (1,))[0]
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
    """Return the decision, the product of the parts, and the native kernel."""
    product = _PRODUCT.kernel(problem, gpu)
    spec, config, _ = choose_next(problem, (NATIVE,), gpu)
    product = dataclasses.replace(product, then=NextKernel(spec, config, problem, {}, {}))
    workspaces = {**product.workspaces, DECISION_WORD: 4}
    return NextKernel(DECISION, DECISION.default, problem, {}, workspaces, then=product)


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
        params, workspaces = (*params, word_param(SHORTFALL)), (Workspace(SHORTFALL, 4, zeroed=True),)
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
    # The decision; CTAs of the launch that it makes needless return at once.
    return split + product + 2 * skipped, split + NATIVE.least_cost(problem, gpu) + 2 * skipped


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
    configs=(SplitConfig(), SplitConfig(runs=2), SplitConfig(threads=128), SplitConfig(threads=128, runs=2)),
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
