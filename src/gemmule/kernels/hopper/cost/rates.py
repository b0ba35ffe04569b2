"""Arrays of what configs and a GPU decide, for the cost model of Hopper's persistent kernels.

Constants are of one CTA on each SM, in microseconds unless a comment says otherwise. They were fitted to times of all
registered configs on random products, on an H200 whose processor is that of an H100; `GpuRates` scales them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.tile_config import K_BYTES

Numbers = np.ndarray[Any, np.dtype[Any]]
Value = TypeVar("Value")

#: A k-tile: 128 x 128 multiply-adds, and the columns that an issue of wgmma costs; 256 rows of 128 bytes from the L2
#: cache; the latency of a load, which the stages share; the barriers.
_MULTIPLY, _MORE_COLUMNS, _LOAD, LATENCY, _BARRIERS = 0.189, 2.2, 0.136, 0.767, 0.0302
#: Factors of loads of rows aligned to 128, 64, 32 and 16 bytes; and the addition
#: if both SMs of a TPC load, which share a port to the L2 cache. The latency's addition then.
_ALIGNED, _BOTH, _LATENCY_BOTH = (1.0, 1.17, 1.17, 2.45), (0.0542, 0.396, 0.396, 0.437), 0.243
#: Factors of the L2 cache's time for such rows, and the addition for each further CTA of a multicast.
_CARRIED, _MULTICAST = (1.0, 2.31, 2.31, 3.61), (0.0, 0.752, 0.752, 0.0562)
#: Factor of TMA for rows of less than 128 bytes in shared memory, by their bytes.
_NARROW = {64: 3.17, 32: 5.35, 16: 7.17}
#: A launch.
_LAUNCH = 1.9
#: Share of writing added for each byte beyond two of an element of the result.
_WIDER = 0.344
#: Writing 128 x 128; the start of a cluster; exchanging partial sums, and 64 x 64 of them.
_WRITE, _CLUSTER, _EXCHANGE, _SUMS = 1.11, 0.0235, 0.293, 0.902
#: Publishing partial sums with `split_k`, fitted to record 20261129T054750, an H200; where K stays whole, too: of
#: products whose choice it changed, those took longer with it than without. In each wave: of several nearly none was
#: timed, and one that a call would have chosen took 5 % longer than the choice before (20261129T085246).
_PUBLISH = 2.0
#: Bytes a microsecond from the L2 cache to all SMs.
_L2_BYTES = 24.8e6
#: SMs of a TPC.
_TPC = 2


class OperandLayout(NamedTuple):
    """Layout of an operand in memory.

    Attributes
    ----------
    begin : int
        The alignment of its lines: 0 for multiples of 128 bytes, 1 of 64, 2 of 32, 3 for others.
    mn_major : bool
        Whether the operand is MN-major.
    """

    begin: int
    mn_major: bool


class LayoutRates(NamedTuple):
    """Rates that follow from the layout of operands and result, an array with a number for each config.

    Attributes
    ----------
    alone, both : array
        A k-tile where one SM of a TPC loads, and where both do.
    carried : array
        A k-tile of a cluster in the L2 cache.
    write, once : array
        Writing a wave's tile, and what is added once.
    features : array
        Columns that the learned correction reads: shares of a k-tile, and how narrow rows of B are.
    """

    alone: Numbers
    both: Numbers
    carried: Numbers
    write: Numbers
    once: Numbers
    features: Numbers


class Operation(NamedTuple):
    """A product as the kernels see it, with a row-major result.

    Attributes
    ----------
    rows, cols, batch : int
        Columns of the result.
    a, b : OperandLayout
        Operands that give its rows and its columns.
    k_tiles : int
        K-tiles, of 128 bytes of K.
    last : float
        Share of the last k-tile that K fills.
    result_begin, result_item : int
        Alignment of its lines, as of `OperandLayout`, and bytes of an element.
    learned_item : int
        The same of results that the correction was fitted to with such operands: of 16-bit ones only those of 16 bits.
    read, written : int
        Fewest bytes to move from memory, and to memory.
    tiles : sequence of int or None
        Tiles of clusters that each config computes in all, where these are not all that the result has.
    writes : float
        Number of places that a tile is written to.
    prepared : tuple of OperandLayout or None
        Layout of copies of A and B, for a second product that is predicted at the same time.
    float8 : bool
        Whether the elements are floats of 8 bits.
    """

    rows: int
    cols: int
    batch: int
    a: OperandLayout
    b: OperandLayout
    k_tiles: int
    last: float
    result_begin: int
    result_item: int
    learned_item: int
    read: int
    written: int
    tiles: Sequence[int] | None = None
    writes: float = 1.0
    prepared: tuple[OperandLayout, OperandLayout] | None = None
    float8: bool = False

    def each(self) -> tuple[Operation, ...]:
        """Return the product, and the prepared one if there is one, as separate operations."""
        one = self._replace(prepared=None)
        return (one,) if self.prepared is None else (one, one._replace(a=self.prepared[0], b=self.prepared[1]))


class TileRates:
    """Rates of configs on a GPU, an array for each quantity, with two rows where it is of rows and of columns.

    Parameters
    ----------
    configs : sequence of HopperGemmConfig
        The configs.
    gpu : GpuRates
        The GPU's.
    own : int, optional
        Number of a product's configs; those after them are for the product of prepared operands.
    """

    def __init__(self, configs: Sequence[HopperGemmConfig], gpu: GpuRates = H200_RATES, own: int | None = None) -> None:
        self.configs, self.gpu, self.count = configs, gpu, len(configs)
        self.own = self.count if own is None else own
        self.places = np.arange(self.count)
        each = self.each
        self.side = each(lambda c: c.swap_ab, np.intp)
        # Places in the arguments of `of_sides`.
        self._sides = np.repeat(np.arange(9)[:, None], self.count, axis=1)
        self._sides[[0, 3]] += self.side
        self._sides[[1, 4]] -= self.side
        self.tile = np.array([(c.tile_m, c.tile_n) for c in configs], np.float64).reshape(-1, 2).T
        # CTAs of a cluster that load the same rows, and the same columns.
        self._multicast = np.array([(c.cluster_n, c.cluster_m) for c in configs], np.float64).reshape(-1, 2).T
        self.cluster_tile = self.tile * self._multicast[::-1]
        self.cluster_size = each(lambda c: c.cluster_size)
        # Clusters that run at the same time, their CTAs, and the clusters beyond which TPCs are shared.
        self.max_active_clusters = np.maximum(
            np.minimum(gpu.multiprocessors // self.cluster_size, each(lambda c: c.max_active_clusters)), 1
        )
        self.ctas = self.max_active_clusters * self.cluster_size
        # Shares of the SMs that all of a config's CTAs, and those of a cluster, occupy.
        self.share, self.cluster_share = self.ctas / gpu.multiprocessors, self.cluster_size / gpu.multiprocessors
        self.alone = np.floor(gpu.multiprocessors // _TPC / self.cluster_size)
        self.cluster_k = each(lambda c: c.cluster_k)
        # Rows, columns and k-tiles of a cluster's tile.
        self.cluster_shape = np.array((*self.cluster_tile, self.cluster_k))
        self.pingpong = each(lambda c: c.pingpong)
        self._stages = each(lambda c: c.stages)
        self._multiply = each(lambda c: _MULTIPLY * c.tile_m * (c.tile_n + _MORE_COLUMNS) / 2**14) * gpu.multiply
        self.write = each(lambda c: _WRITE * c.tile_elements / 2**14 / c.cluster_k) * gpu.load
        # With ping-pong one warpgroup writes while the other multiplies: half of it counts, and all of the last tile's.
        self.write_tile = self.write * (1 - self.pingpong / 2)
        self.write_last = self.write * self.pingpong / 2
        others = 1 - 1 / self.cluster_k
        exchanged = np.where(
            self.cluster_k > 1, _EXCHANGE + _SUMS / 2**12 * each(lambda c: c.tile_elements) * others, 0
        )
        self.once = (exchanged + each(lambda c: _CLUSTER if c.cluster_size > c.cluster_k else 0.0)) * gpu.load
        # Configs with `split_k`: their indices, clusters that run at once, and 64 x 64 sums of a warpgroup.
        self.split_k = np.flatnonzero(each(lambda c: getattr(c, "split_k", 0)))
        self.split_clusters = self.max_active_clusters[self.split_k]
        self.split_sums = each(lambda c: c.tile_elements / c.warpgroups_per_tile / 2**12)[self.split_k]
        self.publish = np.zeros(self.count)
        self.publish[self.split_k] = _PUBLISH * gpu.load
        self.launch = np.full(self.count, _LAUNCH * gpu.launch)
        self._row = each(lambda c: min(c.tile_n * 2 & -c.tile_n * 2, K_BYTES), np.intp)
        # Those of an MN-major B, where warpgroups side by side have rows of their own.
        self._row_b = each(lambda c: min(c.mma_n * 2 & -c.mma_n * 2, K_BYTES), np.intp)
        self._layouts: dict[Hashable, LayoutRates] = {}
        self._cache: dict[Hashable, Any] = {}

    def each(self, value: Callable[[HopperGemmConfig], float], dtype: type = np.float64) -> Numbers:
        """Return a number for each config."""
        return np.array([value(config) for config in self.configs], dtype)

    def cached(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the value of a key, computed once for these configs."""
        found: Value | None = self._cache.get(key)
        if found is None:
            found = self._cache[key] = compute()
        return found

    def of_sides(self, *numbers: float) -> Numbers:
        """Return for each config its rows' number, its columns', K's; its rows', its columns', and those of both.

        With swap_ab the first and second, and the fourth and fifth, change places.
        """
        found: Numbers = np.array(numbers, np.float64).take(self._sides[: len(numbers)])
        return found

    def features(self) -> Numbers:
        """Return a row for each config of what a learned correction reads of it."""
        logs = np.log2([*self.tile, self._stages, *self._multicast, self.cluster_k])
        narrow = np.log2(K_BYTES / self._row)
        divided = np.zeros(self.count)
        divided[self.split_k] = 1
        return np.column_stack(
            (logs.T, self.pingpong, self.side, self.share, narrow, self.tile[0] * self.tile[1] / 2**14, divided)
        )

    def of_layout(self, operation: Operation) -> LayoutRates:
        """Return the rates by the layout of a product's operands and result."""
        key = operation.a, operation.b, operation.result_item, operation.writes, operation.prepared
        found = self._layouts.get(key)
        if found is None:
            every = [self._layout_rates(x.a, x.b, x.result_item, x.writes) for x in operation.each()]
            found = self._layouts[key] = LayoutRates(*map(self.of_each, zip(*every, strict=True)))
        return found

    def of_each(self, arrays: Sequence[Numbers]) -> Numbers:
        """Return a product's array where configs are its own, elsewhere that of the prepared one, by the first axis."""
        return arrays[0] if len(arrays) == 1 else np.concatenate((arrays[0][: self.own], arrays[1][self.own :]))

    def _layout_rates(self, a: OperandLayout, b: OperandLayout, result_item: int, writes: float) -> LayoutRates:
        aligned, longer, carried, multicast = (
            self.of_sides(x[a.begin], x[b.begin]) for x in (_ALIGNED, _BOTH, _CARRIED, _MULTICAST)
        )
        loaded = _LOAD / 256 * self.tile / self._multicast * aligned * self.gpu.load
        loaded[1] *= [_narrow(int(row), b if not side else a) for row, side in zip(self._row_b, self.side, strict=True)]
        latency = LATENCY / self._stages * self.gpu.load
        barriers = _BARRIERS * self.gpu.load
        alone = _norm(self._multiply, loaded.sum(axis=0), latency) + barriers
        shared = (loaded * (1 + longer)).sum(axis=0)
        both = _norm(self._multiply, shared, latency * (1 + _LATENCY_BOTH)) + barriers
        in_l2 = K_BYTES / _L2_BYTES * self.cluster_tile * carried * (1 + multicast * (self._multicast - 1))
        mn_major = self.of_sides(a.mn_major, b.mn_major)[1]
        features = np.column_stack(
            (
                np.log2((self._multiply, loaded.sum(axis=0), latency) / both).T,
                np.log2(loaded[0] / loaded[1]),
                mn_major * np.log2(K_BYTES / self._row_b),
            )
        )
        writes *= 1 + _WIDER * (result_item - 2)
        write, once = writes * self.write_tile + self.publish, writes * self.write_last + self.once
        # As the correction was fitted: with what is added where both load.
        return LayoutRates(alone, alone + (both - alone), in_l2.sum(axis=0) * self.gpu.l2, write, once, features)


