"""Early refusal: some pairs of lines, compared while others are measured, may show that the guard must refuse."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, Int32, Int64, cute

from gemmule.kernels.emulation.guard import NEVER, SAMPLE_RUN
from gemmule.kernels.emulation.ozaki_config import PAIR_CTAS, PAIR_LINES, THREADS

#: Between these squared norms are exact but for roundings, and so are products of two of them.
_LEAST, _MOST = 2.0**-400, 2.0**400
#: Pairs of a CTA.
_PAIRS = PAIR_LINES * PAIR_LINES


@cute.jit
def is_refused(shortfall: cute.Tensor):
    """Return whether the guard refuses already; CTAs of the same grid may do so meanwhile."""
    return cute.arch.load(shortfall.iterator, Int32, sem="relaxed", scope="gpu") == NEVER


class EarlyRefusal:
    """Refuse where samples of a pair of lines have too little of the product of their norms, by `guard.least_share`.

    Half of a CTA's warps have lines of A, half of them lines of B: a warp for each K-major line; of MN-major lines,
    which are contiguous, each warp has a part of K.
    """

    def __init__(self, ahead: int, is_double: bool, along: tuple[bool, bool]) -> None:
        assert THREADS // 32 == 2 * PAIR_LINES
        self.ahead, self.is_double, self.along = ahead, is_double, along

    @cute.jit
    def compare(self, matrices, guard, shared: cute.Tensor, cta):
        """Compare all pairs of a CTA's lines of A and of B (length, lines).

        Parameters
        ----------
        matrices : tuple of Tensor
            A and B.
        guard : tuple
            The shortfall, of how many runs along K one is sampled, and the least share.
        shared : Tensor
            Shared memory for sums: of squares, by operand, warp and line, then of pairs, by half of the samples.
        cta : Int32
            Number of the CTA among those that compare.
        """
        mA, mB = matrices
        tid, _, _ = cute.arch.thread_idx()
        half, own = tid // 32 // PAIR_LINES, tid // 32 % PAIR_LINES
        if half == 0:
            self.add_squares(mA, cta, shared, own, self.along[0], 0)
        else:
            self.add_squares(mB, cta, shared, own, self.along[1], 1)
        self.add_samples(matrices, cta, guard[1], shared, half, own)
        cute.arch.sync_threads()
        if tid < _PAIRS:
            total = shared[2 * _PAIRS + tid] + shared[3 * _PAIRS + tid]
            one, other = self.square(shared, 0, tid // PAIR_LINES), self.square(shared, 1, tid % PAIR_LINES)
            # No comparison with NaN holds: lines that are not finite refuse nothing here.
            fits = self.is_exact(one) and self.is_exact(other)
            if fits and total * total < guard[2] * one * other:
                cute.arch.atomic_max(guard[0].iterator, Int32(NEVER), sem="relaxed", scope="gpu")

    def square(self, shared: Any, operand: int, line: Any) -> Any:
        """Return the squared norm of a line."""
        first = operand * _PAIRS + line
        return sum(shared[first + warp * PAIR_LINES] for warp in range(1, PAIR_LINES)) + shared[first]

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
    def add_squares(
        self,
        mS: cute.Tensor,
        cta,
        shared: cute.Tensor,
        own,
        along: cutlass.Constexpr[bool],
        operand: cutlass.Constexpr[int],
    ):
        """Add the squares of lines: of one, or of all in a part of K."""
        lane = cute.arch.lane_idx()
        number, offset, step = own, lane, cutlass.const_expr(32)
        if cutlass.const_expr(not along):
            number, offset = lane % PAIR_LINES, lane // PAIR_LINES + own * (32 // PAIR_LINES)
        line, total, length = self.line(mS, cta, number), Float64(0.0), mS.shape[0]
        for first in cutlass.range(offset, length, step * self.ahead, unroll=1):
            values = cute.make_rmem_tensor(cute.make_layout(self.ahead), Float64)
            values.fill(0.0)
            for e in cutlass.range_constexpr(self.ahead):
                if first + step * e < length:
                    values[e] = self.element(mS, first + step * e, line)
            for e in cutlass.range_constexpr(self.ahead):
                total = total + values[e] * values[e]
        total = added(total, PAIR_LINES)
        if cutlass.const_expr(along):
            total = added(total, 1, PAIR_LINES)
            total = total if lane == own else Float64(0.0)
        if lane < PAIR_LINES:
            shared[operand * _PAIRS + own * PAIR_LINES + lane] = total

    @cute.jit
    def add_samples(self, matrices, cta, period, shared: cute.Tensor, half, own):
        """Add the magnitudes of half of the samples, of products of a line of A with all lines of B."""
        mA, mB = matrices
        lane, length, each = cute.arch.lane_idx(), mA.shape[0], cutlass.const_expr(32 // PAIR_LINES)
        i, j, total = self.line(mA, cta, own), self.line(mB, cta, lane % PAIR_LINES), Float64(0.0)
        samples = cute.ceil_div(length, SAMPLE_RUN * period) * SAMPLE_RUN
        for number in cutlass.range(lane // PAIR_LINES + half * each, samples, 2 * each, unroll=4):
            k = number // SAMPLE_RUN * (SAMPLE_RUN * period) + number % SAMPLE_RUN
            if k < length:
                product = self.element(mA, k, i) * self.element(mB, k, j)
                total = total + cutlass.max(product, -product)
        total = added(total, PAIR_LINES)
        if lane < PAIR_LINES:
            shared[(2 + half) * _PAIRS + own * PAIR_LINES + lane] = total

    def element(self, mS: Any, k: Any, line: Any) -> Any:
        """Return an element as float64."""
        number = mS[k, line]
        return number if self.is_double else Float64(number)


def added(value: Any, least: int, below: int = 32) -> Any:
    """Return the sum of a value over lanes whose numbers differ in the bits from `least` to before `below`."""
    while least < below:
        value = value + cute.arch.shuffle_sync_bfly(value, offset=least)
        least *= 2
    return value
