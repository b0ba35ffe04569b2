"""Stream-K shares of tiles whose divisions the host computes: a division takes longer than a load from the L2 cache."""

from __future__ import annotations

from typing import Any, NamedTuple

from cutlass import Int32, cute

from gemmule.kernels.parts.raster import Divisor, RasterDivisors, divided_tile
from gemmule.kernels.parts.schedulers.persistent import WorkRange
from gemmule.kernels.parts.schedulers.stream_k import Division, StreamKScheduler
from gemmule.kernels.parts.tensors import tensor_1d


class SharedTiles(NamedTuple):
    """Parameters of the launch recipe that divide the work, in the order of `division_params`; each is an Int32."""

    tiles_m: Any
    tiles_n: Any
    #: data_parallel_tiles, base_k_tiles, remainder: As of `Division`.
    data_parallel_tiles: Any
    base_k_tiles: Any
    remainder: Any
    #: k_tiles, matrix, group, last_rows: What numbers are divided by, and its reciprocal, as of `RasterDivisors`.
    k_tiles: Any
    k_tiles_reciprocal: Any
    matrix: Any
    matrix_reciprocal: Any
    group: Any
    group_reciprocal: Any
    last_rows: Any
    last_rows_reciprocal: Any

    @property
    def division(self) -> Division:
        """The division of tiles among CTAs."""
        return Division(self.data_parallel_tiles, self.base_k_tiles, self.remainder)

    @property
    def divisors(self) -> RasterDivisors:
        """Divisors of tile indices."""
        return RasterDivisors(
            Divisor(self.matrix, self.matrix_reciprocal),
            Divisor(self.group, self.group_reciprocal),
            Divisor(self.last_rows, self.last_rows_reciprocal),
        )


def fake_shares() -> tuple[Any, ...]:
    """Return fake arguments: the workspaces, and `SharedTiles`."""
    return (tensor_1d("float64"), tensor_1d("uint64"), *(Int32(1) for _ in SharedTiles._fields))


class SharedTileScheduler(StreamKScheduler):
    """As `StreamKScheduler`, of batches; its methods take `SharedTiles` in the place of D."""

    @cute.jit
    def tile_range(self, mD):  # noqa: ARG002 - the host counts tiles
        """Return this CTA's index, and how many CTAs there are."""
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        return WorkRange(cta, ctas, Int32(0))

    def division(self, mD: Any, num_k_tiles: Any) -> Division:
        """Return how all tiles are divided among the CTAs."""
        del num_k_tiles
        return mD.division

    def tile_of(self, mD: Any, k_tile: Any, num_k_tiles: Any) -> Any:
        """Return which stream-K tile has a k-tile of the shares."""
        del num_k_tiles
        return Divisor(mD.k_tiles, mD.k_tiles_reciprocal).quotient(k_tile)

    @cute.jit
    def tile_coord(self, mD, tile_index):
        """Return a tile along M, along N, and its matrix of the batch."""
        divisors = mD.divisors
        batch = divisors.matrix.quotient(tile_index)
        inside = tile_index - batch * mD.matrix
        i, j = divided_tile(inside, mD.tiles_m, mD.tiles_n, self.group, divisors)
        return i, j, batch
