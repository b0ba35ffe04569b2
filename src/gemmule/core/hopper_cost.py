"""What a product takes on Hopper's persistent kernels, predicted for many configs at once.

A CTA computes its tiles one after another, and a tile is a number of slices and what it costs at its ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from .hopper_rates import SHARED, SLICE, SLICES, Lines, TileConfig, TileRates

#: Microseconds on an H200: a launch, and what the start of a CTA on every multiprocessor takes.
_LAUNCH, _FILL, _ALL = 1.53, 0.0974, 132
#: How many times the lines of a slice count at first, when nothing is multiplied meanwhile, where multiprocessors bring
#: them in pairs; how much of the last wave counts as full waves do.
_FIRST, _LAST_WAVE = 2.75, 0.298
#: How much longer the wait for lines is where they come in pairs.
_WAIT_BOTH = 0.242
#: How much of the lines of a slice beyond the end of K, of the rows beyond the matrix, and of the result beyond it, is
#: left out: along K the copy engine brings shorter rows, across K fewer.
_SHORT_ROWS, _FEWER_ROWS, _FEWER_LINES, _LESS_WRITTEN = 0.0887, 0.357, 0.0977, 0.324
#: What 64 rows, and 64 columns, of a slice outside of the matrix take: how much of that in edges of many tiles, and how
#: much by pairs of multiprocessors instead of each.
_OUTSIDE_ROWS, _OUTSIDE_COLS, _EDGES, _OUTSIDE_BOTH, _SIDE = 0.183, 0.137, 0.185, 0.212, 64
#: How much slower products are where all multiprocessors are busy for long, so that the clock is lowered, and the
#: slices of a multiprocessor for half of that.
_HOT, _HALF_HOT = 0.671, 101.0
#: Of lines of the result that begin at multiples of 128 bytes, of 64, 32 and elsewhere: how much longer they take to be
#: written, how many times they count in memory, and beside what the L2 cache carries. How much longer four bytes take.
_WRITES, _RESULT_MEMORY, _RESULT_CARRIED = (
    (1.0, 0.809, 0.809, 1.09),
    (0.49, 0.697, 0.697, 1.29),
    (0.437,) * 3 + (0.917,),
)
_WIDER = 0.415
#: Bytes a microsecond from memory.
_MEMORY = 5.91e6
#: What stream-K adds: bytes a microsecond of sums that all multiprocessors leave and read, which is assumed; and, as
#: measured on an H200 within a sixth, of sums that one of them reads, and zeros for the flags with launches that do not
#: overlap then.
_LEFT, _LEFT_TO_ONE, _ZEROS = 5.5e6, 0.028e6, 4.0
# Lists of configs whose rates are kept.
_MOST_KNOWN = 16


@dataclasses.dataclass(frozen=True)
class Operation:
    """A product as the kernels see it, its result in rows.

    Attributes
    ----------
    rows, cols, batch : int
        Of the result.
    a, b : Lines
        Operands that give its rows and its columns.
    slices : int
        Slices of K, of 128 bytes.
    last : float
        How much of the last slice K fills.
    result_begin, result_item : int
        Where its lines begin, as `Lines` tells, and bytes of an element.
    read, written : int
        Fewest bytes to move from memory, and to memory.
    """

    rows: int
    cols: int
    batch: int
    a: Lines
    b: Lines
    slices: int
    last: float
    result_begin: int
    result_item: int
    read: int
    written: int


# What was worked out for a kernel's own configs, which are asked for again and again; by where those lie.
_known: dict[int, TileRates] = {}


def _rates(configs: Sequence[TileConfig]) -> TileRates:
    known = _known.get(id(configs))
    if known is not None and known.configs is configs:
        return known
    rates = TileRates(configs)
    if isinstance(configs, tuple) and len(_known) < _MOST_KNOWN:
        _known[id(configs)] = rates
    return rates


def times_us(one: Operation, configs: Sequence[TileConfig], multiprocessors: int) -> list[float]:
    """Return roughly the time in microseconds of every config.

    Three limits hold together: what a multiprocessor computes, what the L2 cache carries, what memory moves.

    Parameters
    ----------
    one : Operation
        The product.
    configs : sequence of TileConfig
        The configs: those that are `swapped` compute the transpose.
    multiprocessors : int
        The GPU's.
    """
    of, slices = _rates(configs), one.slices
    lines, at_once = of.lines(one.a, one.b), of.at_once(multiprocessors)
    rows, cols = of.of_sides(one.rows, one.cols), of.of_sides(one.cols, one.rows)
    tiles = (rows + (of.rows - 1)) // of.rows * ((cols + (of.cols - 1)) // of.cols) * one.batch
    waves = (tiles + (at_once - 1)) // at_once
    together = np.minimum(tiles, at_once)
    ctas = together * of.cluster
    # CTAs spread over pairs of multiprocessors, and any more than there are pairs share the way of one to the L2 cache.
    pairs = multiprocessors // 2
    in_pairs = ctas > pairs
    last_pairs = (tiles - (waves - 1) * at_once) * of.cluster > pairs
    both = np.maximum(in_pairs - (1 - _LAST_WAVE) / waves * (in_pairs & ~last_pairs), of.paired)
    each = (slices + (of.cluster_k - 1)) // of.cluster_k
    left: Any = 0.0
    if of.any_stream_k:
        waves, each, left = _shared_out(of, tiles, at_once, waves, each, slices)
    down, right = (rows + (of.tile_m - 1)) // of.tile_m, (cols + (of.tile_n - 1)) // of.tile_n
    high, wide = down * of.tile_m, right * of.tile_n
    rows_inside, cols_inside = rows / high, cols / wide
    missing = (1 - one.last) / slices
    a_part, b_part = (1 - missing * (_FEWER_ROWS if x.across else _SHORT_ROWS) for x in (one.a, one.b))
    brought = (lines.rows + lines.rows_both * both) * ((1 - _FEWER_LINES) + _FEWER_LINES * rows_inside)
    brought *= of.of_sides(a_part, b_part)
    brought_cols = (lines.cols + lines.cols_both * both) * ((1 - _FEWER_LINES) + _FEWER_LINES * cols_inside)
    brought += brought_cols * of.of_sides(b_part, a_part)
    long = waves * each
    hot = 1 + _HOT * long / (long + _HALF_HOT) * (together / at_once)
    slice_time = _of_all(of.products * hot, brought, of.wait * (1 + _WAIT_BOTH * both)) + SLICE
    busy = ctas / _ALL
    outside = _OUTSIDE_ROWS / _SIDE * (high - rows) * _edge(down, waves)
    outside += _OUTSIDE_COLS / _SIDE * (wide - cols) * _edge(right, waves)
    slice_time += outside * (busy + _OUTSIDE_BOTH * (both - busy))
    products = each * slice_time
    longer = _WRITES[one.result_begin] * (1 + _WIDER * (one.result_item - 2))
    inside = (1 - _LESS_WRITTEN) + _LESS_WRITTEN * (rows_inside * cols_inside)
    written = of.written * longer * inside
    # Where warpgroups take turns, one writes while the other multiplies; else all wait.
    in_turns = _of_all(products, (products + written + of.again) / 2)
    tile = np.where(of.turns, in_turns, products + SHARED + written)
    computed = waves * (tile + of.again) - of.again + of.turns * written + of.once + _FILL * busy + left
    computed += _FIRST * brought * both
    carried = tiles * slices * lines.carried + one.written * _RESULT_CARRIED[one.result_begin] / SLICES
    memory = (one.read + one.written * _RESULT_MEMORY[one.result_begin] * of.results) / _MEMORY
    total: list[float] = (_LAUNCH + np.sqrt(np.sqrt(computed**4 + carried**4) + memory * memory)).tolist()
    return total


def _of_all(*times: Any) -> Any:
    """Return what steps take that are in the way of each other where they take about as long: a norm."""
    squares = [time * time for time in times]
    return np.sqrt(np.sqrt(sum(square * square for square in squares)))


def _edge(tiles: Any, waves: Any) -> Any:
    """Return how far the edges of so many tiles count: all where there are no others, more in one wave."""
    return np.where(tiles > 1, _EDGES * np.where(waves == 1, 1.0, 1 / tiles), 1.0)


def _shared_out(of: TileRates, tiles: Any, at_once: Any, waves: Any, each: Any, slices: int) -> tuple[Any, Any, Any]:
    """Return waves, slices of each, and what is added, where stream-K shares out the last waves' slices evenly."""
    splits = of.stream_k & (tiles % at_once > 0)
    sharers = np.minimum(at_once, tiles * slices)
    fewer = np.maximum(tiles / at_once, 1)
    every = (tiles * slices + (sharers - 1)) // sharers
    moved = 2 * of.sum_bytes * sharers * of.cluster / _LEFT
    read = of.sum_bytes * np.maximum(sharers / tiles, 1) / _LEFT_TO_ONE
    left = of.stream_k * _ZEROS + splits * np.maximum(moved, read)
    return np.where(splits, fewer, waves), np.where(splits, every / fewer, each), left
