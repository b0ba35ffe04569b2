"""Products of one k, between which the next four k of K-major operands are read.

A thread holds four k of its rows (of A) and columns (of B), as a vector of shared memory has them. The row (or column)
whose last k has been multiplied is read anew at once, so that one set of registers is enough. Left alone, the compiler
issues all reads of a k-tile together, and spills: so addresses depend on an accumulator.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.simt.config import VECTOR
from gemmule.kernels.simt.stage import KMajorStage


@cute.jit
def multiply_and_read(tile, stage, stages: cutlass.Constexpr[tuple[Any, Any]], step: cutlass.Constexpr[int], after):
    """Add the products of one k, and read the next four k of K-major operands where it is the last of four.

    Parameters
    ----------
    tile : object
        A tile's registers and addresses, as of `SimtGemmMainloop`.
    stage : Int32
        Bytes from the first stage to that of the next k.
    stages : tuple of SimtStage or KMajorStage
        Layouts of A's stages and of B's.
    step, after : int
        This k of the k-tile, and the next one.
    """
    stageA, stageB = stages
    rC = tile.accumulators
    rA, rB = stageA.of_step(tile.fragments_a, step), stageB.of_step(tile.fragments_b, step)
    rows, cols = cutlass.const_expr((cute.size(rC, mode=[0]), cute.size(rC, mode=[1])))
    reads_a = cutlass.const_expr(after % VECTOR == 0 and isinstance(stageA, KMajorStage))
    reads_b = cutlass.const_expr(after % VECTOR == 0 and isinstance(stageB, KMajorStage))
    # Half of the columns are multiplied before the others, so that they can be read long before they are needed.
    halves = cutlass.const_expr(2 if isinstance(stageB, KMajorStage) and 0 in (step % VECTOR, after % VECTOR) else 1)
    half = cutlass.const_expr(cols // halves)
    for h in cutlass.range_constexpr(halves):
        for i in cutlass.range_constexpr(rows):
            # In serpentine order: successive FMAs share an operand, which is read once.
            for place in cutlass.range_constexpr(half):
                j = cutlass.const_expr(h * half + (place if i % 2 == 0 else half - 1 - place))
                rC[i, j] += rA[i % VECTOR, i // VECTOR] * rB[j % VECTOR, j // VECTOR]
            if cutlass.const_expr(reads_a and h == halves - 1 and (i + 1) % VECTOR == 0):
                start = _read_after(rC[i, j], tile.start_a, tile.zero) + stage
                stageA.read_rows(tile.fragments_a, start, after, (i + 1 - VECTOR, i + 1))
        if cutlass.const_expr(reads_b):
            start = _read_after(rC[rows - 1, j], tile.start_b, tile.zero) + stage
            stageB.read_rows(tile.fragments_b, start, after, (h * half, h * half + half))


@cute.jit
def _read_after(accumulator, address, zero):
    """Return an address that the compiler does not know before an accumulator; `zero` is 0, which it does not know."""
    bits = cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[accumulator])
    return address ^ (bits & zero)
