"""Cost model of the float64 GEMM on tensor cores, for many configs at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gemmule.core.dataclass import dataclass
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result

from .config import Float64Config


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
#: Measured times by those of the limits, by rows, columns and depth of a tile, elements of K of an instruction, CTAs
#: of a cluster, and warps.
FACTORS: dict[tuple[int, ...], float] = {
    (64, 64, 16, 16, 1, 4): 0.986,
    (64, 64, 16, 8, 1, 4): 1.073,
    (64, 128, 16, 8, 1, 8): 1.099,
    (128, 128, 16, 16, 1, 8): 1.131,
    (64, 64, 16, 8, 2, 4): 1.059,
    (64, 32, 16, 16, 2, 4): 0.942,
    (32, 64, 16, 8, 1, 4): 0.949,
    (32, 64, 16, 8, 2, 4): 0.958,
    (32, 32, 32, 16, 2, 4): 0.952,
    (32, 32, 32, 16, 1, 4): 0.896,
    (16, 64, 32, 16, 2, 4): 0.927,
    (16, 64, 32, 16, 4, 2): 0.876,
    (64, 64, 16, 8, 4, 4): 1.021,
    (32, 64, 16, 8, 4, 4): 0.893,
    (64, 64, 16, 8, 6, 4): 1.220,
    (64, 64, 16, 8, 8, 4): 1.147,
    (32, 64, 16, 8, 6, 4): 1.045,
    (32, 64, 16, 8, 8, 4): 1.022,
    (32, 32, 32, 16, 4, 4): 0.920,
    (32, 32, 32, 16, 6, 4): 0.966,
    (32, 64, 32, 8, 2, 4): 0.944,
    (32, 64, 32, 8, 4, 4): 0.986,
    (64, 64, 16, 16, 1, 8): 1.021,
    (64, 64, 16, 16, 2, 8): 1.003,
    (96, 64, 16, 8, 1, 4): 1.117,
    (96, 64, 16, 8, 2, 4): 1.151,
    (64, 96, 16, 8, 1, 4): 1.094,
    (64, 112, 16, 8, 1, 4): 1.024,
    (64, 64, 16, 4, 1, 4): 1.013,
    (128, 128, 16, 4, 1, 8): 1.035,
}
#: Bytes of a cache line, and of what of it is moved.
_CACHE_LINE, _SECTOR = 128, 32
#: Share of the multiprocessors that clusters reach, and of their time that they use where many wait.
_REACHED = {1: 1.0, 2: 1.0, 3: 0.9, 4: 0.88, 5: 0.9, 6: 0.94, 8: 0.91, 10: 0.9, 12: 0.9, 16: 0.87}
_USED = {2: 0.943}


class _Times(NamedTuple):
    """What a config decides for every product: sizes, and microseconds.

    Rows, columns and K of the k-tiles of a cluster; CTAs of a cluster, the share of the multiprocessors that clusters
    reach, and of their time that they use; products, copies of A and of B, cache lines of a row of a k-tile, a k-tile
    alone, results, reduction; and resident CTAs.
    """

    tile_m: int
    tile_n: int
    depth: int
    shared: int
    reached: float
    used: float
    products: float
    copies_a: float
    copies_b: float
    along_k: float
    alone: float
    written: float
    reduction: float
    resident: int


@cache_for_configs
def _every_times(configs: Sequence[Float64Config], rates: Float64Rates) -> list[_Times]:
    return [_times_of(config, rates) for config in configs]


def _times_of(config: Float64Config, rates: Float64Rates) -> _Times:
    smaller = {16: 1.0, 8: rates.products_of_8, 4: rates.products_of_4}[config.mma_k]
    products = rates.products * smaller * config.outputs * config.tile_k / 2**18
    row = config.tile_k * config.itemsize
    copies = config.tile_m * row / rates.l2, config.tile_n * row / rates.l2, row / _CACHE_LINE
    # More accumulators a thread, and deeper fragments, are more to read before products can begin.
    first = math.sqrt(config.outputs / config.threads / 32) * max(config.mma_k, 8) / 16
    alone = products + rates.wait * 128 / config.threads * first + rates.alone
    written = config.outputs * config.itemsize / config.cluster_k / rates.write
    reduction = rates.reduction + rates.partials * config.outputs / 2**12 if config.cluster_k > 1 else 0.0
    shared = config.cluster_k
    clusters = config.tile_k * shared, shared, _REACHED.get(shared, 0.5), _USED.get(shared, 1.0)
    times = products, *copies, alone, written, reduction
    return _Times(config.tile_m, config.tile_n, *clusters, *times, config.resident)


@cache_for_configs
def _factors(configs: Sequence[Float64Config]) -> list[float]:
    return [FACTORS.get(key_of(one), 1.0) for one in configs]


def costs(problem: GemmProblem, configs: Sequence[Float64Config], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: the k-tiles of a multiprocessor's CTAs, concurrent or not."""
    found = limits(problem, configs, gpu, RATES)
    return [factor * time for factor, time in zip(_factors(configs), found, strict=True)]


