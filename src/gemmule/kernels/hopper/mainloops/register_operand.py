"""Mainloop of TF32 with an MN-major A: wgmma takes it from registers, which warps fill from k-tiles in shared memory.

wgmma reads 32-bit operands from shared memory along K only. Its A may be in registers instead: TMA writes the k-tile as
it lies, lines of 32 rows of one k, and each lane reads the elements that a fragment has of its rows, one by one. While
the products of one half of a k-tile run, the fragments of the other half are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import cutlass
from cutlass import Uint32, cute
from cutlass.cute.nvgpu import warpgroup

from gemmule.kernels.hopper.tile_config import K_BYTES, MMA_M
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .operands import OperandStages
from .tma_wgmma import Mainloop
from .wgmma import issue_group

#: Rows of a line of 128 bytes, bytes of an element and of a chunk of the swizzle, and lines of its pattern.
_LINE_ROWS, _ITEM, _CHUNK, _PATTERN = 32, 4, 16, 8
#: Parts of a k-tile that are read together, wgmma of each, and k and words of one.
_PARTS, _STEPS, _K, _WORDS = 2, 2, 8, 4


class RegisterFragments(NamedTuple):
    """As `Fragments`, with A in registers."""

    mma: Any
    #: Registers for A, for each part of a k-tile.
    a: tuple[Any, ...]
    b: Any
    accumulators: Any
    #: Addresses of this lane's elements in the first stage of A, as the mainloop's `starts` returns them.
    starts: tuple[Any, ...]


class RegisterOperandMainloop(Mainloop):
    """As `Mainloop`, for MN-major A of 32-bit elements."""

    calls_during = False
    #: Parts of a k-tile in their order.
    order: tuple[int, ...] = (0, 1)
    # Every warp reads A by itself.
    releasing = 32

    def fragments(
        self, operands: OperandStages, make_tiled_mma: Callable[[], Any], smem_ab: Any, warpgroup_idx: Any, acc: Any
    ) -> Any:
        """Return `RegisterFragments`; parameters as of `Mainloop.fragments`."""
        mma = make_tiled_mma()
        tile_m, tile_n, tile_k = operands.cta_tile_mnk
        part = mma.get_slice(warpgroup_idx * WARPGROUP)
        shape = mma.partition_shape_A((tile_m, tile_k // _PARTS))
        a = tuple(cute.make_rmem_tensor(shape, operands.elements[0]) for _ in range(_PARTS))
        b = mma.make_fragment_B(part.partition_B(smem_ab[1]))
        accumulators = cute.make_rmem_tensor(mma.partition_shape_C((tile_m, tile_n)), acc)
        self.tile_bytes = operands.a_bytes
        starts = self.starts(operands, smem_ab[0], warpgroup_idx, cute.size(shape, mode=[1]))
        return RegisterFragments(mma, a, b, accumulators, starts)

    def starts(self, operands: Any, stages: Any, warpgroup_idx: Any, mma_tiles: int) -> Any:
        """Return where this lane's elements of the first stage are, as `fill` takes it, for so many wgmma tiles."""
        del operands
        # Bytes from one wgmma tile of a warpgroup to the next.
        self.mma_tile_bytes = self.tile_bytes // mma_tiles
        return lane_starts(stages.iterator.toint(), warpgroup_idx)

    @cute.jit
    def multiply(self, fragments, barriers, state, num_k_tiles, warpgroup_idx, release):
        """Multiply k-tiles as `Mainloop.multiply` does, one half after the other."""
        mma, a, b, accumulators, starts = fragments
        self.order_barrier_wait(warpgroup_idx)
        release_stage = state.stage
        for k in cutlass.range(num_k_tiles):
            stage = state.stage
            cute.arch.mbarrier_wait(barriers.full + stage, state.phase)
            for turn in cutlass.range_constexpr(_PARTS):
                part = cutlass.const_expr(self.order[turn])
                # The products that read these registers are complete; one group may be in flight.
                warpgroup.wait_group(1)
                self.fill(a[part], starts, stage * self.tile_bytes, part)
                issue_group(part_mmas(mma, a[part], b, k if turn == 0 else None, part, stage), accumulators)
                # ACCUMULATE is loop-carried state, which the DSL tracks only if the loop body sets it.
                mma.set(warpgroup.Field.ACCUMULATE, True)
                if cutlass.const_expr(turn == 0):
                    # All of the k-tile before this one but its last products is complete.
                    warpgroup.wait_group(1)
                    cute.arch.sync_warp()
                    if k > 0:
                        release(barriers.empty, release_stage)
            release_stage = stage
            state = self.advance(state)
        self.order_barrier_arrive(warpgroup_idx)
        warpgroup.wait_group(0)
        cute.arch.sync_warp()
        release(barriers.empty, release_stage)
        return state

    @cute.jit
    def fill(self, fragment: cute.Tensor, starts, stage, part: cutlass.Constexpr[int]):
        """Read this lane's elements of a part of a k-tile: four words a wgmma."""
        for mma_tile in cutlass.range_constexpr(cute.size(fragment, mode=[1])):
            for step in cutlass.range_constexpr(_STEPS):
                words = cute.recast_tensor(fragment[None, mma_tile, step], Uint32)
                offset = cutlass.const_expr(mma_tile * self.mma_tile_bytes + (part * _STEPS + step) * _K * K_BYTES)
                for word in cutlass.range_constexpr(_WORDS):
                    words[word] = cute.arch.inline_ptx(
                        "ld.shared.b32 {$w0}, [{$r0}];",
                        write_only_types=[Uint32],
                        read_only_args=[starts[word] + stage + offset],
                    )


def part_mmas(mma: Any, a: Any, b: Any, k: Any | None, part: int, stage: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the wgmma of a part of a k-tile, of its number `k` in the first turn, as `issue_group` takes them."""
    for step in range(_STEPS):
        # The first wgmma overwrites the accumulators.
        mma.set(warpgroup.Field.ACCUMULATE, k > 0 if k is not None and step == 0 else True)
        yield mma, a[None, None, step], b[None, None, part * _STEPS + step, stage]


@cute.jit
def lane_starts(stages, warpgroup_idx):
    """Return the addresses of this lane's elements of a stage's first fragment: rows g and g + 8 at k = t and t + 4."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    first = warpgroup_idx * MMA_M + cute.arch.make_warp_uniform(tid % WARPGROUP // 32) * 16
    found = []
    for word in cutlass.range_constexpr(_WORDS):
        row, k = first + lane // 4 + word % 2 * 8, lane % 4 + word // 2 * 4
        chunk = row % _LINE_ROWS // 4 ^ k
        line = row // _LINE_ROWS * _LINE_ROWS + k
        found.append(stages + line * K_BYTES + chunk * _CHUNK + row % 4 * _ITEM)
    return tuple(found)
