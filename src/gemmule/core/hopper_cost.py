"""What a product takes on Hopper's persistent kernels, predicted for many configs at once.

A CTA computes its tiles one after another, and a tile is a number of slices and what it costs at its ends. The
constants were fitted to times measured on an H200; they are those of one CTA a multiprocessor.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Protocol

#: Microseconds on an H200: a launch; products, and bytes from the L2 cache, of a slice of 128 x 128; what a slice takes
#: besides, and its rows outside of the matrix; writing 128 x 128; the next tile, and more where warpgroups share it; a
#: cluster's start; sums that it exchanges, and those of 64 x 64, and how much of that each further wave takes.
_LAUNCH, _PRODUCTS, _BYTES, _SLICE, _OUTSIDE, _WRITE = 1.56, 0.286, 0.135, 0.035, 0.0986, 0.66
_NEXT, _SHARED, _START, _EXCHANGE, _SUMS, _AGAIN = 0.137, 0.98, 0.433, 0.489, 1.07, 0.39
#: How much longer the copy engine takes for rows of 64 bytes in shared memory, and of 32.
_ROWS_64, _ROWS_32 = 1.9, 5.5
#: How much slower products are where all multiprocessors are busy for long, so that the clock is lowered, and the
#: slices of a multiprocessor for half of that.
_HOT, _HALF_HOT = 0.232, 172.0
#: Bytes a microsecond from memory, and to the slices; the three limits hold together as a norm of this degree.
_MEMORY, _SLICES, _DEGREE = 4.11e6, 20.5e6, 2.6
#: Rows of a wgmma, and bytes of a slice's row.
_MMA_M, _ROW_BYTES = 64, 128


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
    across : bool
        Whether the operand that gives the columns lies across K.
    """

    rows: int
    cols: int
    across: bool


@dataclasses.dataclass(frozen=True)
class _Tile:
    """What only the config decides: extents of a cluster's tiles, clusters at a time, and times in microseconds."""

    rows: int
    cols: int
    cluster: int
    clusters: int
    cluster_k: int
    tile_m: int
    products: float
    along: float
    across: float
    every: float
    once: float
    again: float
    slice_bytes: int
    swapped: int


@functools.lru_cache(maxsize=4096)
def _tile(config: TileConfig) -> _Tile:
    written = _WRITE * config.outputs / 2**14 / config.cluster_k
    exchanged = 0.0
    if config.cluster_k > 1:
        exchanged = _EXCHANGE + _SUMS * config.outputs / 2**12 * (config.cluster_k - 1) / config.cluster_k
    # The swizzle of lines across K is as wide as divides the tile.
    row = config.tile_n * 2
    narrow = 1.0 if row % 128 == 0 else _ROWS_64 if row % 64 == 0 else _ROWS_32
    rows, cols = config.tile_m / config.cluster_n, config.tile_n / config.cluster_m
    started = _START if config.cluster > config.cluster_k else 0.0
    return _Tile(
        rows=config.tile_m * config.cluster_m,
        cols=config.tile_n * config.cluster_n,
        cluster=config.cluster,
        clusters=config.clusters,
        cluster_k=config.cluster_k,
        tile_m=config.tile_m,
        products=_PRODUCTS * config.outputs / 2**14,
        along=_BYTES * (rows + cols) / 256,
        across=_BYTES * (rows + cols * narrow) / 256,
        every=0.0 if config.pingpong else _SHARED + written,
        once=_LAUNCH + started + exchanged + (written if config.pingpong else 0.0),
        again=_NEXT + _AGAIN * exchanged,
        slice_bytes=(config.tile_m * config.cluster_m + config.tile_n * config.cluster_n) * _ROW_BYTES,
        swapped=config.swapped,
    )


def times_us(
    plain: Sides,
    swapped: Sides,
    configs: Sequence[TileConfig],
    multiprocessors: int,
    *,
    slices: int,
    batch: int,
    bytes_min: int,
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
    slices, batch : int
        Slices of K, of 128 bytes, and matrices.
    bytes_min : int
        Fewest bytes to move from and to memory.
    """
    found = []
    memory = (_LAUNCH + bytes_min / _MEMORY) ** _DEGREE
    for config in configs:
        tile = _tile(config)
        sides = swapped if tile.swapped else plain
        tiles = -(-sides.rows // tile.rows) * -(-sides.cols // tile.cols) * batch
        at_once = max(min(multiprocessors // tile.cluster, tile.clusters), 1)
        waves = -(-tiles // at_once)
        own_slices = -(-slices // tile.cluster_k)
        every_slice = waves * own_slices
        hot = 1 + _HOT * every_slice / (every_slice + _HALF_HOT) * min(tiles / at_once, 1)
        slice_time = max(tile.products * hot, tile.across if sides.across else tile.along) + _SLICE
        if tile.tile_m > sides.rows:
            slice_time += _OUTSIDE * (tile.tile_m - sides.rows) / _MMA_M
        computed = every_slice * slice_time + waves * tile.every + (waves - 1) * tile.again + tile.once
        brought = _LAUNCH + tiles * slices * tile.slice_bytes / _SLICES
        found.append(float((computed**_DEGREE + brought**_DEGREE + memory) ** (1 / _DEGREE)))
    return found
