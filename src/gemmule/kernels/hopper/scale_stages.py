"""Scales by blocks in shared memory: those of a k-tile have a stage, like the operands'."""

from __future__ import annotations

import math

from gemmule.core.block_scales import BLOCK
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.tile_config import BARRIER_BYTES

#: Scales that one read takes at most; columns of wgmma's accumulators after which a thread has the next two, and
#: threads of a row.
VECTOR, COL_STEP, COL_THREADS = 4, 8, 4
_BYTES = 4
#: Bytes of all barriers at most: full and empty ones of 16 stages, of epilogue tiles and of a cluster's sums.
_FRONT_BYTES = 384


def narrow_columns(lines: tuple[int, int], config: HopperGemmConfig) -> int:
    """Return the columns of a tile at the right edge of D that has no more, 0 for those of any other.

    With a scale for each row and column tiles of 128 x 128 have half as many there. Of wider ones, and with a scale for
    128 rows, ptxas finds no registers for a second instruction, and serialises wgmma.
    """
    square = (config.tile_m, config.tile_n, config.cluster_size) == (BLOCK, BLOCK, 1) and not config.pingpong
    return config.tile_n // 2 if lines == (1, 1) and square else 0


def same_columns(lines_b: int, tile_n: int) -> int:
    """Return how many columns, from each multiple of that on, have one scale of B."""
    return math.gcd(tile_n, BLOCK) if lines_b == BLOCK else 1


def scales_of_rows(lines_a: int, tile_m: int) -> int:
    """Return the place that a stage has for scales of A."""
    return tile_m if lines_a == 1 else VECTOR


def thread_columns(tile_n: int) -> int:
    """Return the place for the scales of a thread's columns, which are contiguous.

    An odd number of vectors: so the four threads of a row read from different banks.
    """
    vectors = -(-tile_n // (COL_THREADS * VECTOR))
    return (vectors | 1) * VECTOR


def stage_scales(lines: tuple[int, int], tile_m: int, tile_n: int) -> int:
    """Return the scales that a stage has place for."""
    if lines[1] == 1:
        cols = COL_THREADS * thread_columns(tile_n)
    else:
        cols = -(-(tile_n // same_columns(BLOCK, tile_n)) // VECTOR) * VECTOR
    return scales_of_rows(lines[0], tile_m) + cols


def scale_bytes(lines: tuple[int, int], tile_m: int, tile_n: int, stages: int) -> int:
    """Return the shared memory of a CTA for scales, beyond that for barriers: both precede the operands."""
    needed = _FRONT_BYTES + stages * stage_scales(lines, tile_m, tile_n) * _BYTES
    return -(-needed // BARRIER_BYTES) * BARRIER_BYTES - BARRIER_BYTES
