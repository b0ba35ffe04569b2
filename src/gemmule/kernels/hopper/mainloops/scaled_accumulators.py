"""FP8 mainloop with scales of A and B by blocks: each k-tile's accumulators are scaled as they are promoted.

A k-tile is 128 of K, as blocks are: a promotion needs one scale for each line of A's and of B's blocks. Threads load
theirs from global memory before they wait for the stage, so that the loads overlap with wgmma.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from gemmule.core.block_scales import BLOCK
from gemmule.kernels.hopper.tile_config import MMA_M, WARPGROUP
from gemmule.kernels.parts.tensors import cute_type

from .operands import flat
from .promoted_accumulators import PromotedMainloop

_WARP, _ROW_STEP, _COL_STEP = 32, 8, 8


class TileScales(NamedTuple):
    """A thread's scales of a tile: of each line that it needs the scales along K, from the tile's first k-tile on."""

    a: Any
    b: Any


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

    def __init__(self, num_stages: int, stage_bytes: int, *, lines: tuple[int, int], tile_n: int, **options: Any):
        super().__init__(num_stages, stage_bytes, **options)
        self.lines, self.tile_n = lines, tile_n
        #: Columns that have one scale of B.
        self.same_columns = math.gcd(tile_n, BLOCK) if lines[1] == BLOCK else 1

    def tile_scales(self, scales: Any, row: Any, col: Any, k_tile: Any) -> TileScales:
        """Return this thread's scales of a tile.

        Parameters
        ----------
        scales : tuple of Tensor
            Of A and B, by line of blocks and block of K.
        row, col, k_tile : Int32
            The first row of the warpgroup's 64, the tile's first column, and its first k-tile.
        """
        tid, _, _ = cute.arch.thread_idx()
        lane, warp = tid % _WARP, tid % WARPGROUP // _WARP
        if self.lines[0] == BLOCK:
            rows = [row // BLOCK]
        else:
            first = row + warp * (MMA_M // 4) + lane // 4
            rows = [first, first + _ROW_STEP]
        if self.lines[1] == BLOCK:
            cols = [(col + n) // BLOCK for n in range(0, self.tile_n, self.same_columns)]
        else:
            cols = [col + n + lane % 4 * 2 + e for n in range(0, self.tile_n, _COL_STEP) for e in range(2)]
        of_a, of_b = scales
        return TileScales(
            tuple(_line(of_a, line, k_tile) for line in rows), tuple(_line(of_b, line, k_tile) for line in cols)
        )

    def factors(self, fragments: Any, k: Any) -> Any:
        """Issue the loads of the scales of k-tile `k` of a tile; return them."""
        return tuple(tuple(_float(line[k]) for line in lines) for lines in fragments.scales)

    def promote(self, fragments: Any, factors: Any) -> None:
        """Add a k-tile's accumulators, scaled."""
        of_rows, of_cols = factors
        total, part = flat(fragments.accumulators), flat(fragments.k_tile_accumulators)
        per_row = len(of_rows) > 1
        if self.lines[1] == BLOCK:
            both = [[a * b for b in of_cols] for a in of_rows]
            for v in range(cute.size(total)):
                half, chunk = v // 2 % 2 if per_row else 0, v // 4 * _COL_STEP // self.same_columns
                total[v] = total[v] + part[v] * both[half][chunk]
        else:
            for v in range(cute.size(total)):
                scaled = part[v] * of_cols[v // 4 * 2 + v % 2]
                total[v] = total[v] + scaled * of_rows[v // 2 % 2 if per_row else 0]


def _line(tensor: Any, line: Any, k_tile: Any) -> Any:
    """Return the scales of a line of blocks along K, from a k-tile on; past the edge those of the last line."""
    inside = cutlass.min(Int32(line), tensor.shape[0] - 1)
    stride = tensor.stride[1]
    start = tensor.iterator + cute.crd2idx((inside, k_tile), tensor.layout)
    return cute.make_tensor(start, cute.make_layout(tensor.shape[1], stride=stride))


def _float(scale: Any) -> Any:
    """Return a scale as float32; those of 8 bits are powers of two by their biased exponents (E8M0)."""
    if scale.dtype is Float32:
        return scale
    bits = Uint32(scale)
    power = cutlass.select_(bits == 0, Uint32(1 << 22), bits << 23)
    # The largest exponent is NaN, not infinity.
    return Uint32(cutlass.select_(bits == 255, Uint32(0x7FFFFFFF), power)).bitcast(Float32)


def stand_in_scales(types: dict[str, str]) -> tuple[Any, Any] | None:
    """Return stand-ins for the scales of A and B, if the signature has them."""
    if "scale_a" not in types:
        return None
    first, second = (_stand_in(types[name].partition(":")[0]) for name in ("scale_a", "scale_b"))
    return first, second


def _stand_in(name: str) -> Any:
    extents, strides = (tuple(sym() for _ in range(2)) for sym in (cute.sym_int32, cute.sym_int64))
    return cute.runtime.make_fake_tensor(cute_type(name), extents, strides)


def block_lines(types: dict[str, str]) -> tuple[int, int] | None:
    """Return the lines of a block of A and of B, if the signature has scales by blocks."""
    if "scale_a" not in types:
        return None
    a, b = (int(types[name].partition(":")[2]) for name in ("scale_a", "scale_b"))
    return a, b
