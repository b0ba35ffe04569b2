"""What a product takes on Hopper's persistent kernels, predicted for many configs at once.

A CTA computes its tiles one after another, and a tile is a number of slices and what it costs at its ends. The
constants were fitted to times measured on an H200; they are those of one CTA a multiprocessor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

#: Microseconds on an H200: a launch; products, and bytes from the L2 cache, of a slice of 128 x 128; what a slice takes
#: besides; writing 128 x 128; the next tile, and more where warpgroups share it; a cluster's start; sums that it
#: exchanges, and those of 64 x 64, and how much of that each further wave takes.
_LAUNCH, _PRODUCTS, _BYTES, _SLICE, _WRITE = 1.51, 0.26, 0.122, 0.0378, 0.636
_NEXT, _SHARED, _START, _EXCHANGE, _SUMS, _AGAIN = 0.215, 0.73, 0.384, 0.336, 1.05, 0.339
#: What 64 rows, and 64 columns, of a slice outside of the matrix take where all multiprocessors bring such.
_OUTSIDE_ROWS, _OUTSIDE_COLS, _ALL = 0.215, 0.18, 132
#: How much longer the copy engine takes for rows of fewer than 128 bytes in shared memory, by their bytes.
_NARROW = {64: 1.8, 32: 6.1, 16: 9.15}
#: What the start of a CTA on every multiprocessor takes. How much longer lines that do not begin at multiples of 128
#: bytes take to be brought where two multiprocessors share their way to the L2 cache; and what a CTA of a cluster that
#: gets the lines of another adds to what the cache carries, where those begin at multiples of 32, and elsewhere.
_FILL, _PAIRED, _APART, _APART2 = 0.111, 0.143, 0.83, 0.0706
#: How much longer lines take that begin at multiples of 32 bytes but not of 128, and that begin elsewhere: to be
#: brought into a multiprocessor, to be carried from the L2 cache, to be written.
_BRING1, _BRING2, _CARRY1, _CARRY2, _WRITE1, _WRITE2 = 1.0, 2.04, 2.51, 3.63, 1.0, 1.38
#: How much slower products are where all multiprocessors are busy for long, so that the clock is lowered, and the
#: slices of a multiprocessor for half of that.
_HOT, _HALF_HOT = 0.318, 117.0
#: Bytes a microsecond from memory, and to the slices; the three limits hold together as a norm of this degree.
_MEMORY, _SLICES, _DEGREE = 4.31e6, 20.5e6, 2.45
#: What stream-K adds: bytes a microsecond of sums that all multiprocessors leave and read, which is assumed; and, as
#: measured on an H200 within a sixth, of sums that one of them reads, and zeros for the flags with launches that do not
#: overlap then.
_LEFT, _LEFT_TO_ONE, _ZEROS = 5.5e6, 0.028e6, 4.0
# Lists of configs whose tiles are kept.
_MOST_KNOWN = 16
#: Rows and columns that `_OUTSIDE_ROWS` and `_OUTSIDE_COLS` are of, and bytes of a slice's row.
_SIDE, _ROW_BYTES = 64, 128


class TileConfig(Protocol):
    """What the prediction reads of a config, as `ProductionConfig` describes it."""

    @property
    def tile_m(self) -> int: ...
    @property
    def tile_n(self) -> int: ...
    @property
    def pingpong(self) -> int: ...
    @property
    def cluster_m(self) -> int: ...
    @property
    def cluster_n(self) -> int: ...
    @property
    def cluster_k(self) -> int: ...
    @property
    def swapped(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    @property
    def cluster(self) -> int: ...
    @property
    def clusters(self) -> int: ...
    def __hash__(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class Sides:
    """A product as a kernel sees it: rows and columns of its result, swapped or not.

    Attributes
    ----------
    rows, cols : int
        Of the kernel's result.
    across : bool
        Whether the operand that gives the columns lies across K.
    rows_begin, cols_begin : int
        Where lines in memory of the operand that gives the rows, and of that for the columns, begin: 0 at multiples of
        128 bytes, 1 of 32, 2 elsewhere.
    """

    rows: int
    cols: int
    across: bool
    rows_begin: int = 0
    cols_begin: int = 0


class _Tiles:
    """What only the configs decide, an array for each quantity: extents of a cluster's tiles, times in microseconds."""

    def __init__(self, configs: Sequence[TileConfig]) -> None:
        def each(value: Callable[[TileConfig], float], dtype: type = np.float64) -> np.ndarray[Any, np.dtype[Any]]:
            return np.array([value(config) for config in configs], dtype)

        self.configs = configs
        self._at_once: dict[int, np.ndarray[Any, np.dtype[Any]]] = {}
        self.swapped = each(lambda c: c.swapped, np.int64)
        self.rows = each(lambda c: c.tile_m * c.cluster_m, np.int64)
        self.cols = each(lambda c: c.tile_n * c.cluster_n, np.int64)
        self.clusters = each(lambda c: c.clusters, np.int64)
        self.cluster = each(lambda c: c.cluster, np.int64)
        self.cluster_k = each(lambda c: c.cluster_k, np.int64)
        self.tile_m, self.tile_n = each(lambda c: c.tile_m), each(lambda c: c.tile_n)
        self.products = each(lambda c: _PRODUCTS * c.outputs / 2**14)
        # The swizzle of lines across K is as wide as divides the tile: the second row is for those.
        self.brought_rows = _BYTES / 256 * each(lambda c: c.tile_m / c.cluster_n)
        along = _BYTES / 256 * each(lambda c: c.tile_n / c.cluster_m)
        self.brought_cols = np.stack([along, along * each(lambda c: _NARROW.get(c.tile_n * 2 & -c.tile_n * 2, 1.0))])
        written = each(lambda c: _WRITE * c.outputs / 2**14 / c.cluster_k)
        pingpong = each(lambda c: c.pingpong)
        exchanged = each(
            lambda c: (
                (_EXCHANGE + _SUMS * c.outputs / 2**12 * (c.cluster_k - 1) / c.cluster_k) if c.cluster_k > 1 else 0.0
            )
        )
        started = each(lambda c: _START if c.cluster > c.cluster_k else 0.0)
        self.every = (1 - pingpong) * _SHARED
        self.every_written, self.once_written = (1 - pingpong) * written, pingpong * written
        self.again = _NEXT + _AGAIN * exchanged
        self.once = _LAUNCH + started + exchanged
        self.stream_k = each(lambda c: getattr(c, "stream_k", 0), np.bool_)
        self.any_stream_k = bool(self.stream_k.any())
        self.sum_bytes = each(lambda c: 4 * c.outputs)
        self.more_m, self.more_n = each(lambda c: c.cluster_m - 1), each(lambda c: c.cluster_n - 1)

    def at_once(self, multiprocessors: int) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the clusters that run at the same time."""
        found = self._at_once.get(multiprocessors)
        if found is None:
            found = np.maximum(np.minimum(multiprocessors // self.cluster, self.clusters), 1)
            self._at_once[multiprocessors] = found
        return found


# What was worked out for a kernel's own configs, which are asked for again and again; by where those lie.
_known: dict[int, _Tiles] = {}


def _tiles(configs: Sequence[TileConfig]) -> _Tiles:
    known = _known.get(id(configs))
    if known is not None and known.configs is configs:
        return known
    tiles = _Tiles(configs)
    if isinstance(configs, tuple) and len(_known) < _MOST_KNOWN:
        _known[id(configs)] = tiles
    return tiles


def _longer(of: _Tiles, plain: int, swapped: int, paired: Any, more: Any) -> tuple[Any, Any]:
    """Return how much longer an operand's lines take to be brought and carried, by where they begin.

    Parameters
    ----------
    of : _Tiles
        The configs.
    plain, swapped : int
        Where the lines begin, of the operand of either kind of config.
    paired : array
        How many multiprocessors share their way to the L2 cache.
    more : array
        CTAs of a cluster, but one, that get the same lines.
    """
    found = []
    for begin in sorted({plain, swapped}):
        bring, carry = (1.0, _BRING1, _BRING2)[begin], (1.0, _CARRY1, _CARRY2)[begin]
        shared = (_APART, _APART, _APART2)[begin]
        found.append((bring * (1 + _PAIRED * paired) if begin else bring, carry * (1 + shared * more)))
    if plain == swapped:
        return found[0]
    first, second = found if plain < swapped else found[::-1]
    return np.where(of.swapped, second[0], first[0]), np.where(of.swapped, second[1], first[1])


def times_us(
    plain: Sides,
    swapped: Sides,
    configs: Sequence[TileConfig],
    multiprocessors: int,
    *,
    slices: int,
    batch: int,
    bytes_min: int,
    result_begins: int = 0,
) -> list[float]:
    """Return roughly the time in microseconds of every config.

    Parameters
    ----------
    plain, swapped : Sides
        The product as configs see it that compute it as it is, and as those that compute its transpose.
    configs : sequence of TileConfig
        The configs.
    multiprocessors : int
        The GPU's.
    slices, batch : int
        Slices of K, of 128 bytes, and matrices.
    bytes_min : int
        Fewest bytes to move from and to memory.
    result_begins : int
        Where lines of the result begin, as of `Sides`.
    """
    of = _tiles(configs)
    rows = np.array((plain.rows, swapped.rows))[of.swapped]
    cols = np.array((plain.cols, swapped.cols))[of.swapped]
    tiles = (rows + (of.rows - 1)) // of.rows * ((cols + (of.cols - 1)) // of.cols) * batch
    at_once = of.at_once(multiprocessors)
    waves = (tiles + (at_once - 1)) // at_once
    every_slice = waves * ((slices + (of.cluster_k - 1)) // of.cluster_k)
    left: Any = 0.0
    if of.any_stream_k:
        # The slices of the last waves are shared out evenly, where tiles do not fill them.
        splits = of.stream_k & (tiles % at_once > 0)
        sharers = np.minimum(at_once, tiles * slices)
        waves, every_slice = np.where(
            splits, (np.maximum(tiles / at_once, 1), (tiles * slices + (sharers - 1)) // sharers), (waves, every_slice)
        )
        moved = 2 * of.sum_bytes * sharers * of.cluster / _LEFT
        read = of.sum_bytes * np.maximum(sharers / tiles, 1) / _LEFT_TO_ONE
        left = of.stream_k * _ZEROS + splits * np.maximum(moved, read)
    hot = 1 + _HOT * every_slice / (every_slice + _HALF_HOT) * np.minimum(tiles / at_once, 1)
    cols_brought = of.brought_cols[int(plain.across)]
    if plain.across != swapped.across:
        cols_brought = np.where(of.swapped, of.brought_cols[int(swapped.across)], cols_brought)
    busy = np.minimum(tiles, at_once) * (of.cluster / _ALL)
    # Two multiprocessors share a way to the L2 cache; the first half of all have it alone.
    paired = np.minimum(np.maximum(2 * busy - 1, 0), 1)
    bring_rows, carry_rows = _longer(of, plain.rows_begin, swapped.rows_begin, paired, of.more_n)
    bring_cols, carry_cols = _longer(of, plain.cols_begin, swapped.cols_begin, paired, of.more_m)
    brought = of.brought_rows * bring_rows + cols_brought * bring_cols
    slice_time = np.maximum(of.products * hot, brought) + _SLICE
    outside = _OUTSIDE_ROWS * np.maximum(of.tile_m - rows, 0) + _OUTSIDE_COLS * np.maximum(of.tile_n - cols, 0)
    slice_time += outside / _SIDE * busy
    longer = (1.0, _WRITE1, _WRITE2)[result_begins]
    every, once = of.every + of.every_written * longer, of.once + of.once_written * longer
    filled = _FILL * busy
    computed = every_slice * slice_time + waves * every + (waves - 1) * of.again + once + filled + left
    carried = _LAUNCH + tiles * (slices * _ROW_BYTES / _SLICES) * (of.rows * carry_rows + of.cols * carry_cols)
    memory = _LAUNCH + bytes_min / _MEMORY
    total: list[float] = ((computed**_DEGREE + carried**_DEGREE + memory**_DEGREE) ** (1 / _DEGREE)).tolist()
    return total
