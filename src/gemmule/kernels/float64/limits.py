"""Limits of the time of a float64 GEMM on tensor cores, for many configs at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gemmule.core.dataclass import dataclass
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result

from .config import DmmaConfig

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Float64Rates:
    """What predicted times were fitted to: benchmarks/experiments/fit_float64_cost.py. Microseconds on an H200."""

    #: products, products_of_8, products_of_4: Products of a k-tile of 128 x 128 x 16, and the factors of instructions
    #: of 8 and of 4 elements of K.
    products: float
    products_of_8: float
    products_of_4: float
    #: alone, wait: Latency of a k-tile, and that of a CTA alone, if a scheduler has one warp.
    alone: float
    wait: float
    #: l2, memory: Bytes a microsecond that a multiprocessor loads from L2, and that all move to and from device memory.
    l2: float
    memory: float
    #: launch, first: A launch, and the first k-tiles of as many CTAs as a multiprocessor holds.
    launch: float
    first: float
    write: float  #: Bytes a microsecond that a multiprocessor writes.
    #: reduction, partials: A cluster's reduction, and that of 64 x 64 partial sums.
    reduction: float
    partials: float
    tail: float  #: How long the last CTAs run alone.
    #: odd_copies, odd_writes: Factors of copies and of results where lines of A or B, or rows of D, are odd: single
    #: elements are moved.
    odd_copies: float
    odd_writes: float
    #: lines, sectors: How much longer copies of 128 bytes take that begin inside a cache line, and inside a sector.
    lines: float
    sectors: float


#: Fitted to records 20261124T202201 (an H100; even results only: odd ones are written in another order since),
#: 20261125T031547 (an H100), 20261122T113015, 20261122T133327 and 20261128T135346 (H200s), and to the draws
#: 20261125T140643 (an H100), 20261125T141334 and 20261128T142300 (H200s).
RATES = Float64Rates(
    products=1.005,
    products_of_8=1.076,
    products_of_4=2.16,
    alone=0.02105,
    wait=0.1847,
    l2=7.657e4,
    memory=4.472e6,
    launch=1.188,
    first=1.29,
    write=5.418e4,
    reduction=1.774,
    partials=0.1508,
    tail=0.6055,
    odd_copies=0.8356,
    odd_writes=2.355,
    lines=0.2053,
    sectors=0.8667,
)
#: Bytes of a cache line, and of what of it is moved.
_CACHE_LINE, _SECTOR = 128, 32
#: Share of the multiprocessors that clusters reach, others than these, and share of their time that they use where many
#: wait.
_REACHED, _OTHERS_REACHED, _USED = {1: 1.0, 2: 1.0, 4: 0.88, 6: 0.94, 8: 0.91}, 0.9, {2: 0.943}

#: Microseconds of the zeros of stream-K's flags.
_ZEROED = 2.5


class Limits(NamedTuple):
    """Times of the limits, and what they follow from, by config.

    Attributes
    ----------
    times : array
        Microseconds.
    share : array
        CTAs of each multiprocessor.
    each : array
        CTAs of the multiprocessor that has most.
    whole_m, whole_n : array
        Shares of the rows and columns of all tiles that are inside the result.
    k_tiles, split : array
        K-tiles of each CTA, and the same without what is beyond K.
    """

    times: Numbers
    share: Numbers
    each: Numbers
    whole_m: Numbers
    whole_n: Numbers
    k_tiles: Numbers
    split: Numbers


class Tiles:
    """What configs decide for every product: sizes, and microseconds; a value for each config."""

    def __init__(self, configs: Sequence[DmmaConfig], rates: Float64Rates) -> None:
        def each(value: Any) -> Numbers:
            return np.array([value(one) for one in configs], np.float64)

        self.m, self.n, self.tile_k = each(lambda c: c.tile_m), each(lambda c: c.tile_n), each(lambda c: c.tile_k)
        self.shared, self.threads = each(lambda c: c.cluster_k), each(lambda c: c.threads)
        self.mma_k, self.resident = each(lambda c: c.mma_k), each(lambda c: c.resident)
        outputs, itemsize = self.m * self.n, each(lambda c: c.itemsize)
        # Elements of K of the k-tiles of a cluster, cache lines of a row of a k-tile.
        self.depth, row = self.tile_k * self.shared, self.tile_k * itemsize
        self.along_k = row / _CACHE_LINE
        smaller = each(lambda c: {16: 1.0, 8: rates.products_of_8, 4: rates.products_of_4}[c.mma_k])
        self.products = rates.products * smaller * outputs * self.tile_k / 2**18
        self.copies_a, self.copies_b = self.m * row / rates.l2, self.n * row / rates.l2
        # More accumulators a thread, and deeper fragments, are more to read before products can begin.
        first = np.sqrt(outputs / self.threads / 32) * np.maximum(self.mma_k, 8) / 16
        self.alone = self.products + rates.wait * 128 / self.threads * first + rates.alone
        self.written = outputs * itemsize / self.shared / rates.write
        split = self.shared > 1
        self.stream_k = each(lambda c: getattr(c, "stream_k", 0)) == 1
        self.reduction = np.where(split, rates.reduction + rates.partials * outputs / 2**12, 0.0)
        self.reached = each(lambda c: _REACHED.get(c.cluster_k, _OTHERS_REACHED))
        self.used = each(lambda c: _USED.get(c.cluster_k, 1.0))
        self.single = self.resident == 1
        logs = [np.log2(x) for x in (self.m, self.n, self.tile_k, self.shared, self.threads)]
        #: What the correction reads of configs.
        kinds = self.mma_k == 16, self.mma_k == 4, split, self.shared == 2, self.stream_k
        self.features = np.stack([*logs, *kinds, self.resident])


@cache_for_configs
def tiles_of(configs: Sequence[DmmaConfig], rates: Float64Rates) -> Tiles:
    """Return what configs decide."""
    return Tiles(configs, rates)


def key_of(config: DmmaConfig) -> tuple[int, ...]:
    """Return what a config's factors are found by; of stream-K, the CTAs of a cluster are 0."""
    shared = 0 if getattr(config, "stream_k", 0) else config.cluster_k
    return config.tile_m, config.tile_n, config.tile_k, config.mma_k, shared, config.threads // 32


