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
_LAUNCH, _PRODUCTS, _BYTES, _SLICE, _WRITE = 1.51, 0.26, 0.1224, 0.0378, 0.883
_NEXT, _SHARED, _START, _EXCHANGE, _SUMS, _AGAIN = 0.164, 0.73, 0.384, 0.487, 1.057, 0.339
#: What 64 rows, and 64 columns, of a slice outside of the matrix take where all multiprocessors bring such.
_OUTSIDE_ROWS, _OUTSIDE_COLS, _ALL = 0.166, 0.156, 132
#: How much longer the copy engine takes for rows of fewer than 128 bytes in shared memory, by their bytes.
_NARROW = {64: 1.8, 32: 6.1, 16: 9.15}
#: How much slower products are where all multiprocessors are busy for long, so that the clock is lowered, and the
#: slices of a multiprocessor for half of that.
_HOT, _HALF_HOT = 0.318, 117.0
#: Bytes a microsecond from memory, and to the slices; the three limits hold together as a norm of this degree.
_MEMORY, _SLICES, _DEGREE = 4.31e6, 21.2e6, 2.45
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
    row_lines, col_lines : int
        Lines of the L2 cache that hold 128 bytes of a line of the operand that gives the rows, and the columns: 1, or 2
        where lines do not begin at multiples of 128 bytes.
    """

    rows: int
    cols: int
    across: bool
    row_lines: int = 1
    col_lines: int = 1


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
        narrow = each(lambda c: _NARROW.get(c.tile_n * 2 & -c.tile_n * 2, 1.0))
        self.brought_rows = _BYTES / 256 * each(lambda c: c.tile_m / c.cluster_n)
        self.brought_cols = _BYTES / 256 * each(lambda c: c.tile_n / c.cluster_m) * np.stack([narrow**0, narrow])
        written = each(lambda c: _WRITE * c.outputs / 2**14 / c.cluster_k)
        pingpong = each(lambda c: c.pingpong)
        exchanged = each(
            lambda c: (
                (_EXCHANGE + _SUMS * c.outputs / 2**12 * (c.cluster_k - 1) / c.cluster_k) if c.cluster_k > 1 else 0.0
            )
        )
        started = each(lambda c: _START if c.cluster > c.cluster_k else 0.0)
        self.every = (1 - pingpong) * (_SHARED + written)
        self.again = _NEXT + _AGAIN * exchanged
        self.once = _LAUNCH + started + exchanged + pingpong * written
        self.stream_k = each(lambda c: getattr(c, "stream_k", 0), np.bool_)
        self.any_stream_k = bool(self.stream_k.any())
        self.sum_bytes = each(lambda c: 4 * c.outputs)
        self._of_slices: dict[tuple[bool, int, int], tuple[np.ndarray[Any, np.dtype[Any]], ...]] = {}

    def of_slice(self, sides: Sides) -> tuple[np.ndarray[Any, np.dtype[Any]], ...]:
        """Return what a CTA's part of a slice takes to come, and what the slices of a cluster take of the L2 cache."""
        key = (sides.across, sides.row_lines, sides.col_lines)
        found = self._of_slices.get(key)
        if found is None:
            brought = self.brought_rows * sides.row_lines + self.brought_cols[int(sides.across)] * sides.col_lines
            carried = (self.rows * sides.row_lines + self.cols * sides.col_lines) * (_ROW_BYTES / _SLICES)
            found = self._of_slices[key] = (brought, carried)
        return found

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


def times_us(
    plain: Sides,
    swapped: Sides,
    configs: Sequence[TileConfig],
    multiprocessors: int,
    *,
    slices: int,
    batch: int,
    bytes_min: int,
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
    brought, carried_slice = of.of_slice(plain)
    others = of.of_slice(swapped)
    if others[0] is not brought:
        brought = np.where(of.swapped, others[0], brought)
    if plain.row_lines != plain.col_lines:
        carried_slice = np.where(of.swapped, others[1], carried_slice)
    slice_time = np.maximum(of.products * hot, brought) + _SLICE
    outside = _OUTSIDE_ROWS * np.maximum(of.tile_m - rows, 0) + _OUTSIDE_COLS * np.maximum(of.tile_n - cols, 0)
    slice_time += outside / _SIDE * (np.minimum(tiles, at_once) * of.cluster / _ALL)
    computed = every_slice * slice_time + waves * of.every + (waves - 1) * of.again + of.once + left
    carried = _LAUNCH + tiles * slices * carried_slice
    memory = _LAUNCH + bytes_min / _MEMORY
    total: list[float] = ((computed**_DEGREE + carried**_DEGREE + memory**_DEGREE) ** (1 / _DEGREE)).tolist()
    return total
