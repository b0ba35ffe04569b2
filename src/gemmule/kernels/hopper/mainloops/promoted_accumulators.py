"""Sums of 8-bit floats, which wgmma makes with 13 bits of the fraction: taken over, slice by slice, into float32.

Idea
    The instruction cuts what it adds up, its own sums among it, at 13 bits below the greatest. So it never adds more
    than a slice, 128 of K, and what it has is added to sums in registers that are rounded as float32 is. While one
    warpgroup adds, the other multiplies.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import warpgroup

from .tma_wgmma import Ring


@dataclasses.dataclass(frozen=True)
class PromotedSums:
    """How a warpgroup adds up 64 rows of a tile.

    Attributes
    ----------
    ring : Ring
        Stages in shared memory.
    """

    ring: Ring

    def instructions(self, first: Any, further: Any) -> tuple[Any, Any]:
        """Return the instruction that overwrites its sums, and the one that adds to them."""
        first.set(warpgroup.Field.ACCUMULATE, False)
        further.set(warpgroup.Field.ACCUMULATE, True)
        return first, further

    @cute.jit
    def multiply(self, both, sums, found, rA, rB, full, stage, phase, count, release):
        """Multiply slices as they arrive. Nothing is under way from one to the next: the assembler would not have it.

        Parameters
        ----------
        both : tuple of TiledMma
            What `instructions` returned.
        sums : Tensor
            This thread's sums, as wgmma leaves them: they are set.
        found : Tensor
            Registers of as many.
        rA, rB : Tensor
            Slices in shared memory, as the instruction takes them.
        full : Pointer
            Barriers of the slices that have come.
        stage, phase, count : Int32
            Where the first one comes, the phase of its barrier, and how many there are.
        release : callable
            ``release(stage)`` says that a slice may be overwritten.

        Returns
        -------
        stage, phase
            Where the next one comes, and its phase.
        """
        sums.fill(0)
        for _ in cutlass.range(count):
            cute.arch.mbarrier_wait(full + stage, phase)
            warpgroup.fence()
            for step_k in cutlass.range_constexpr(cute.size(rA, mode=[2])):
                mma = both[0 if step_k == 0 else 1]
                cute.gemm(mma, found, rA[None, None, step_k, stage], rB[None, None, step_k, stage], found)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            release(stage)
            sums.store(sums.load() + found.load())
            stage, phase = self.ring.advance(stage, phase)
        return stage, phase