def _together(first: Numbers, second: Numbers, third: Numbers) -> Numbers:
    """Return the time of three that overlap: hardly more than the longest, where that is much longer."""
    first, second, third = first * first, second * second, third * third
    found: Numbers = np.sqrt(np.sqrt(first * first + second * second + third * third))
    return found


def limits(problem: GemmProblem, configs: Sequence[DmmaConfig], gpu: GpuRates, rates: Float64Rates) -> Limits:
    """Return the times with those rates: the k-tiles of a multiprocessor's CTAs, concurrent or not."""
    oriented, _, _ = row_result(problem)
    m, n, k, batch = max(oriented.m, 1), max(oriented.n, 1), max(oriented.k, 1), (oriented.batch or (1,))[0]
    odd_copies = rates.odd_copies if is_odd(oriented.a) or is_odd(oriented.b) else 1.0
    odd_writes = rates.odd_writes if is_odd(oriented.d) else 1.0
    of = tiles_of(configs, rates)
    copies = of.copies_a * (1 + _slower(oriented.a, rates) / (of.along_k if oriented.a.is_row_major else 1.0))
    copies += of.copies_b * (1 + _slower(oriented.b, rates) / (of.along_k if oriented.b.is_col_major else 1.0))
    copies *= odd_copies
    along_m, along_n, split = m / of.m, n / of.n, k / of.depth
    tiles_m, tiles_n, k_tiles = np.ceil(along_m), np.ceil(along_n), np.ceil(split)
    ctas = tiles_m * tiles_n * of.shared * batch
    share = ctas / (of.reached * gpu.multiprocessors)
    each = np.ceil(share)
    concurrent = each <= of.resident
    # All at once, or several at a time, of which the last ones run alone; one at a time, each in turn.
    count, alone = np.where(concurrent, each, share / of.used), np.where(concurrent, of.alone, of.alone / of.resident)
    alone = np.where(concurrent, alone, alone * count)
    time = _together(count * of.products, count * copies, alone)
    time += np.where(concurrent, 0.0, rates.tail * of.alone)
    time = np.where(of.single & ~concurrent, each * np.maximum(of.alone, copies), time) * k_tiles
    # Other CTAs' copies go on while one begins or writes.
    time += rates.first * np.ceil(each / of.resident) + each * of.written * odd_writes
    if of.stream_k.any():
        # As many CTAs as run at once, with equal shares of all k-tiles.
        tiles = tiles_m * tiles_n * max(batch, 1)
        persistent = np.minimum(tiles * k_tiles, of.resident * gpu.multiprocessors)
        per, of_each = persistent / gpu.multiprocessors, tiles / persistent
        own = _together(per * of.products, per * copies, of.alone) * (of_each * k_tiles)
        alone = np.where(of.single, 1 + of_each, 1.0)
        # Each writes its part of a tile, and one reads those of all that have parts of it, one after the other.
        moved_parts = 1 + np.maximum(1 / of_each, 1)
        own += rates.first * alone + per * of.written * (of_each * odd_writes + moved_parts)
        time = np.where(of.stream_k, own + _ZEROED, time)
        # Of a wave nothing is lost.
        each = np.where(of.stream_k, share, each)
    moved = ((m + n) * k + m * n) * batch * oriented.a.dtype.itemsize
    time *= time
    time = np.sqrt(np.hypot(time, (moved / gpu.memory_rate(rates.memory)) ** 2)) + of.reduction + rates.launch
    return Limits(time, share, each, along_m / tiles_m, along_n / tiles_n, k_tiles, split)


def _slower(matrix: StridedMatrix, rates: Float64Rates) -> float:
    """Return how much longer copies of 128 bytes take, for those lines that begin inside a cache line or a sector."""
    lines, sectors = begins_inside(matrix)
    return rates.lines * lines + rates.sectors * sectors


def begins_inside(matrix: StridedMatrix) -> tuple[float, float]:
    """Return the shares of a matrix's lines that begin inside a cache line, and inside a sector."""
    nbytes = _line_stride(matrix) * matrix.dtype.itemsize
    return 1.0 - math.gcd(nbytes, _CACHE_LINE) / _CACHE_LINE, 1.0 - math.gcd(nbytes, _SECTOR) / _SECTOR


def is_odd(matrix: StridedMatrix) -> bool:
    """Return whether lines begin at odd elements, so that single ones are moved."""
    return _line_stride(matrix) % 2 == 1


def _line_stride(matrix: StridedMatrix) -> int:
    """Return the elements between the starts of two lines."""
    return matrix.row_stride if matrix.col_stride == 1 else matrix.col_stride
