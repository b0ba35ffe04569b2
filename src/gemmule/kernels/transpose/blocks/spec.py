"""Permutations of short axes: their limits, and launch recipe."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import INT32
from gemmule.core.launch import Launch, ScalarParam, TensorParam
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import VECTOR_BYTES
from gemmule.core.spec import Signature
from gemmule.kernels.transpose.blocks.block import (
    AXES,
    BLOCK_AXES,
    BlocksConfig,
    accesses_of,
    axes_of,
    loop_of,
    pitches_of,
    stage_bytes,
    vectors_of,
)
from gemmule.kernels.transpose.refusals import ITEMSIZES, why_not_itemsize
from gemmule.kernels.transpose.spec import OVERLAPPING_SPANS, element_signature, transpose_spec

# Bytes of the largest matrix whose tiles are too small, and the matrices from which on their CTAs take longer than
# blocks: measured on an H200.
_SMALL, _MANY = 4096, 8192
# Bytes of the shorter side of matrices that fill small parts of tiles, and the matrices from which on blocks are used.
_NARROW, _SOME = 128, 64


def _refuses(problem: TransposeProblem) -> str | None:
    if reason := why_not_itemsize(problem, ITEMSIZES):
        return reason
    axes = axes_of(problem)
    if not 3 <= len(axes) <= AXES:
        return f"{len(axes)} axes of more than one element remain; blocks are of 3 to {AXES}"
    if problem.source.col_stride == problem.target.col_stride == 1:
        if problem.cols * problem.itemsize < VECTOR_BYTES:
            return None
        return "source and target are contiguous along the same axis: rows are faster"
    size, count = problem.rows * problem.cols * problem.itemsize, math.prod(problem.batch)
    if min(problem.rows, problem.cols) * problem.itemsize <= _NARROW and count >= _SOME:
        return None
    if size > _SMALL or count < _MANY:
        return f"{count} matrices of {size} bytes: tiles are as fast, but for {_MANY} matrices of up to {_SMALL} bytes"
    return None


def _launch(problem: TransposeProblem, config: BlocksConfig) -> Launch:
    block = config.of(problem)
    pitches = dict(zip(block.inner, pitches_of(block, problem.itemsize), strict=True))
    read, write = (
        _looped(order, loop_of(block.units(order), config.each, vector * problem.itemsize))
        for order, vector in zip((block.read, block.inner), block.vectors, strict=True)
    )
    # The first axis of each side is accessed in vectors.
    of_read, of_write = {block.read[0]: block.vectors[0]}, {block.inner[0]: block.vectors[1]}

    def along(order: Sequence[int | None], side: str, operand: str, vectors: dict[int, int]) -> TensorParam:
        strides = [getattr(block.axes[one], side) * vectors.get(one, 1) if one is not None else 0 for one in order]
        extents = [block.extents[one] // vectors.get(one, 1) if one is not None else 1 for one in order]
        return TensorParam(operand, tuple(extents), tuple(strides))

    def numbers(order: Sequence[int | None], values: dict[int, int], vectors: dict[int, int]) -> list[int]:
        return [values.get(one, 0) * vectors.get(one, 1) if one is not None else 0 for one in order]

    def outer(extents: Sequence[int], side: str, operand: str) -> TensorParam:
        strides = [getattr(axis, side) for axis in block.axes]
        return TensorParam(operand, _filled(extents, AXES, 1), _filled(strides, AXES, 0))

    # Blocks overlap along axes that they divide: at most one of each side, whose coordinates have a half of a word.
    divided = [number for number in block.inner if block.extents[number] < block.axes[number].extent]
    halves = {number: 1 << (16 * place) for place, number in enumerate(divided)}
    stage = stage_bytes(block, problem.itemsize)
    scalars = (
        *numbers(read, pitches, of_read),
        *numbers(write, pitches, of_write),
        *numbers(write, halves, of_write),
        *_filled([halves.get(number, 0) for number in range(len(block.axes))], AXES, 0),
        stage,
    )
    return Launch(
        grid=config.grid(problem),
        block=(config.threads, 1, 1),
        shared_bytes=2 * stage,
        params=(
            along(read, "source", "a", of_read),
            along(write, "target", "d", of_write),
            outer([axis.extent for axis in block.axes], "source", "a"),
            outer(block.extents, "target", "d"),
            *(ScalarParam(f"number{number}", INT32, one) for number, one in enumerate(scalars)),
        ),
        overlaps=problem.bytes_min <= OVERLAPPING_SPANS,
    )


def _looped(order: Sequence[int], place: int) -> list[int | None]:
    """Return a block's axes in an order, the one of a place, along which a thread accesses it, as the last of four."""
    others = [number for number in order if number != order[place]]
    return [*others, *(None,) * (BLOCK_AXES - 1 - len(others)), order[place]]


def _filled(values: Sequence[int], count: int, rest: int) -> tuple[int, ...]:
    return (*values, *(rest,) * (count - len(values)))


def _signature(problem: TransposeProblem, config: BlocksConfig) -> Signature:
    del config
    read, write = vectors_of(problem)
    return _accesses_signature(problem.itemsize, read * problem.itemsize, write * problem.itemsize)


def _signatures(arch: Arch) -> tuple[Signature, ...]:
    del arch
    # The widest and the narrowest on both sides say that the others compile.
    found = []
    for item in ITEMSIZES:
        pairs = dict.fromkeys(itertools.product(*((sizes[0], item) for sizes in accesses_of(item))))
        found += [_accesses_signature(item, *pair) for pair in pairs]
    return tuple(found)


def _accesses_signature(itemsize: int, read: int, write: int) -> Signature:
    return (*element_signature(itemsize), ("read", str(read)), ("write", str(write)))


SPEC = transpose_spec(
    name="transpose_blocks",
    summary="many short axes, elements of 1 to 16 bytes, any strides: blocks of up to 4 axes in shared memory",
    package=__package__,
    configs=(BlocksConfig(),),
    itemsizes=ITEMSIZES,
    signatures=_signatures,
    signature=_signature,
    refuses=_refuses,
    launch=_launch,
    batch_dims=AXES - 2,
)
