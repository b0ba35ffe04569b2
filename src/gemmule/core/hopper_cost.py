"""What a product takes on Hopper's persistent kernels, predicted for many configs at once.

A CTA computes its tiles one after another, and a tile is a number of slices and what it costs at its ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .hopper_rates import SHARED, SLICE, SLICES, Lines, TileConfig, TileRates

#: Microseconds on an H200: a launch, and what the start of a CTA on every multiprocessor takes.
_LAUNCH, _FILL, _ALL = 1.56, 0.144, 132
#: How many times the lines of a slice count at first, when nothing is multiplied meanwhile, where multiprocessors bring
#: them in pairs; how much of the last wave counts as full waves do.
_FIRST, _LAST_WAVE = 1.59, 0.267
#: How much is left out of the lines of a slice across K that are beyond its end, of those beyond the matrix, and of a
#: result's part beyond it; and how much longer lines take that are shorter than 128 bytes, of which several lie in one.
_FEWER_ROWS, _FEWER_LINES, _LESS_WRITTEN, _SHORT_PITCH = 0.211, 0.0683, 0.381, 1.51
#: What 64 rows, and 64 columns, of a slice outside of the matrix take: how much of that in edges of many tiles, and how
#: much by pairs of multiprocessors instead of each.
_OUTSIDE, _EDGES, _OUTSIDE_BOTH = np.array(((0.169,), (0.122,))) / 64, 0.223, 0.174
#: The slices of a multiprocessor after which products are slower by half of what they are at the end, see `HOT`.
_HALF_HOT = 63.0
#: Of lines of the result that begin at multiples of 128 bytes, of 64, 32 and elsewhere: how much longer they take to be
#: written, how many times they count in memory, and beside what the L2 cache carries. How much longer four bytes take.
_WRITES = (1.0, 0.676, 0.676, 0.833)
_RESULT_MEMORY = (0.544, 0.732, 0.732, 1.36)
_RESULT_CARRIED = (0.533, 0.533, 0.533, 1.07)
_WIDER = 0.344
#: Bytes a microsecond from memory: fitted with what limits beside it, so that it is more than the 4.8 TB/s of the chip.
_MEMORY = 5.47e6
#: What stream-K adds: bytes a microsecond of sums that all multiprocessors leave and read, which is assumed; and, as
#: measured on an H200 within a sixth, of sums that one of them reads, and zeros for the flags with launches that do not
#: overlap then.
_LEFT, _LEFT_TO_ONE, _ZEROS = 5.5e6, 0.028e6, 4.0
# Lists of configs whose rates are kept.
_MOST_KNOWN = 16


class Operation(NamedTuple):
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
    tiles : sequence of int or None
        Tiles of clusters that each config computes in all, where these are not all that the result has.
    writes : float
        How often a tile is written, to more than one place.
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
    tiles: Sequence[int] | None = None
    writes: float = 1.0


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
    lines, chip = of.lines(one.a, one.b), of.on_chip(multiprocessors)
    # Two rows: of the rows of the configs' product, and of its columns.
    extents = of.of_sides(one.rows, one.cols)
    in_clusters = np.ceil(extents / of.cluster_tile)
    tiles = in_clusters[0] * in_clusters[1]
    if one.tiles is not None:
        tiles = np.array(one.tiles, np.float64)
    elif one.batch != 1:
        tiles *= one.batch
    waves = np.ceil(tiles / chip.at_once)
    every = tiles * of.cluster
    ctas = np.minimum(every, chip.ctas)
    # CTAs spread over pairs of multiprocessors, and any more than there are pairs share the way of one to the L2 cache.
    in_pairs = ctas > chip.pairs
    last_pairs = every - waves * chip.ctas > chip.pairs - chip.ctas
    both = np.maximum(in_pairs - (in_pairs > last_pairs) * (1 - _LAST_WAVE) / waves, of.paired)
    each = np.ceil(slices / of.cluster_k)
    left: Any = 0.0
    if of.any_stream_k:
        waves, each, left = _shared_out(of, tiles, chip.at_once, waves, each, slices)
    counts = np.ceil(extents / of.tile)
    whole = counts * of.tile
    inside = extents / whole
    parts = (lines.brought + lines.both * both) * ((1 - _FEWER_LINES) + _FEWER_LINES * inside)
    a_part, b_part = _last_slice(one, one.a), _last_slice(one, one.b)
    if a_part != 1.0 or b_part != 1.0:
        parts *= of.of_sides(a_part, b_part)
    brought = parts[0] + parts[1]
    long = waves * each
    # Steps that are in the way of each other where they take about as long: a norm.
    multiplied = of.products + chip.hot * (ctas * long / (long + _HALF_HOT))
    slice_time = _norm(multiplied, brought, of.wait + of.wait_both * both)
    slice_time += SLICE
    # Edges of one tile of many are left alone by most of the waves; in one wave all wait for them.
    edges = (whole - extents) * np.where(counts > 1, np.where(waves == 1, _EDGES, _EDGES / counts), 1.0)
    edges *= _OUTSIDE
    outside = edges[0] + edges[1]
    slice_time += outside * (ctas * ((1 - _OUTSIDE_BOTH) / _ALL) + _OUTSIDE_BOTH * both)
    products = each * slice_time * (1 + of.parts * in_pairs)
    longer = _WRITES[one.result_begin] * (1 + _WIDER * (one.result_item - 2))
    longer *= one.writes
    written = of.written * (longer * (1 - _LESS_WRITTEN) + longer * _LESS_WRITTEN * (inside[0] * inside[1]))
    # Where warpgroups take turns, one writes while the other multiplies; else all wait.
    finished = products + written
    in_turns = _norm(products, (finished + of.again) * 0.5)
    tile = np.where(of.turns, in_turns, finished + SHARED)
    computed = waves * (tile + of.again) + of.in_turns * written + of.once + ctas * (_FILL / _ALL) + left
    computed += _FIRST * brought * both
    carried = tiles * (slices * lines.carried) + one.written * _RESULT_CARRIED[one.result_begin] / SLICES
    memory = one.read / _MEMORY + one.written * _RESULT_MEMORY[one.result_begin] / _MEMORY * of.results
    moved = _norm(computed, carried)
    total: list[float] = (_LAUNCH + np.sqrt(moved * moved + memory * memory)).tolist()
    return total


def _norm(*times: Any) -> Any:
    """Return the fourth root of the sum of fourth powers."""
    first, *others = times
    total = first * first
    total *= total
    for other in others:
        power = other * other
        power *= power
        total += power
    return np.sqrt(np.sqrt(total))


def _last_slice(one: Operation, lines: Lines) -> float:
    """Return how much longer an operand's lines take to be brought because K does not fill the last slice."""
    if lines.across:
        return 1 - _FEWER_ROWS * (1 - one.last) / one.slices
    return 1 + _SHORT_PITCH * (1 - one.last) if one.slices == 1 else 1.0


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
