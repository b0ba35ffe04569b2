"""Predicted times of hopper_gemm_unaligned_a: as of hopper_gemm_unaligned, with loads of A of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.kernels.hopper.gemm_line_classes.config import TILE_K
from gemmule.kernels.hopper.tile_config import MMA_M

from .config import UnalignedAConfig

#: Microseconds on an H200, fitted to 240 times of 30 odd products (bfloat16, interleaved, not recorded): a launch;
#: multiplying 128 x 128 of a k-tile, and columns that each wgmma costs more.
_LAUNCH, _MULTIPLY, _MORE_COLUMNS = 2.257, 0.219, 3.58
#: Loading 128 rows of a k-tile of A, K-major and MN-major; 256 columns of B; the share that each further CTA of a
#: multicast costs.
_LOAD_A, _LOAD_B, _MULTICAST = (0.304, 0.277), 0.297, 0.901
#: The next tile; writing 128 x 128 of it, by one warpgroup, and the share of it that two take.
_NEXT, _WRITE, _SHARED = 0.56, 1.682, 0.831
#: Reading C, a share of what writing D takes.
_READ_C = 4.0
#: Bytes of a result that are written in one.
_BYTES = 1.95e6
#: Powers by which the longer of two times outweighs the other.
_OVERLAP, _BOUND = 4, 6


class SplitRates(NamedTuple):
    """Times in microseconds on an H200 where clusters split K, fitted to 104 times of 41 odd products (bfloat16)."""

    launch: float = 1.86  #: A launch, and the first loads.
    load_a: float = 0.208  #: Loading 128 rows of a k-tile as they lie.
    load_b: float = 0.199  #: Loading 256 columns of the copy.
    narrow: float = 2.68  #: Factor on MN-major columns that are no multiple of 64.
    multiply: float = 0.335  #: 128 x 128 of a k-tile.
    latency: float = 0.734  #: From the load of a stage to the next one of the same stage but one.
    end: float = 2.7  #: The end of a tile.
    exchange: float = 0.959  #: Exchanging 64 x 64 partial sums.
    write: float = 2.76  #: Writing 128 x 128.
    l2: float = 8.24e6  #: Bytes of the copy from L2 in one.
    unaligned: float = 1.4  #: Factor on those of lines as they lie.


_SPLIT = SplitRates()


def _split_us(problem: GemmProblem, one: UnalignedAConfig, gpu: GpuRates, rates: SplitRates = _SPLIT) -> float:
    """Return roughly the microseconds of a product of which clusters split K: tiles, or what they read from L2."""
    row_major = problem.d.is_row_major
    keeps_b = row_major == bool(one.swap_ab)
    kept, copy = (problem.b.transposed(), problem.a) if keeps_b else (problem.a, problem.b.transposed())
    k_major, whole = kept.has_contiguous_rows, copy.has_contiguous_rows or one.tile_n % MMA_M == 0
    k_tiles, columns = -(-(problem.k + 7 * k_major) // TILE_K), -(-copy.rows // one.tile_n)
    # Of a K-major operand a part of K has one k-tile more, for what is carried.
    k_tiles = -(-k_tiles // one.cluster_k) + k_major
    tiles = -(-kept.rows // one.tile_m) * columns
    clusters = max(min(gpu.multiprocessors // one.cluster_size, one.max_active_clusters), 1)
    load = rates.load_a + rates.load_b * one.tile_n / 256 * (1 if whole else rates.narrow)
    multiply = gpu.multiply * rates.multiply * (one.tile_n + _MORE_COLUMNS) / 128
    latency = gpu.load * rates.latency / (one.stages - 1)
    k_tile = ((gpu.load * load) ** _OVERLAP + multiply**_OVERLAP + latency**_OVERLAP) ** (1 / _OVERLAP)
    share, k = one.tile_n / 128, one.cluster_k
    write = rates.write * (1 if problem.c is None else 2) * share / k
    end = gpu.load * (rates.end + rates.exchange * 4 * share * (1 - 1 / k) + write)
    body = -(-tiles // clusters) * (k_tiles * k_tile + end)
    nbytes = kept.distinct_bytes(()) * columns * (rates.unaligned + min(one.tile_n, copy.rows) / 128)
    read = gpu.l2 * nbytes / rates.l2
    us: float = gpu.launch * rates.launch + (body**_OVERLAP + read**_OVERLAP) ** (1 / _OVERLAP)
    return us


def costs(problem: GemmProblem, configs: Sequence[UnalignedAConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: tiles that an SM computes one after another, and their cost."""
    m, n = (problem.m, problem.n) if problem.d.is_row_major else (problem.n, problem.m)
    a, b = problem.a, problem.b.transposed()
    if not problem.d.is_row_major:
        a, b = b, a
    launched = gpu.launch * _LAUNCH
    least = (launched + gpu.moved_us(m * n * problem.d.dtype.itemsize, _BYTES)) ** _BOUND
    found = []
    for one in configs:
        if one.cluster_k > 1:
            found.append((_split_us(problem, one, gpu) ** _BOUND + least) ** (1 / _BOUND))
            continue
        rows, cols, kept = (n, m, b) if one.swap_ab else (m, n, a)
        k_major = kept.has_contiguous_rows
        k_tiles = -(-(problem.k + 7 * k_major) // TILE_K)
        tiles = -(-rows // (one.tile_m * one.cluster_m)) * -(-cols // (one.tile_n * one.cluster_n))
        clusters = max(min(gpu.multiprocessors // one.cluster_size, one.max_active_clusters), 1)
        load_a = _LOAD_A[not k_major] * one.tile_m / 128 * _shared(one.cluster_n)
        load_b = _LOAD_B * one.tile_n / 256 * _shared(one.cluster_m)
        multiply = gpu.multiply * _MULTIPLY * one.tile_m * (one.tile_n + _MORE_COLUMNS) / 2**14
        k_tile = (multiply**_OVERLAP + (gpu.load * (load_a + load_b)) ** _OVERLAP) ** (1 / _OVERLAP)
        products, share = k_tile * k_tiles, one.tile_elements / 2**14
        write = gpu.load * share * (_WRITE + (_READ_C if problem.c is not None else 0))
        waves, following = -(-tiles // clusters), gpu.load * _NEXT
        if one.pingpong:
            tile = (products**_OVERLAP + ((products + write + following) / 2) ** _OVERLAP) ** (1 / _OVERLAP)
            total = launched + waves * (tile + following) + write
        else:
            total = launched + waves * (products + write * _SHARED + following)
        found.append((total**_BOUND + least) ** (1 / _BOUND))
    return found


def _shared(ctas: int) -> float:
    """Return how long a load takes that so many CTAs share, as a share of each one's own."""
    return (1 + _MULTICAST * (ctas - 1)) / ctas
