"""Mainloop of 8-bit floats: wgmma adds them with 13 bits of the fraction, so each k-tile is promoted to float32.

The instruction truncates what it adds, its own accumulators included, at 13 bits below the greatest. So it never
accumulates more than a k-tile, 128 of K, and its result is added to accumulators that are rounded as float32 is. While
one warpgroup adds, the other multiplies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import warpgroup

from .operands import Fragments, OperandStages
from .tma_wgmma import Mainloop
from .wgmma import complete_groups, issue_group, stage_products


class PromotedMainloop(Mainloop):
    """As `Mainloop`, adding each k-tile's products to accumulators outside of wgmma."""

    def fragments(
        self, operands: OperandStages, mma: Callable[[], Any], stages: Any, warpgroup_idx: Any, acc: Any
    ) -> Any:
        """Return what a warpgroup multiplies, with two wgmma, the second accumulating, and a k-tile's products."""
        fragments = operands.fragments(mma(), stages, warpgroup_idx, acc)
        products = cute.make_rmem_tensor(fragments.mma.partition_shape_C(operands.tile[:2]), acc)
        further = mma()
        fragments.mma.set(warpgroup.Field.ACCUMULATE, False)
        further.set(warpgroup.Field.ACCUMULATE, True)
        return Fragments((fragments.mma, further, products), *fragments[1:])

    @cute.jit
    def multiply(self, fragments, barriers, state, k_tiles, warpgroup_idx, release):
        """Multiply k-tiles as `Mainloop.multiply` does; none is in flight from one to the next.

        With one in flight the assembler would serialise every wgmma.
        """
        (first, further, products), a, b, accumulators = fragments
        self.begin_turn(warpgroup_idx)
        accumulators.fill(0)
        for _ in cutlass.range(k_tiles):
            stage = state.stage
            cute.arch.mbarrier_wait(barriers.full + stage, state.phase)
            issue_group(stage_products(first, a, b, stage, further), products)
            complete_groups(0, release, barriers.empty, (stage,))
            accumulators.store(accumulators.load() + products.load())
            state = self.advance(state)
        self.end_turn(warpgroup_idx)
        return state
