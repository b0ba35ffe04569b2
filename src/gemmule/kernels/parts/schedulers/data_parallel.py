"""Tile schedulers of kernels with a CTA, or a cluster along K, for each tile: which tile a CTA computes."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.core.block_triangle import STEP
from gemmule.kernels.parts.raster import block_triangle_tile, grouped_tile


class RasterTileScheduler:
    """All tiles of a batch of results, rasterised in groups of tile rows.

    Parameters
    ----------
    tile_m, tile_n : int
        Tile of a CTA.
    group : int
        Tile rows of a group: so many tiles down before the next column (Triton's GROUP_SIZE_M).
    cluster_k : int
        CTAs of a cluster, which split a tile along K.
    """

    def __init__(self, tile_m: int, tile_n: int, group: int, cluster_k: int = 1) -> None:
        self.tile_m, self.tile_n, self.group, self.cluster_k = tile_m, tile_n, group, cluster_k

    @staticmethod
    def fake_args() -> tuple[Any, ...]:
        """Return fake arguments that only this scheduler reads."""
        return ()

    @cute.jit
    def ctas(self, mD: cute.Tensor):
        """Return the most CTAs of a launch; the launch recipe has their number."""
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)
        return tiles_m * tiles_n * mD.shape[2] * self.cluster_k

    @cute.jit
    def tile(self, mD: cute.Tensor, left_tiles: Any = None):  # noqa: ARG002 - a lower triangle reads it
        """Return the tile along M and N, its matrix of the batch, and this CTA's rank in the cluster."""
        block, _, _ = cute.arch.block_idx()
        cta, rank = block // self.cluster_k, block % self.cluster_k
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)
        tile_m, tile_n = grouped_tile(cta % (tiles_m * tiles_n), tiles_m, tiles_n, self.group)
        return tile_m, tile_n, cta // (tiles_m * tiles_n), rank


class GridTileScheduler:
    """All tiles of a batch of results, without divisions: for few tiles, whose order makes no difference.

    The grid's dimensions are tiles along M times the CTAs of a cluster, tiles along N, and matrices.

    Parameters
    ----------
    tile_m, tile_n, cluster_k : int
        As of `RasterTileScheduler`; `cluster_k` is a power of two.
    """

    def __init__(self, tile_m: int, tile_n: int, cluster_k: int) -> None:
        self.tile_m, self.tile_n, self.cluster_k = tile_m, tile_n, cluster_k

    @cute.jit
    def grid(self, mD: cute.Tensor):
        """Return the grid; the launch recipe decides."""
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)
        return tiles_m * self.cluster_k, tiles_n, mD.shape[2]

    @cute.jit
    def tile(self):
        """As of `RasterTileScheduler`."""
        x, tile_n, batch = cute.arch.block_idx()
        # Not negative, which a division does not know.
        shift = cutlass.const_expr(self.cluster_k.bit_length() - 1)
        return x >> shift, tile_n, batch, x & self.cluster_k - 1


class LowerTriangularTileScheduler(RasterTileScheduler):
    """The tiles of one result on and below its block diagonal, in groups of rows; no CTA is without a tile."""

    @staticmethod
    def fake_args() -> tuple[Any, ...]:
        """Return that of `left_tiles`."""
        return (Int32(0),)

    @cute.jit
    def tile(self, mD: cute.Tensor, left_tiles: Any = None):
        """As of `RasterTileScheduler`; each row has `left_tiles` to the left of the block triangle."""
        cta, _, _ = cute.arch.block_idx()
        tiles_m = cute.ceil_div(mD.shape[0], self.tile_m)
        tile_m, tile_n = block_triangle_tile(
            cta, tiles_m, left_tiles, STEP // self.tile_m, STEP // self.tile_n, self.group
        )
        return tile_m, tile_n, 0, 0
