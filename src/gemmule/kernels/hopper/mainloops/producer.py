"""The producer warps of `hopper_gemm`, which load the k-tiles of a CTA's work tiles, and scales by blocks."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.hopper.schedulers.divided import DividedScheduler
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.schedulers.persistent import PersistentScheduler

from .scaled_accumulators import ScaledMainloop
from .tma_wgmma import multicast_ctas_a, multicast_ctas_b


class Producer:
    """Loads of work tiles; a base of kernels with a scheduler, operands and a mainloop."""

    scheduler: Any
    operands: Any
    mainloop: Any
    maximum: Any
    num_a: int
    num_b: int
    tile_m: int
    tile_n: int

    @property
    def waits_late(self) -> bool:
        """Whether the producer computes its first tile before it waits for the predecessor grid."""
        is_plain = type(self.scheduler) in (PersistentScheduler, DividedScheduler)
        return is_plain and self.maximum is None and not isinstance(self.mainloop, ScaledMainloop)

    @cute.jit
    def produce(self, tma, b_up, smem_ab, barriers, k_range, schedule, *divisors):
        """Load every k-tile of every work tile."""
        sA, sB = smem_ab
        row, col = self.scheduler.cta_coord_in_cluster()
        loads_a = tuple(
            self.operands.load_a(a, sA, col, multicast_ctas_a(self.scheduler, row), index)
            for index, a in enumerate((tma.a, b_up)[: self.num_a])
        )
        loads_b = tuple(
            self.operands.load_b(b, sB, row, multicast_ctas_b(self.scheduler, col), index)
            for index, b in enumerate((tma.b, b_up)[: self.num_b])
        )
        state = self.mainloop.producer_state()
        start, stride, end = self.scheduler.work(schedule, k_range.num_k_tiles)
        # In a dynamic loop the DSL would treat `scheduler` as an SSA value: bind the method before it.
        work_tile = self.scheduler.work_tile
        if cutlass.const_expr(self.waits_late):
            i, j, batch = work_tile(schedule, start, k_range, *divisors).coord
            overlap_predecessor((i, j, batch))
            for work_index in cutlass.range(start, end, stride):
                loads = _pairs(loads_a, i, loads_b, j)
                state = self.mainloop.load(loads, (batch,), barriers, state, k_range)
                i, j, batch = work_tile(schedule, work_index + stride, k_range, *divisors).coord
        else:
            for work_index in cutlass.range(start, end, stride):
                (i, j, batch), work_k_range = work_tile(schedule, work_index, k_range, *divisors)
                loads = _pairs(loads_a, i, loads_b, j)
                state = self.mainloop.load(loads, (batch,), barriers, state, work_k_range)
        if cutlass.const_expr(self.scheduler.is_multicast):
            self.mainloop.producer_tail(barriers, state)

    @cute.jit
    def produce_scales(self, scales, barriers, k_range, schedule, warp):
        """Copy the scales of every k-tile of every work tile, by the warps behind that which issues TMA loads."""
        tensors, stages = scales
        for index in cutlass.range_constexpr(len(self.mainloop.copiers)):
            if warp == 1 + index:
                copier = self.mainloop.copiers[index]
                state = self.mainloop.producer_state(), Int32(-1)
                start, stride, end = self.scheduler.work(schedule, k_range.num_k_tiles)
                for work_index in cutlass.range(start, end, stride):
                    (i, j, _), work_k_range = self.scheduler.work_tile(schedule, work_index, k_range)
                    first_line = (i * self.tile_m, j * self.tile_n)[copier.operand]
                    own = tensors[copier.operand], stages
                    state = self.mainloop.load_scales(copier, own, first_line, barriers, state, work_k_range)
                self.mainloop.end_scales(barriers, state)


def _pairs(loads_a: Any, i: Any, loads_b: Any, j: Any) -> tuple[Any, ...]:
    """Return loads with the index of their tile along M or N."""
    return (*((load, i) for load in loads_a), *((load, j) for load in loads_b))
