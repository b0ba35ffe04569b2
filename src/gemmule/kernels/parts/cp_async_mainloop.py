"""Multistage mainloop: cp.async copies k-tiles into a ring of stages in shared memory, several ahead of the products.

One commit group is one k-tile. The barrier that publishes a stage also releases the one before it: every thread has
read that one's fragments.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute


class CpAsyncMainloop:
    """The loop over K. Subclasses copy, read and multiply their operands in the hooks.

    Hooks get the subclass's own `tile`, which holds a tile's operands and fragments, and `sources`, addresses that
    advance with each k-tile. Stages are named by their distance from the first one.

    Parameters
    ----------
    stages : int
        Stages in shared memory, 2 or more.
    stride : int
        Distance between two stages, in the unit that the hooks use.
    steps : int
        Steps of a k-tile: fragments of a step are read while those of the one before are multiplied.
    copy_steps : int
        Steps that a k-tile's copies are spread over: all but the last one, unless there is only one.
    """

    #: Whether a step issues its copies before it reads fragments; the group is then committed in the last step.
    copies_first = False
    #: Whether a branch leaves out the copies of k-tiles that do not exist; else `issue` does.
    guarded = True
    #: Whether copies pass through registers, and are stored after a step's products.
    stores = False
    #: Whether the index of the k-tile that is copied is computed before the first fragments are read, or where needed:
    #: the order decides which registers are live across the reads.
    index_first = False
    #: Stages in shared memory beyond `stages`, which are in flight or multiplied.
    spare = 0
    #: Unroll limit of the loop over k-tiles; -1 leaves it to the compiler.
    unroll = -1

    def __init__(self, stages: int, stride: int, steps: int, copy_steps: int) -> None:
        self.stages, self.stride, self.steps, self.copy_steps = stages, stride, steps, copy_steps

    @cute.jit
    def accumulate(self, tile, sources, k_tiles):
        """Multiply `k_tiles` k-tiles; `sources` are those of the first."""
        sources, writing = self.fill(tile, sources, k_tiles)
        self.multiply_filled(tile, sources, writing, k_tiles)

    @cute.jit
    def multiply_filled(self, tile, sources, writing, k_tiles):
        """Multiply `k_tiles` k-tiles, of which the first are in flight; `fill` returned `sources` and `writing`."""
        self.wait()
        self.read_first(tile)
        reading = Int32(0)
        for k_tile in cutlass.range(k_tiles, unroll=self.unroll):
            following = self.next_stage(reading)
            # Copied meanwhile: the k-tile `stages` - 1 further.
            index = k_tile + self.stages - 1 if self.index_first else k_tile
            for step in cutlass.range_constexpr(self.steps):
                if cutlass.const_expr(self.copies_first and step < self.copy_steps):  # noqa: SIM102, one when compiled
                    if self.ahead(index) < k_tiles:
                        self.issue(tile, sources, writing, self.ahead(index), step)
                if cutlass.const_expr(step == self.steps - 1):
                    if cutlass.const_expr(self.copies_first):
                        cute.arch.cp_async_commit_group()
                    self.wait()
                    reading = following
                # One step ahead of the products; after the last k-tile the fragments are not used.
                self.read(tile, reading, (step + 1) % self.steps)
                if cutlass.const_expr(not self.copies_first and step < self.copy_steps):  # noqa: SIM102
                    if not self.guarded or self.ahead(index) < k_tiles:
                        self.issue(tile, sources, writing, self.ahead(index), step)
                if cutlass.const_expr(not self.copies_first and step == self.copy_steps - 1):
                    cute.arch.cp_async_commit_group()
                self.multiply(tile, reading, step)
                if cutlass.const_expr(self.stores and step < self.copy_steps):  # noqa: SIM102
                    if self.ahead(index) < k_tiles:
                        self.store(tile, writing, step)
            writing = self.next_stage(writing)
            sources = self.advance(tile, sources)
        cute.arch.cp_async_wait_group(0)

    def ahead(self, index: Any) -> Any:
        """Return the index of the k-tile that is copied."""
        return index if self.index_first else index + self.stages - 1

    @cute.jit
    def fill(self, tile, sources, k_tiles):
        """Issue the copies of all stages but one; return the sources and the stage of the k-tile after them."""
        writing = Int32(0)
        for k_tile in cutlass.range(self.stages - 1, unroll=1):
            if not self.guarded or k_tile < k_tiles:
                for step in cutlass.range_constexpr(self.copy_steps):
                    self.issue(tile, sources, writing, k_tile, step)
                    if cutlass.const_expr(self.stores):
                        self.store(tile, writing, step)
            # A group even where there is no k-tile, so that all stages count alike.
            cute.arch.cp_async_commit_group()
            sources, writing = self.advance(tile, sources), writing + self.stride
        return sources, writing

    @cute.jit
    def next_stage(self, stage):
        """Return the stage after one in the ring."""
        return stage + self.stride if stage < (self.stages + self.spare - 1) * self.stride else 0

    @cute.jit
    def wait(self):
        """Wait until the oldest k-tile in flight is in shared memory, for every thread."""
        cute.arch.cp_async_wait_group(self.stages - 2)
        cute.arch.sync_threads()

    def issue(self, tile: Any, sources: Any, stage: Any, k_tile: Any, step: int) -> None:
        """Issue one step's share of the copies of a k-tile."""
        raise NotImplementedError

    def store(self, tile: Any, stage: Any, step: int) -> None:
        """Store what the copies of a step loaded into registers."""
        raise NotImplementedError

    def advance(self, tile: Any, sources: Any) -> Any:
        """Return the sources of the next k-tile."""
        del tile
        return sources

    def read_first(self, tile: Any) -> None:
        """Read the fragments of step 0 from the first stage."""
        self.read(tile, 0, 0)

    def read(self, tile: Any, stage: Any, step: int) -> None:
        """Read the fragments of a step."""
        raise NotImplementedError

    def multiply(self, tile: Any, stage: Any, step: int) -> None:
        """Add the products of a step to the accumulators; `stage` is the next step's."""
        raise NotImplementedError


class WarpTileMainloop(CpAsyncMainloop):
    """A loop over K whose warps multiply warp tiles of `warp_m` x `warp_n`, `warps_n` of them along N."""

    warps_n: int
    warp_m: int
    warp_n: int

    @cute.jit
    def corner(self):
        """Return the first row and column of this warp's part of the tile."""
        tid, _, _ = cute.arch.thread_idx()
        # The same for all threads of a warp, which the compiler would not know.
        return self.corner_of(cute.arch.make_warp_uniform(tid // 32))

    def corner_of(self, warp: Any) -> tuple[Any, Any]:
        """Return the first row and column of a warp's part of the tile."""
        return warp // self.warps_n * self.warp_m, warp % self.warps_n * self.warp_n
