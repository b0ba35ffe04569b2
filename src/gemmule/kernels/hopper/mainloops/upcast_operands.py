"""K-tiles of 8-bit floats in shared memory upcast to 16 bits: fragments of wgmma in registers, or its other operand.

A k-tile has 128 of K, in lines of 128 bytes as TMA swizzles them; of 16-bit floats, one half after the other. Halves of
64 are multiplied in four steps of 16. Both operands share the permutation of K within a half, so dot products are
unchanged. Of the 16 contiguous elements that a lane reads at once, it has four in each step, which is what a fragment
has of a line: two contiguous elements, and two of 8 columns further on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, Uint32, cute

#: Bytes of a line of a k-tile and of what is read at once, lines of the swizzle's pattern, steps of a half of a k-tile.
LINE, CHUNK, PATTERN, STEPS = 128, 16, 8, 4
_HALVES = 2
# Pairs of 8-bit floats as `cvt` names them.
_PACKED = {"float8_e4m3fn": "e4m3x2", "float8_e5m2": "e5m2x2"}


class Upcast(NamedTuple):
    """The name of an element type, and the 16-bit type that it is upcast to; of 16 bits, elements are only permuted."""

    narrow: str
    wide: Any

    @property
    def is_float8(self) -> bool:
        """Whether elements have 8 bits."""
        return self.narrow in _PACKED


@cute.jit
def upcast_word(word, types):
    """Return a word's four 8-bit floats as two words of two 16-bit floats each, the first ones lowest: exactly."""
    packed = cutlass.const_expr(_PACKED[types.narrow])
    halves = cute.arch.inline_ptx(
        "{\n.reg .b16 low, high;\nmov.b32 {low, high}, {$r0};\n"
        f"cvt.rn.f16x2.{packed} {{$w0}}, low;\ncvt.rn.f16x2.{packed} {{$w1}}, high;\n}}",
        write_only_types=[Uint32, Uint32],
        read_only_args=[word],
    )
    if cutlass.const_expr(types.wide is cutlass.BFloat16):
        # No instruction converts to bfloat16; float32 holds both.
        halves = tuple(
            cute.arch.inline_ptx(
                "{\n.reg .b16 low, high;\n.reg .f32 first, second;\nmov.b32 {low, high}, {$r0};\n"
                "cvt.f32.f16 first, low;\ncvt.f32.f16 second, high;\ncvt.rn.bf16x2.f32 {$w0}, second, first;\n}",
                write_only_types=[Uint32],
                read_only_args=[half],
            )
            for half in halves
        )
    return halves


@cute.jit
def load_chunk(address):
    """Return the four words at an address in shared memory."""
    return cute.arch.inline_ptx(
        "ld.shared.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
        write_only_types=[Uint32] * 4,
        read_only_args=[address],
    )


@cute.jit
def line_of(group):
    """Return which of 8 lines is the row of a fragment that lanes of a group of four have.

    Lanes that read at the same time have two rows: with lines four apart, the swizzle spreads them over all banks.
    """
    return group // 2 + group % 2 * 4


@cute.jit
def fill_fragments(words: cute.Tensor, start, first_line, half: cutlass.Constexpr[int], types):
    """Read a warp's 16 lines of a half of a k-tile as the fragments of its four steps.

    Parameters
    ----------
    words : Tensor
        This lane's registers: four words a step.
    start : Int32
        Start of the k-tile in shared memory.
    first_line, half : int
        The first of the lines, a multiple of 16; which half of K.
    types : Upcast
        The type of the elements, and the 16-bit type.
    """
    lane = cute.arch.lane_idx()
    line, column = line_of(lane // 4), half * STEPS + lane % 4
    begin = start + (first_line + line) * LINE + (column ^ line) * CHUNK
    for side in cutlass.range_constexpr(2):
        loaded = load_chunk(begin + side * PATTERN * LINE)
        for step in cutlass.range_constexpr(STEPS):
            low, high = upcast_word(loaded[step], types)
            words[4 * step + side] = low
            words[4 * step + 2 + side] = high


@cute.jit
def upcast_k_tile(source, target, lines: cutlass.Constexpr[int], threads, types):
    """Write a k-tile as 16-bit floats, in the order of K that fragments have, for wgmma to read.

    Parameters
    ----------
    source, target : Int32
        Start of the k-tile, and destination of its halves, contiguous, in lines of 128 bytes with their swizzle.
    lines : int
        Lines: 8, 16, or so many that there is the same work for each thread.
    threads : tuple
        This thread's number, how many share the work, and units of work that one loads before it stores the first.
    types : Upcast
        The type of the elements, of 8 bits or the 16-bit type itself, and the 16-bit type.
    """
    thread, count, at_once = threads
    every = cutlass.const_expr(_HALVES * lines * STEPS)
    for first in cutlass.range_constexpr(0, every, count * at_once):
        units = cutlass.const_expr(list(range(first, every, count))[:at_once])
        words = cute.make_rmem_tensor(cute.make_layout((4, 2, at_once)), Uint32)
        if first + thread < every:
            # The latencies of several units overlap.
            for number in cutlass.range_constexpr(len(units)):
                load_unit(words[None, None, number], source, lines, units[number] + thread, types)
            for number in cutlass.range_constexpr(len(units)):
                store_unit(words[None, None, number], target, lines, units[number] + thread, types)


@cute.jit
def place_of(unit, lines: cutlass.Constexpr[int]):
    """Return the step, line and half of a unit of work; lanes that load, or store, together meet all banks."""
    return unit % STEPS, unit // STEPS % lines, unit // (STEPS * lines)


@cute.jit
def load_unit(words: cute.Tensor, source, lines: cutlass.Constexpr[int], unit, types):
    """Load what four lanes of a fragment have of a line in a step: of 8-bit floats a word each, else two."""
    step, line, half = place_of(unit, lines)
    swizzle = line % PATTERN
    for lane in cutlass.range_constexpr(4):
        if cutlass.const_expr(types.is_float8):
            words[lane, 0] = cute.arch.inline_ptx(
                "ld.shared.b32 {$w0}, [{$r0}];",
                write_only_types=[Uint32],
                read_only_args=[source + line * LINE + ((half * STEPS + lane) ^ swizzle) * CHUNK + step * 4],
            )
        else:
            begin = source + (half * lines + line) * LINE
            words[lane, 0], words[lane, 1] = cute.arch.inline_ptx(
                "ld.shared.v2.b32 {{$w0}, {$w1}}, [{$r0}];",
                write_only_types=[Uint32, Uint32],
                read_only_args=[begin + ((2 * lane + step // 2) ^ swizzle) * CHUNK + step % 2 * 8],
            )


@cute.jit
def store_unit(words: cute.Tensor, target, lines: cutlass.Constexpr[int], unit, types):
    """Store what was loaded as two chunks of 16-bit floats."""
    step, line, half = place_of(unit, lines)
    swizzle = line % PATTERN
    if cutlass.const_expr(types.is_float8):
        for lane in cutlass.range_constexpr(4):
            words[lane, 0], words[lane, 1] = upcast_word(words[lane, 0], types)
    end = target + (half * lines + line) * LINE
    store_chunk(end + (2 * step ^ swizzle) * CHUNK, words[None, 0])
    store_chunk(end + ((2 * step + 1) ^ swizzle) * CHUNK, words[None, 1])


@cute.jit
def store_chunk(address, words: cute.Tensor):
    """Store four words to shared memory."""
    cute.arch.inline_ptx(
        "st.shared.v4.b32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
        read_only_args=[Int32(address), words[0], words[1], words[2], words[3]],
    )
