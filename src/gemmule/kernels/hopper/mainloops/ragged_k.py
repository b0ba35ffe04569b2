"""Mainloop of products whose K ends anywhere in a k-tile: loaded elements of the next group are zeroed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cutlass
from cutlass import cute

from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .operands import OperandStages
from .tma_wgmma import Mainloop

#: Bytes that a thread stores at once.
_CHUNK = 16


class ZeroFillMainloop(Mainloop):
    """As `Mainloop`, for tiles that may have no k-tile."""

    may_be_empty = True


class RaggedFragments(NamedTuple):
    """As `Fragments`, with what is needed to zero the end of a tile's last k-tile."""

    #: mma, a, b, accumulators: As of `Fragments`.
    mma: Any
    a: Any
    b: Any
    accumulators: Any
    smem_ab: Any  #: Tuple of Tensor. Stages of A (M, K, stage) and B (N, K, stage).
    depth: Any = None  #: Int32. How many of K the last k-tile has.


class RaggedKMainloop(ZeroFillMainloop):
    """As `ZeroFillMainloop`; of a tile's last k-tile only the first `depth` of K count.

    Zeros in one operand are not enough: the other may hold infinities there. Both are MN-major.

    Parameters
    ----------
    pipeline, pingpong, order_barrier
        As of `Mainloop`.
    warpgroups : int
        Warpgroups that share a stage.
    tile_k : int
        Elements of K of a k-tile.
    barrier_id : int
        The first of named barriers of theirs, one or, in ping-pong, one each.
    """

    def __init__(
        self, *pipeline: int, pingpong: bool, order_barrier: int, warpgroups: int, tile_k: int, barrier_id: int
    ) -> None:
        super().__init__(*pipeline, pingpong=pingpong, order_barrier=order_barrier)
        self.warpgroups, self.tile_k, self.barrier_id = warpgroups, tile_k, barrier_id

    def fragments(
        self, operands: OperandStages, make_tiled_mma: Callable[[], Any], smem_ab: Any, warpgroup_idx: Any, acc: Any
    ) -> Any:
        """Return `RaggedFragments`; parameters as of `Mainloop.fragments`."""
        mma, a, b, accumulators = super().fragments(operands, make_tiled_mma, smem_ab, warpgroup_idx, acc)
        return RaggedFragments(mma, a, b, accumulators, smem_ab)

    @cute.jit
    def on_full(self, fragments, stage, k_tiles_left):
        """Zero what is beyond the end of K in the last k-tile, by the threads that share the stage."""
        depth = fragments.depth
        if k_tiles_left == 1 and depth < self.tile_k:
            for operand in cutlass.range_constexpr(2):
                self.zero_rows(fragments.smem_ab[operand], stage, depth)
            # wgmma reads through the async proxy.
            cute.arch.fence_proxy("async.shared", space="cta")
            self.sync_readers()

    @cute.jit
    def zero_rows(self, tiles: cute.Tensor, stage, first):
        """Zero the rows of a stage of an MN-major operand from one of K on, 16 bytes a thread.

        The stage is made of blocks of `tile_k` rows, each of as many of M or N as TMA's swizzle takes. The swizzle
        moves 16 bytes within a row, so that whole rows are where they would be without it.
        """
        tid, _, _ = cute.arch.thread_idx()
        threads = cutlass.const_expr(self.warpgroups * WARPGROUP)
        item = cutlass.const_expr(tiles.element_type.width // 8)
        line_bytes = cutlass.const_expr(cute.size(tiles, mode=[0]) * item)
        row_bytes = cutlass.const_expr(next(width for width in (128, 64, 32, 16) if line_bytes % width == 0))
        chunks = cutlass.const_expr(line_bytes * self.tile_k // _CHUNK)
        begin = tiles.iterator.toint() + stage * (line_bytes * self.tile_k)
        zeros = cute.make_rmem_tensor(cute.make_layout(4), cutlass.Uint32)
        zeros.fill(0)
        for x in cutlass.range_constexpr(-(-chunks // threads)):
            chunk = tid % threads + x * threads
            row = chunk * _CHUNK // row_bytes % self.tile_k
            if row >= first and chunk < chunks:
                pointer = cute.make_ptr(
                    cutlass.Uint32, begin + chunk * _CHUNK, cute.AddressSpace.smem, assumed_align=_CHUNK
                )
                cute.make_tensor(pointer, cute.make_layout(4)).store(zeros.load())

    @cute.jit
    def sync_readers(self):
        """Wait for all threads that share a stage."""
        tid, _, _ = cute.arch.thread_idx()
        threads = cutlass.const_expr(self.warpgroups * WARPGROUP)
        # In ping-pong each warpgroup has a barrier of its own, else both share one.
        number = self.barrier_id if cutlass.const_expr(self.warpgroups > 1) else self.barrier_id + tid // WARPGROUP - 1
        cute.arch.barrier(barrier_id=number, number_of_threads=threads)
