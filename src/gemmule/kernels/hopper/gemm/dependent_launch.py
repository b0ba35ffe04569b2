"""When a launch of hopper_gemm is a dependent one, which begins while its predecessor ends (PDL)."""

from __future__ import annotations

import math

from gemmule.core.problem import GemmProblem
from gemmule.kernels.hopper.refusals import MN_MAJOR_BYTES

from .config import HopperGemmConfig

#: Bytes of operands that stay in the L2 cache, and rows and columns of products that memory does not limit.
_L2_RESIDENT_BYTES, _COMPUTE_BOUND_ROWS = 40 << 20, 1024
#: Rows of a skinny product, and SMs that a launch may leave idle if it still fills the chip.
_SKINNY_ROWS, _MAX_IDLE_SMS = 64, 8
#: Rows below which, and bytes from which, memory limits products whose launches overlap or not by their clusters.
_MEMORY_BOUND_ROWS, _MEMORY_BOUND_BYTES = 256, 16 << 20
#: Rows of a product of 8-bit floats that is a dependent launch if each CTA has one tile: more than the first number,
#: or any with precomputed divisors, and at most the second.
_FEWEST_OVERLAPPED_ROWS, _OVERLAPPED_ROWS = 32, 128


def uses_pdl(problem: GemmProblem, tiles: int, clusters: int, config: HopperGemmConfig) -> bool:
    """Return whether to launch with programmatic dependent launch (PDL), which saves tenths of a microsecond.

    Memory-bound CTAs that begin one by one read memory less in order: there PDL pays for skinny products only, where
    every CTA has one tile and the CTAs fill the chip, or not even half of it. Of 8-bit floats it pays however many
    there are, of few rows with precomputed divisors only.
    """
    few = min(problem.m, problem.n)
    memory_bound = few < _MEMORY_BOUND_ROWS and problem.bytes_min >= _MEMORY_BOUND_BYTES
    one_wave = tiles <= clusters and problem.a.dtype.itemsize == MN_MAJOR_BYTES
    if memory_bound and one_wave:
        if _is_divided(clusters, config):
            return False
        if problem.bytes_min > _L2_RESIDENT_BYTES and _leaves_room(clusters, config):
            return True
    if problem.bytes_min <= _L2_RESIDENT_BYTES or min(problem.m, problem.n) >= _COMPUTE_BOUND_ROWS:
        return True
    overlaps = config.precomputes_divisors or few > _FEWEST_OVERLAPPED_ROWS
    if problem.a.dtype.is_float8 and overlaps and tiles <= clusters and few <= _OVERLAPPED_ROWS:
        return True
    idle = config.ctas - clusters * config.cluster_size
    fills = idle <= _MAX_IDLE_SMS or 2 * idle >= config.ctas
    return few <= _SKINNY_ROWS and tiles <= clusters and fills


def _is_divided(clusters: int, config: HopperGemmConfig) -> bool:
    """Return whether a part of the next launch's clusters has room beside a launch's, and the rest only after them.

    Products of 16 to 40 MB take up to 27 % longer then with PDL, of single CTAs and of clusters of four that are few
    more than half of those that run at once, and 2 to 12 % less in all others (record 20261129T150040).
    """
    most = config.max_active_clusters
    if config.cluster_size == 1:
        return most < 2 * clusters and clusters < most - _MAX_IDLE_SMS
    return config.cluster_size == 4 and most < 2 * clusters and 3 * clusters < 2 * most


def _leaves_room(clusters: int, config: HopperGemmConfig) -> bool:
    """Return whether products beyond 40 MB take less time with PDL, by 1 to 6 % (record 20261129T172035).

    Those are of clusters of eight, most of those of four that run at once but not all, and not quite all of two.
    """
    most = config.max_active_clusters
    least = {2: 0.0, 4: 0.8, 8: 0.0}.get(config.cluster_size, math.inf)
    largest = {2: 0.9, 4: 0.99}.get(config.cluster_size, 1.0)
    return least * most <= clusters <= largest * most
