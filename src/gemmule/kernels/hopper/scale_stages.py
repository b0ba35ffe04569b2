"""Scales by blocks in shared memory: how many a warp has of a k-tile, and in how many stages."""

from __future__ import annotations

import math

from gemmule.core.block_scales import BLOCK

from .tile_config import CONSUMERS, MMA_M, WARPGROUP

#: K-tiles whose scales are in shared memory or on their way there.
SCALE_STAGES = 4
_WARP, _BYTES = 32, 4


def same_columns(lines_b: int, tile_n: int) -> int:
    """Return how many columns, from each multiple of that on, have one scale of B."""
    return math.gcd(tile_n, BLOCK) if lines_b == BLOCK else 1


def scales_of_rows(lines_a: int) -> int:
    """Return the scales of A that a warp needs for its 16 rows; an even number."""
    return MMA_M // 4 if lines_a == 1 else 2


def stage_scales(lines: tuple[int, int], tile_n: int) -> int:
    """Return the scales of a stage of a warp, filled up so that each lane copies as many."""
    count = scales_of_rows(lines[0]) + tile_n // same_columns(lines[1], tile_n)
    return -(-count // _WARP) * _WARP


def scale_bytes(lines: tuple[int, int], tile_n: int) -> int:
    """Return the shared memory of a CTA for scales."""
    return CONSUMERS * WARPGROUP // _WARP * SCALE_STAGES * stage_scales(lines, tile_n) * _BYTES
