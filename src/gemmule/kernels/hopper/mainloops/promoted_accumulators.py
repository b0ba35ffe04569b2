"""Mainloop of 8-bit floats: wgmma adds them with 13 bits of the fraction, so each k-tile is promoted to float32.

The instruction truncates what it adds, its own accumulators included, at 13 bits below the greatest. So it never
accumulates more than a k-tile, 128 of K, and its result is added to accumulators that are rounded as float32 is. While
one warpgroup adds, the other multiplies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import warpgroup

from .operands import OperandStages
from .tma_wgmma import Mainloop
from .wgmma import issue_group, k_block_mmas, wait_group_and_release


class PromotedFragments(NamedTuple):
    """As `Fragments`, with two accumulators.

    Attributes
    ----------
    mma_init, mma_acc : TiledMma
        wgmma that overwrites its accumulators, and wgmma that adds to them.
    k_tile_accumulators : Tensor
        Those of wgmma, for one k-tile.
    a, b : Tensor
        Operands by stage.
    accumulators : Tensor
        The promoted ones, for all k-tiles.
    """

    mma_init: Any
    mma_acc: Any
    k_tile_accumulators: Any
    a: Any
    b: Any
    accumulators: Any


class PromotedMainloop(Mainloop):
    """As `Mainloop`, adding each k-tile's accumulators to others, outside of wgmma."""

    def fragments(
        self, operands: OperandStages, make_tiled_mma: Callable[[], Any], stages: Any, warpgroup_idx: Any, acc: Any
    ) -> Any:
        """Return `PromotedFragments`; parameters as of `Mainloop.fragments`."""
        mma_init, a, b, accumulators = operands.fragments(make_tiled_mma(), stages, warpgroup_idx, acc)
        k_tile_accumulators = cute.make_rmem_tensor(mma_init.partition_shape_C(operands.tile[:2]), acc)
        mma_acc = make_tiled_mma()
        mma_init.set(warpgroup.Field.ACCUMULATE, False)
        mma_acc.set(warpgroup.Field.ACCUMULATE, True)
        return PromotedFragments(mma_init, mma_acc, k_tile_accumulators, a, b, accumulators)

    @cute.jit
    def multiply(self, fragments, barriers, state, num_k_tiles, warpgroup_idx, release):
        """Multiply k-tiles as `Mainloop.multiply` does; none is in flight from one to the next.

        With one in flight the assembler would serialise every wgmma.
        """
        mma_init, mma_acc, k_tile_accumulators, a, b, accumulators = fragments
        self.begin_turn(warpgroup_idx)
        accumulators.fill(0)
        for _ in cutlass.range(num_k_tiles):
            stage = state.stage
            cute.arch.mbarrier_wait(barriers.full + stage, state.phase)
            issue_group(k_block_mmas(mma_init, a, b, stage, mma_acc), k_tile_accumulators)
            wait_group_and_release(0, release, barriers.empty, (stage,))
            accumulators.store(accumulators.load() + k_tile_accumulators.load())
            state = self.advance(state)
        self.end_turn(warpgroup_idx)
        return state
