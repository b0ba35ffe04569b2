"""The end of a tile that mma.sync computed: a warp's sums go through shared memory, so that whole rows are written."""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import cute

#: Rows and columns of a square of sums; two squares lie side by side in shared memory.
SQUARE_M, SQUARE_N = 16, 32
#: Words from one square to the one beside it, and the most from one row to the next.
_BESIDE, _MOST_LEAD = SQUARE_N + 4, 80
#: Runs that a thread loads and writes in one go.
_TOGETHER = 4
#: Bytes of shared memory that a warp needs.
WARP_BYTES = 4 * SQUARE_M * _MOST_LEAD


@dataclasses.dataclass(frozen=True)
class WarpSquares:
    """How a warp's sums are written.

    Attributes
    ----------
    warp_m, warp_n : int
        Rows and columns of the warp's part of the tile.
    run : int
        Elements of D (and C) that are read and written at once: they divide its rows.
    whole : bool
        Whether all of the tile is inside the matrix.
    neighbours_m, neighbours_n : bool
        Whether fragment rows g and g + 8 (columns g of the first and the second 8) are the rows 2g and 2g + 1.
    epilogue : RunEpilogue or None
        What is done to each element.
    """

    warp_m: int
    warp_n: int
    run: int
    whole: bool
    neighbours_m: bool
    neighbours_n: bool
    epilogue: Any = None

    @property
    def pairs(self) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
        """The squares by their first row and column in the warp's part, two by two, neighbours in a row first."""
        corners = [(m, n) for m in range(0, self.warp_m, SQUARE_M) for n in range(0, self.warp_n, SQUARE_N)]
        return tuple(zip(corners[::2], corners[1::2], strict=True))

    @property
    def steps(self) -> int:
        """Runs of a thread in a pair of squares."""
        return 2 * SQUARE_M * SQUARE_N // (32 * self.run)

    @property
    def lead(self) -> int:
        """Words from one row to the next: what a part of the warp stores at once lies in different banks.

        Half a warp stores 8 bytes a thread: 4 rows of 8 words. With neighbours along N, a quarter stores 16 bytes a
        thread: 2 rows of 16 words. With neighbours along M, the rows of a warp are every other one.
        """
        return {(False, False): 72, (True, False): 76, (False, True): 80, (True, True): 72}[
            self.neighbours_m, self.neighbours_n
        ]

    @cute.jit
    def write(self, gD: cute.Tensor, gC: cute.Tensor, sums: cute.Tensor, staging, m, n, alpha, beta, extras=None):
        """Write D = alpha * sums + beta * C for the warp's part of the tile, which begins at (m, n).

        Parameters
        ----------
        gD, gC : Tensor
            Row-major matrices; C is read only where beta is not 0.
        sums : Tensor
            This thread's 4 sums of each product of 16 x 8, by rows and columns of products.
        staging : Pointer
            `WARP_BYTES` of shared memory for each warp, of the type of alpha.
        extras : tuple or None
            What the epilogue reads.
        """
        tid, _, _ = cute.arch.thread_idx()
        layout = cute.make_layout((SQUARE_M, SQUARE_N, 2), stride=(self.lead, 1, _BESIDE))
        sS = cute.make_tensor(staging + tid // 32 * (WARP_BYTES // 4), layout)
        for p in cutlass.range_constexpr(len(self.pairs)):
            cute.arch.sync_warp()
            for beside in cutlass.range_constexpr(2):
                row, col = cutlass.const_expr(self.pairs[p][beside])
                self.stage(sums, sS, row // SQUARE_M, col // 8, beside)
            cute.arch.sync_warp()
            together = cutlass.const_expr(min(self.steps, _TOGETHER))
            for first in cutlass.range(0, self.steps, together, unroll=1):
                addends = self.addends(gC, m, n, p, first, together, beta)
                for step in cutlass.range(together, unroll_full=True):
                    self.finish(gD, sS, addends[None, step], m, n, p, first + step, alpha, beta, extras)

    @cute.jit
    def stage(self, sums, sS, i: cutlass.Constexpr[int], j: cutlass.Constexpr[int], beside: cutlass.Constexpr[int]):
        """Put the square of products (i, j), (i, j + 1), ... where its rows and columns belong."""
        tid, _, _ = cute.arch.thread_idx()
        g, t = tid % 32 // 4, tid % 4
        for half in cutlass.range_constexpr(2):
            row = 2 * g + half if self.neighbours_m else g + 8 * half
            for first in cutlass.range(0, SQUARE_N // 8, 2, unroll_full=True):
                left, right = (_halved(sums, half, i, j + first + place).to(sS.element_type) for place in range(2))
                if cutlass.const_expr(self.neighbours_n):
                    # The columns of two products alternate.
                    run = cute.make_rmem_tensor(cute.make_layout((2, 2)), sS.element_type)
                    run[0, None].store(left)
                    run[1, None].store(right)
                    cute.autovec_copy(run, run_at(sS, (row, 8 * first + 4 * t, beside), 4))
                else:
                    run_at(sS, (row, 8 * first + 2 * t, beside), 2).store(left)
                    run_at(sS, (row, 8 * first + 8 + 2 * t, beside), 2).store(right)

    @cute.jit
    def place(self, step):
        """Return where this thread's run of a step begins in a pair: row, column and which of the two squares."""
        tid, _, _ = cute.arch.thread_idx()
        per_row = cutlass.const_expr(SQUARE_N // self.run)
        e = tid % 32 + 32 * step
        return e // (2 * per_row), e % per_row * self.run, e // per_row % 2

    def ups(self, sS: Any, step: Any) -> Any:
        """Return the sums of the second factor for this thread's run of a step; None where there is one factor."""
        del sS, step

    @cute.jit
    def place_in_matrix(self, m, n, p: cutlass.Constexpr[int], step):
        """Return where in the matrix that is."""
        row, col, beside = self.place(step)
        (row0, col0), (row1, col1) = cutlass.const_expr(self.pairs[p])
        return m + row0 + row + beside * (row1 - row0), n + col0 + col + beside * (col1 - col0)

    @cute.jit
    def addends(self, gC: cute.Tensor, m, n, p: cutlass.Constexpr[int], first, count: cutlass.Constexpr[int], beta):
        """Return this thread's runs of C of some steps, all loaded at once; zeros where beta is 0."""
        runs = cute.make_rmem_tensor(cute.make_layout((self.run, count)), gC.element_type)
        runs.fill(gC.element_type(0))
        if beta != 0:
            for step in cutlass.range_constexpr(count):
                at = self.place_in_matrix(m, n, p, first + step)
                if self.whole or (at[0] < gC.shape[0] and at[1] < gC.shape[1]):
                    cute.autovec_copy(run_at(gC, at, self.run), runs[None, step])
        return runs

    @cute.jit
    def finish(self, gD, sS, addend, m, n, p: cutlass.Constexpr[int], step, alpha, beta, extras):
        """Scale a run of sums, add C, finish it, and write it."""
        sums = run_at(sS, self.place(step), self.run).load()
        if cutlass.const_expr(self.epilogue is None):
            result = alpha * sums + beta * addend.load().to(sS.element_type)
        else:
            place = self.place_in_matrix(m, n, p, step)
            ups = self.ups(sS, step)
            result = self.epilogue.values(sums, ups, addend, extras, place, gD, alpha, beta).load()
        at = self.place_in_matrix(m, n, p, step)
        if self.whole or (at[0] < gD.shape[0] and at[1] < gD.shape[1]):
            run_at(gD, at, self.run).store(result.to(gD.element_type))


@cute.jit
def _halved(sums: cute.Tensor, half: cutlass.Constexpr[int], i: cutlass.Constexpr[int], j):
    """Return the two sums of product (i, j) in one row, which are neighbours of a row of the result."""
    start = sums.iterator + cute.crd2idx((2 * half, i, j), sums.layout)
    return cute.make_tensor(start, cute.make_layout(2)).load()


@cute.jit
def run_at(tensor: cute.Tensor, at, length: cutlass.Constexpr[int]):
    """Return neighbours as a tensor whose address is known to suit one wide access."""
    start = tensor.iterator + cute.crd2idx(at, tensor.layout)
    size = length * tensor.element_type.width // 8
    known = cute.make_ptr(tensor.element_type, start.toint(), tensor.memspace, assumed_align=size)
    return cute.make_tensor(known, cute.make_layout(length))
