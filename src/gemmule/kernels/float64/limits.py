"""Limits of the time of a float64 GEMM on tensor cores, for many configs at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gemmule.core.dataclass import dataclass
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs, cache_last_call
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result
from gemmule.kernels.parts.clusters_at_once import ClusterPlaces

from .config import DmmaConfig, Float64Config, TmaTilesConfig

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Float64Rates:
    """Fitted rates of predicted times: benchmarks/experiments/fit_float64_cost.py. Microseconds on an H200."""

    #: products, products_of_8, products_of_4: Products of a k-tile of 128 x 128 x 16, and the factors of instructions
    #: of 8 and of 4 elements of K.
    products: float
    products_of_8: float
    products_of_4: float
    #: alone, wait: Latency of a k-tile, and that of a CTA alone, if a scheduler has one warp.
    alone: float
    wait: float
    #: l2, memory: Bytes a microsecond that an SM loads from L2, and that all move to and from device memory.
    l2: float
    memory: float
    #: launch, first: A launch, and the first k-tiles of as many CTAs as an SM holds.
    launch: float
    first: float
    write: float  #: Bytes a microsecond that an SM writes.
    #: reduction, partials: A cluster's reduction, and that of 64 x 64 partial sums.
    reduction: float
    partials: float
    tail: float  #: Time that the last CTAs run alone.
    #: odd_copies, odd_writes: Factors of copies and of results where lines of A or B, or rows of D, are odd: single
    #: elements are moved.
    odd_copies: float
    odd_writes: float
    #: lines, sectors: How much longer copies of 128 bytes take that begin inside a cache line, and inside a sector.
    lines: float
    sectors: float

    def __hash__(self) -> int:
        # They are keys of a cache, and never differ in the others only.
        return hash((self.products, self.memory))


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
#: Share of the time of SMs that clusters use where many wait.
_USED = {2: 0.943}
#: Microseconds of stream-K's fix-up besides what is moved: flags, and waiting for partials.
_FIXUP = 2.5


class Layout(NamedTuple):
    """Layouts of operands and result of a product with a row-major result.

    Attributes
    ----------
    begin_a, begin_b : int
        Bytes at multiples of which lines begin, at most those of a cache line.
    along_a, along_b : bool
        Whether lines are along K.
    odd_copies, odd_writes : bool
        Whether lines of an operand, or of the result, begin at odd elements, so that single ones are moved.
    """

    begin_a: int
    begin_b: int
    along_a: bool
    along_b: bool
    odd_copies: bool
    odd_writes: bool


@cache_last_call
def layout_of(oriented: GemmProblem) -> Layout:
    """Return the layouts of operands and result of a product with a row-major result."""
    a, b, item = oriented.a, oriented.b, oriented.a.dtype.itemsize
    begin_a, begin_b = _begin(a), _begin(b)
    odd = begin_a == item or begin_b == item
    return Layout(begin_a, begin_b, a.is_row_major, b.is_col_major, odd, _begin(oriented.d) == item)


def _begin(matrix: StridedMatrix) -> int:
    stride = matrix.row_stride if matrix.col_stride == 1 else matrix.col_stride
    return math.gcd(stride * matrix.dtype.itemsize, _CACHE_LINE)


def begins_inside(begin: int) -> tuple[float, float]:
    """Return the shares of lines that begin inside a cache line, and inside a sector."""
    return 1.0 - begin / _CACHE_LINE, 1.0 - math.gcd(begin, _SECTOR) / _SECTOR


class Limits(NamedTuple):
    """Times of the limits, and what they follow from, by config.

    Attributes
    ----------
    times : array
        Microseconds.
    share, each : array
        CTAs of each SM, and of the one that has most; with stream-K, whose waves lose nothing, the same.
    parts, whole : array
        Rows, columns and K by those of a tile and of all k-tiles at a time, and the next whole numbers: three rows.
    """

    times: Numbers
    share: Numbers
    each: Numbers
    parts: Numbers
    whole: Numbers


class _Moving(NamedTuple):
    """Numbers of configs, for products of one layout; a value for each config.

    Attributes
    ----------
    many : array
        Fourth power of a CTA's k-tile where more CTAs than fit alternate.
    fewer : array
        Addition where all run at the same time, except the part that does not depend on their number.
    written : array
        Microseconds that each CTA's result takes.
    """

    many: Numbers
    fewer: Numbers
    written: Numbers


class _Streamed(NamedTuple):
    """Numbers of configs of stream-K by persistent CTAs, besides `Tiles`; a value for each of them.

    Attributes
    ----------
    numbers : array
        Their numbers among all configs.
    resident : array
        Resident CTAs of an SM, all of them persistent.
    again : array
        Microseconds of the first k-tile of each tile, which no other CTA hides where one is resident.
    part : array
        Microseconds that a CTA's part of a tile takes to write, or to read.
    """

    numbers: Numbers
    resident: Numbers
    again: Numbers
    part: Numbers

    @classmethod
    def of(cls, tiles: Tiles, rates: Float64Rates) -> _Streamed:
        """Return the numbers of the configs of stream-K, among all those of tiles."""
        numbers = np.flatnonzero(tiles.persistent)
        resident = tiles.resident[numbers]
        return cls(numbers, resident, rates.first * (resident == 1), tiles.written[numbers])


class _Split(NamedTuple):
    """Numbers of a config of stream-K by clusters, besides `Tiles`."""

    number: int  #: Its number among all configs.
    config: Float64Config  #: The config.
    part: float  #: Microseconds that a CTA's part of a tile takes to write, or to read.


class Tiles:
    """Numbers of configs for every product: sizes, and microseconds; a value for each config."""

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
        #: Whether CTAs are persistent.
        self.persistent = self.stream_k & ~split
        self.reduction = np.where(split, rates.reduction + rates.partials * outputs / 2**12, 0.0)
        self.places = ClusterPlaces([(c.cluster_k, c.resident) for c in configs])
        self.reached = self.places.reached.copy()
        self.used = each(lambda c: _USED.get(c.cluster_k, 1.0))
        self.sizes = np.array((self.m, self.n, self.depth))
        self.once = self.reduction + rates.launch
        # One CTA at a time overlaps with no other; of several that alternate, the last ones run alone.
        self.alone_power = self.alone**4
        self.overlaps = np.array(self.resident > 1, np.float64)
        self.tail = rates.tail * self.alone * self.overlaps
        #: streamed, divided: What stream-K adds by CTAs and by clusters, where any config has it.
        self.streamed = _Streamed.of(self, rates) if self.persistent.any() else None
        self.divided = [
            _Split(number, one, float(self.written[number]))
            for number, one in enumerate(configs)
            if isinstance(one, Float64Config) and one.split_k
        ]
        for number, config, _ in self.divided:
            self.reached[number] = config.running / (config.ctas * config.resident)
        logs = [np.log2(x) for x in (self.m, self.n, self.tile_k, self.shared, self.threads)]
        #: Features of configs for the correction.
        kinds = self.mma_k == 16, self.mma_k == 4, split, self.shared == 2, self.stream_k
        self.features = np.stack([*logs, *kinds, self.resident])
        self._rates = rates
        self._moving: dict[Layout, _Moving] = {}

    def moving(self, layout: Layout) -> _Moving:
        """Return the numbers for products of that layout."""
        found = self._moving.get(layout)
        if found is None:
            found = self._moving[layout] = self._find_moving(layout)
        return found

    def _find_moving(self, layout: Layout) -> _Moving:
        rates, copies = self._rates, 0.0
        for each, begin, along in (
            (self.copies_a, layout.begin_a, layout.along_a),
            (self.copies_b, layout.begin_b, layout.along_b),
        ):
            lines, sectors = begins_inside(begin)
            # Share added to copies of 128 bytes of lines that begin inside a cache line, or a sector.
            slower = rates.lines * lines + rates.sectors * sectors
            copies += each * (1 + slower / (self.along_k if along else 1.0))
        copies *= rates.odd_copies if layout.odd_copies else 1.0
        together = self.products**4 + copies**4
        many = together + (self.alone / self.resident) ** 4
        many = np.where(self.overlaps > 0, many, np.maximum(self.alone, copies) ** 4)
        return _Moving(many, together - many, self.written * (rates.odd_writes if layout.odd_writes else 1.0))


@cache_for_configs
def tiles_of(configs: Sequence[DmmaConfig], rates: Float64Rates) -> Tiles:
    """Return the numbers of configs."""
    return Tiles(configs, rates)


def key_of(config: DmmaConfig) -> tuple[int, ...]:
    """Return the key of a config's factors; of stream-K, the CTAs of a cluster are 0 or negative.

    By TMA a 1 follows.
    """
    shared = 1 - config.cluster_k if getattr(config, "stream_k", 0) else config.cluster_k
    key = config.tile_m, config.tile_n, config.tile_k, config.mma_k, shared, config.threads // 32
    return (*key, config.tma) if isinstance(config, TmaTilesConfig) and config.tma else key


def limits(problem: GemmProblem, configs: Sequence[DmmaConfig], gpu: GpuRates, rates: Float64Rates) -> Limits:
    """Return the times with those rates: the k-tiles of an SM's CTAs, concurrent or not."""
    oriented, _, _ = row_result(problem)
    m, n, k, batch = max(oriented.m, 1), max(oriented.n, 1), max(oriented.k, 1), max((oriented.batch or (1,))[0], 1)
    of = tiles_of(configs, rates)
    moving = of.moving(layout_of(oriented))
    parts = np.array(((m,), (n,), (k,)), np.float64) / of.sizes
    whole = np.ceil(parts)
    share = whole[0] * whole[1]
    fixups = []
    for number, config, part_us in of.divided:
        splits = config.splits(int(share[number]) * batch, -(-k // config.tile_k))
        if splits > 1:
            parts[2, number] /= splits
            whole[2, number] = math.ceil(parts[2, number])
            share[number] *= splits
            fixups.append((number, _FIXUP + part_us * splits))
    if batch != 1:
        share *= batch
    each = of.places.busiest(share, gpu.multiprocessors)
    share *= of.shared / (of.reached * gpu.multiprocessors)
    if of.streamed:
        numbers, resident, again, part = of.streamed
        # Persistent CTAs, as many as are resident, have equal shares of all k-tiles: all of them run at the same time.
        tiles_each = share[numbers]
        persistent = np.minimum(tiles_each * whole[2][numbers], resident)
        each[numbers], tiles_of_each = persistent, tiles_each / persistent
    # Whether all run at the same time: 1 or 0.
    concurrent = np.empty(each.size)
    np.less_equal(each, of.resident, out=concurrent)
    # Several at a time, of which the last ones run alone; one at a time, each in turn.
    turns = of.overlaps * (1 - concurrent)
    count = each + turns * (share / of.used - each)
    # Times that overlap take hardly more than the longest, where that is much longer: the fourth root of the sum of
    # fourth powers.
    count *= count
    count *= count
    time = count * (moving.many + concurrent * moving.fewer)
    time += concurrent * of.alone_power
    np.sqrt(time, out=time)
    np.sqrt(time, out=time)
    time += turns * of.tail
    time *= whole[2]
    if of.streamed:
        time[numbers] *= tiles_of_each
    # Other CTAs' copies go on while one begins or writes.
    time += rates.first * np.ceil(each / of.resident)
    if of.streamed:
        # Each writes its part of a tile, and one reads those of all that have parts of it, one after the other.
        moved_parts = persistent + np.maximum(persistent / tiles_of_each, persistent)
        time[numbers] += tiles_of_each * again + part * moved_parts + _FIXUP
        # One wave loses nothing.
        each[numbers] = tiles_each
    for number, fixup in fixups:
        time[number] += fixup
    time += each * moving.written
    moved = ((m + n) * k + m * n) * batch * oriented.a.dtype.itemsize
    time *= time
    time *= time
    time += (moved / gpu.memory_rate(rates.memory)) ** 4
    np.sqrt(time, out=time)
    np.sqrt(time, out=time)
    time += of.once
    return Limits(time, share, each, parts, whole)