def _norm(*times: Numbers) -> Numbers:
    """Return the fourth root of the sum of fourth powers: steps that overlap, and delay each other where alike."""
    total: Numbers = sum(time**4 for time in times) ** 0.25
    return total


def _narrow(row: int, lines: OperandLayout) -> float:
    """Return how much longer MN-major rows of so many bytes in shared memory take.

    Twice as many rows touch fewer than twice the lines of memory where those begin anywhere.
    """
    if not lines.mn_major or row == K_BYTES:
        return 1.0
    begin = K_BYTES >> lines.begin

    def touched(width: int) -> float:
        return K_BYTES / width * (1 + max(width - begin, 0) / K_BYTES)

    more = (touched(row) / touched(K_BYTES) - 1) / (K_BYTES / row - 1)
    return 1 + (_NARROW[row] - 1) * more


def parts_of_k(clusters: Any, tiles: Any, k_tiles: int) -> Any:
    """Return into how many parts K is divided with `split_k`.

    As many as let all tiles' clusters run at once, and no more than pay for the sums that the last one adds.

    Parameters
    ----------
    clusters, tiles : int, or array for several configs
        Clusters that run at once, and tiles of clusters.
    k_tiles : int
        K-tiles of K.
    """
    return np.maximum(np.minimum(clusters // tiles, math.isqrt(k_tiles) // 2 + 1), 1)


#: Time of a config that is not offered to a product.
_NOT_OFFERED = np.array([np.inf])


def positions_among(configs: Sequence[HopperGemmConfig], offered: Sequence[HopperGemmConfig], first: int) -> Numbers:
    """Return the index of each config among those offered, counted from `first`; -1 of others."""
    indices = {one: index for index, one in enumerate(offered, first)}
    return np.array([indices.get(one, -1) for one in configs], np.intp)


def times_at(times: Any, positions: Numbers) -> Numbers:
    """Return the times at `positions_among`: infinite at -1."""
    found: Numbers = np.concatenate((times, _NOT_OFFERED))
    return found.take(positions)
