"""Sums of 8-bit floats, which wgmma makes with 13 bits of the fraction: taken over, slice by slice, into float32.

Idea
    The instruction cuts what it adds up, its own sums among it, at 13 bits below the greatest. So it never adds more
    than a slice, 128 of K, and what it has is added to sums in registers that are rounded as float32 is.
    The columns of a tile are two parts: while one of them is added, the other is multiplied.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import warpgroup

#: Columns of a tile from which on it has two parts.
_TWO_PARTS = 64


@dataclasses.dataclass(frozen=True)
class PromotedSums:
    """How a warpgroup adds up 64 rows of a tile.

    Attributes
    ----------
    columns : int
        Columns of the tile.
    stages : int
        Slices in shared memory.
    """

    columns: int
    stages: int

    @property
    def parts(self) -> int:
        """Parts of the columns."""
        return 2 if self.columns >= _TWO_PARTS and self.columns % 16 == 0 else 1

    @property
    def width(self) -> int:
        """Columns of a part, and of an instruction."""
        return self.columns // self.parts

    def of_parts(self, mma: Any, own: Any, sB: Any, tile: tuple[int, int], kind: Any) -> tuple[list[Any], list[Any]]:
        """Return registers for each part, and its slices in shared memory.

        Parameters
        ----------
        mma, own : TiledMma, ThrMma
            The instruction, and what of it is this warpgroup's.
        sB : Tensor
            Slices of B.
        tile : tuple of int
            Rows of the tile, and depth of a slice.
        kind : type
            Of the sums.
        """
        rows, depth = tile
        found = [cute.make_rmem_tensor(mma.partition_shape_C((rows, self.width)), kind) for _ in range(self.parts)]
        slices = [cute.local_tile(sB, (self.width, depth), (part, 0, None)) for part in range(self.parts)]
        return found, [mma.make_fragment_B(own.partition_B(one)) for one in slices]

    def instructions(self, first: Any, further: Any) -> tuple[Any, Any]:
        """Return the instruction that overwrites its sums, and the one that adds to them."""
        first.set(warpgroup.Field.ACCUMULATE, False)
        further.set(warpgroup.Field.ACCUMULATE, True)
        return first, further

    @cute.jit
    def multiply(self, both, sums, found, rA, rB, full, stage, phase, count, release):
        """Multiply slices as they arrive.

        Parameters
        ----------
        both : tuple of TiledMma
            What `instructions` returned.
        sums : Tensor
            This thread's sums, as wgmma leaves them: they are set.
        found, rB : list of Tensor
            What `of_parts` returned.
        rA : Tensor
            Slices of A in shared memory, as the instruction takes them.
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
        flat = cute.make_tensor(sums.iterator, cute.make_layout(cute.size(sums)))
        flat.fill(0)
        for _ in cutlass.range(count):
            cute.arch.mbarrier_wait(full + stage, phase)
            for part in cutlass.range_constexpr(self.parts):
                self.start(both, found[part], rA, rB[part], stage)
            if cutlass.const_expr(self.parts > 1):
                # With one part under way the one before is done.
                warpgroup.wait_group(1)
                self.add(flat, found[0], 0)
            warpgroup.wait_group(0)
            release(stage)
            self.add(flat, found[-1], self.parts - 1)
            stage, phase = self.following(stage, phase)
        return stage, phase

    @cute.jit
    def start(self, both, found, rA, rB, stage):
        """Start to multiply a part of a slice."""
        warpgroup.fence()
        for step_k in cutlass.range_constexpr(cute.size(rA, mode=[2])):
            mma = both[0 if step_k == 0 else 1]
            cute.gemm(mma, found, rA[None, None, step_k, stage], rB[None, None, step_k, stage], found)
        warpgroup.commit_group()

    @cute.jit
    def add(self, flat, found, part: cutlass.Constexpr[int]):
        """Add what was found of a part."""
        found = cute.make_tensor(found.iterator, cute.make_layout(self.width // 2))
        for v in cutlass.range_constexpr(self.width // 2):
            flat[part * self.width // 2 + v] = flat[part * self.width // 2 + v] + found[v]

    @cute.jit
    def following(self, stage, phase):
        """Return the stage behind one, and its phase, which turns over with every round of the ring."""
        stage = stage + 1
        if stage == self.stages:
            stage = Int32(0)
            phase = phase ^ 1
        return stage, phase
