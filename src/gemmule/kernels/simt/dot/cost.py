"""Predicted times of dot products."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gemmule.core.dtype import Kind
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem

from .config import DotConfig

#: Microseconds of a launch and a CTA's start, of a round of loads, of the sums of a CTA's warps for an element, and of
#: a cluster's exchange. Assumed, as are the others: 24 products take 0.5 to 1.6 of what is predicted on an H200.
_LAUNCH, _ROUND, _ELEMENT, _CLUSTER = 3.0, 0.9, 0.06, 1.2
#: Bytes a microsecond from device memory; bytes of a sector.
_MEMORY, _SECTOR = 3.6e6, 32
#: Cycles of a scheduler for a load of a warp, and for a multiply-add by bytes of an accumulator; cycles a microsecond.
_LOAD, _FMA, _CYCLES = 6, {4: 1, 8: 2}, 1755.0
_WARP, _SCHEDULERS, _RESIDENT = 32, 4, 6


def costs(problem: GemmProblem, configs: Sequence[DotConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds."""
    batch, a, fma = math.prod(problem.batch), problem.a.transposed(), _fma(problem)
    bytes_a = {tile: _bytes(a, tile) for tile in {one.tile_m for one in configs}}
    bytes_b = {tile: _bytes(problem.b, tile) for tile in {one.tile_n for one in configs}}
    found = []
    for one in configs:
        tiles_m, tiles_n = -(-problem.m // one.tile_m), -(-problem.n // one.tile_n)
        clusters = tiles_m * tiles_n * batch
        part = -(-problem.k // one.cluster_k)
        rounds, rest = divmod(part, one.threads * one.unroll)
        loads = rounds + -(-rest // one.threads)
        waves = max(clusters * one.cluster_k / (gpu.multiprocessors * _RESIDENT), 1.0)
        read = bytes_a[one.tile_m] * tiles_n + bytes_b[one.tile_n] * tiles_m
        work = _LOAD * (one.tile_m + one.tile_n) + fma * one.tile_elements
        warps = clusters * one.cluster_k * part / _WARP
        issue = warps * work / (_CYCLES * _SCHEDULERS * gpu.multiprocessors)
        busy = max(waves * loads * _ROUND, gpu.moved_us(read * batch, _MEMORY), issue)
        exchange = _CLUSTER if one.cluster_k > 1 else 0.0
        found.append(_LAUNCH * gpu.launch + busy + _ELEMENT * one.tile_elements * waves + exchange)
    return found


def _fma(problem: GemmProblem) -> int:
    """Return the cycles of a product of two elements."""
    acc = problem.accumulator
    return 4 * _FMA[acc.part.itemsize] if acc.kind is Kind.COMPLEX else _FMA[acc.itemsize]


def _bytes(lines: StridedMatrix, tile: int) -> int:
    """Return the bytes of the sectors of a matrix (K, lines) that are read, `tile` lines at a time."""
    item = lines.dtype.itemsize
    step = abs(lines.row_stride) * item
    if step <= item or lines.rows <= 1:
        return lines.rows * lines.cols * item
    together = min(tile, lines.cols) * item if abs(lines.col_stride) == 1 else _SECTOR * min(tile, lines.cols)
    return lines.rows * -(-lines.cols // tile) * min(max(together, _SECTOR), max(step, together))
