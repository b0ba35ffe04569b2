"""What a config of Hopper's persistent kernels decides of its time by itself: rates measured on an H200, by tile.

The constants were fitted to times of all registered configs on random products; they are those of one CTA a
multiprocessor, in microseconds where nothing else is said.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

Numbers = np.ndarray[Any, np.dtype[Any]]

#: Of a slice: the products of 128 columns and of some more that each row of a wgmma takes, bytes from the L2 cache of
#: 256 lines, the wait for lines that a CTA asked for a whole round of its stages ago, and what it takes besides.
PRODUCTS, MORE_COLUMNS, BYTES, WAIT, SLICE = 0.189, 2.2, 0.136, 0.767, 0.0302
#: How much slower products are where all multiprocessors are busy for long, so that the clock is lowered.
HOT = 0.694
#: Of a tile: writing 128 x 128, the next one, and more where warpgroups share it; how much of its sums is exchanged
#: while the next one is multiplied.
WRITE, NEXT, SHARED, AGAIN = 1.11, 0.193, 0.438, 0.0627
#: How much longer the wait for lines is where multiprocessors bring them in pairs.
WAIT_BOTH = 0.243
#: A cluster's start; sums that it exchanges, and those of 64 x 64.
START, EXCHANGE, SUMS = 0.0235, 0.293, 0.902
#: How much longer lines take to be brought that begin at multiples of 128 bytes of memory, of 64, 32 and 16; and how
#: much of that is added where the other multiprocessor of a pair brings lines too, as both share their way to the L2
#: cache.
BRING, BOTH = (1.0, 1.17, 1.17, 2.45), (0.0542, 0.396, 0.396, 0.437)
#: How much longer such lines take to be carried from the L2 cache, all together; and what a CTA of a cluster that gets
#: the lines of another adds to that.
CARRY, APART = (1.0, 2.31, 2.31, 3.61), (0.0, 0.752, 0.752, 0.0562)
#: How much longer the copy engine takes for rows of fewer than 128 bytes in shared memory, by their bytes.
NARROW = {64: 3.17, 32: 5.35, 16: 7.17}
#: How far a cluster's CTAs count as a pair where few others run.
CLUSTERED = 0.272
#: How much longer a slice of a part of K takes where CTAs that sum its parts up run in pairs of multiprocessors.
PARTS = 0.1
#: Bytes a microsecond to the slices.
SLICES = 24.8e6
#: How much longer results take in memory that are written in boxes of the transposed product.
TURNED = 0.378
ROW_BYTES = 128


class TileConfig(Protocol):
    """What the prediction reads of a config, as `ProductionConfig` describes it."""

    @property
    def tile_m(self) -> int: ...
    @property
    def tile_n(self) -> int: ...
    @property
    def stages(self) -> int: ...
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


class Lines(NamedTuple):
    """How lines of an operand lie in memory.

    Attributes
    ----------
    begin : int
        Where they begin: 0 at multiples of 128 bytes, 1 of 64, 2 of 32, 3 elsewhere.
    across : bool
        Whether they lie across K.
    """

    begin: int
    across: bool


@dataclasses.dataclass(frozen=True)
class LineRates:
    """What lines of a slice take, an array with a number for each config.

    Attributes
    ----------
    brought : array
        Bringing the lines that give the rows of a tile, and in a second row those that give its columns.
    both : array
        What is added where the other multiprocessor of a pair brings lines too.
    carried : array
        Carrying a slice of a cluster's tile.
    """

    brought: Numbers
    both: Numbers
    carried: Numbers


@dataclasses.dataclass(frozen=True)
class ChipRates:
    """How many run at the same time, arrays with a number for each config.

    Attributes
    ----------
    at_once, ctas : array
        Clusters, and their CTAs.
    pairs : int
        Pairs of multiprocessors.
    hot : array
        How much longer products take where these run for long, for each of the CTAs.
    """

    at_once: Numbers
    ctas: Numbers
    pairs: int
    hot: Numbers


class TileRates:
    """What only the configs decide, an array for each quantity: with two rows where it is of rows and of columns.

    Parameters
    ----------
    configs : sequence of TileConfig
        The configs.
    """

    def __init__(self, configs: Sequence[TileConfig]) -> None:
        def each(value: Callable[[TileConfig], float], dtype: type = np.float64) -> Numbers:
            return np.array([value(config) for config in configs], dtype)

        self.configs = configs
        self._chips: dict[int, ChipRates] = {}
        self._lines: dict[tuple[Lines, Lines], LineRates] = {}
        self._side = each(lambda c: c.swapped, np.intp)
        self._sides = np.array((self._side, 1 - self._side))
        self.tile = np.array([(c.tile_m, c.tile_n) for c in configs], np.float64).T
        # CTAs of a cluster that get the same lines, of its rows and of its columns.
        self._sharing = np.array([(c.cluster_n, c.cluster_m) for c in configs]).T
        self.cluster_tile = self.tile * self._sharing[::-1]
        self.clusters = each(lambda c: c.clusters)
        self.cluster = each(lambda c: c.cluster)
        self.cluster_k = each(lambda c: c.cluster_k)
        self.paired = each(lambda c: CLUSTERED if c.cluster > 1 else 0.0)
        self.products = each(lambda c: PRODUCTS * c.tile_m * (c.tile_n + MORE_COLUMNS) / 2**14)
        self.parts = each(lambda c: PARTS if c.cluster_k > 1 else 0.0)
        self.wait = each(lambda c: WAIT / c.stages)
        self.wait_both = self.wait * WAIT_BOTH
        self.written = each(lambda c: WRITE * c.outputs / 2**14 / c.cluster_k)
        exchanged = each(
            lambda c: (EXCHANGE + SUMS * c.outputs / 2**12 * (c.cluster_k - 1) / c.cluster_k) if c.cluster_k > 1 else 0
        )
        self.again = NEXT + AGAIN * exchanged
        # There is one next tile less than there are tiles.
        self.once = exchanged + each(lambda c: START if c.cluster > c.cluster_k else 0.0) - self.again
        self.turns = each(lambda c: c.pingpong, np.bool_)
        self.in_turns = each(lambda c: c.pingpong)
        self.results = 1 + TURNED * self._side
        self.stream_k = each(lambda c: getattr(c, "stream_k", 0), np.bool_)
        self.any_stream_k = bool(self.stream_k.any())
        self.sum_bytes = each(lambda c: 4 * c.outputs)

    def of_sides(self, first: Any, second: Any) -> Any:
        """Return for each config what is of its rows, and of its columns, where these are of the product or swapped."""
        return np.array((first, second), np.float64).take(self._sides, axis=0)

    def on_chip(self, multiprocessors: int) -> ChipRates:
        """Return what follows from the number of multiprocessors."""
        found = self._chips.get(multiprocessors)
        if found is None:
            at_once = np.maximum(np.minimum(multiprocessors // self.cluster, self.clusters), 1)
            ctas = at_once * self.cluster
            found = ChipRates(at_once, ctas, multiprocessors // 2, HOT / ctas * self.products)
            self._chips[multiprocessors] = found
        return found

    def lines(self, a: Lines, b: Lines) -> LineRates:
        """Return what lines take of the operand that gives the rows of the product, and of that for the columns."""
        found = self._lines.get((a, b))
        if found is None:
            found = self._lines[a, b] = self._line_rates(a, b)
        return found

    def _line_rates(self, a: Lines, b: Lines) -> LineRates:
        bring, both, carry, apart = (self.of_sides(x[a.begin], x[b.begin]) for x in (BRING, BOTH, CARRY, APART))
        brought = BYTES / 256 * self.tile / self._sharing * bring
        brought[1] *= [_narrow(c.tile_n, a if c.swapped else b) for c in self.configs]
        carried = ROW_BYTES / SLICES * self.cluster_tile * carry * (1 + apart * (self._sharing - 1))
        return LineRates(brought, brought * both, carried.sum(axis=0))


def _narrow(tile: int, lines: Lines) -> float:
    """Return how much longer rows take that are as wide as the swizzle of lines across K, which divides the tile.

    Twice as many rows touch fewer than twice the lines of memory where those begin anywhere.
    """
    row = min(tile * 2 & -tile * 2, ROW_BYTES)
    if not lines.across or row == ROW_BYTES:
        return 1.0
    begin = ROW_BYTES >> lines.begin

    def touched(width: int) -> float:
        return ROW_BYTES / width * (1 + max(width - begin, 0) / ROW_BYTES)

    more = (touched(row) / touched(ROW_BYTES) - 1) / (ROW_BYTES / row - 1)
    return 1 + (NARROW[row] - 1) * more
