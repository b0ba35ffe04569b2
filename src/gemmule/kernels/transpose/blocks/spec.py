"""Permutations of short axes: their limits, and launch recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gemmule.core.dtype import INT32
from gemmule.core.launch import Launch, ScalarParam, TensorParam
from gemmule.core.problem import TransposeProblem
from gemmule.kernels.transpose.blocks.block import (
    AXES,
    BLOCK_AXES,
    Block,
    BlocksConfig,
    axes_of,
    block_bytes,
    loop_of,
    pitches_of,
)
from gemmule.kernels.transpose.refusals import ITEMSIZES, why_not_itemsize
from gemmule.kernels.transpose.spec import OVERLAPPING, transpose_spec

# Bytes of the largest matrix whose tiles are too small, and the matrices from which on their CTAs take longer than
# blocks: measured on an H200.
_SMALL, _MANY = 4096, 8192


def _refuses(problem: TransposeProblem) -> str | None:
    if reason := why_not_itemsize(problem, ITEMSIZES):
        return reason
    axes = axes_of(problem)
    if not 3 <= len(axes) <= AXES:
        return f"{len(axes)} axes of more than one element remain; blocks are of 3 to {AXES}"
    if problem.source.col_stride == problem.target.col_stride == 1:
        return "source and target are contiguous along the same axis: rows are faster"
    size, count = problem.rows * problem.cols * problem.itemsize, math.prod(problem.batch)
    if size > _SMALL or count < _MANY:
        return f"{count} matrices of {size} bytes: tiles are as fast, but for {_MANY} matrices of up to {_SMALL} bytes"
    return None


def _launch(problem: TransposeProblem, config: BlocksConfig) -> Launch:
    block, each = config.of(problem), config.count(problem.itemsize)
    pitches = dict(zip(block.inner, pitches_of(block, problem.itemsize), strict=True))
    read, write = (_looped(order, block, each) for order in (block.read, block.inner))

    def along(order: Sequence[int | None], side: str, operand: str) -> TensorParam:
        strides = [0 if number is None else getattr(block.axes[number], side) for number in order]
        extents = [1 if number is None else block.extents[number] for number in order]
        return TensorParam(operand, tuple(extents), tuple(strides))

    def outer(extents: Sequence[int], side: str, operand: str) -> TensorParam:
        strides = [getattr(axis, side) for axis in block.axes]
        return TensorParam(operand, _filled(extents, AXES, 1), _filled(strides, AXES, 0))

    # Blocks overlap along axes that they divide: at most one of each side, whose coordinates have a half of a word.
    divided = [number for number in block.inner if block.extents[number] < block.axes[number].extent]
    halves = {number: 1 << (16 * place) for place, number in enumerate(divided)}
    stage = block_bytes(block, problem.itemsize)
    scalars = (
        *(0 if number is None else pitches[number] for number in read),
        *(0 if number is None else pitches[number] for number in write),
        *(0 if number is None else halves.get(number, 0) for number in write),
        *_filled([halves.get(number, 0) for number in range(len(block.axes))], AXES, 0),
        stage,
    )
    return Launch(
        grid=config.grid(problem),
        block=(config.threads, 1, 1),
        shared_bytes=2 * stage,
        params=(
            along(read, "source", "a"),
            along(write, "target", "d"),
            outer([axis.extent for axis in block.axes], "source", "a"),
            outer(block.extents, "target", "d"),
            *(ScalarParam(f"number{number}", INT32, one) for number, one in enumerate(scalars)),
        ),
        overlaps=problem.bytes_min <= OVERLAPPING,
    )


def _looped(order: Sequence[int], block: Block, each: int) -> list[int | None]:
    """Return a block's axes in an order, the one that threads move elements along as the last of four."""
    loop = order[loop_of([block.extents[number] for number in order], each)]
    others = [number for number in order if number != loop]
    return [*others, *(None,) * (BLOCK_AXES - 1 - len(others)), loop]


def _filled(values: Sequence[int], count: int, rest: int) -> tuple[int, ...]:
    return (*values, *(rest,) * (count - len(values)))


SPEC = transpose_spec(
    name="transpose_blocks",
    summary="many short axes, elements of 1 to 16 bytes, any strides: blocks of up to 4 axes in shared memory",
    package=__package__,
    configs=(BlocksConfig(),),
    itemsizes=ITEMSIZES,
    refuses=_refuses,
    launch=_launch,
    batch_dims=AXES - 2,
)
