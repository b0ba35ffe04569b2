"""Transposes of whole matrices in shared memory: their limits and launch recipe."""

from __future__ import annotations

import math

from gemmule.core.arch import Arch
from gemmule.core.dtype import INT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, ScalarParam, TensorParam
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import VECTOR_BYTES
from gemmule.kernels.parts.hopper_facts import SMS
from gemmule.kernels.transpose.blocks.spec import blocks_take_less, faster_tiles, refuse_blocks, signed
from gemmule.kernels.transpose.merged.spec import merged_axes_take_less
from gemmule.kernels.transpose.refusals import rows_are_aligned, why_not_contiguous, why_not_itemsize
from gemmule.kernels.transpose.spec import transpose_spec
from gemmule.kernels.transpose.tile_config import LINE, WARP, packed_rows
from gemmule.kernels.transpose.whole_matrices.config import WholeMatricesConfig
from gemmule.kernels.transpose.word_blocks.spec import words_take_less

_ITEMSIZES = (1, 2)
# Elements of the shortest rows of a target: of shorter ones a warp's words are of many rows.
_MIN_ROW = 32
# Bytes of both tensors from which on elements of 2 bytes were measured to be faster than in blocks.
_LARGE = 40_000_000
# Lanes of a warp that may read words of one bank, by the bytes of an element.
_MEETING = {1: 2, 2: 1}
# Microseconds of an H200, fitted to 86 times of 32 batches to 10 % root mean square: of a launch, of a round of CTAs,
# and of a byte that is read or written; of an SM for a warp's word of the target, for each read of shared memory, and
# for a warp's elements that are stored again.
_LAUNCH, _ROUND, _BYTE = 2.15, 1.04, 0.253e-6
_A_WORD, _READ, _AGAIN = 3.81e-3, 0.212e-3, 12.8e-3

# Share of the time of whole matrices below which tiles are chosen.
_TILES = 0.96


def refuse_whole_matrices(problem: TransposeProblem) -> str | None:
    """Return why no whole matrices can be moved, or None where that depends on the config."""
    if reason := why_not_itemsize(problem, _ITEMSIZES) or why_not_contiguous(problem):
        return reason
    rows, cols, source, target = problem.rows, problem.cols, problem.source, problem.target
    if cols < _MIN_ROW or rows < 2:
        return f"matrices of {cols} rows of {rows} elements; from {_MIN_ROW} rows of 2 on they are faster whole"
    strides = *source.batch_strides, *target.batch_strides
    gaps = source.col_stride != rows or target.row_stride != cols
    if gaps or len(problem.batch) > 1 or any(stride != rows * cols for stride in strides):
        return "rows or matrices have gaps between them"
    if source.alignment % VECTOR_BYTES:
        return f"the source's memory does not begin at a multiple of {VECTOR_BYTES} bytes"
    if rows_are_aligned(problem):
        return f"every row is aligned to {VECTOR_BYTES} bytes: whole vectors are faster"
    if (lanes := math.gcd(rows, WARP)) > _MEETING[problem.itemsize]:
        return f"rows of {rows} elements: {lanes} lanes of a warp meet in a bank"
    return None


def _cost(problem: TransposeProblem, config: WholeMatricesConfig, gpu: GpuRates) -> float:
    """Return about the microseconds that whole matrices take: their bytes, or what CTAs wait for and issue."""
    if not (matrices := config.matrices(problem)):
        return math.inf
    rows, cols, pack = problem.rows, problem.cols, packed_rows(problem.itemsize)
    ctas, _, _ = config.grid(problem)
    # Words of a bank that a warp reads: of lanes, or of the rows that it has words of.
    meeting = max(math.gcd(rows, WARP), min(1 + LINE / problem.itemsize / cols, 2.0))
    of_cta = matrices * rows / WARP * (cols / pack * (_A_WORD + _READ * pack * meeting) + (pack - 1) * _AGAIN)
    rounds = -(-ctas // (gpu.multiprocessors * config.at_once(problem)))
    waited = max(rounds * _ROUND, -(-ctas // gpu.multiprocessors) * of_cta)
    moved = _BYTE * problem.bytes_min * SMS / gpu.multiprocessors
    return _LAUNCH + math.cbrt(moved**3 + waited**3)


def _faster_alternative(problem: TransposeProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return a kernel that is predicted to be faster, or None."""
    is_small = problem.itemsize == 2 and problem.bytes_min < _LARGE
    if is_small and refuse_blocks(problem) is None:
        return "transpose_blocks"
    if words_take_less(problem, cost, gpu):
        return "transpose_word_blocks"
    if blocks_take_less(problem, cost, gpu):
        return "transpose_blocks"
    if merged_axes_take_less(problem, cost, gpu):
        return "transpose_merged"
    return faster_tiles(problem, _TILES * cost, gpu)


def _launch(problem: TransposeProblem, config: WholeMatricesConfig) -> Launch:
    rows, cols, count = problem.rows, problem.cols, math.prod(problem.batch)
    again = rows * (packed_rows(problem.itemsize) - 1)
    divisors = (signed(-(-(1 << 32) // one)) for one in (rows, cols, again))
    scalars = rows, cols, *divisors, config.matrices(problem), config.pitch(problem)
    return Launch(
        grid=config.grid(problem),
        block=(config.threads, 1, 1),
        shared_bytes=config.matrices_shared_bytes(problem),
        params=(
            TensorParam("a", (count,), (rows * cols,)),
            TensorParam("d", (count,), (rows * cols,)),
            *(ScalarParam(f"number{number}", INT32, one) for number, one in enumerate(scalars)),
        ),
        overlaps=True,
    )


SPEC = transpose_spec(
    name="transpose_whole_matrices",
    summary="batches of small matrices of 1- and 2-byte elements, unaligned rows: contiguous reads and writes",
    package=__package__,
    configs=(WholeMatricesConfig(), WholeMatricesConfig(512, 4), WholeMatricesConfig(512, 2)),
    archs=(Arch(9, 0, True), Arch(10, 0, True)),
    itemsizes=_ITEMSIZES,
    refuses=refuse_whole_matrices,
    launch=_launch,
    cost=_cost,
    cost_in_us=True,
    faster_alternative=_faster_alternative,
)
