"""FP8 mainloop of wide tiles: A's k-tile is read into registers once, for both halves of the columns.

wgmma would read A from shared memory again for each half. Reads of 128 x 256 tiles and the writes of TMA together take
144 bytes a cycle at the full rate of the tensor cores, and shared memory has 128; with A in registers they take 128.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.utils import hopper_helpers

from gemmule.kernels.hopper.epilogues.warp_epi_tile import ldmatrix
from gemmule.kernels.hopper.tile_config import CONSUMERS, K_BYTES, MMA_M
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .operands import OperandStages
from .promoted_accumulators import PromotedFragments, PromotedMainloop
from .wgmma import issue_group

#: Rows of a warp, of the swizzle's pattern and of a matrix of ldmatrix; bytes of a chunk; wgmma of a k-tile.
_WARP_ROWS, _PATTERN, _CHUNK, _STEPS, _WORDS = 16, 8, 16, 4, 4


class PromotedRegisterOperandMainloop(PromotedMainloop):
    """As `PromotedMainloop`, with A in registers."""

    quarters = False
    # Every warp reads A by itself.
    releasing = 32

    def shape_of(self, n: int) -> tuple[int, int]:
        """Return parts of the columns, and how many are in flight."""
        if self.quarters:
            return n // 64, 2
        return (2, 1) if n > 192 else (1, 1)

    def fragments(
        self, operands: OperandStages, make_tiled_mma: Callable[..., Any], smem_ab: Any, warpgroup_idx: Any, acc: Any
    ) -> Any:
        """Return `PromotedFragments`, whose A are registers and the address of this lane's first row in stage 0."""
        m, n, k = operands.cta_tile_mnk
        parts, in_flight = self.shape_of(n)
        warpgroups = 1 if self.pingpong else CONSUMERS
        a_type, b_type = operands.elements
        major = OperandMajorMode.K
        mma_init, mma_acc = (
            hopper_helpers.make_trivial_tiled_mma(
                a_type, b_type, major, major, acc, (warpgroups, 1, 1), (MMA_M, n // parts),
                warpgroup.OperandSource.RMEM,
            )
            for _ in range(2)
        )  # fmt: skip
        accumulators = cute.make_rmem_tensor(make_tiled_mma().partition_shape_C((m, n)), acc)
        shape = mma_init.partition_shape_C((m, n // parts))
        found = tuple(cute.make_rmem_tensor(shape, acc) for _ in range(in_flight))
        own = mma_init.get_slice(warpgroup_idx * WARPGROUP)
        tiles = [cute.local_tile(smem_ab[1], (n // parts, k), (part, 0, None)) for part in range(parts)]
        b = tuple(mma_init.make_fragment_B(own.partition_B(tile)) for tile in tiles)
        registers = cute.make_rmem_tensor(mma_init.partition_shape_A((m, k)), a_type)
        self.tile_bytes = m * K_BYTES
        a = (registers, lane_start(smem_ab[0].iterator.toint(), warpgroup_idx))
        mma_init.set(warpgroup.Field.ACCUMULATE, False)
        mma_acc.set(warpgroup.Field.ACCUMULATE, True)
        return PromotedFragments(mma_init, mma_acc, found, a, b, accumulators)

    @cute.jit
    def multiply(self, fragments, barriers, state, num_k_tiles, warpgroup_idx, release):
        """Multiply k-tiles as `PromotedMainloop.multiply` does."""
        mma_init, mma_acc, k_tile_accumulators, (registers, start), b, accumulators = fragments[:6]
        self.order_barrier_wait(warpgroup_idx)
        accumulators.fill(0)
        parts, in_flight = cutlass.const_expr(len(b)), cutlass.const_expr(len(k_tile_accumulators))
        for _ in cutlass.range(num_k_tiles):
            stage = state.stage
            cute.arch.mbarrier_wait(barriers.full + stage, state.phase)
            self.fill(registers, start + stage * self.tile_bytes)
            for part in cutlass.range_constexpr(parts):
                found = k_tile_accumulators[part % in_flight]
                if cutlass.const_expr(self.takes_turns):
                    cute.arch.barrier(
                        barrier_id=self.order_barrier + warpgroup_idx, number_of_threads=CONSUMERS * WARPGROUP
                    )
                issue_group(register_mmas(mma_init, mma_acc, registers, b[part], stage), found)
                if cutlass.const_expr(self.takes_turns):
                    cute.arch.barrier_arrive(
                        barrier_id=self.order_barrier + 1 - warpgroup_idx, number_of_threads=CONSUMERS * WARPGROUP
                    )
                if cutlass.const_expr(in_flight - 1 <= part < parts - 1):
                    warpgroup.wait_group(in_flight - 1)
                    self.promote_half(fragments, part + 1 - in_flight)
            for left in cutlass.range_constexpr(in_flight - 1):
                warpgroup.wait_group(in_flight - 1 - left)
                self.promote_half(fragments, parts - in_flight + left)
            warpgroup.wait_group(0)
            cute.arch.sync_warp()
            release(barriers.empty, stage)
            self.promote_half(fragments, parts - 1)
            state = self.advance(state)
        self.order_barrier_arrive(warpgroup_idx)
        return state

    def promote_half(self, fragments: Any, part: int) -> None:
        """Add the accumulators of a k-tile and a half of the columns."""
        from .operands import flat

        found = flat(fragments.k_tile_accumulators[part % len(fragments.k_tile_accumulators)])
        count = cute.size(found)
        total = cute.make_tensor(fragments.accumulators.iterator + part * count, cute.make_layout(count))
        total.store(total.load() + found.load())

    @cute.jit
    def fill(self, registers: cute.Tensor, address):
        """Read this lane's elements of a k-tile of A."""
        words = cute.recast_tensor(registers, Int32)
        words = cute.make_tensor(words.iterator, cute.make_layout(_STEPS * _WORDS))
        for step in cutlass.range_constexpr(_STEPS):
            for word, value in enumerate(ldmatrix(address ^ (2 * _CHUNK * step))):
                words[_WORDS * step + word] = value


def register_mmas(mma_init: Any, mma_acc: Any, a: Any, b: Any, stage: Any) -> Any:
    """Yield instruction, A and B of each k-block of a stage."""
    for step in range(_STEPS):
        yield mma_acc if step else mma_init, a[None, None, step], b[None, None, step, stage]


@cute.jit
def lane_start(stages, warpgroup_idx):
    """Return the address that this lane gives ldmatrix for the first 32 bytes of its warp's rows in the first stage.

    A k-tile's rows of 128 bytes are swizzled: chunk c of row r is at c ^ r % 8.
    """
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    row = warpgroup_idx * MMA_M + cute.arch.make_warp_uniform(tid % WARPGROUP // 32) * _WARP_ROWS + lane % _WARP_ROWS
    return stages + row * K_BYTES + (lane // _WARP_ROWS ^ row % _PATTERN) * _CHUNK
