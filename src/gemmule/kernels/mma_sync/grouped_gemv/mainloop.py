"""Mainloop of mma.sync fed from device memory: a lane loads what its fragments have of a line, 16 bytes at once.

Fragments of mma.sync have pairs of elements 8 of K apart. Weights and vector share a permutation of K, so that the
contiguous elements of a piece are the pairs of successive instructions, and dot products are unchanged.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from gemmule.kernels.parts.mma_sync import mma_name, mma_sync

from .config import LINE_BYTES, MMA_COLUMNS, GemvConfig

#: Bytes of a piece, of the pieces of four lanes, and of an instruction's K; lines of half a fragment; words of a piece.
_PIECE, _QUAD, _K_BYTES, _HALF, _WORDS = 16, 64, 32, 8, 4
#: Weights pass by the L1 cache, since each is read once, and L2 loads the 128 bytes around them.
_LOAD = "ld.global.L1::no_allocate.L2::128B.v4.b32"


class GemvMainloop:
    """The products of a warp's part of K.

    Parameters
    ----------
    config : GemvConfig
        Columns and warps.
    types : dict
        The signature.
    """

    def __init__(self, config: GemvConfig, types: dict[str, str]) -> None:
        self.fragments, self.warps, self.unroll = config.tile_n // MMA_COLUMNS, config.warps, config.unroll
        self.mma = mma_name(types["a"], types["acc"], _K_BYTES)

    @cute.jit
    def multiply(self, lines, vector, nbytes):
        """Return partial sums, four for each fragment: those of its lines, of the first and second 8, by the vector.

        Parameters
        ----------
        lines : tuple of Int64
            For each fragment, the addresses of this lane's lines among its first and its second 8.
        vector : Int64
            Address of the vector.
        nbytes : Int32
            Bytes of a line and of the vector, a multiple of 16.
        """
        lane, warp = cute.arch.lane_idx(), cute.arch.make_warp_uniform(cute.arch.warp_idx())
        own = lane % 4 * _PIECE
        # A lane has column lane // 4 of the vector's operand: the first one is the vector, the others are zero.
        vector_bytes = nbytes if lane < 4 else Int32(0)
        sums = cute.make_rmem_tensor(cute.make_layout((_WORDS, self.fragments)), Float32)
        sums.fill(0)
        step = cutlass.const_expr(self.warps * LINE_BYTES)
        for first in cutlass.range(warp * LINE_BYTES + own, nbytes + own, step * self.unroll, unroll=1):
            # All loads are issued before the first product.
            loaded: list[Any] = []
            for number in cutlass.range_constexpr(2 * self.unroll):
                at = first + (number // 2 * step + number % 2 * _QUAD)
                loaded.append([load_piece(line, at, nbytes) for pair in lines for line in pair])
                loaded[-1].append(load_piece(vector, at, vector_bytes))
            for number in cutlass.range_constexpr(2 * self.unroll):
                *weights, of_vector = loaded[number]
                for word in cutlass.range_constexpr(0, _WORDS, 2):
                    for fragment in cutlass.range_constexpr(self.fragments):
                        upper, lower = weights[2 * fragment], weights[2 * fragment + 1]
                        a = (upper[word], lower[word], upper[word + 1], lower[word + 1])
                        mma_sync(self.mma, sums[None, fragment], a, (of_vector[word], of_vector[word + 1]))
        return sums


@cute.jit
def load_piece(line, at, nbytes):
    """Return the four words at byte `at` of a line, zeros from `nbytes` on, without a branch."""
    return cute.arch.inline_ptx(
        "{ .reg .pred inside; .reg .s64 wide; setp.lt.s32 inside, {$r1}, {$r2}; cvt.s64.s32 wide, {$r1}; "
        "add.s64 wide, wide, {$r0}; mov.b32 {$w0}, 0; mov.b32 {$w1}, 0; mov.b32 {$w2}, 0; mov.b32 {$w3}, 0; "
        f"@inside {_LOAD} {{{{$w0}}, {{$w1}}, {{$w2}}, {{$w3}}}}, [wide]; }}",
        write_only_types=[Uint32] * _WORDS,
        read_only_args=[line, at, nbytes],
    )


def lines_of(weights: Any, first: Any, fragments: int) -> tuple[tuple[Any, Any], ...]:
    """Return this lane's lines of a matrix (N, K) from line `first` on, as `multiply` takes them.

    Lines beyond the last one are the last one.
    """
    row = first + cute.arch.lane_idx() // 4
    most = weights.shape[0] - 1

    def address(line: int) -> Any:
        place = cutlass.min(row + line, most), Int32(0)
        return (weights.iterator + cute.crd2idx(place, weights.layout)).toint()

    starts = (MMA_COLUMNS * fragment for fragment in range(fragments))
    return tuple((address(start), address(start + _HALF)) for start in starts)