def _together(first: float, second: float, third: float) -> float:
    """Return the time of three that overlap: hardly more than the longest, where that is much longer."""
    return math.sqrt(math.sqrt(first**4 + second**4 + third**4))


def key_of(config: Float64Config) -> tuple[int, ...]:
    """Return what a config's factors are found by."""
    return config.tile_m, config.tile_n, config.tile_k, config.mma_k, config.cluster_k, config.threads // 32


def limits(problem: GemmProblem, configs: Sequence[Float64Config], gpu: GpuRates, rates: Float64Rates) -> list[float]:
    """Return the times with those rates."""
    oriented, _, _ = row_result(problem)
    m, n, k, batch = oriented.m, oriented.n, oriented.k, (oriented.batch or (1,))[0]
    odd_copies = rates.odd_copies if _is_odd(oriented.a) or _is_odd(oriented.b) else 1.0
    odd_writes = rates.odd_writes if _is_odd(oriented.d) else 1.0
    slower_a, slower_b = _slower(oriented.a, rates), _slower(oriented.b, rates)
    k_major_a, k_major_b = oriented.a.is_row_major, oriented.b.is_col_major
    memory = (((m + n) * k + m * n) * batch * oriented.a.dtype.itemsize / gpu.memory_rate(rates.memory)) ** 4
    found = []
    for one in _every_times(configs, rates):
        tile_m, tile_n, depth, shared, reached, used, products, *copied, alone, written, reduction, resident = one
        copies_a, copies_b, along_k = copied
        copies = copies_a * (1 + slower_a / (along_k if k_major_a else 1.0))
        copies += copies_b * (1 + slower_b / (along_k if k_major_b else 1.0))
        copies, written = copies * odd_copies, written * odd_writes
        ctas = -(-n // tile_n) * -(-m // tile_m) * batch * shared
        reached *= gpu.multiprocessors
        each = math.ceil(ctas / reached)
        k_tiles = -(-k // depth)
        if each <= resident:
            time = k_tiles * _together(each * products, each * copies, alone)
        elif resident == 1:
            time = k_tiles * each * max(alone, copies)
        else:
            time = k_tiles * (
                ctas / reached / used * _together(products, copies, alone / resident) + rates.tail * alone
            )
        # Other CTAs' copies go on while one begins or writes.
        time += rates.first * math.ceil(each / resident) + each * written
        found.append(rates.launch + math.sqrt(math.sqrt(time**4 + memory)) + reduction)
    return found


def _slower(matrix: StridedMatrix, rates: Float64Rates) -> float:
    """Return how much longer copies of 128 bytes take, for those lines that begin inside a cache line or a sector."""
    stride = matrix.row_stride if matrix.col_stride == 1 else matrix.col_stride
    inside = [1.0 - math.gcd(stride * matrix.dtype.itemsize, size) / size for size in (_CACHE_LINE, _SECTOR)]
    return rates.lines * inside[0] + rates.sectors * inside[1]


def _is_odd(matrix: StridedMatrix) -> bool:
    """Return whether lines begin at odd elements, so that single ones are moved."""
    stride = matrix.row_stride if matrix.col_stride == 1 else matrix.col_stride
    return stride % 2 == 1
