"""Tile schedulers of kernels with a CTA, or a cluster along K, for each tile: which tile a CTA computes."""

from __future__ import annotations

from typing import Any

from cutlass import Int32, cute

from gemmule.core.block_triangle import STEP

from .raster import block_triangle_tile, grouped_tile


class GroupedTiles:
    """All tiles of a batch of results, in groups of rows.

    Parameters
    ----------
    tile_m, tile_n : int
        Tile of a CTA.
    group : int
        Tiles that are taken downwards before the next column.
    cluster_k : int
        CTAs of a cluster, which share a tile along K.
    """

    def __init__(self, tile_m: int, tile_n: int, group: int, cluster_k: int = 1) -> None:
        self.tile_m, self.tile_n, self.group, self.cluster_k = tile_m, tile_n, group, cluster_k

    @staticmethod
    def fake_args() -> tuple[Any, ...]:
        """Return fake arguments that only this scheduler reads."""
        return ()

    @cute.jit
    def ctas(self, mD: cute.Tensor):
        """Return how many CTAs there are at most; the launch recipe decides."""
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)
        return tiles_m * tiles_n * mD.shape[2] * self.cluster_k

    @cute.jit
    def tile(self, mD: cute.Tensor, first=None):  # noqa: ARG002 - of triangles
        """Return the tile along M and N, its matrix of the batch, and this CTA's rank in the cluster."""
        block, _, _ = cute.arch.block_idx()
        cta, rank = block // self.cluster_k, block % self.cluster_k
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)
        tile_m, tile_n = grouped_tile(cta % (tiles_m * tiles_n), tiles_m, tiles_n, self.group)
        return tile_m, tile_n, cta // (tiles_m * tiles_n), rank


class LowerTriangularTiles(GroupedTiles):
    """The tiles of one result on and below its block diagonal, in groups of rows; no CTA is without a tile."""

    @staticmethod
    def fake_args() -> tuple[Any, ...]:
        """Return that of `first`."""
        return (Int32(0),)

    @cute.jit
    def tile(self, mD: cute.Tensor, first: Any = None):
        """As of `GroupedTiles`; `first` tiles of each row are left of the block triangle."""
        cta, _, _ = cute.arch.block_idx()
        tiles_m = cute.ceil_div(mD.shape[0], self.tile_m)
        tile_m, tile_n = block_triangle_tile(cta, tiles_m, first, STEP // self.tile_m, STEP // self.tile_n, self.group)
        return tile_m, tile_n, 0, 0
