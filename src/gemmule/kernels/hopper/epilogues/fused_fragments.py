"""Fused epilogue of accumulators as wgmma leaves them: a thread's elements, their inputs, and how they are stored.

Of every 8 columns a thread has two contiguous elements of one row, and those of the row 8 below.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, cute

from gemmule.core.epilogue import ACC, MATRIX, UP, C
from gemmule.core.epilogue_inputs import PAIRS
from gemmule.kernels.parts.absolute_maximum import keep_largest
from gemmule.kernels.parts.epilogue import pair_operations
from gemmule.kernels.parts.epilogue_inputs import EpilogueInputs

from .subtiles import Scale, WarpRows, parts_of, read_part, write_part

_ROW_STEP, _COL_STEP, _WARP = 8, 8, 32


class FusedSubtile(NamedTuple):
    """A warp's part of an epilogue subtile.

    Attributes
    ----------
    rows : WarpRows
        Where it lies in shared memory.
    accumulators : Tensor
        This thread's accumulators, flat, as wgmma leaves them.
    first, up : int
        The first of them that belongs to the subtile, and the distance to that of a second B, or 0.
    inside : callable or None
        Where the absolute maximum is wanted, ``inside(v)`` says whether D has this thread's element `v`.
    """

    rows: WarpRows
    accumulators: Any
    first: int
    up: int
    inside: Any


class FragmentEpilogue(EpilogueInputs):
    """A function of accumulator fragments, and where its inputs lie."""

    def load(self, extras: Any, mD: Any, row: Any, col: Any, batch: Any, width: int) -> list[dict[Any, Any]]:
        """Issue the loads of this thread's inputs for a subtile: for each matrix, elements by their place.

        Past the edges of D the last element is loaded, and never used.

        Parameters
        ----------
        extras : tuple
            Matrices (M, N, L), then numbers.
        mD : Tensor
            D, for its extents.
        row, col, batch : Int32
            The warp's first row of the subtile, the first column, and the matrix of the batch.
        width : int
            Columns of the subtile.
        """
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % _WARP
        first_row, first_col = row + lane // 4, col + lane % 4 * 2
        last_row, last_col = mD.shape[0] - 1, mD.shape[1] - 1
        rows = [cutlass.min(first_row + _ROW_STEP * half, last_row) for half in range(2)]
        cols = {
            (j, e): cutlass.min(first_col + _COL_STEP * j + e, last_col)
            for j in range(width // _COL_STEP)
            for e in range(2)
        }
        loaded = []
        for place, (_, marks) in enumerate(self.inputs):
            by_row, by_col = (mark != "0" for mark in marks)
            values: dict[Any, Any] = {}
            for half in range(2 if by_row else 1):
                row_at = rows[half] if by_row else 0
                if marks[1] == PAIRS:
                    # The last column is odd: it is the second of a pair.
                    line = extras[place].iterator + cute.crd2idx((row_at, 0, batch), extras[place].layout)
                    for j in range(width // _COL_STEP):
                        col_at = cutlass.min(first_col + _COL_STEP * j, last_col - 1)
                        values[(j, 0), half], values[(j, 1), half] = _pair(line + col_at)
                else:
                    for own in cols if by_col else ((0, 0),):
                        values[own, half] = extras[place][row_at, cols[own] if by_col else 0, batch]
            loaded.append(values)
        return loaded

    def write(self, subtile: FusedSubtile, loaded: Any, extras: Any, scale: Scale) -> None:
        """Compute a subtile and write it into shared memory, where C's lies if it is read.

        Parameters
        ----------
        subtile : FusedSubtile
            Where it lies, and its accumulators.
        loaded, extras
            What `load` returned, and was given.
        scale : Scale
            The factors of the accumulators and of C.
        """
        rows, accumulators, out = subtile.rows, subtile.accumulators, subtile.rows.out
        adds = scale.reads_c and not self.expression.names_c
        table = pair_operations(out)
        v = 0
        # Part by part, since there may be few registers beside the accumulators.
        for q, count in parts_of(rows):
            c: Any = read_part(rows, q, count) if scale.reads_c else None
            values = cute.make_rmem_tensor(cute.make_layout(count), Float32)
            for own in range(0, count, 2):
                first = subtile.first + v
                acc = tuple(accumulators[first + e] * scale.alpha for e in range(2))
                if adds:
                    acc = tuple(acc[e] + scale.beta * c[own + e] for e in range(2))
                ups = (None, None)
                if subtile.up:
                    ups = tuple(accumulators[first + subtile.up + e] * scale.alpha for e in range(2))
                leaves = [
                    self._leaf((acc[e], ups[e], c[own + e] if scale.reads_c else None), loaded, extras, v + e)
                    for e in range(2)
                ]

                def leaf(name: str, leaves: Any = leaves) -> Any:
                    return tuple(one(name) for one in leaves)

                values[own], values[own + 1] = self.expression.evaluate(leaf, lambda x: (Float32(x),) * 2, table)
                if self.has_absmax:
                    for e in range(2):
                        keep_largest(extras[-1], values[own + e], subtile.inside(v + e))
                v += 2
            write_part(rows, q, values, (0, count), Scale(Float32(1), Float32(0), False))

    def inside(self, mD: Any, row: Any, col: Any) -> Any:
        """Return a predicate, whether D has this thread's element `v` of a subtile; row and column as of `load`."""
        if not self.has_absmax:
            return None
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % _WARP
        # Rows and columns from this thread's first to the edges.
        rows, cols = mD.shape[0] - row - lane // 4, mD.shape[1] - col - lane % 4 * 2
        return lambda v: (v // 2 % 2 * _ROW_STEP < rows) & (v // 4 * _COL_STEP + v % 2 < cols)

    def _leaf(self, own: tuple[Any, Any, Any], loaded: Any, extras: Any, v: int) -> Any:
        """Return a function from names of leaves to their values for this thread's element `v`."""
        at, half = (v // 4, v % 2), v // 2 % 2

        def leaf(name: str) -> Any:
            if name in (ACC, UP, C):
                return dict(zip((ACC, UP, C), own, strict=True))[name]
            place = int(name[1:])
            if name[0] != MATRIX:
                return extras[len(self.inputs) + place]
            by_row, by_col = (mark != "0" for mark in self.inputs[place][1])
            return loaded[place][at if by_col else (0, 0), half if by_row else 0].to(Float32)

        return leaf


def _pair(start: Any) -> tuple[Any, Any]:
    """Load two contiguous elements at once."""
    kind = start.dtype
    known = cute.make_ptr(kind, start.toint(), start.memspace, assumed_align=kind.width // 4)
    both = cute.make_tensor(known, cute.make_layout(2)).load()
    return both[0], both[1]
