"""What transposes in tiles that are counted in bytes are expected to take, for many configs at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import TransposeProblem

from .byte_tile_config import LONG_ROW, ByteTileConfig, packed_rows, rows_are_wide

_SECTOR = 32
# Of an H200: bytes a second of a multiprocessor, among all and with one CTA alone, the time from the first read to the
# last write of a CTA, and what a multiprocessor holds at once.
_BYTES_A_SECOND, _BYTES_A_SECOND_ALONE, _LATENCY = 31e9, 50e9, 1.8e-6
_RESIDENT_BYTES, _RESIDENT_THREADS, _RESIDENT_CTAS = 220 << 10, 2048, 32
# Threads that it is fastest with, where the tile's rows are shorter than 256 bytes and where they are not, by the bytes
# of an element.
_FASTEST = {1: (256, 256), 2: (256, 256), 4: (128, 512), 8: (128, 256), 16: (64, 256)}


class _Tiles(NamedTuple):
    """What configs decide, with a column for each: rows of two are of the source's rows, and of the target's.

    Attributes
    ----------
    tile : array
        Elements.
    straddled : array
        Sectors that a row of a tile touches beyond those that it fills.
    sectors : array
        Sectors of a whole row of a tile.
    work : array
        What the threads of a CTA do, in bytes.
    resident : array
        CTAs that a multiprocessor holds.
    alone : array
        Seconds of a CTA.
    preferred : array
        Factors by which equals are told apart.
    """

    tile: Any
    straddled: Any
    sectors: Any
    work: Any
    resident: Any
    alone: Any
    preferred: Any


def tile_costs(problem: TransposeProblem, configs: Sequence[ByteTileConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the seconds that tiles of each config take.

    What passes between the L2 cache and the multiprocessors, in whole sectors; what the threads do, those outside of
    the matrix too; and how long it takes until the last CTA, which waits for its reads, is through.
    """
    item, batch = problem.itemsize, math.prod(problem.batch)
    of = _tiles(configs, item, rows_are_wide(problem))
    lengths = np.array(((problem.rows,), (problem.cols,)), np.float64)
    whole = np.floor(lengths / of.tile)
    rest = lengths - whole * of.tile
    cut = rest > 0
    sectors = whole * of.sectors + np.ceil(rest * (item / _SECTOR)) + cut * of.straddled
    moved = (lengths[::-1] * sectors).sum(axis=0) * (_SECTOR * batch)
    whole += cut
    ctas = whole[0] * whole[1] * batch
    waves = np.ceil(ctas / (of.resident * gpu.multiprocessors))
    together = np.maximum(moved, of.work * ctas) / (gpu.multiprocessors * _BYTES_A_SECOND)
    found: list[float] = (of.preferred * np.maximum(together, waves * of.alone)).tolist()
    return found


@cache_for_configs
def _tiles(configs: Sequence[ByteTileConfig], item: int, wide: bool) -> _Tiles:
    widths = [wide and one.is_wide for one in configs]
    tile, straddled = np.array([one.tile(item) for one in configs]).T, np.array([0 if some else 1 for some in widths])
    sizes = [one.tile_bytes(item) for one in configs]
    narrow = 0.5 + 0.2 * packed_rows(item)
    work = [(0.3 if some else narrow) * 2 * size for some, size in zip(widths, sizes, strict=True)]
    resident = [
        max(min(_RESIDENT_BYTES // size, _RESIDENT_THREADS // one.threads, _RESIDENT_CTAS), 1)
        for one, size in zip(configs, sizes, strict=True)
    ]
    alone = [_LATENCY + 2 * size / _BYTES_A_SECOND_ALONE for size in sizes]
    # Of equals the grid of two dimensions, and the threads that were fastest.
    preferred = [
        (1.0 if one.group == 0 else 1.02)
        * (1.0 if one.threads == _FASTEST[item][min(one.read_bytes, one.write_bytes) >= LONG_ROW] else 1.01)
        for one in configs
    ]
    sectors = -(-tile * item // _SECTOR) + straddled
    every = (tile, straddled, sectors, work, resident, alone, preferred)
    return _Tiles(*(np.array(one, np.float64) for one in every))
