"""Fragments of mma.sync that a lane loads from device memory, whatever the strides are.

Rows and columns of D, and k, are permuted, those of A, B and D alike. Where vectors lie along a mode, a lane has what
is consecutive in it; elsewhere the lanes do, so that a load touches few lines.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Int64, Uint32, cute, select_

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.words import permuted

#: k of a lane for each step; bytes of an element.
_LANE_K, _ITEM = 4, 2


@dataclass(frozen=True)
class LaneLoads:
    """Loads of a lane's part of an operand.

    Attributes
    ----------
    rows : int
        Rows of a lane.
    k_major : bool
        Whether vectors are along K, else along rows.
    bytes : int
        Bytes of a load, where a lane has as many: 2, 4 or 8.
    stride : int
        Rows from one of a lane to the next: 1, or 8 where neighbouring lanes have neighbouring rows.
    k_stride : int
        k from one of a lane to the next of a step: 1, or 4 likewise.
    """

    rows: int
    k_major: bool
    bytes: int
    stride: int = 1
    k_stride: int = 1

    @property
    def vector(self) -> int:
        """Elements of a load."""
        return min(self.bytes // _ITEM, _LANE_K if self.k_major else self.rows)

    @cute.jit
    def sources(self, gX: cute.Tensor, row, depth):
        """Return, for each row from `row` on, its address and the k that it has: none beyond the matrix."""
        found: list[Any] = []
        for r in cutlass.range_constexpr(self.rows):
            at = row + r * self.stride
            place = (at, Int32(0))
            end = Int32(select_(at < gX.shape[0], depth, Int32(0)))
            found.append(((gX.iterator + cute.crd2idx(place, gX.layout)).toint(), end))
        return found

    @cute.jit
    def step(self, sources, k_bytes, k):
        """Return two words of each row: its elements from `k` on, zeros outside the matrix.

        Parameters
        ----------
        sources : list
            As `sources` returns them.
        k_bytes : Int64
            Bytes from one k to the next.
        k : Int32
            The lane's first k of the step.
        """
        vector = cutlass.const_expr(self.vector)
        found: list[Any] = []
        if cutlass.const_expr(self.k_major):
            for r in cutlass.range_constexpr(self.rows):
                address, end = sources[r]
                loaded: list[Any] = []
                for e in cutlass.range_constexpr(0, _LANE_K, vector):
                    at = k + e * self.k_stride
                    loaded.extend(load_elements(address + at * k_bytes, at, end, vector))
                found.append(_words(loaded, vector))
        else:
            for r in cutlass.range_constexpr(0, self.rows, vector):
                address, end = sources[r]
                places = [k + e * self.k_stride for e in range(_LANE_K)]
                lines = [load_elements(address + at * k_bytes, at, end, vector) for at in places]
                found.extend(_transposed(lines, vector))
        return found


def _words(loaded: list[Any], vector: int) -> tuple[Any, Any]:
    """Return four elements in two words, of loads of one element each or of whole words."""
    if vector > 1:
        return loaded[0], loaded[1]
    return permuted(loaded[0], loaded[1], 0x5410), permuted(loaded[2], loaded[3], 0x5410)


def _transposed(lines: list[Any], vector: int) -> list[tuple[Any, Any]]:
    """Return two words along K for each of `vector` rows, of loads along the rows for four k."""
    rows: list[tuple[Any, Any]] = []
    for r in range(vector):
        selector = 0x7632 if r % 2 else 0x5410
        first, second = (permuted(lines[e][r // 2], lines[e + 1][r // 2], selector) for e in (0, 2))
        rows.append((first, second))
    return rows


@cute.jit
def load_elements(address, k, end, count: cutlass.Constexpr[int]):
    """Return `count` (1, 2 or 4) elements of 16 bits as words, zeros where `k` is `end` or more, without a branch."""
    words = cutlass.const_expr(max(count // 2, 1))
    load = cutlass.const_expr(
        {1: "ld.global.u16 {$w0}", 2: "ld.global.b32 {$w0}", 4: "ld.global.v2.b32 {{$w0}, {$w1}}"}
    )
    zeros = cutlass.const_expr("".join(f"mov.b32 {{$w{word}}}, 0; " for word in range(words)))
    found = cute.arch.inline_ptx(
        "{ .reg .pred inside; setp.lt.s32 inside, {$r1}, {$r2}; " + zeros + f"@inside {load[count]}, [{{$r0}}]; }}",
        write_only_types=[Uint32] * words,
        read_only_args=[Int64(address), k, end],
    )
    return [found] if cutlass.const_expr(words == 1) else [found[0], found[1]]
