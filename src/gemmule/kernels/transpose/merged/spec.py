"""Permutations in tiles of merged axes: their limits, and launch recipe."""

from __future__ import annotations

import math

from gemmule.core.dtype import INT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, ScalarParam, TensorParam
from gemmule.core.problem import TransposeProblem
from gemmule.kernels.parts.hopper_facts import SMS
from gemmule.kernels.transpose.blocks.block import AXES, Axis, axes_of
from gemmule.kernels.transpose.blocks.spec import blocks_take_less, divisor_of, faster_tiles, filled
from gemmule.kernels.transpose.merged.config import LEVELS, MergedConfig, merged_of
from gemmule.kernels.transpose.refusals import ITEMSIZES, why_not_contiguous, why_not_itemsize
from gemmule.kernels.transpose.small_batches import is_small_batch
from gemmule.kernels.transpose.spec import transpose_spec
from gemmule.kernels.transpose.tile_config import LINE, WARP, WORD, packed_rows
from gemmule.kernels.transpose.word_blocks.spec import words_take_less

# Microseconds of an H200, fitted to 370 times of 150 permutations: of a launch, of a byte that is read or written; of a
# round of CTAs, of a warp's word in it, and of an SM for each of those that have elements, by the bytes of one.
_LAUNCH, _BYTE = 0.788, 0.24e-6
_ROUND, _LATENCY = 0.65, 0.0405
_A_WORD = {1: 4.55e-3, 2: 5.41e-3, 4: 4.08e-3, 8: 8.06e-3, 16: 8.33e-3}
# Factor on times of tiles that do not write whole lines, to break ties.
_OF_SHORT = 1.05
# Threads of CTAs that take longer than predicted, and a factor, by the bytes of an element.
_MANY, _OF_MANY = 512, {1: 1.12, 2: 1.08}
# Factor on the time of small batches of 1-byte elements: of rows that are no part of longer ones the ends are many.
_OF_SMALL = 1.25
# Share of the time of merged axes below which blocks are chosen, and of large tensors of few axes with short rows, of
# which blocks read parts of lines that the L2 cache no longer has for the next ones; axes, bytes of rows and tensors.
_BLOCKS, _BLOCKS_LARGE, _FEW_AXES, _SHORT_ROW, _LARGE = 0.97, 0.82, 4, 512, 128 << 20
# The same share of tiles where rows of the matrices are parts of longer ones, of elements of 1 and 2 bytes.
_TILES_OF_WORDS = 1.08
_TILES_OF_PARTS = 0.85
# Registers of a thread, and what an SM of an H200 holds at once.
_REGISTERS = {1: 64, 2: 42, 4: 32, 8: 31, 16: 40}
_RESIDENT_BYTES, _RESIDENT_THREADS, _RESIDENT_REGISTERS, _RESIDENT_CTAS = 220 << 10, 2048, 1 << 16, 32


def _refuses(problem: TransposeProblem) -> str | None:
    if reason := why_not_itemsize(problem, ITEMSIZES) or why_not_contiguous(problem):
        return reason
    axes = axes_of(problem)
    if not 3 <= len(axes) <= AXES:
        return f"{len(axes)} axes of more than one element remain; tiles are of 3 to {AXES}"
    sources = sorted(axis.source for axis in axes)
    if sources[0] < 1 or min(axis.target for axis in axes) < 1:
        return "an axis is reversed or repeated"
    if sources[1] * problem.itemsize < WORD:
        return f"the row stride of the source is {sources[1] * problem.itemsize} bytes; the kernel takes {WORD} or more"
    if merged_of(problem, MergedConfig().tile(problem.itemsize)) is None:
        return f"{len(axes)} axes do not make rows of a sector and a batch of {LEVELS} axes"
    return None


