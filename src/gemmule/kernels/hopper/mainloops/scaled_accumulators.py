"""FP8 mainloop with scales of A and B by blocks: each k-tile's accumulators are scaled as they are promoted.

A k-tile is 128 of K, as blocks are: a promotion needs one scale for each line of A's and of B's blocks. Two or three
warps of the producer copy them into the stage of the k-tile by cp.async; consumers read them in front of wgmma. Of
wide tiles by blocks of columns a lane arrives at the stage's full barrier once the copies of the next stage are issued;
else each lane's cp.async arrive by themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import warpgroup

from gemmule.core.block_scales import BLOCK
from gemmule.kernels.hopper.scale_stages import (
    COL_STEP,
    COL_THREADS,
    VECTOR,
    same_columns,
    scales_of_rows,
    stage_scales,
    thread_columns,
)
from gemmule.kernels.hopper.tile_config import MAX_OVERLAPPED_N, MMA_M
from gemmule.kernels.parts.async_copy import copy_vector_async
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .operands import OperandStages
from .pipeline import PipelineState
from .promoted_accumulators import PromotedFragments, PromotedMainloop, part_of

_WARP, _WARP_ROWS, _ROW_STEP, _BYTES = 32, MMA_M // 4, 8, 4
#: K-tiles of an iteration, where registers suffice: ptxas promotes one while the next is multiplied.
_UNROLLED = 4


class LaneScales(NamedTuple):
    """Scales that a lane reads of the first stage: that of its first row, and those of its columns."""

    rows: Any
    cols: Any


class ScaleCopier(NamedTuple):
    """The copies of one warp: scales of A (0) or of B (1), from a line of the tile on, and of how many lines."""

    operand: int
    first: int
    lines: int


class ScaledMainloop(PromotedMainloop):
    """As `PromotedMainloop`, with each k-tile's accumulators multiplied by the scales of A and B there.

    Parameters
    ----------
    num_stages, stage_bytes, pingpong, order_barrier
        As of `Mainloop`.
    lines : tuple of int
        Lines of a block of A and of B: 1 or 128.
    tile_m, tile_n : int
        Rows and columns of a tile.
    narrow_n : int
        Columns of a tile at the right edge of D that has no more; 0 where all tiles are multiplied whole.
    """

    #: A release by each warp that has read scales.
    releasing = _WARP

    def __init__(
        self,
        num_stages: int,
        stage_bytes: int,
        *,
        lines: tuple[int, int],
        tile_m: int,
        tile_n: int,
        narrow_n: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(num_stages, stage_bytes, tile_m=tile_m, tile_n=tile_n, **options)
        self.lines, self.narrow_n = lines, narrow_n
        self.same_columns = same_columns(lines[1], tile_n)
        self.rows, self.stage_scales = scales_of_rows(lines[0], tile_m), stage_scales(lines, tile_m, tile_n)
        self.thread_columns = thread_columns(tile_n)
        # Promotions of a scale for each column are long: left to themselves, warpgroups end up promoting at once.
        self.takes_turns = lines[1] == 1 and tile_m * tile_n >= BLOCK * BLOCK
        self.overlapped = lines[1] == BLOCK and tile_n > BLOCK
        # Measured: with a scale for each column wide tiles gain, with one for a block of them whole halves of a block.
        wide = tile_n > BLOCK if lines[1] == 1 else tile_n % (BLOCK // 2) == 0
        self.tests_ahead = self.tests_ahead and tile_m == BLOCK and wide
        if self.tests_ahead and lines[1] == BLOCK and tile_n <= MAX_OVERLAPPED_N:
            self.k_tiles_of_iteration = _UNROLLED
        self.copied = tile_m if lines[0] == 1 else -(-tile_m // BLOCK), tile_n // self.same_columns
        # A producer's warp has registers for the addresses of some lines: those of tall tiles are for two.
        self.copiers = tuple(
            ScaleCopier(operand, first, min(most, self.copied[operand] - first))
            for operand, most in ((0, BLOCK), (1, self.copied[1]))
            for first in range(0, self.copied[operand], most)
        )
        # Arrivals of the TMA loads, and of the warps that copy scales: of one lane or of each.
        self.producer_arrivals = 1 + len(self.copiers) * (1 if self.overlapped else _WARP)

    def allocate(self, smem: Any) -> Any:
        """Allocate the stages."""
        return smem.allocate_tensor(Float32, cute.make_layout(self.num_stages * self.stage_scales), 16).iterator

    @cute.jit
    def load_scales(self, copier, scales, first_line, barriers, state, k_range):
        """Copy the scales of a tile's k-tiles, each as soon as a stage is empty, by one warp; return the next state.

        Parameters
        ----------
        copier : ScaleCopier
            One of the tile's.
        scales : tuple
            Their tensor, by line of blocks and block of K, and the stages in shared memory.
        first_line : Int32
            The tile's first row or column.
        barriers, k_range
            As of `load`.
        state : tuple
            The pipeline's, and the stage at whose full barrier the warp has yet to arrive, or -1.
        """
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % _WARP
        tensor, stages = scales
        start, num_k_tiles = k_range
        state, pending = state
        step = Int64(tensor.stride[1]) * _BYTES
        copies = [
            (_address(tensor, line, start), place, copier.lines - number * _WARP)
            for number, (line, place) in enumerate(self.lane_copies(copier, first_line, lane))
        ]
        for k in cutlass.range(num_k_tiles, unroll=1):
            stage = state.stage
            cute.arch.mbarrier_wait(barriers.empty + stage, state.phase)
            target = stages + stage * self.stage_scales
            for i in cutlass.range_constexpr(len(copies)):
                address, place, left = copies[i]
                if cutlass.const_expr(left >= _WARP) or lane < left:
                    _copy(target + place, address + k * step)
            if cutlass.const_expr(self.overlapped):
                cute.arch.cp_async_commit_group()
                self.arrive(barriers, pending, 1)
                pending = stage
            else:
                cute.arch.cp_async_mbarrier_arrive_noinc(barriers.full + stage)
            state = self.advance(state)
        return state, pending

    @cute.jit
    def arrive(self, barriers, stage, in_flight: cutlass.Constexpr[int]):
        """Arrive at a stage's full barrier, -1 for none, once all but so many groups of the warp's copies are done."""
        tid, _, _ = cute.arch.thread_idx()
        cute.arch.cp_async_wait_group(in_flight)
        cute.arch.sync_warp()
        if tid % _WARP == 0 and stage >= 0:
            cute.arch.mbarrier_arrive(barriers.full + stage)

    @cute.jit
    def end_scales(self, barriers, state):
        """Arrive for the last stage."""
        if cutlass.const_expr(self.overlapped):
            self.arrive(barriers, state[1], 0)

    def lane_copies(self, copier: ScaleCopier, first_line: Any, lane: Any) -> list[tuple[Any, Any]]:
        """Return lines of blocks of A or B whose scales a lane copies, and their place in a stage.

        Those of a thread's columns are contiguous: the next two are 8 columns on.
        """
        operand = copier.operand
        number = range(copier.first, copier.first + copier.lines, _WARP)
        if self.lines[operand] == BLOCK:
            same = self.same_columns if operand else BLOCK
            return [((first_line + lane * same) // BLOCK, lane + (self.rows if operand else 0))]
        if operand == 0:
            return [(first_line + first + lane, first + lane) for first in number]
        place = self.rows + lane % COL_STEP // 2 * self.thread_columns + lane // COL_STEP * 2 + lane % 2
        return [(first_line + first + lane, place + first // COL_THREADS) for first in number]

    def lane_scales(self, stages: Any, warpgroup_idx: Any) -> LaneScales:
        """Return what this lane reads of the first stage.

        Parameters
        ----------
        stages : Pointer
            What `allocate` returned.
        warpgroup_idx : Int32
            Which 64 rows of a tile are the warpgroup's.
        """
        tid, _, _ = cute.arch.thread_idx()
        lane, warp = tid % _WARP, tid // _WARP % (MMA_M // _WARP_ROWS)
        row = warpgroup_idx * MMA_M + warp * _WARP_ROWS + lane // COL_THREADS if self.lines[0] == 1 else 0
        col = lane % COL_THREADS * self.thread_columns if self.lines[1] == 1 else 0
        rows = stages + row
        if self.overlapped and self.tile_n > MAX_OVERLAPPED_N:
            rows = _rematerialisation_barrier(rows)
        return LaneScales(rows, stages + (self.rows + col))

    def fragments(
        self, operands: OperandStages, make_tiled_mma: Callable[..., Any], smem_ab: Any, warpgroup_idx: Any, acc: Any
    ) -> Any:
        """Return `PromotedFragments`, and those of narrow tiles if there are any."""
        own = super().fragments(operands, make_tiled_mma, smem_ab, warpgroup_idx, acc)
        if not self.narrow_n:
            return own
        mma_init, mma_acc = (make_tiled_mma(self.narrow_n) for _ in range(2))
        mma_init.set(warpgroup.Field.ACCUMULATE, False)
        mma_acc.set(warpgroup.Field.ACCUMULATE, True)
        part = mma_init.get_slice(warpgroup_idx * WARPGROUP)
        _, _, k = operands.cta_tile_mnk
        b = cute.local_tile(smem_ab[1], (self.narrow_n, k), (0, 0, None))
        # The first columns' accumulators are a thread's first.
        shape = mma_init.partition_shape_C((self.tile_m, self.narrow_n))
        found = tuple(cute.make_tensor(x.iterator, cute.make_layout(shape)) for x in own.k_tile_accumulators)
        narrow = PromotedFragments(
            mma_init, mma_acc, found, own.a, (mma_init.make_fragment_B(part.partition_B(b)),), own.accumulators
        )
        return own._replace(narrow=narrow)

    def of_tile(self, fragments: Any, mD: Any, coord: Any) -> Any:
        """Return the fragments of a tile, with the columns that D has from its first one on."""
        return fragments._replace(columns=mD.shape[1] - coord[1] * self.tile_n) if self.narrow_n else fragments

    @cute.jit
    def multiply_k_tiles(self, fragments, barriers, state, num_k_tiles, warpgroup_idx, release):
        """Multiply and promote k-tiles as `PromotedMainloop` does, of a narrow tile with fewer columns."""
        multiply = functools.partial(
            PromotedMainloop.multiply_k_tiles, self, barriers=barriers, num_k_tiles=num_k_tiles,
            warpgroup_idx=warpgroup_idx, release=release,
        )  # fmt: skip
        if cutlass.const_expr(self.narrow_n == 0):
            state = multiply(fragments, state=state)
        else:
            stage, phase = state
            narrow = fragments.narrow._replace(scales=fragments.scales)
            if fragments.columns <= self.narrow_n:
                stage, phase = multiply(narrow, state=PipelineState(stage, phase))
            else:
                stage, phase = multiply(fragments, state=PipelineState(stage, phase))
            state = PipelineState(stage, phase)
        return state

    def read_scales(self, fragments: Any, stage: Any) -> Any:
        """Return the scales of a full stage: of a thread's rows, times those of its columns if these are few."""
        rows, cols = (place + stage * self.stage_scales for place in fragments.scales)
        parts = len(fragments.a)
        if self.lines[0] == 1:
            steps = [self.tile_m // parts * part + _ROW_STEP * half for part in range(parts) for half in range(2)]
            of_a = [_read(rows + step, 1)[0] for step in steps]
        else:
            of_a = [_read(rows + part, 1)[0] for part in range(parts) for _ in range(2)]
        # A thread has two rows of a part's accumulators.
        count = self.copied[1] if self.lines[1] == BLOCK else cute.size(fragments.k_tile_accumulators[0]) // 2
        vector = next(size for size in (VECTOR, 2, 1) if count % size == 0)
        of_b = [x for first in range(0, count, vector) for x in _elements(cols + first, vector)]
        return [[a * b for b in of_b] for a in of_a] if self.lines[1] == BLOCK else (of_a, of_b)

    def promote(self, fragments: Any, scales: Any, part: int, number: int) -> None:
        """Add a k-tile's accumulators of a part of the tile, scaled."""
        total, found = part_of(fragments, part, number)
        row_part, col_part = divmod(part, len(fragments.b))
        first = col_part * self.tile_n // len(fragments.b)
        for v in range(cute.size(found)):
            row, col = 2 * row_part + v // 2 % 2, v // 4 * COL_STEP
            if self.lines[1] == BLOCK:
                total[v] = total[v] + found[v] * scales[row][(first + col) // self.same_columns]
            else:
                total[v] = total[v] + found[v] * scales[1][v // 4 * 2 + v % 2] * scales[0][row]


def _rematerialisation_barrier(pointer: Any) -> Any:
    """Return a lane's pointer as the result of a shuffle, so that ptxas does not recompute it between two `wgmma`."""
    address = cute.arch.shuffle_sync(pointer.toint(), cute.arch.lane_idx())
    return cute.make_ptr(Float32, address, pointer.memspace, assumed_align=_BYTES)


@cute.jit
def _copy(target: cute.Pointer, address):
    """Copy a scale from an address."""
    source = cute.make_ptr(Float32, address, cute.AddressSpace.gmem, assumed_align=_BYTES)
    copy_vector_async(target, source, 1, None)


def _address(tensor: Any, line: Any, k_tile: Any) -> Any:
    """Return the address of a line's scale of a k-tile; of the last line past the edge."""
    inside = cutlass.max(cutlass.min(Int32(line), tensor.shape[0] - 1), 0)
    return (tensor.iterator + cute.crd2idx((inside, k_tile), tensor.layout)).toint()


def _elements(place: Any, count: int) -> list[Any]:
    """Return contiguous scales in shared memory."""
    found = _read(place, count)
    return [found[i] for i in range(count)]


def _read(place: Any, count: int) -> Any:
    pointer = cute.make_ptr(Float32, place.toint(), place.memspace, assumed_align=_BYTES * count)
    return cute.make_tensor(pointer, cute.make_layout(count)).load()


def fake_scales(types: dict[str, str]) -> tuple[Any, Any] | None:
    """Return fake tensors for the scales of A and B, if the signature has them."""
    if "scale_a" not in types:
        return None
    first, second = (_fake_tensor() for _ in range(2))
    return first, second


def _fake_tensor() -> Any:
    extents, strides = (tuple(sym() for _ in range(2)) for sym in (cute.sym_int32, cute.sym_int64))
    return cute.runtime.make_fake_tensor(Float32, extents, strides)


def block_lines(types: dict[str, str]) -> tuple[int, int] | None:
    """Return the lines of a block of A and of B, if the signature has scales by blocks."""
    return (int(types["scale_a"]), int(types["scale_b"])) if "scale_a" in types else None
