"""Mainloop of float64 whose k-tiles TMA loads: a producer warp, and warps that multiply fragments by mma.sync.

No thread computes addresses of copies, so that registers hold the deepest fragments, of 16 k: products of 16 k read and
write accumulators half as often as those of 8. The warps of a CTA wait for a stage's bytes, not for each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.float64.config import DmmaConfig
from gemmule.kernels.float64.warp_products import LaneRegisters, WarpProducts
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop
from gemmule.kernels.parts.stage_copies import opaque

from .stage import DEPTH, TmaStage

#: Threads of a warp, of which one releases a stage.
_WARP = 32


@dataclass(frozen=True)
class TmaTile(LaneRegisters):
    """A lane's registers, and where its fragments begin."""

    #: starts_a, starts_b: Tuples of Int32. Addresses of fragments in the first stage.
    starts_a: Any
    starts_b: Any
    lane: Any  #: Int32. The lane's number.


class ReadPlace(NamedTuple):
    """A consumer's position in the pipeline."""

    #: stage, phase: As of `PipelineState`.
    stage: Any
    phase: Any
    #: offset_a, offset_b: Int32. Bytes from the first stage of A, and of B, to this one.
    offset_a: Any
    offset_b: Any


class TmaMainloop(WarpProducts, Mainloop):
    """The loop over K. Consumers read one step ahead, and so a k-tile more than they multiply.

    Parameters
    ----------
    config : DmmaConfig
        Tiles and stages.
    k_major : tuple of bool
        Whether A and B are K-major.
    """

    releasing = _WARP
    #: Real elements of K for each of an operand.
    parts = 1
    stage_type: type[TmaStage] = TmaStage

    def __init__(self, config: DmmaConfig, k_major: tuple[bool, bool]) -> None:
        stages = self.stage_type(config.tile_m, k_major[0]), self.stage_type(config.tile_n, k_major[1])
        self.set_products(config, stages)
        super().__init__(config.stages, self.stageA.bytes + self.stageB.bytes)
        self.steps = self.parts * self.tile_k // (self.words * DEPTH) * self.blocks

    def corner_of(self, warp: Any) -> tuple[Any, Any]:
        """Return the first row and column of a warp's part of the tile."""
        return warp // self.warps_n * self.warp_m, warp % self.warps_n * self.warp_n

    @cute.jit
    def begin(self, smem_ab, corner):
        """Return the registers of a lane of the warp whose part of a tile begins at `corner`."""
        tid, _, _ = cute.arch.thread_idx()
        starts_a = self.stageA.places(smem_ab[0].iterator.toint(), corner[0])
        starts_b = self.stageB.places(smem_ab[1].iterator.toint(), corner[1])
        return TmaTile(*self.lane_registers(), starts_a, starts_b, opaque(tid % _WARP))

    def first_place(self) -> ReadPlace:
        """Return the place of a consumer's first k-tile."""
        return ReadPlace(*self.consumer_state(), Int32(0), Int32(0))

    @cute.jit
    def next_place(self, place):
        """Return the place of the next k-tile."""
        stage, phase, offset_a, offset_b = place
        stage, offset_a, offset_b = stage + 1, offset_a + self.stageA.bytes, offset_b + self.stageB.bytes
        if stage == self.num_stages:
            stage, offset_a, offset_b, phase = Int32(0), Int32(0), Int32(0), phase ^ 1
        return ReadPlace(stage, phase, offset_a, offset_b)

    @cute.jit
    def read_first(self, tile, barriers, place):
        """Read the first fragments of a consumer's first k-tile."""
        cute.arch.mbarrier_wait(barriers.full + place.stage, place.phase)
        self.read_rows(tile.next_a, (tile.starts_a, place.offset_a), 0)
        self.take_rows(tile)
        for j in cutlass.range_constexpr(self.columns):
            self.read_column(tile.fragments_b, (tile.starts_b, place.offset_b), j, 0)

    @cute.jit
    def multiply_k_tiles(self, tile, barriers, place, num_k_tiles):
        """Add the products of k-tiles, whose first fragments are read, to the accumulators; return the next place."""
        for _ in cutlass.range(num_k_tiles, unroll=1):
            following = self.next_place(place)
            for step in cutlass.range_constexpr(self.steps):
                reading = following if cutlass.const_expr(step == self.steps - 1) else place
                if cutlass.const_expr(step == self.steps - 1):
                    cute.arch.mbarrier_wait(barriers.full + following.stage, following.phase)
                self.read_rows(tile.next_a, (tile.starts_a, reading.offset_a), (step + 1) % self.steps)
                self.multiply_rows(tile, barriers.empty + place.stage, (tile.starts_b, reading.offset_b), step)
            place = following
        return place

    @cute.jit
    def multiply_rows(self, tile, empty, start_b, step: cutlass.Constexpr[int]):
        """Multiply 16 rows with all columns; after the last rows, fragments of B are replaced by the next k's."""
        i, after = cutlass.const_expr((step % self.blocks, (step + 1) % self.steps // self.blocks))
        for j in cutlass.range_constexpr(self.columns):
            self.multiply_column(tile.fragments_a, tile.fragments_b[None, j], tile.accumulators[None, i, j])
            if cutlass.const_expr(step == self.steps - 1 and j == 0):  # noqa: SIM102, one when compiled
                # These products use the last fragments that were read of the stage.
                if tile.lane == 0:
                    cute.arch.mbarrier_arrive(empty)
            if cutlass.const_expr(i == self.blocks - 1):
                self.read_column(tile.fragments_b, start_b, j, after)
        self.take_rows(tile)

    @cute.jit
    def take_rows(self, tile):
        """Replace the fragments of A that are multiplied by those that were read."""
        tile.fragments_a.store(tile.next_a.load())