def _launch(problem: TransposeProblem, config: MergedConfig) -> Launch:
    merged = config.merged(problem)
    sides = merged.source, merged.target
    missing = Axis(1, 0, 0)
    axes = tuple(axis for side in (*sides, merged.batch) for axis in (*side, *(missing,) * (LEVELS - len(side))))
    divisors = [divisor_of(axis.extent) for axis in axes]
    scalars = (
        merged.rows,
        merged.cols,
        *filled([divisor for divisor, _ in divisors], 3 * LEVELS, 0),
        *filled([shift for _, shift in divisors], 3 * LEVELS, 0),
    )
    extents = tuple(axis.extent for axis in axes)
    return Launch(
        grid=config.grid(problem),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes(problem.itemsize),
        params=(
            TensorParam("a", extents, tuple(axis.source for axis in axes)),
            TensorParam("d", extents, tuple(axis.target for axis in axes)),
            *(ScalarParam(f"number{number}", INT32, one) for number, one in enumerate(scalars)),
        ),
        overlaps=True,
    )


def _cost(problem: TransposeProblem, config: MergedConfig, gpu: GpuRates) -> float:
    """Return about the microseconds of tiles: their bytes, or what CTAs wait for and issue."""
    item, ctas, threads = problem.itemsize, math.prod(config.grid(problem)), config.threads
    resident = min(
        _RESIDENT_BYTES // config.shared_bytes(item),
        _RESIDENT_THREADS // threads,
        _RESIDENT_REGISTERS // (_REGISTERS[item] * threads),
        _RESIDENT_CTAS,
    )
    # Words of a tile, of which a warp's lanes move one each; warps beyond the end of a row have none.
    rows, (tiles, _) = config.merged(problem).rows, config.tiles(problem)
    words = config.columns(item) * packed_rows(item) * config.held(item) / WARP
    filled = -(-rows * config.spans // config.tile(item)[0]) / max(tiles * config.spans, 1)
    rounds = -(-ctas // (resident * gpu.multiprocessors)) * (_ROUND + _LATENCY * words * WARP / threads)
    issued = rounds + -(-ctas // gpu.multiprocessors) * filled * words * _A_WORD[item]
    moved = _BYTE * problem.bytes_min * SMS / gpu.multiprocessors
    preferred = _OF_SHORT if config.write_bytes < LINE else 1.0
    if threads == _MANY:
        preferred *= _OF_MANY.get(item, 1.0)
    return preferred * (_LAUNCH + math.cbrt(moved**3 + issued**3))


def merged_axes_take_less(problem: TransposeProblem, most: float, gpu: GpuRates) -> bool:
    """Return whether tiles of merged axes are predicted to take less than so many microseconds."""
    if _refuses(problem) is not None:
        return False
    taken = (config for config in _CONFIGS if config.why_not(problem) is None)
    return min((_cost(problem, config, gpu) for config in taken), default=math.inf) < most


def _faster_alternative(problem: TransposeProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return a kernel of blocks or tiles that is predicted to be faster, or None."""
    if words_take_less(problem, cost, gpu):
        return "transpose_word_blocks"
    strides = problem.source.batch_strides
    are_parts = min(strides, default=math.inf) < problem.source.col_stride
    if problem.itemsize == 1 and not are_parts and is_small_batch(problem):
        cost *= _OF_SMALL
    is_large = problem.bytes_min >= _LARGE
    has_short_rows = problem.rows * problem.itemsize < _SHORT_ROW and len(axes_of(problem)) <= _FEW_AXES
    if blocks_take_less(problem, (_BLOCKS_LARGE if is_large and has_short_rows else _BLOCKS) * cost, gpu):
        return "transpose_blocks"
    are_slower = is_large and problem.itemsize < WORD and are_parts
    share = _TILES_OF_PARTS if are_slower else _TILES_OF_WORDS if problem.itemsize < WORD else 1.0
    return faster_tiles(problem, share * cost, gpu)


_CONFIGS = (
    MergedConfig(),
    MergedConfig(1, 128, 256),
    MergedConfig(1, 64, 128),
    # Elements of 16 bytes.
    MergedConfig(4, 128, 256),
    MergedConfig(1, 256, 256),
    MergedConfig(2, 256, 512),
)

SPEC = transpose_spec(
    name="transpose_merged",
    summary="three axes and more, elements of 1 to 16 bytes: whole sectors of merged axes",
    package=__package__,
    configs=_CONFIGS,
    itemsizes=ITEMSIZES,
    refuses=_refuses,
    launch=_launch,
    cost=_cost,
    cost_in_us=True,
    faster_alternative=_faster_alternative,
    batch_dims=AXES - 2,
)
