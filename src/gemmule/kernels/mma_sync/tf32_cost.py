"""Predicted times of float32 products as TF32: k-tiles of the CTAs that share an SM, L2 traffic, and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import GemmProblem
from gemmule.kernels.parts.clusters_at_once import ClusterPlaces, clusters_at_once

from .config import MmaSyncConfig
from .launch_geometry import resident_ctas, splits_at

Numbers = np.ndarray[Any, np.dtype[np.float64]]

#: Bytes of K of a k-tile, and rows or columns that rates are for.
_K_BYTES, _SIDE = 128, 64
#: Microseconds with `split_k`: publishing sums and waiting for them, and adding 64 x 64 sums of another cluster by 128
#: threads.
_PUBLISH, _PART = 2.0, 0.1
#: Bytes of two words, and of one.
_PAIR, _WORD = 8, 4


class Tf32Rates(NamedTuple):
    """Microseconds on an H200, and rates.

    Attributes
    ----------
    launch : float
        A launch.
    reads, products : float
        A k-tile of 64 rows or columns read by a warp, and the products of 64 x 64.
    copies, copies_of_8 : float
        A k-tile of 64 rows or columns in copies of 16 bytes or of 4, and of 8.
    wait, alone : float
        A k-tile's barrier and latency, and how much longer 128 threads wait for 64 rows or columns alone.
    overlapped : float
        Share of a k-tile's time that each of many concurrent CTAs adds.
    more_warps, fewer_warps : float
        The same of the warps of a CTA of 256 threads, and of 64 or 32, where an SM has one CTA.
    fitting, crowded : float
        The factor of what clusters compute where each SM has one CTA at most, and what each doubling of their CTAs adds
        where SMs have more.
    write, unaligned : float
        Writing 64 x 64 by 128 threads, in rows that begin at multiples of 16 bytes, or anywhere.
    reduction, partials : float
        Split-K in a cluster: barriers, and adding 64 x 64 of each further CTA.
    l2, memory : float
        Bytes a microsecond from the L2 cache, and the share of the memory's rate.
    narrow : float
        Share of memory's time added for tiles of 64 rows or columns.
    """

    launch: float
    reads: float
    products: float
    copies: float
    copies_of_8: float
    wait: float
    alone: float
    overlapped: float
    more_warps: float
    fewer_warps: float
    fitting: float
    crowded: float
    write: float
    unaligned: float
    reduction: float
    partials: float
    l2: float
    memory: float
    narrow: float


#: Fitted to three quarters of the 110 products of record 20261125T031705 (an H100); copies of 8 bytes are assumed.
RATES = Tf32Rates(
    launch=1.304,
    reads=0.02469,
    products=0.1009,
    copies=0.03536,
    copies_of_8=0.05,
    wait=0.0841,
    alone=0.0,
    overlapped=1.073,
    more_warps=1.099,
    fewer_warps=1.822,
    fitting=0.9134,
    crowded=0.06024,
    write=1.247,
    unaligned=2.485,
    reduction=1.764,
    partials=0.00809,
    l2=8.261e6,
    memory=0.6857,
    narrow=0.4275,
)
#: Lines that begin at any word, fitted to the products of records 20261130T005152 and 20261130T010817; `fewer_warps`
#: is more than the fit has, as the one tile of 64 threads took longer.
UNALIGNED_RATES = Tf32Rates(
    launch=1.924,
    reads=0.0534,
    products=0.08245,
    copies=0.007379,
    copies_of_8=0.05,
    wait=0.04218,
    alone=0.03574,
    overlapped=1.207,
    more_warps=1.051,
    fewer_warps=1.85,
    fitting=0.9171,
    crowded=0.008861,
    write=1.247,
    unaligned=1.574,
    reduction=2.488,
    partials=0.005301,
    l2=5.245e6,
    memory=0.6971,
    narrow=0.316,
)


class _Tiles:
    """Numbers of configs, for every product."""

    def __init__(self, configs: Sequence[MmaSyncConfig], rates: Tf32Rates) -> None:
        def each(value: Any) -> Numbers:
            return np.array([value(one) for one in configs], np.float64)

        self.m, self.n, self.cluster_k = each(lambda c: c.tile_m), each(lambda c: c.tile_n), each(lambda c: c.cluster_k)
        # Rows and columns that all warps read, k-tiles of 128 bytes.
        reads = each(lambda c: c.warps_n * c.tile_m + c.warps_m * c.tile_n) / _SIDE
        outputs, warps = self.m * self.n / _SIDE**2, each(lambda c: c.threads / 128)
        self.resident = each(resident_ctas)
        # Terms independent of the product: a k-tile without its copies and the factor of its steps where one CTA is
        # alone, the placement of clusters, writing by the alignment of D's lines, and a cluster's reduction.
        self.steps = reads * rates.reads + outputs * rates.products
        self.alone = rates.alone / warps
        self.slower = np.where(warps > 1, rates.more_warps, np.where(warps < 1, rates.fewer_warps, 1.0))
        self.places = ClusterPlaces([(c.cluster_k, resident_ctas(c)) for c in configs])
        self.written = outputs / warps * rates.write, outputs / warps * rates.unaligned
        self.split = self.cluster_k > 1
        # Factors of what is computed, where each SM has one CTA at most and where some have more.
        self.fits = np.where(self.split, rates.fitting, 1.0)
        self.shares = np.where(self.split, 1 + rates.crowded * np.log2(self.cluster_k), 1.0)
        self.most_parts = max((one.cluster_k for one in configs), default=1)
        #: Numbers of the configs whose tiles several clusters share, their CTAs of a cluster, clusters at once, and
        #: microseconds of each further one.
        self.divided = [
            (
                number,
                one.cluster_k,
                clusters_at_once(one.cluster_k, resident_ctas(one)),
                _PART * one.share_elements / _SIDE**2 / warps[number],
            )
            for number, one in enumerate(configs)
            if one.split_k
        ]
        # A k-tile of 64 x 64 at least: of any tile, and of those that the result has more rows and columns than.
        copies = (self.m + self.n) / _SIDE * rates.copies
        self.most_side = max((max(one.tile_m, one.tile_n) for one in configs), default=0)
        every = self.steps / outputs, (self.steps + copies) / outputs
        self.least = tuple([rates.overlapped * float(steps.min(initial=math.inf)) for steps in every])
        reduction = rates.reduction + rates.partials * (self.cluster_k - 1) * outputs / warps
        self.reduction = np.where(self.split, reduction, 0.0)


@cache_for_configs
def _tiles_of(configs: Sequence[MmaSyncConfig], rates: Tf32Rates) -> _Tiles:
    return _Tiles(configs, rates)


def rates_of(copied: int) -> Tf32Rates:
    """Return the rates of copies of so many bytes."""
    return UNALIGNED_RATES if copied == _WORD else RATES


def least_us(problem: GemmProblem, configs: Sequence[MmaSyncConfig], gpu: GpuRates, rates: Tf32Rates = RATES) -> float:
    """Return a time that no config's `times_us` is less than: all k-tiles by all SMs, with copies of 16 bytes."""
    m, n = problem.m, problem.n
    of = _tiles_of(configs, rates)
    k_tile = of.least[min(m, n) >= of.most_side]
    k_tiles = problem.k * 4 / _K_BYTES * (problem.batch or (1,))[0]
    k_tile *= min(rates.fitting, 1.0)
    return gpu.load * k_tile * m * n / _SIDE**2 * k_tiles / gpu.multiprocessors + rates.launch * gpu.launch


