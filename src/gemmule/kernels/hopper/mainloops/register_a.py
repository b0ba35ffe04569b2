"""FP8 mainloop of wide tiles: a warpgroup reads its rows of A once for both halves of the columns, into registers.

wgmma would read A from shared memory again for each half of the columns. The reads of a tile of 128 x 256 and the
writes of TMA would take 144 bytes a cycle at the full rate of the tensor cores, of 128 that shared memory has; with A
in registers they take 128.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.hopper.epilogues.warp_epi_tile import ldmatrix
from gemmule.kernels.hopper.tile_config import K_BYTES, MMA_M
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .operands import OperandStages
from .promoted_accumulators import PromotedMainloop
from .scaled_accumulators import ScaledMainloop

#: Threads and rows of a warp, rows of the swizzle's pattern, and bytes of a chunk.
_WARP, _WARP_ROWS, _PATTERN, _CHUNK = 32, 16, 8, 16
#: wgmma of a k-tile, and 32-bit words that a thread has of each one's A.
_STEPS, _WORDS = 4, 4


class RegisterA(PromotedMainloop):
    """As `PromotedMainloop`, with A in registers, for tiles of one wgmma tile of rows a warpgroup."""

    # Every warp reads A by itself.
    releasing = _WARP

    def fragments(
        self, operands: OperandStages, make_tiled_mma: Callable[..., Any], smem_ab: Any, warpgroup_idx: Any, acc: Any
    ) -> Any:
        """Return `PromotedFragments`; parameters as of `Mainloop.fragments`."""
        make = functools.partial(make_tiled_mma, a_in_registers=True)
        return super().fragments(operands, make, smem_ab, warpgroup_idx, acc)

    def parts_of_a(self, mma: Any, stages: Any, tile: tuple[int, int], count: int, warpgroup_idx: Any) -> Any:
        """Return registers for A, the same of every stage, and remember where this lane reads."""
        assert count == 1, "tall tiles have no registers for A"
        self.tile_bytes = tile[0] * K_BYTES
        self.start = lane_start(stages.iterator.toint(), warpgroup_idx)
        self.registers = cute.make_rmem_tensor(mma.partition_shape_A(tile), stages.element_type)
        layout = cute.append(self.registers.layout, cute.make_layout(self.num_stages, stride=0))
        return (cute.make_tensor(self.registers.iterator, layout),)

    @cute.jit
    def on_full(self, fragments, stage, k_tiles_left):
        """Read this lane's elements of a k-tile of A."""
        del k_tiles_left
        words = cute.recast_tensor(self.registers, Int32)
        words = cute.make_tensor(words.iterator, cute.make_layout(_STEPS * _WORDS))
        address = self.start + stage * self.tile_bytes
        for step in cutlass.range_constexpr(_STEPS):
            # A step is two chunks, whose numbers are exclusive ors with the row's.
            for word, value in enumerate(ldmatrix(address ^ (2 * _CHUNK * step))):
                words[_WORDS * step + word] = value


@cute.jit
def lane_start(stages, warpgroup_idx):
    """Return the address that this lane gives `ldmatrix` for the first 32 bytes of its warp's rows in the first stage.

    A k-tile's rows of 128 bytes are swizzled: chunk c of row r lies at c ^ r % 8.
    """
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % _WARP
    row = warpgroup_idx * MMA_M + cute.arch.make_warp_uniform(tid % WARPGROUP // _WARP) * _WARP_ROWS + lane % _WARP_ROWS
    return stages + row * K_BYTES + (lane // _WARP_ROWS ^ row % _PATTERN) * _CHUNK


class ScaledRegisterA(RegisterA, ScaledMainloop):
    """As `ScaledMainloop`, with A in registers."""
