"""FP8 mainloop: wgmma accumulates FP8 with 13 fraction bits, so each k-tile is promoted to float32.

wgmma truncates its addends, its own accumulators included, 13 bits below the largest. So it accumulates one k-tile, 128
of K, and CUDA cores add the result to float32 accumulators (DeepGEMM: promotion). Cooperative warpgroups overlap: one
promotes while the other multiplies, in turns where promotions are long. Ping-pong ones do not, as the order barrier is
held over all k-tiles of a tile, promotions included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import warpgroup

from gemmule.kernels.hopper.tile_config import CONSUMERS, WARPGROUP

from .operands import OperandStages
from .tma_wgmma import Mainloop
from .wgmma import issue_group, k_block_mmas, wait_group_and_release


class PromotedFragments(NamedTuple):
    """As `Fragments`, with two accumulators."""

    #: mma_init, mma_acc: TiledMma. wgmma that overwrites its accumulators, and wgmma that adds to them.
    mma_init: Any
    mma_acc: Any
    k_tile_accumulators: Any  #: Tensor. Those of wgmma, for one k-tile.
    #: a, b: Tensor. Operands by stage.
    a: Any
    b: Any
    accumulators: Any  #: Tensor. The promoted ones, for all k-tiles.
    scales: Any = None  #: TileScales or None. Scales of A and B by blocks, for the tile.


class PromotedMainloop(Mainloop):
    """As `Mainloop`, with each k-tile's accumulators added to float32 ones on CUDA cores."""

    def fragments(
        self, operands: OperandStages, make_tiled_mma: Callable[[], Any], smem_ab: Any, warpgroup_idx: Any, acc: Any
    ) -> Any:
        """Return `PromotedFragments`; parameters as of `Mainloop.fragments`."""
        mma_init, a, b, accumulators = operands.fragments(make_tiled_mma(), smem_ab, warpgroup_idx, acc)
        k_tile_accumulators = cute.make_rmem_tensor(mma_init.partition_shape_C(operands.cta_tile_mnk[:2]), acc)
        mma_acc = make_tiled_mma()
        mma_init.set(warpgroup.Field.ACCUMULATE, False)
        mma_acc.set(warpgroup.Field.ACCUMULATE, True)
        return PromotedFragments(mma_init, mma_acc, k_tile_accumulators, a, b, accumulators)

    @cute.jit
    def multiply(self, fragments, barriers, state, num_k_tiles, warpgroup_idx, release):
        """Multiply k-tiles as `Mainloop.multiply` does; none is in flight from one to the next.

        With one in flight ptxas would report "wgmma.mma_async instructions are serialized", and wait after each.
        """
        mma_init, mma_acc, k_tile_accumulators, a, b, accumulators = fragments[:6]
        self.order_barrier_wait(warpgroup_idx)
        accumulators.fill(0)
        for _ in cutlass.range(num_k_tiles):
            stage = state.stage
            cute.arch.mbarrier_wait(barriers.full + stage, state.phase)
            scales = self.read_scales(fragments, stage)
            if cutlass.const_expr(self.takes_turns and not self.pingpong):
                cute.arch.barrier(
                    barrier_id=self.order_barrier + warpgroup_idx, number_of_threads=CONSUMERS * WARPGROUP
                )
            issue_group(k_block_mmas(mma_init, a, b, stage, mma_acc), k_tile_accumulators)
            if cutlass.const_expr(self.takes_turns and not self.pingpong):
                cute.arch.barrier_arrive(
                    barrier_id=self.order_barrier + 1 - warpgroup_idx, number_of_threads=CONSUMERS * WARPGROUP
                )
            wait_group_and_release(0, release, barriers.empty, (stage,))
            self.promote(fragments, scales)
            state = self.advance(state)
        self.order_barrier_arrive(warpgroup_idx)
        return state

    def read_scales(self, fragments: Any, stage: Any) -> Any:
        """Return what a full stage has for the promotion beside operands; here nothing."""
        del fragments, stage

    def promote(self, fragments: Any, scales: Any) -> None:
        """Add the accumulators of a k-tile to those of all."""
        del scales
        accumulators = fragments.accumulators
        accumulators.store(accumulators.load() + fragments.k_tile_accumulators.load())
