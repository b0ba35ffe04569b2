"""FP8 mainloop: wgmma accumulates FP8 with 13 fraction bits, so each k-tile is promoted to float32.

wgmma truncates its addends, its own accumulators included, 13 bits below the largest. So it accumulates one k-tile, 128
of K, and CUDA cores add the result to float32 accumulators (DeepGEMM: promotion). Cooperative warpgroups overlap: one
promotes while the other multiplies; they alternate where promotions are long. Ping-pong ones do not, as the order
barrier is held over all k-tiles of a tile, promotions included. The columns of wide tiles are multiplied and promoted
in halves, which need half the registers; where there are registers for both, the second is multiplied while the first
is promoted. Tall tiles are multiplied and promoted by 64 rows of a warpgroup.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import warpgroup

from gemmule.core.block_scales import BLOCK
from gemmule.kernels.hopper.tile_config import CONSUMERS, MAX_OVERLAPPED_N, promoted_in_halves
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .operands import OperandStages, flat
from .tma_wgmma import Mainloop
from .wgmma import issue_group, k_block_mmas, wait_group_and_release


class PromotedFragments(NamedTuple):
    """As `Fragments`, with two accumulators."""

    #: mma_init, mma_acc: TiledMma. wgmma that overwrites its accumulators, and wgmma that adds to them.
    mma_init: Any
    mma_acc: Any
    k_tile_accumulators: Any  #: Tuple of Tensor. Those of wgmma, for one k-tile and a part of the tile.
    a: Any  #: Tuple of Tensor. A by stage, of each part of the warpgroup's rows.
    b: Any  #: Tuple of Tensor. B by stage, of each part of the columns.
    accumulators: Any  #: Tensor. The promoted ones, for all k-tiles.
    scales: Any = None  #: TileScales or None. Scales of A and B by blocks, for the tile.
    narrow: Any = None  #: PromotedFragments or None. Those of tiles that have fewer columns.
    columns: Any = None  #: Int32 or None. Columns that D has from the tile's first one on.


class PromotedMainloop(Mainloop):
    """As `Mainloop`, with each k-tile's accumulators added to float32 ones on CUDA cores.

    Parameters
    ----------
    num_stages, stage_bytes, pingpong, order_barrier
        As of `Mainloop`.
    tile_m, tile_n : int
        Rows and columns of a tile.
    """

    calls_during = False
    #: Whether one half of the columns may be promoted while the other is multiplied.
    overlapped = False
    #: K-tiles that an iteration of the loop multiplies.
    k_tiles_of_iteration = 1

    def __init__(self, num_stages: int, stage_bytes: int, *, tile_m: int, tile_n: int, **options: Any) -> None:
        super().__init__(num_stages, stage_bytes, **options)
        self.tile_m, self.tile_n = tile_m, tile_n
        # The answer arrives while a k-tile is promoted; small tiles are of skinny products, which memory limits.
        self.tests_ahead = not self.pingpong and tile_m * tile_n >= BLOCK * BLOCK

    def fragments(
        self, operands: OperandStages, make_tiled_mma: Callable[..., Any], smem_ab: Any, warpgroup_idx: Any, acc: Any
    ) -> Any:
        """Return `PromotedFragments`; parameters as of `Mainloop.fragments`."""
        _, _, _, accumulators = operands.fragments(make_tiled_mma(), smem_ab, warpgroup_idx, acc)
        m, n, k = operands.cta_tile_mnk
        row_parts = cute.size(accumulators, mode=[1])
        col_parts = 2 if promoted_in_halves(n, overlapped=self.overlapped) else 1
        mma_init, mma_acc = (make_tiled_mma(n // col_parts) for _ in range(2))
        in_flight = col_parts if n <= MAX_OVERLAPPED_N and row_parts == 1 else 1
        shape = mma_init.partition_shape_C((m // row_parts, n // col_parts))
        # Those of an iteration's k-tiles alternate, so that one is promoted while the next is multiplied.
        count = 2 if row_parts * col_parts == 1 and self.k_tiles_of_iteration > 1 else in_flight
        k_tile_accumulators = tuple(cute.make_rmem_tensor(shape, acc) for _ in range(count))
        own = mma_init.get_slice(warpgroup_idx * WARPGROUP)
        of_a, of_b = (
            [cute.local_tile(smem, (lines // parts, k), (part, 0, None)) for part in range(parts)]
            for smem, lines, parts in zip(smem_ab, (m, n), (row_parts, col_parts), strict=True)
        )
        a = tuple(mma_init.make_fragment_A(own.partition_A(tile)) for tile in of_a)
        b = tuple(mma_init.make_fragment_B(own.partition_B(tile)) for tile in of_b)
        mma_init.set(warpgroup.Field.ACCUMULATE, False)
        mma_acc.set(warpgroup.Field.ACCUMULATE, True)
        return PromotedFragments(mma_init, mma_acc, k_tile_accumulators, a, b, accumulators)

    @cute.jit
    def multiply(self, fragments, barriers, state, num_k_tiles, warpgroup_idx, release):
        """Multiply k-tiles as `Mainloop.multiply` does; none is in flight from one iteration to the next.

        With one in flight ptxas would report "wgmma.mma_async instructions are serialized", and wait after each. Within
        an iteration of several k-tiles it promotes one while the next is multiplied, into other registers.
        """
        self.order_barrier_wait(warpgroup_idx)
        fragments.accumulators.fill(0)
        state = self.multiply_k_tiles(fragments, barriers, state, num_k_tiles, warpgroup_idx, release)
        self.order_barrier_arrive(warpgroup_idx)
        return state

    @cute.jit
    def multiply_k_tiles(self, fragments, barriers, state, num_k_tiles, warpgroup_idx, release):
        """Multiply and promote k-tiles, and return the next state; parameters as of `multiply`."""
        count = cutlass.const_expr(self.k_tiles_of_iteration)
        ready = self.test_full(barriers, state)
        if cutlass.const_expr(count > 1):
            for _ in cutlass.range(num_k_tiles // count, unroll=1):
                for number in cutlass.range_constexpr(count):
                    state, ready = self.multiply_k_tile(
                        fragments, number, barriers, (state, ready), warpgroup_idx, release
                    )
            num_k_tiles = num_k_tiles % count
        for _ in cutlass.range(num_k_tiles):
            state, ready = self.multiply_k_tile(fragments, 0, barriers, (state, ready), warpgroup_idx, release)
        return state

    @cute.jit
    def multiply_k_tile(self, fragments, number: cutlass.Constexpr[int], barriers, state, warpgroup_idx, release):
        """Multiply and promote a k-tile, the `number`-th of an iteration; return the next state.

        The state has, besides the pipeline's, whether the stage was found to be full.
        """
        mma_init, mma_acc, k_tile_accumulators, a, b = fragments[:5]
        col_parts = cutlass.const_expr(len(b))
        parts = cutlass.const_expr(len(a) * col_parts)
        in_flight = cutlass.const_expr(len(k_tile_accumulators) if parts > 1 else 1)
        state, ready = state
        stage = state.stage
        if cutlass.const_expr(self.tests_ahead):
            if ready == 0:
                cute.arch.mbarrier_wait(barriers.full + stage, state.phase)
        else:
            cute.arch.mbarrier_wait(barriers.full + stage, state.phase)
        scales = None if cutlass.const_expr(self.overlapped) else self.read_scales(fragments, stage)
        for part in cutlass.range_constexpr(parts):
            if cutlass.const_expr(self.takes_turns and not self.pingpong):
                cute.arch.barrier(
                    barrier_id=self.order_barrier + warpgroup_idx, number_of_threads=CONSUMERS * WARPGROUP
                )
            found = accumulators_of(fragments, part, number)
            issue_group(k_block_mmas(mma_init, a[part // col_parts], b[part % col_parts], stage, mma_acc), found)
            if cutlass.const_expr(self.takes_turns and not self.pingpong):
                cute.arch.barrier_arrive(
                    barrier_id=self.order_barrier + 1 - warpgroup_idx, number_of_threads=CONSUMERS * WARPGROUP
                )
            if cutlass.const_expr(self.overlapped and part == in_flight - 1):
                # Wide tiles leave time for it while wgmma is running.
                scales = self.read_scales(fragments, stage)
            if cutlass.const_expr(parts > in_flight and part < parts - 1):
                warpgroup.wait_group(0)
                self.promote(fragments, scales, part, number)
        if cutlass.const_expr(in_flight > 1):
            warpgroup.wait_group(1)
            self.promote(fragments, scales, 0, number)
        wait_group_and_release(0, release, barriers.empty, (stage,))
        if cutlass.const_expr(self.tests_ahead):
            state = self.advance(state)
            ready = self.test_full(barriers, state)
        self.promote(fragments, scales, parts - 1, number)
        if cutlass.const_expr(not self.tests_ahead):
            state = self.advance(state)
        return state, ready

    def test_full(self, barriers: Any, state: Any) -> Any:
        """Return whether a stage is full already, if that is tested ahead."""
        if not self.tests_ahead:
            return cutlass.Boolean(False)
        return cute.arch.mbarrier_test_wait(barriers.full + state.stage, state.phase)

    def read_scales(self, fragments: Any, stage: Any) -> Any:
        """Return what a full stage has for the promotion besides operands; here nothing."""
        del fragments, stage

    def promote(self, fragments: Any, scales: Any, part: int, number: int) -> None:
        """Add the accumulators of a part of the tile, and of an iteration's `number`-th k-tile, to those of all."""
        del scales
        total, found = part_of(fragments, part, number)
        total.store(total.load() + found.load())


def accumulators_of(fragments: PromotedFragments, part: int, number: int) -> Any:
    """Return the accumulators of a part of the tile for an iteration's `number`-th k-tile."""
    parts = len(fragments.a) * len(fragments.b)
    return fragments.k_tile_accumulators[(number * parts + part) % len(fragments.k_tile_accumulators)]


def part_of(fragments: PromotedFragments, part: int, number: int) -> tuple[Any, Any]:
    """Return the accumulators of a part of the tile: of all k-tiles, and of an iteration's `number`-th."""
    found = flat(accumulators_of(fragments, part, number))
    count = cute.size(found)
    return cute.make_tensor(fragments.accumulators.iterator + part * count, cute.make_layout(count)), found
