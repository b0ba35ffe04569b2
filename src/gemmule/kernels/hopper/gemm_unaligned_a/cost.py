"""Predicted times of hopper_gemm_unaligned_a: as of hopper_gemm_unaligned, with loads of A of its own."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.kernels.hopper.gemm_line_classes.config import TILE_K

from .config import UnalignedAConfig

#: Microseconds on an H200, fitted to 240 times of 30 odd products (bfloat16, interleaved, not recorded): a launch;
#: multiplying 128 x 128 of a k-tile, and columns that each wgmma costs more.
_LAUNCH, _MULTIPLY, _MORE_COLUMNS = 2.257, 0.219, 3.58
#: Loading 128 rows of a k-tile of A, K-major and MN-major; 256 columns of B; the share that each further CTA of a
#: multicast costs.
_LOAD_A, _LOAD_B, _MULTICAST = (0.304, 0.277), 0.297, 0.901
#: The next tile; writing 128 x 128 of it, by one warpgroup, and the share of it that two take.
_NEXT, _WRITE, _SHARED = 0.56, 1.682, 0.831
#: The start of a cluster that splits K; exchanging partial sums, and 64 x 64 of them: as of hopper_gemm_unaligned.
_CLUSTER, _EXCHANGE, _SUMS = 0.136, 0.139, 0.851
#: Reading C, a share of what writing D takes.
_READ_C = 4.0
#: Bytes of a result that are written in one.
_BYTES = 1.95e6
#: Powers by which the longer of two times outweighs the other.
_OVERLAP, _BOUND = 4, 6


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
        rows, cols, kept = (n, m, b) if one.swap_ab else (m, n, a)
        k_major = kept.has_contiguous_rows
        k_tiles = -(-(problem.k + 7 * k_major) // TILE_K)
        tiles = -(-rows // (one.tile_m * one.cluster_m)) * -(-cols // (one.tile_n * one.cluster_n))
        clusters = max(min(gpu.multiprocessors // one.cluster_size, one.max_active_clusters), 1)
        load_a = _LOAD_A[not k_major] * one.tile_m / 128 * _shared(one.cluster_n)
        load_b = _LOAD_B * one.tile_n / 256 * _shared(one.cluster_m)
        multiply = gpu.multiply * _MULTIPLY * one.tile_m * (one.tile_n + _MORE_COLUMNS) / 2**14
        k_tile = (multiply**_OVERLAP + (gpu.load * (load_a + load_b)) ** _OVERLAP) ** (1 / _OVERLAP)
        # Of a K-major operand a part of K has one more, for what is carried.
        carried = k_major and one.cluster_k > 1
        products, share = k_tile * (-(-k_tiles // one.cluster_k) + carried), one.tile_elements / 2**14
        if one.cluster_k > 1:
            products += gpu.load * (_CLUSTER + _EXCHANGE + _SUMS * 4 * share * (1 - 1 / one.cluster_k))
        write = gpu.load * share / one.cluster_k * (_WRITE + (_READ_C if problem.c is not None else 0))
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
