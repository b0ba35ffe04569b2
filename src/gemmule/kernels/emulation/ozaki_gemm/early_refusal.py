"""Early refusal: some pairs of lines, compared while others are measured, may show that the guard must refuse."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, Int32, Int64, cute

from gemmule.kernels.emulation.guard import NEVER, SAMPLE_RUN
from gemmule.kernels.emulation.ozaki_config import PAIR_CTAS, PAIR_LINES, THREADS

#: Between these squared norms are exact but for roundings, and so are products of two of them.
_LEAST, _MOST = 2.0**-400, 2.0**400


@cute.jit
def is_refused(shortfall: cute.Tensor):
    """Return whether the guard refuses already; CTAs of the same grid may do so meanwhile."""
    return cute.arch.load(shortfall.iterator, Int32, sem="relaxed", scope="gpu") == NEVER


class EarlyRefusal:
    """Refuse where samples of a pair of lines have too little of the product of their norms, by `guard.least_share`.

    A warp for each line of a CTA's pairs: the first half are lines of A, the others of B.
    """

    def __init__(self, ahead: int, is_double: bool) -> None:
        assert THREADS // 32 == 2 * PAIR_LINES
        self.ahead, self.is_double = ahead, is_double

    @cute.jit
    def compare(self, matrices, guard, squares: cute.Tensor, cta):
        """Compare all pairs of a CTA's lines of A and of B (length, lines).

        Parameters
        ----------
        matrices : tuple of Tensor
            A and B.
        guard : tuple
            The shortfall, of how many runs along K one is sampled, and the least share.
        squares : Tensor
            Shared memory for the lines' squared norms.
        cta : Int32
            Number of the CTA among those that compare.
        """
        mA, mB = matrices
        tid, _, _ = cute.arch.thread_idx()
        lane, warp = tid % 32, tid // 32
        if warp < PAIR_LINES:
            self.add_squares(mA, self.line(mA, cta, warp), squares, warp, lane)
        else:
            self.add_squares(mB, self.line(mB, cta, warp - PAIR_LINES), squares, warp, lane)
        cute.arch.sync_threads()
        each = cutlass.const_expr(PAIR_LINES // 2)
        for number in cutlass.range_constexpr(each):
            i, j = warp // 2, warp % 2 * each + number
            lines = (self.line(mA, cta, i), self.line(mB, cta, j))
            total = self.sampled(matrices, lines, guard[1], lane)
            shortfall, least = guard[0], guard[2]
            one, other = squares[i], squares[PAIR_LINES + j]
            # No comparison with NaN holds: lines that are not finite refuse nothing here.
            fits = self.is_exact(one) and self.is_exact(other)
            if fits and total * total < least * one * other and lane == 0:
                cute.arch.atomic_max(shortfall.iterator, Int32(NEVER), sem="relaxed", scope="gpu")

    @cute.jit
    def is_exact(self, square: Any) -> Any:
        """Return whether neither a sum of squares nor products with it can have overflowed or underflowed."""
        return square > Float64(_LEAST) and square < Float64(_MOST)

    def line(self, mS: Any, cta: Any, number: Any) -> Any:
        """Return a line: those of a CTA are contiguous, and all spread over the matrix."""
        lines = mS.shape[1]
        first = Int32(Int64(cta) * Int64(lines) // PAIR_CTAS)
        return cutlass.min(first + number, lines - 1)

    @cute.jit
    def add_squares(self, mS: cute.Tensor, line, squares: cute.Tensor, warp, lane):
        """Add the squares of a line, a warp all of it."""
        total, length = Float64(0.0), mS.shape[0]
        for first in cutlass.range(lane, length, 32 * self.ahead, unroll=1):
            values = cute.make_rmem_tensor(cute.make_layout(self.ahead), Float64)
            values.fill(0.0)
            for e in cutlass.range_constexpr(self.ahead):
                if first + 32 * e < length:
                    values[e] = self.element(mS, first + 32 * e, line)
            for e in cutlass.range_constexpr(self.ahead):
                total = total + values[e] * values[e]
        total = cute.arch.warp_reduction(total, lambda one, other: one + other)
        if lane == 0:
            squares[warp] = total

    @cute.jit
    def sampled(self, matrices, lines, period, lane):
        """Return the sum of the samples' magnitudes, products of two lines."""
        (mA, mB), (i, j), total = matrices, lines, Float64(0.0)
        length = mA.shape[0]
        samples = cute.ceil_div(length, SAMPLE_RUN * period) * SAMPLE_RUN
        for number in cutlass.range(lane, samples, 32, unroll=4):
            k = number // SAMPLE_RUN * (SAMPLE_RUN * period) + number % SAMPLE_RUN
            if k < length:
                product = self.element(mA, k, i) * self.element(mB, k, j)
                total = total + cutlass.max(product, -product)
        return cute.arch.warp_reduction(total, lambda one, other: one + other)

    def element(self, mS: Any, k: Any, line: Any) -> Any:
        """Return an element as float64."""
        number = mS[k, line]
        return number if self.is_double else Float64(number)
