"""Permutations of 1- and 2-byte elements whose runs begin anywhere: their limits, and launch recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import INT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, ScalarParam, TensorParam
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import VECTOR_BYTES
from gemmule.core.spec import Signature
from gemmule.kernels.parts.hopper_facts import SMS
from gemmule.kernels.transpose.blocks.block import AXES, axes_of, in_units, sides_of
from gemmule.kernels.transpose.blocks.spec import (
    blocks_us,
    divisor_of,
    faster_tiles,
    filled,
    refuse_blocks,
    signed,
)
from gemmule.kernels.transpose.refusals import why_not_itemsize
from gemmule.kernels.transpose.spec import element_signature, transpose_spec
from gemmule.kernels.transpose.word_blocks.config import WordBlocksConfig
from gemmule.kernels.transpose.word_blocks.word_block import (
    RUN_AXES,
    classes_of,
    least_us,
    pitches_of,
    stage_bytes,
    table_bytes,
    words_of,
)

_ITEMSIZES = (1, 2)
# Share of the time of blocks below which words are chosen, by prediction.
_MARGIN = 0.95
# Factor on the predicted time of 1-byte elements, by the bytes of a block.
_SLOWER = {24 << 10: 1.05, 32 << 10: 1.09}
# Bytes of both tensors up to which launches were measured to be faster where they overlap.
_OVERLAPPING = 64 << 20


def _refuses(problem: TransposeProblem) -> str | None:
    if reason := why_not_itemsize(problem, _ITEMSIZES) or refuse_blocks(problem):
        return reason
    if (unit := in_units(problem).itemsize) not in _ITEMSIZES:
        return f"rows are moved in units of {unit} bytes, which blocks of elements move"
    if problem.source.alignment % VECTOR_BYTES:
        return f"the source's memory does not begin at a multiple of {VECTOR_BYTES} bytes"
    if min(min(axis.source, axis.target) for axis in axes_of(problem)) < 0:
        return "an axis is reversed"
    if (gap := max(side.gap for side in sides_of(problem))) > 1:
        return f"elements are {gap} apart; the kernel takes contiguous ones"
    return None


def _costs(problem: TransposeProblem, configs: Sequence[WordBlocksConfig], gpu: GpuRates) -> list[float]:
    found = []
    for config in configs:
        predicted = config.predicted(problem)
        slower = _SLOWER.get(config.block_bytes, 1.0) if problem.itemsize == 1 else 1.0
        found.append(math.inf if predicted is None else slower * predicted[1] * SMS / gpu.multiprocessors)
    return found


def words_take_less(problem: TransposeProblem, most: float, gpu: GpuRates) -> bool:
    """Return whether blocks by words are predicted to take less than so many microseconds: their choice takes long."""
    if _refuses(problem) is not None or least_us(problem) * SMS / gpu.multiprocessors >= most:
        return False
    return min(_costs(problem, _CONFIGS, gpu)) < most


def _defers_to(problem: TransposeProblem, gpu: GpuRates) -> str | None:
    """Return the kernel of blocks where words would not be faster if they only moved bytes: their choice takes long."""
    blocks = blocks_us(problem, gpu)
    assert blocks is not None
    return "transpose_blocks" if _MARGIN * blocks < least_us(problem) * SMS / gpu.multiprocessors else None


def _faster_alternative(problem: TransposeProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel of blocks or tiles that is predicted to be faster, or None."""
    blocks = blocks_us(problem, gpu)
    assert blocks is not None
    return "transpose_blocks" if _MARGIN * blocks < cost else faster_tiles(problem, cost, gpu)


