"""The epilogue of sums as wgmma leaves them: a thread's elements, its inputs for them, and their way into a box.

Of every 8 columns a thread has two neighbours of one row, and those of the row 8 below.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, cute

from gemmule.core.epilogue import ACC, MATRIX, UP, C
from gemmule.core.epilogue_inputs import PAIRS
from gemmule.kernels.parts.absolute_maximum import keep_largest
from gemmule.kernels.parts.epilogue import pair_operations
from gemmule.kernels.parts.epilogue_inputs import EpilogueInputs

from .subtile_values import read_part
from .subtiles import parts_of, write_part

_ROWS_APART, _COLS_APART, _WARP = 8, 8, 32


class FragmentEpilogue(EpilogueInputs):
    """An epilogue of fragments, and where its inputs lie."""

    def load(self, extras: Any, mD: Any, row: Any, col: Any, batch: Any, width: int) -> list[dict[Any, Any]]:
        """Start to load this thread's inputs for a box: for each matrix, elements by their place.

        Beyond the edges of the result the last element is loaded, and never used.

        Parameters
        ----------
        extras : tuple
            Matrices (M, N, L), then numbers.
        mD : Tensor
            The result, for its extents.
        row, col, batch : Int32
            The warp's first row of the box, the first column, and the matrix.
        width : int
            Columns of the box.
        """
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % _WARP
        first_row, first_col = row + lane // 4, col + lane % 4 * 2
        last_row, last_col = mD.shape[0] - 1, mD.shape[1] - 1
        rows = [cutlass.min(first_row + _ROWS_APART * half, last_row) for half in range(2)]
        cols = {
            (j, e): cutlass.min(first_col + _COLS_APART * j + e, last_col)
            for j in range(width // _COLS_APART)
            for e in range(2)
        }
        loaded = []
        for place, (_, marks) in enumerate(self.inputs):
            by_row, by_col = (mark != "0" for mark in marks)
            values: dict[Any, Any] = {}
            for half in range(2 if by_row else 1):
                row_at = rows[half] if by_row else 0
                if marks[1] == PAIRS:
                    # The last column is odd: it ends a pair.
                    line = extras[place].iterator + cute.crd2idx((row_at, 0, batch), extras[place].layout)
                    for j in range(width // _COLS_APART):
                        col_at = cutlass.min(first_col + _COLS_APART * j, last_col - 1)
                        values[(j, 0), half], values[(j, 1), half] = _pair(line + col_at)
                else:
                    for own in cols if by_col else ((0, 0),):
                        values[own, half] = extras[place][row_at, cols[own] if by_col else 0, batch]
            loaded.append(values)
        return loaded

    def write(
        self, loaded: Any, extras: Any, address: Any, row: Any, width: int, sums: Any, first: int, out: Any,
        alpha: Any, beta: Any, *, reads_c: bool, columns: bool, up: int, inside: Any,
    ) -> None:  # fmt: skip
        """Compute a box and write it into shared memory, where C's lies if it is read.

        Parameters
        ----------
        loaded, extras
            What `load` returned, and was given.
        address, row, width, sums, first, out, alpha, beta
            As of `write_rows`.
        reads_c : bool
            Whether C lies in the box.
        columns : bool
            Whether lines of the box are columns.
        up : int
            Registers from a sum to that of the second factor, where there is one.
        inside : callable or None
            Where the absolute maximum is wanted, ``inside(v)`` says whether the result has this thread's element `v`.
        """
        adds = reads_c and not self.expression.names_c
        table = pair_operations(out)
        v = 0
        # Part by part, since there may be few registers beside the sums.
        for q, count in parts_of(width, out):
            c: Any = read_part(address, row, width, q, count, out, columns) if reads_c else None
            values = cute.make_rmem_tensor(cute.make_layout(count), Float32)
            for own in range(0, count, 2):
                acc = tuple(sums[first + v + e] * alpha for e in range(2))
                if adds:
                    acc = tuple(acc[e] + beta * c[own + e] for e in range(2))
                ups = tuple(sums[first + up + v + e] * alpha for e in range(2)) if up else (None, None)
                leaves = [
                    self._leaf(acc[e], ups[e], c[own + e] if reads_c else None, loaded, extras, v + e) for e in range(2)
                ]

                def leaf(name: str, leaves: Any = leaves) -> Any:
                    return tuple(one(name) for one in leaves)

                values[own], values[own + 1] = self.expression.evaluate(leaf, lambda x: (Float32(x),) * 2, table)
                if self.keeps:
                    for e in range(2):
                        keep_largest(extras[-1], values[own + e], inside(v + e))
                v += 2
            write_part(address, row, width, q, values, out, columns)

    def inside(self, mD: Any, row: Any, col: Any) -> Any:
        """Return what says whether the result has this thread's element of a box; row and column as of `load`."""
        if not self.keeps:
            return None
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % _WARP
        # Rows and columns that are left from this thread's first on.
        rows, cols = mD.shape[0] - row - lane // 4, mD.shape[1] - col - lane % 4 * 2
        return lambda v: (v // 2 % 2 * _ROWS_APART < rows) & (v // 4 * _COLS_APART + v % 2 < cols)

    def _leaf(self, acc: Any, up: Any, c: Any, loaded: Any, extras: Any, v: int) -> Any:
        """Return what gives the leaves of this thread's element `v`."""
        at, half = (v // 4, v % 2), v // 2 % 2

        def leaf(name: str) -> Any:
            if name in (ACC, UP, C):
                return {ACC: acc, UP: up, C: c}[name]
            place = int(name[1:])
            if name[0] != MATRIX:
                return extras[len(self.inputs) + place]
            by_row, by_col = (mark != "0" for mark in self.inputs[place][1])
            return loaded[place][at if by_col else (0, 0), half if by_row else 0].to(Float32)

        return leaf


def _pair(start: Any) -> tuple[Any, Any]:
    """Load two neighbours at once."""
    kind = start.dtype
    known = cute.make_ptr(kind, start.toint(), start.memspace, assumed_align=kind.width // 4)
    both = cute.make_tensor(known, cute.make_layout(2)).load()
    return both[0], both[1]