class Lines(NamedTuple):
    """Alignment of the lines of a product's matrices.

    Attributes
    ----------
    copied : int
        Bytes of a copy, the fewer of A's and B's.
    vector : int
        Elements of D that are written at once.
    """

    copied: int
    vector: int


def times_us(
    problem: GemmProblem, configs: Sequence[MmaSyncConfig], gpu: GpuRates, lines: Lines, rates: Tf32Rates = RATES
) -> Numbers:
    """Return roughly the time in microseconds of every config.

    Parameters
    ----------
    problem : GemmProblem
        The product, its result in rows.
    configs : sequence of MmaSyncConfig
        The configs.
    gpu : GpuRates
        The GPU's.
    lines : Lines
        Alignment of the lines.
    rates : Tf32Rates
        Those of the kernel.
    """
    of = _tiles_of(configs, rates)
    m, n, batch = problem.m, problem.n, (problem.batch or (1,))[0]
    tiles = np.ceil(m / of.m) * np.ceil(n / of.n) * batch
    clusters, fixups = tiles.copy(), np.zeros(tiles.size)
    for number, cluster_k, at_once, part in of.divided:
        count = splits_at(cluster_k, at_once, int(tiles[number]), problem.k * 4 // _K_BYTES)
        clusters[number] *= count
        fixups[number] = _PUBLISH + part * (count - 1) if count > 1 else 0.0
    splits_of_k = np.maximum(clusters, 1) / np.maximum(tiles, 1)
    k_tiles = np.ceil(problem.k * 4 / (_K_BYTES * of.cluster_k * splits_of_k))
    # Rows beyond the edges are not copied.
    rows = (np.minimum(m, of.m) + np.minimum(n, of.n)) / _SIDE
    steps = of.steps + rows * (rates.copies_of_8 if lines.copied == _PAIR else rates.copies)
    alone = steps * of.slower + rates.wait + rows * of.alone
    each = of.places.busiest(clusters, gpu.multiprocessors)
    # Several at a time overlap, and those after them wait.
    rounds = np.ceil(each / of.resident)
    k_tile = np.maximum(rounds * alone, each * steps * rates.overlapped)
    reached = gpu.multiprocessors * of.places.reached
    computed = k_tiles * k_tile + of.written[lines.vector == 1] * np.ceil(tiles / reached)
    computed *= np.where(each > 1, of.shares, of.fits)
    # Each round ends with its own reduction.
    computed += of.reduction * rounds + fixups
    computed *= gpu.load
    from_l2 = clusters * of.cluster_k * k_tiles * rows * (_SIDE * _K_BYTES) / rates.l2 * gpu.l2
    # The lines of the larger operand count most.
    narrow = 1 + rates.narrow * _SIDE * (m / of.m + n / of.n) / max(m + n, 1)
    memory = narrow * (problem.bytes_min / (gpu.memory * rates.memory))
    total = np.sqrt(np.hypot(np.hypot(computed**2, from_l2**2), memory**2)) + rates.launch * gpu.launch
    if problem.k * 4 < of.most_parts * _K_BYTES:
        total[of.split & (problem.k * 4 < of.cluster_k * _K_BYTES)] = math.inf
    found: Numbers = total
    return found