def _launch(problem: TransposeProblem, config: WordBlocksConfig) -> Launch:
    block, item = config.of(problem), in_units(problem).itemsize
    axes, extents, counts = block.axes, block.extents, block.counts
    pitches = dict(zip(block.inner, pitches_of(block, item), strict=True))
    earlier = [count * size - axis.extent for count, size, axis in zip(counts, extents, axes, strict=True)]
    bits = {number: 1 << place for place, number in enumerate(block.inner) if earlier[number]}

    def others(side: str, pieces: Sequence[tuple[int, int, int]]) -> list[int]:
        """Return the numbers of the axes that a run lacks; coordinates left to the neighbour are above the bits."""
        strides = [getattr(axes[number], side) * step * item for number, _, step in pieces]
        steps = [pitches[number] * step * item for number, _, step in pieces]
        # Runs that are parts of an axis are owned by element.
        owns = [earlier[number] << RUN_AXES | bits.get(number, 0) if step == 1 else 0 for number, _, step in pieces]
        return [*divisors([extent for _, extent, _ in pieces]), *zeros(strides), *zeros(steps), *zeros(owns)]

    def divisors(found: Sequence[int]) -> list[int]:
        return [*zeros([signed(-(-(1 << 32) // one)) for one in found]), *filled(found, RUN_AXES, 1)]

    def zeros(found: Sequence[int]) -> tuple[int, ...]:
        return filled(found, RUN_AXES, 0)

    # Axes with one block have the last places: what is left to divide is 0 there.
    outer = sorted(range(len(axes)), key=lambda number: counts[number] == 1)

    def blocks(side: str, operand: str) -> TensorParam:
        strides = [getattr(axes[number], side) for number in outer]
        return TensorParam(operand, filled([counts[number] for number in outer], AXES, 1), filled(strides, AXES, 0))

    last = block.target[-1]
    first = earlier[last] * math.prod(extents[number] for number in block.target[:-1])
    every = [divisor_of(counts[number]) for number in outer]
    far = sum((axis.extent - 1) * axis.source for axis in axes) + 1
    size, words = math.prod(extents), words_of(block.target_run, item)
    is_split = block.part < extents[last]
    scalars = (
        *others("source", block.source_others),
        *others("target", block.target_others),
        *divisors([*(extents[number] for number in block.target[:-1]), block.part]),
        *zeros([pitches[number] * item for number in block.target]),
        *filled([divisor for divisor, _ in every], AXES, 0),
        *filled([shift for _, shift in every], AXES, 0),
        *filled([extents[number] for number in outer], AXES, 1),
        *filled([earlier[number] for number in outer], AXES, 0),
        *filled([bits.get(number, 0) for number in outer], AXES, 0),
        size // block.source_run,
        block.source_run * item,
        size // block.target_run,
        words,
        -(-(1 << 32) // words),
        config.threads // words,
        block.target_run,
        first,
        block.target_run if is_split else 0,
        bits.get(last, 0),
        *classes_of(block, item),
        table_bytes(block),
        stage_bytes(block, item),
        math.prod(counts),
        *divmod(far * item, VECTOR_BYTES),
    )
    return Launch(
        grid=config.grid(problem),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared(problem),
        params=(
            blocks("source", "a"),
            blocks("target", "d"),
            *(ScalarParam(f"number{number}", INT32, one) for number, one in enumerate(scalars)),
        ),
        overlaps=problem.bytes_min <= _OVERLAPPING,
    )


def _signature(problem: TransposeProblem, config: WordBlocksConfig) -> Signature:
    del config
    return element_signature(in_units(problem).itemsize)


def _signatures(arch: Arch) -> tuple[Signature, ...]:
    del arch
    return tuple(element_signature(item) for item in _ITEMSIZES)


_CONFIGS = (
    WordBlocksConfig(),
    WordBlocksConfig(256, 24 << 10, 2, 4, 4 * SMS),
    WordBlocksConfig(256, 32 << 10, 2, 3, 3 * SMS),
)

SPEC = transpose_spec(
    name="transpose_word_blocks",
    summary="1- and 2-byte elements, odd rows, short axes: blocks by words",
    package=__package__,
    configs=_CONFIGS,
    archs=(Arch(9, 0, True), Arch(10, 0, True)),
    itemsizes=_ITEMSIZES,
    signatures=_signatures,
    signature=_signature,
    refuses=_refuses,
    launch=_launch,
    costs=_costs,
    cost_in_us=True,
    defers_to=_defers_to,
    faster_alternative=_faster_alternative,
    batch_dims=AXES - 2,
)
