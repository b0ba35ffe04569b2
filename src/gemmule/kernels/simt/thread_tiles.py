"""Thread tiles: the accumulators of a thread, their rows and columns in the CTA's tile, and the epilogue."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from .config import LANES_N, VECTOR
from .vectors import write_vector


@cute.jit
def spread(place, index: cutlass.Constexpr[int], places: cutlass.Constexpr[int]):
    """Return row (or column) `index` of thread `place` of `places`: the stride of its vectors is `places` vectors."""
    return (index // VECTOR * places + place) * VECTOR + index % VECTOR


def lane_row(lane: Any, lanes: tuple[int, int], interleaved: bool) -> Any:
    """Return the row of a lane among those of its warp: `lanes`, 4 x 8 or 8 x 4.

    Of 4 x 8, interleaved lanes i and i xor 2 are in a row, i and i xor 1 in a column; of 8 x 4 the other way round.
    Shared memory serves reads of vectors of 16 bytes by half-warps, then in two wavefronts; in the order of rows it
    takes four for those of columns.
    """
    if not interleaved:
        return lane // lanes[1]
    return _few(lane) if lanes[0] < lanes[1] else _many(lane)


def lane_column(lane: Any, lanes: tuple[int, int], interleaved: bool) -> Any:
    """Return the column of a lane; `lane_row` is its row."""
    if not interleaved:
        return lane % lanes[1]
    return _many(lane) if lanes[0] < lanes[1] else _few(lane)


def _few(lane: Any) -> Any:
    """Return the place of an interleaved lane among four."""
    return lane % 2 + lane // (2 * LANES_N) * 2


def _many(lane: Any) -> Any:
    """Return the place of an interleaved lane among eight."""
    return lane // 2 % LANES_N


@cute.jit
def multiply_fragments(rA: cute.Tensor, rB: cute.Tensor, rC: cute.Tensor):
    """Add the products of one k, in serpentine order: successive FMAs share an operand, which is read once.

    `rA` and `rB` are vectors of rows and of columns, (4, vectors), and `rC` the accumulators (rows, columns).
    """
    for i in cutlass.range(cute.size(rC, mode=[0]), unroll_full=True):
        for place in cutlass.range(cute.size(rC, mode=[1]), unroll_full=True):
            j = place if i % 2 == 0 else cute.size(rC, mode=[1]) - 1 - place
            rC[i, j] += rA[i % VECTOR, i // VECTOR] * rB[j % VECTOR, j // VECTOR]


@cute.jit
def write_thread_tile(mD: cute.Tensor, mC: cute.Tensor, rC: cute.Tensor, m0, n0, scalars, rows: cutlass.Constexpr[Any]):
    """Write D = alpha * rC + beta * C for a thread tile, vector by vector, with scalars (alpha, beta).

    `rows` has ``row(i)`` and ``col(j)``, places of the thread tile's rows and columns from (m0, n0), and ``whole``,
    whether all of it is inside D.
    """
    for i in cutlass.range_constexpr(cute.size(rC, mode=[0])):
        for j in cutlass.range_constexpr(0, cute.size(rC, mode=[1]), VECTOR):
            vector = cute.make_rmem_tensor(cute.make_layout(VECTOR), rC.element_type)
            for v in cutlass.range_constexpr(VECTOR):
                vector[v] = rC[i, j + v]
            write_vector(mD, mC, m0 + rows.row(i), n0 + rows.col(j), vector, *scalars, rows.whole)
