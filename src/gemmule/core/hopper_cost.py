"""What a product takes on Hopper's persistent kernels, predicted for many configs at once.

A CTA computes its tiles one after another, and a tile is a number of slices and what it costs at its ends. The
constants were fitted to times measured on an H200; they are those of one CTA a multiprocessor.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Protocol

#: Microseconds on an H200: a launch; products, and bytes from the L2 cache, of a slice of 128 x 128; what a
#: slice takes besides, and its rows outside of the matrix; how much longer narrow rows take; writing 128 x 128; the
#: next tile, and more where warpgroups share it; a cluster's start; sums that it exchanges, and those of 64 x 64.
_LAUNCH, _PRODUCTS, _BYTES, _SLICE, _OUTSIDE, _NARROW = 1.83, 0.274, 0.106, 0.056, 0.127, 1.26
_WRITE, _NEXT, _SHARED, _START, _EXCHANGE, _SUMS = 0.72, 0.56, 0.5, 0.25, 0.38, 0.81
#: Rows of a wgmma.
_MMA_M = 64


class TileConfig(Protocol):
    """What the prediction reads of a config, as `ProductionConfig` describes it."""

    @property
    def tile_m(self) -> int: ...
    @property
    def tile_n(self) -> int: ...
    @property
    def pingpong(self) -> int: ...
    @property
    def cluster_m(self) -> int: ...
    @property
    def cluster_n(self) -> int: ...
    @property
    def cluster_k(self) -> int: ...
    @property
    def swapped(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    @property
    def cluster(self) -> int: ...
    @property
    def clusters(self) -> int: ...
    def __hash__(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class Sides:
    """A product as a kernel sees it: rows and columns of its result, swapped or not.

    Attributes
    ----------
    rows, cols : int
        Of the kernel's result.
    slices : int
        Slices of K.
    batch : int
        Matrices.
    row_bytes : int
        Bytes of an element of the operand that gives the columns, where that lies across K; 0 where along K.
    """

    rows: int
    cols: int
    slices: int
    batch: int
    row_bytes: int


@dataclasses.dataclass(frozen=True)
class _Tile:
    """What only the config decides: extents of a cluster's tiles, clusters at a time, and times in microseconds."""

    rows: int
    cols: int
    cluster: int
    clusters: int
    cluster_k: int
    tile_m: int
    tile_n: int
    products: float
    bytes: float
    every: float
    once: float
    pingpong: int
    swapped: int


@functools.lru_cache(maxsize=4096)
def _tile(config: TileConfig) -> _Tile:
    written = _WRITE * config.outputs / 2**14 / config.cluster_k
    together = 0.0
    if config.cluster > 1:
        together = _EXCHANGE + _SUMS * config.outputs / 2**12 if config.cluster_k > 1 else _START
    return _Tile(
        rows=config.tile_m * config.cluster_m,
        cols=config.tile_n * config.cluster_n,
        cluster=config.cluster,
        clusters=config.clusters,
        cluster_k=config.cluster_k,
        tile_m=config.tile_m,
        tile_n=config.tile_n,
        products=_PRODUCTS * config.outputs / 2**14,
        bytes=_BYTES * (config.tile_m / config.cluster_n + config.tile_n / config.cluster_m) / 256,
        every=0.0 if config.pingpong else _SHARED + written,
        once=_LAUNCH + together + (written if config.pingpong else 0.0),
        pingpong=config.pingpong,
        swapped=config.swapped,
    )


def times_us(
    plain: Sides, swapped: Sides, configs: Sequence[TileConfig], multiprocessors: int, slice_bytes: int
) -> list[float]:
    """Return roughly the time in microseconds of every config.

    Parameters
    ----------
    plain, swapped : Sides
        The product as configs see it that compute it as it is, and as those that compute its transpose.
    configs : sequence of TileConfig
        The configs.
    multiprocessors : int
        The GPU's.
    slice_bytes : int
        Bytes of the longest rows of a slice.
    """
    found = []
    for config in configs:
        tile = _tile(config)
        sides = swapped if tile.swapped else plain
        tiles = -(-sides.rows // tile.rows) * -(-sides.cols // tile.cols) * sides.batch
        waves = -(-tiles // max(min(multiprocessors // tile.cluster, tile.clusters), 1))
        narrow = sides.row_bytes and tile.tile_n * sides.row_bytes % slice_bytes
        slice_time = max(tile.products, tile.bytes * (_NARROW if narrow else 1)) + _SLICE
        if tile.tile_m > sides.rows:
            slice_time += _OUTSIDE * (tile.tile_m - sides.rows) / _MMA_M
        slices = -(-sides.slices // tile.cluster_k)
        found.append(waves * (slices * slice_time + tile.every) + _NEXT * (waves - 1) + tile.once)
    return found
