"""Slices of 8-bit floats in shared memory, as 16-bit floats: fragments of wgmma in registers, or its other operand.

A slice has 128 of K, in lines of 128 bytes as the copy engine swizzles them; of 16-bit floats, one half behind the
other. Halves of 64 are multiplied in four steps of 16 whose order within K is our own, the same for both operands: a
sum has no order that a product knows. Of the 16 neighbours that a lane reads at once, it has four in each step, which
is what a fragment wants of a line: two neighbours, and two of 8 columns further on.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Uint32, cute

#: Bytes of a line of a slice and of what is read at once, lines of the swizzle's pattern, steps of a half of a slice.
LINE, CHUNK, PATTERN, STEPS = 128, 16, 8, 4
_HALVES = 2


@cute.jit
def widened(word, kind: cutlass.Constexpr[str], wide: Any):
    """Return a word's four 8-bit floats as two words of two 16-bit floats each, the first ones lowest: exactly."""
    packed = cutlass.const_expr({"float8_e4m3fn": "e4m3x2", "float8_e5m2": "e5m2x2"}[kind])
    halves = cute.arch.inline_ptx(
        "{\n.reg .b16 low, high;\nmov.b32 {low, high}, {$r0};\n"
        f"cvt.rn.f16x2.{packed} {{$w0}}, low;\ncvt.rn.f16x2.{packed} {{$w1}}, high;\n}}",
        write_only_types=[Uint32, Uint32],
        read_only_args=[word],
    )
    if cutlass.const_expr(wide is cutlass.BFloat16):
        # There is no instruction for this, but one for what holds both.
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

    Lanes that read at the same time have two rows: with lines that are four apart, the swizzle sends them to all banks.
    """
    return group // 2 + group % 2 * 4


@cute.jit
def fill_fragments(words: cute.Tensor, slice_start, first_line, half: cutlass.Constexpr[int], kind: Any, wide: Any):
    """Read a warp's 16 lines of a half of a slice as the fragments of its four steps.

    Parameters
    ----------
    words : Tensor
        This lane's registers: four words a step.
    slice_start : Int32
        Where the slice begins in shared memory.
    first_line, half : int
        The first of the lines, a multiple of 16; which half of K.
    kind, wide : str, type
        The type of the elements, and what they become.
    """
    lane = cute.arch.lane_idx()
    line, column = line_of(lane // 4), half * STEPS + lane % 4
    start = slice_start + (first_line + line) * LINE + (column ^ line) * CHUNK
    for side in cutlass.range_constexpr(2):
        found = load_chunk(start + side * PATTERN * LINE)
        for step in cutlass.range_constexpr(STEPS):
            low, high = widened(found[step], kind, wide)
            words[4 * step + side] = low
            words[4 * step + 2 + side] = high


@cute.jit
def widen_slice(
    source, target, lines: cutlass.Constexpr[int], me, threads: cutlass.Constexpr[int], at_once: Any, kind: Any,
    wide: Any,
):  # fmt: skip
    """Write a slice as 16-bit floats, in the order of K that fragments have, for wgmma to read.

    Parameters
    ----------
    source, target : Int32
        Where the slice begins, and where its halves go, one behind the other, in lines of 128 bytes with their swizzle.
    lines : int
        Lines: 8, 16, or so many that there is the same work for each thread.
    me, threads : int
        This thread's number, and how many share the work.
    at_once : int
        Units of work that a thread loads before it stores the first.
    kind, wide : str, type
        The type of the elements, of 8 bits or what they become.
    """
    every = cutlass.const_expr(_HALVES * lines * STEPS)
    for first in cutlass.range_constexpr(0, every, threads * at_once):
        units = cutlass.const_expr(list(range(first, every, threads))[:at_once])
        found = cute.make_rmem_tensor(cute.make_layout((4, 2, at_once)), Uint32)
        if first + me < every:
            # Words of several units wait together.
            for number in cutlass.range_constexpr(len(units)):
                load_unit(found[None, None, number], source, lines, units[number] + me, kind)
            for number in cutlass.range_constexpr(len(units)):
                store_unit(found[None, None, number], target, lines, units[number] + me, kind, wide)


@cute.jit
def place_of(unit, lines: cutlass.Constexpr[int]):
    """Return the step, line and half of a unit of work; lanes that load, or store, together meet all banks."""
    return unit % STEPS, unit // STEPS % lines, unit // (STEPS * lines)


@cute.jit
def load_unit(found: cute.Tensor, source, lines: cutlass.Constexpr[int], unit, kind: Any):
    """Load what four lanes of a fragment have of a line in a step: of 8-bit floats a word each, else two."""
    step, line, half = place_of(unit, lines)
    turn = line % PATTERN
    for lane in cutlass.range_constexpr(4):
        if cutlass.const_expr(kind in ("float8_e4m3fn", "float8_e5m2")):
            found[lane, 0] = cute.arch.inline_ptx(
                "ld.shared.b32 {$w0}, [{$r0}];",
                write_only_types=[Uint32],
                read_only_args=[source + line * LINE + ((half * STEPS + lane) ^ turn) * CHUNK + step * 4],
            )
        else:
            begin = source + (half * lines + line) * LINE
            found[lane, 0], found[lane, 1] = cute.arch.inline_ptx(
                "ld.shared.v2.b32 {{$w0}, {$w1}}, [{$r0}];",
                write_only_types=[Uint32, Uint32],
                read_only_args=[begin + ((2 * lane + step // 2) ^ turn) * CHUNK + step % 2 * 8],
            )


@cute.jit
def store_unit(found: cute.Tensor, target, lines: cutlass.Constexpr[int], unit, kind: Any, wide: Any):
    """Store what was loaded as two chunks of 16-bit floats."""
    step, line, half = place_of(unit, lines)
    turn = line % PATTERN
    if cutlass.const_expr(kind in ("float8_e4m3fn", "float8_e5m2")):
        for lane in cutlass.range_constexpr(4):
            found[lane, 0], found[lane, 1] = widened(found[lane, 0], kind, wide)
    end = target + (half * lines + line) * LINE
    store_chunk(end + (2 * step ^ turn) * CHUNK, found[None, 0])
    store_chunk(end + ((2 * step + 1) ^ turn) * CHUNK, found[None, 1])


@cute.jit
def store_chunk(address, words: cute.Tensor):
    """Store four words to shared memory."""
    cute.arch.inline_ptx(
        "st.shared.v4.b32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
        read_only_args=[Int32(address), words[0], words[1], words[2], words[3]],
    )
