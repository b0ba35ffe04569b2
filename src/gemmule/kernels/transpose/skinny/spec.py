"""Transposes of matrices with a short side: their limits, signatures and launch recipe."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.dtype import INT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, ScalarParam
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import VECTOR_BYTES
from gemmule.core.spec import Signature
from gemmule.kernels.transpose.blocks.spec import blocks_take_less, faster_tiles
from gemmule.kernels.transpose.cost import skinny_cost
from gemmule.kernels.transpose.refusals import (
    ITEMSIZES,
    rows_are_aligned,
    why_not_contiguous,
    why_not_itemsize,
    why_not_separate,
)
from gemmule.kernels.transpose.skinny.config import SkinnyConfig, structures_side
from gemmule.kernels.transpose.spec import element_signature, launch_tiles, transpose_spec
from gemmule.kernels.transpose.tile_config import WORD
from gemmule.kernels.transpose.whole_rows.spec import refuse_whole_rows
from gemmule.kernels.transpose.word_blocks.spec import words_take_less

# Elements of the largest structure by its side and the bytes of an element: larger ones are rows that tiles move as
# fast.
_LARGEST = {"source": {1: 64, 2: 33, 4: 31, 8: 31, 16: 48}, "target": {1: 96, 2: 96, 4: 48, 8: 48, 16: 48}}
# Bytes of structures from which on aligned ones of elements of 1 or 2 bytes are moved in tiles, and of which larger
# elements fill whole tiles.
_WIDE_ROW, _SECTOR_ROW = 64, 128
# Bytes of matrices that a few spans hold, and the time of blocks of few of them, and of others, below which those are
# used; the time of blocks by words.
_SMALL, _BLOCKS_SMALL, _BLOCKS, _WORDS = 64 << 10, 0.78, 0.83, 0.78
# Tiles of long rows are predicted better than of other matrices with a short side: a factor. Elements of 16 bytes are
# always aligned: tiles of which the last is nearly empty take longer than predicted, unless rows fill parts of so many
# bytes.
_TILES, _TILES_IN_PART, _PART = 1.14, 0.87, 256
# Bytes of both matrices above which tiles are compared.
_OVERLAPPING = 64 << 20
# Elements of a structure, and their bytes, of which eight fill whole sectors, written by almost all threads.
_FILLING = 33, 2
# Bytes of shorter long rows leave most of a CTA idle.
_MIN_ROW = 512


def _refuses(problem: TransposeProblem) -> str | None:
    if reason := why_not_itemsize(problem, ITEMSIZES) or why_not_contiguous(problem):
        return reason
    short, long = sorted((problem.rows, problem.cols))
    side, item = structures_side(problem), problem.itemsize
    if side is None:
        return f"the matrix with rows of {short} elements has gaps between them"
    if short > (largest := _LARGEST[side][item]):
        return f"structures of {short} elements are larger than {largest}"
    if long * item < _MIN_ROW:
        return f"rows of {long} elements are less than {_MIN_ROW} bytes"
    if side == "target" and (reason := why_not_separate(problem, WORD)):
        return reason
    fills = (short, item) == _FILLING and problem.bytes_min <= _OVERLAPPING
    if side == "target" and refuse_whole_rows(problem) is None and not fills:
        return f"structures of {short} unaligned elements are faster as whole rows"
    if item <= 2 and short * item >= _WIDE_ROW and rows_are_aligned(problem):
        return f"every row is aligned to 16 bytes, and has {_WIDE_ROW} or more: whole vectors are faster"
    if item in (4, 8) and side == "target" and short * item % _SECTOR_ROW == 0:
        return f"structures of {short} elements are whole rows of {_SECTOR_ROW} bytes: tiles of them are faster"
    return None


def _faster_alternative(problem: TransposeProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel of blocks, or of tiles of vectors, where it is predicted to be faster."""
    is_small = problem.rows * problem.cols * problem.itemsize <= _SMALL and problem.bytes_min <= _OVERLAPPING
    if blocks_take_less(problem, (_BLOCKS_SMALL if is_small else _BLOCKS) * cost, gpu):
        return "transpose_blocks"
    if words_take_less(problem, _WORDS * cost, gpu):
        return "transpose_word_blocks"
    # Launches of smaller matrices overlap, which the times of tiles do not model.
    is_large = rows_are_aligned(problem) and problem.bytes_min > _OVERLAPPING
    is_in_part = problem.itemsize == VECTOR_BYTES and min(problem.rows, problem.cols) * VECTOR_BYTES % _PART
    share = _TILES_IN_PART if is_in_part else _TILES
    return faster_tiles(problem, share * cost, gpu) if is_large else None


def _signature(problem: TransposeProblem, config: SkinnyConfig) -> Signature:
    del config
    short = min(problem.rows, problem.cols)
    return _structures_signature(problem.itemsize, structures_side(problem) or "source", short)


def _signatures(arch: Arch) -> tuple[Signature, ...]:
    del arch
    # One count of elements, odd and woven, shows that the others compile.
    return tuple(_structures_signature(size, side, 3) for size in ITEMSIZES for side in ("source", "target"))


def _structures_signature(itemsize: int, side: str, short: int) -> Signature:
    return (*element_signature(itemsize), ("structures", side), ("short", str(short)))


def _launch(problem: TransposeProblem, config: SkinnyConfig) -> Launch:
    launch = launch_tiles(problem, config)
    pitch = ScalarParam("pitch", INT32, config.pitch(problem) if structures_side(problem) == "target" else 0)
    return dataclasses.replace(
        launch,
        shared_bytes=config.span_shared_bytes(problem),
        params=(*launch.params, pitch),
    )


SPEC = transpose_spec(
    name="transpose_skinny",
    summary="few rows or columns, contiguous, elements of 1 to 16 bytes, batch: array of structures, or the reverse",
    package=__package__,
    configs=(
        SkinnyConfig(),
        SkinnyConfig(1024),
        SkinnyConfig(512),
        SkinnyConfig(4096),
        SkinnyConfig(1024, 128),
        SkinnyConfig(512, 128),
        SkinnyConfig(256, 128),
        SkinnyConfig(256, 256),
        SkinnyConfig(256, 512),
        # With 33 elements, 8 structures fill whole sectors.
        SkinnyConfig(256, 288),
        SkinnyConfig(512, 288),
    ),
    itemsizes=ITEMSIZES,
    signatures=_signatures,
    signature=_signature,
    refuses=_refuses,
    launch=_launch,
    cost=skinny_cost,
    faster_alternative=_faster_alternative,
)
