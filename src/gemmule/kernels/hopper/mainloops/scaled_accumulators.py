"""FP8 mainloop with scales of A and B by blocks: each k-tile's accumulators are scaled as they are promoted.

A k-tile is 128 of K, as blocks are: a promotion needs one scale for each line of A's and of B's blocks. Every warp
copies its own to shared memory, some k-tiles ahead, by cp.async, and reads them after wgmma. Loads into registers
would be waited for before: the assembler computes with what it has loaded in front of wgmma.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, Int64, cute, select_

from gemmule.core.block_scales import BLOCK
from gemmule.kernels.hopper.scale_stages import SCALE_STAGES, same_columns, scales_of_rows, stage_scales
from gemmule.kernels.hopper.tile_config import CONSUMERS, MMA_M, WARPGROUP
from gemmule.kernels.parts.async_copy import copy_vector_async

from .operands import flat
from .promoted_accumulators import PromotedMainloop

_WARP, _WARP_ROWS, _ROW_STEP, _COL_STEP, _BYTES = 32, MMA_M // 4, 8, 8, 4


class TileScales(NamedTuple):
    """A lane's copies of a warp's scales for a tile.

    Attributes
    ----------
    sources : tuple of Int64
        Of each scale that the lane copies, the address of that of the tile's first k-tile.
    steps : tuple of Int32
        Elements from there to the scale of the next k-tile.
    stages : Pointer
        The warp's stages in shared memory.
    """

    sources: Any
    steps: Any
    stages: Any


class ScaledMainloop(PromotedMainloop):
    """As `PromotedMainloop`, with each k-tile's accumulators multiplied by the scales of A and B there.

    Parameters
    ----------
    num_stages, stage_bytes, pingpong, order_barrier
        As of `Mainloop`.
    lines : tuple of int
        Lines of a block of A and of B: 1 or 128.
    tile_n : int
        Columns of a tile.
    """

    #: Left to themselves, cooperative warpgroups would multiply, and promote, at the same time.
    takes_turns = True

    def __init__(
        self, num_stages: int, stage_bytes: int, *, lines: tuple[int, int], tile_n: int, **options: Any
    ) -> None:
        super().__init__(num_stages, stage_bytes, **options)
        self.lines, self.tile_n = lines, tile_n
        self.same_columns, self.rows = same_columns(lines[1], tile_n), scales_of_rows(lines[0])
        self.stage_scales = stage_scales(lines, tile_n)
        self.count = self.rows + tile_n // self.same_columns

    def allocate(self, smem: Any) -> Any:
        """Allocate the stages of all warps."""
        warps = CONSUMERS * WARPGROUP // _WARP
        return smem.allocate_tensor(Float32, cute.make_layout(warps * SCALE_STAGES * self.stage_scales), 16).iterator

    @cute.jit
    def tile_scales(self, scales, stages, row, col, k_tile):
        """Return this lane's copies for a tile.

        Parameters
        ----------
        scales : tuple of Tensor
            Of A and B, by line of blocks and block of K.
        stages : Pointer
            What `allocate` returned.
        row, col, k_tile : Int32
            The first row of the warpgroup's 64, the tile's first column, and its first k-tile.
        """
        tid, _, _ = cute.arch.thread_idx()
        lane, warp = tid % _WARP, tid // _WARP - WARPGROUP // _WARP
        own = stages + warp * cutlass.const_expr(SCALE_STAGES * self.stage_scales)
        of_a, of_b = scales
        sources, steps = [], []
        for first in cutlass.range_constexpr(0, self.stage_scales, _WARP):
            number = cutlass.min(first + lane, self.count - 1)
            col_block = self.line_of_column(col, number - self.rows)
            source, step = self.along_k(of_b, col_block, k_tile)
            if cutlass.const_expr(first < self.rows):
                row_block = row // BLOCK
                if cutlass.const_expr(self.lines[0] == 1):
                    row_block = row + warp % 4 * _WARP_ROWS + number
                is_row = number < self.rows
                source_a, step_a = self.along_k(of_a, row_block, k_tile)
                source, step = Int64(select_(is_row, source_a, source)), Int32(select_(is_row, step_a, step))
            sources.append(source)
            steps.append(step)
        return TileScales(tuple(sources), tuple(steps), own)

    def line_of_column(self, col: Any, number: Any) -> Any:
        """Return the line of B's blocks whose scale is one of a warp's."""
        return (col + number * self.same_columns) // BLOCK if self.lines[1] == BLOCK else col + number

    def along_k(self, tensor: Any, line: Any, k_tile: Any) -> tuple[Any, Any]:
        """Return the address of a line's scale of a k-tile, of the last line past the edges, and the step along K."""
        inside = cutlass.max(cutlass.min(Int32(line), tensor.shape[0] - 1), 0)
        place = tensor.iterator + cute.crd2idx((inside, k_tile), tensor.layout)
        return place.toint(), Int32(tensor.stride[1])

    @cute.jit
    def copy(self, tile, k, num_k_tiles):
        """Issue the copies of the scales of k-tile `k` of a tile, as a group; past the end, an empty one."""
        if k < num_k_tiles:
            tid, _, _ = cute.arch.thread_idx()
            target = tile.stages + k % SCALE_STAGES * self.stage_scales + tid % _WARP
            for i in cutlass.range_constexpr(self.stage_scales // _WARP):
                address = tile.sources[i] + Int64(k * tile.steps[i]) * _BYTES
                source = cute.make_ptr(Float32, address, cute.AddressSpace.gmem, assumed_align=_BYTES)
                copy_vector_async(target + i * _WARP, source, 1, None)
        cute.arch.cp_async_commit_group()

    @cute.jit
    def start(self, fragments, num_k_tiles):
        """Issue the copies of the first k-tiles, when the warp has read those of the tile before."""
        cute.arch.sync_warp()
        for k in cutlass.range_constexpr(SCALE_STAGES - 1):
            self.copy(fragments.scales, Int32(k), num_k_tiles)

    @cute.jit
    def prefetch(self, fragments, k, num_k_tiles):
        """Issue the copies of a later k-tile, into the stage of the one before `k`."""
        cute.arch.sync_warp()
        self.copy(fragments.scales, k + SCALE_STAGES - 1, num_k_tiles)

    @cute.jit
    def promote(self, fragments, k):
        """Add a k-tile's accumulators, scaled."""
        cute.arch.cp_async_wait_group(SCALE_STAGES - 1)
        cute.arch.sync_warp()
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % _WARP
        stage = fragments.scales.stages + k % SCALE_STAGES * self.stage_scales
        total, part = flat(fragments.accumulators), flat(fragments.k_tile_accumulators)
        if cutlass.const_expr(self.lines[0] == 1):
            of_rows = [_read(stage + lane // 4 + _ROW_STEP * half, 1)[0] for half in range(2)]
        else:
            of_rows = [_read(stage, 1)[0]] * 2
        both = None
        if cutlass.const_expr(self.lines[1] == BLOCK):
            of_cols = [_read(stage + self.rows + i, 1)[0] for i in range(self.tile_n // self.same_columns)]
            both = [[a * b for b in of_cols] for a in of_rows]
        for j in cutlass.range_constexpr(self.tile_n // _COL_STEP):
            if cutlass.const_expr(both is not None):
                chunk = cutlass.const_expr(j * _COL_STEP // self.same_columns)
                for v in cutlass.range_constexpr(4 * j, 4 * j + 4):
                    total[v] = total[v] + part[v] * both[v // 2 % 2][chunk]
            else:
                pair = _read(stage + self.rows + j * _COL_STEP + lane % 4 * 2, 2)
                for v in cutlass.range_constexpr(4 * j, 4 * j + 4):
                    total[v] = total[v] + part[v] * pair[v % 2] * of_rows[v // 2 % 2]


def _read(place: Any, count: int) -> Any:
    """Read one scale, or two that are contiguous, from shared memory."""
    pointer = cute.make_ptr(Float32, place.toint(), place.memspace, assumed_align=_BYTES * count)
    return cute.make_tensor(pointer, cute.make_layout(count)).load()


def stand_in_scales(types: dict[str, str]) -> tuple[Any, Any] | None:
    """Return stand-ins for the scales of A and B, if the signature has them."""
    if "scale_a" not in types:
        return None
    first, second = (_stand_in() for _ in range(2))
    return first, second


def _stand_in() -> Any:
    extents, strides = (tuple(sym() for _ in range(2)) for sym in (cute.sym_int32, cute.sym_int64))
    return cute.runtime.make_fake_tensor(Float32, extents, strides)


def block_lines(types: dict[str, str]) -> tuple[int, int] | None:
    """Return the lines of a block of A and of B, if the signature has scales by blocks."""
    return (int(types["scale_a"]), int(types["scale_b"])) if "scale_a" in types else None
