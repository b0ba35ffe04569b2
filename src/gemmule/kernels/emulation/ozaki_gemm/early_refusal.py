"""Early refusal: samples of some pairs of lines, compared while lines are measured, may show that the guard refuses."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, Int32, Int64, cute

from gemmule.kernels.emulation.guard import NEVER, SAMPLE_RUN
from gemmule.kernels.emulation.ozaki_config import PAIR_CTAS, PAIR_LINES, THREADS

#: Between these squared norms are exact but for roundings, and so are products of two of them.
_LEAST, _MOST = 2.0**-400, 2.0**400
#: Pairs of a CTA, and the parts of the samples that its warps have.
_PAIRS, _HALVES = PAIR_LINES * PAIR_LINES, 2
#: Samples that a thread loads at once.
_AHEAD = 4


@cute.jit
def is_refused(shortfall: cute.Tensor):
    """Return whether the guard refuses already; CTAs of the same grid may do so meanwhile."""
    return cute.arch.load(shortfall.iterator, Int32, sem="relaxed", scope="gpu") == NEVER


class EarlyRefusal:
    """Refuse where samples of a pair of lines have too little of the product of their norms, by `guard.least_share`.

    Norms of lines are larger than those of their samples: what is refused for these is for those too. A warp has half
    of the samples of a line of A and of all lines of B.
    """

    def __init__(self, is_double: bool) -> None:
        assert THREADS // 32 == _HALVES * PAIR_LINES
        self.is_double = is_double

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
            Shared memory for sums: of products, then of squares of A and of B, by half of the samples and pair.
        cta : Int32
            Number of the CTA among those that compare.
        """
        tid, _, _ = cute.arch.thread_idx()
        self.add_samples(matrices, cta, guard[1], shared)
        cute.arch.sync_threads()
        if tid < _PAIRS:
            total, one, other = (
                shared[2 * kind * _PAIRS + tid] + shared[(2 * kind + 1) * _PAIRS + tid] for kind in range(3)
            )
            # No comparison with NaN holds: lines that are not finite refuse nothing here.
            fits = self.is_exact(one) and self.is_exact(other)
            if fits and total * total < guard[2] * one * other:
                cute.arch.atomic_max(guard[0].iterator, Int32(NEVER), sem="relaxed", scope="gpu")

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
    def add_samples(self, matrices, cta, period, shared: cute.Tensor):
        """Add the magnitudes of products, and the squares, of half of the samples of a line of A and all lines of B."""
        mA, mB = matrices
        tid, _, _ = cute.arch.thread_idx()
        lane, half, own = tid % 32, tid // 32 // PAIR_LINES, tid // 32 % PAIR_LINES
        length, each = mA.shape[0], cutlass.const_expr(32 // PAIR_LINES)
        i, j = self.line(mA, cta, own), self.line(mB, cta, lane % PAIR_LINES)
        total, one, other = Float64(0.0), Float64(0.0), Float64(0.0)
        samples, step = cute.ceil_div(length, SAMPLE_RUN * period) * SAMPLE_RUN, cutlass.const_expr(_HALVES * each)
        for first in cutlass.range(lane // PAIR_LINES + half * each, samples, step * _AHEAD, unroll=1):
            of_a, of_b = (cute.make_rmem_tensor(cute.make_layout(_AHEAD), Float64) for _ in range(2))
            of_a.fill(0.0)
            of_b.fill(0.0)
            for e in cutlass.range_constexpr(_AHEAD):
                number = first + e * step
                k = number // SAMPLE_RUN * (SAMPLE_RUN * period) + number % SAMPLE_RUN
                if k < length:
                    of_a[e], of_b[e] = self.element(mA, k, i), self.element(mB, k, j)
            for e in cutlass.range_constexpr(_AHEAD):
                product = of_a[e] * of_b[e]
                total = total + cutlass.max(product, -product)
                one, other = one + of_a[e] * of_a[e], other + of_b[e] * of_b[e]
        for kind, value in enumerate((total, one, other)):
            whole = added(value)
            if lane < PAIR_LINES:
                shared[(2 * kind + half) * _PAIRS + own * PAIR_LINES + lane] = whole

    def element(self, mS: Any, k: Any, line: Any) -> Any:
        """Return an element as float64."""
        number = mS[k, line]
        return number if self.is_double else Float64(number)


def added(value: Any) -> Any:
    """Return the sum of a value over the lanes that have the same line of B."""
    offset = PAIR_LINES
    while offset < 32:
        value = value + cute.arch.shuffle_sync_bfly(value, offset=offset)
        offset *= 2
    return value
