"""C's epilogue tiles, which TMA loads ahead into the stages in which D's are written."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from gemmule.core.dataclass import dataclass

from .epi_tile_layout import EpiTileLayout, warp_in_warpgroup

#: Bytes of C that a warpgroup loads during a k-tile, and k-tiles behind these, at least.
_BYTES_AT_ONCE, _K_TILES_AFTER = 8192, 2
#: K-tiles up to which C is loaded at once.
_FEW_K_TILES = 8


@dataclass(frozen=True)
class CTiles:
    """The loads of C's epilogue tiles of a warpgroup: the stages are a ring.

    As many as there are stages are loaded before or during the mainloop, and the others prefetched into the L2 cache;
    each of these is loaded once the store of the tile that had its stage has read it.
    """

    layout: EpiTileLayout  #: The epilogue tiles.

    @property
    def lag(self) -> int:
        """Batches after which the stages of one are loaded again: with a second one, no store is waited for at once."""
        return 2 if self.layout.epi_stages >= 3 * self.layout.batch_stages else 1

    @property
    def tiles_at_once(self) -> int:
        """Epilogue tiles that are loaded during a k-tile."""
        return max(_BYTES_AT_ONCE // self.layout.nbytes, 1)

    def stage(self, n: Any, ctx: Any) -> Any:
        """Return the stage of epilogue tile `n`, among those of all warpgroups."""
        return ctx.warpgroup_idx * self.layout.epi_stages + n % self.layout.epi_stages

    @cute.jit
    def begin(self, ctx, origin, wait_for_first, num_k_tiles, writes):
        """Issue the loads that come before the mainloop; return the k-tile from which on `load_during` issues others.

        Before the mainloop all CTAs load C at once, and their first k-tiles behind it: it is for short K.

        Parameters
        ----------
        ctx, origin
            As of `load_during`.
        wait_for_first : callable
            Waits for the first k-tile.
        num_k_tiles : Int32
            Number of k-tiles of the mainloop.
        writes : Boolean
            Whether this CTA writes the tile.
        """
        first = num_k_tiles
        if cutlass.const_expr(self.layout.loads_c_during):
            k_tiles = cutlass.const_expr(-(-self.layout.num_epi_tiles // self.tiles_at_once) + _K_TILES_AFTER)
            first = cutlass.min(num_k_tiles // 2, num_k_tiles - k_tiles)
            if first < 1:
                self.prefetch_at_first(ctx, origin, wait_for_first, num_k_tiles, writes)
                first = num_k_tiles
        else:
            self.prefetch_at_first(ctx, origin, wait_for_first, num_k_tiles, writes)
        return first

    @cute.jit
    def prefetch_at_first(self, ctx, origin, wait_for_first, num_k_tiles, writes):
        """Issue the loads of the first epilogue tiles, of several k-tiles behind the first."""
        if num_k_tiles > _FEW_K_TILES and warp_in_warpgroup() == 0:
            wait_for_first()
        if writes:
            self.prefetch(ctx, origin)

    @cute.jit
    def prefetch(self, ctx, origin):
        """Issue the loads of the first epilogue tiles of a work tile, before the mainloop."""
        layout = self.layout
        if warp_in_warpgroup() == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
            row, col, batch = origin
            _, gC_part = layout.partitioned(ctx.c, ctx.smem, batch)
            for n in cutlass.range_constexpr(layout.num_epi_tiles):
                if cutlass.const_expr(n < layout.epi_stages):
                    self.load(n, ctx, origin)
                else:
                    cute.prefetch(ctx.c.atom, gC_part[None, *layout.coord(n, row, col)])

    @cute.jit
    def load_during(self, ctx, origin, first_k_tile, k):
        """Issue the loads of the epilogue tiles that come during a k-tile, counted from the first that has some."""
        layout, first = self.layout, (k - first_k_tile) * self.tiles_at_once
        if first >= 0 and first < layout.num_epi_tiles and warp_in_warpgroup() == 0:
            if first == 0:
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            row, col, batch = origin
            _, gC_part = layout.partitioned(ctx.c, ctx.smem, batch)
            for index in cutlass.range_constexpr(self.tiles_at_once):
                n = first + index
                if n < layout.epi_stages:
                    self.load(n, ctx, origin)
                elif n < layout.num_epi_tiles:
                    cute.prefetch(ctx.c.atom, gC_part[None, *layout.coord(n, row, col)])

    @cute.jit
    def refill(self, b: cutlass.Constexpr[int], ctx, origin):
        """Load C into the stages of the batch that is `lag` before batch `b`, once its stores have read them."""
        tiles = cutlass.const_expr(self.loaded_again(b - self.lag))
        if cutlass.const_expr(len(tiles) > 0):  # noqa: SIM102, one when compiled
            if warp_in_warpgroup() == 0:
                cute.arch.cp_async_bulk_wait_group(self.lag - 1, read=True)
                for index in cutlass.range_constexpr(len(tiles)):
                    self.load(tiles[index], ctx, origin)

    def loaded_again(self, b: int) -> tuple[int, ...]:
        """Return the epilogue tiles that come into the stages of batch `b` next."""
        layout = self.layout
        found = (n + layout.epi_stages for n in (layout.batches[b] if b >= 0 else ()))
        return tuple(n for n in found if n < layout.num_epi_tiles)

    @cute.jit
    def load(self, n, ctx, origin):
        """Issue the TMA load of C's epilogue tile `n`, by one warp."""
        row, col, batch = origin
        sC_part, gC_part = self.layout.partitioned(ctx.c, ctx.smem, batch)
        stage = self.stage(n, ctx)
        with cute.arch.elect_one():
            nbytes = cutlass.const_expr(self.layout.nbytes)
            cute.arch.mbarrier_arrive_and_expect_tx(ctx.c_full + stage, nbytes)
        source = gC_part[None, *self.layout.coord(n, row, col)]
        cute.copy(ctx.c.atom, source, sC_part[None, stage], tma_bar_ptr=ctx.c_full + stage)

    def wait(self, n: int, ctx: Any, c_phases: Any) -> None:
        """Wait until C's epilogue tile `n` is there."""
        stages = self.layout.epi_stages
        phase = ((c_phases >> n % stages) ^ (n // stages)) & 1
        cute.arch.mbarrier_wait(ctx.c_full + self.stage(n, ctx), phase)

    def next_phases(self, c_phases: Any) -> Any:
        """Return the phases of all stages, a bit each, after a work tile: each flips as often as it was filled."""
        flipped = 0
        for n in range(self.layout.num_epi_tiles):
            flipped ^= 1 << n % self.layout.epi_stages
        return c_phases ^ flipped
