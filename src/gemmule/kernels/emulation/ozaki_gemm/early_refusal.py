"""Ozaki scheme II, guard: samples of some pairs of lines, which may show that the guard must refuse the product.

Idea
    A sum of magnitudes that is small against the product of its lines' norms is too small for emulation. Norms of lines
    are larger than those of their samples, so that samples suffice to say so. One such pair may be of one line, which
    the native kernel can compute beside the emulated product; where two CTAs find some, there are many.
Change from the rung before
    One cluster, the first launch. It sets the guard's words, which all others of the guard raise, instead of a memset.
Data movement
    Samples of 32 rows and columns, in one round of loads up to K = 4096.
Limits
    The launch, and the latency of memory.
Sources
    As of ozaki_guard.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.guard import SAMPLE_RUN
from gemmule.kernels.emulation.guard_words import NEVER, ROOM, SHORTFALL_WORDS, SMALL_PAIRS
from gemmule.kernels.emulation.moduli import real_of
from gemmule.kernels.emulation.ozaki_config import PAIR_CTAS, PAIR_LINES, PAIR_THREADS, ScalesConfig
from gemmule.kernels.parts.tensors import major_tensor, tensor_1d

#: Between these squared norms are exact but for roundings, and so are products of two of them.
_LEAST, _MOST = 2.0**-400, 2.0**400
#: Pairs of a CTA, the parts of the samples that its warps have, and samples that a thread loads at once.
_PAIRS, _PARTS, _AHEAD = PAIR_LINES * PAIR_LINES, PAIR_THREADS // 32 // PAIR_LINES, 4


class EarlyRefusal:
    """S = words; S[0] = `NEVER` where samples of several pairs of lines have too little of their norms' product.

    The lines are those of matrices (length, lines). A warp has part of the samples of a line of A, and of all lines of
    B that its CTA compares.
    """

    def __init__(self, config: ScalesConfig, types: dict[str, str]) -> None:
        del config
        self.is_double = real_of(types) == "float64"

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, shortfall: cute.Tensor, period: Int32, share: Float64, words):
        self.kernel(mA, mB, shortfall, period, share, words).launch(
            grid=(PAIR_CTAS, 1, 1), block=(PAIR_THREADS, 1, 1), cluster=(PAIR_CTAS, 1, 1)
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, shortfall: cute.Tensor, period, share, words):
        # In this order: the dependent grid reads elements before it waits.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        sums = SmemAllocator().allocate_tensor(Float64, cute.make_layout(3 * _PARTS * _PAIRS), 16)
        cta, _, _ = cute.arch.block_idx()
        tid, _, _ = cute.arch.thread_idx()
        if cta == 0 and tid == 0:
            for number in cutlass.range_constexpr(len(words)):
                shortfall[number] = words[number]
        self.add_samples((mA, mB), cta, period, sums)
        cute.arch.sync_threads()
        # No CTA raises a word before it is set.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        if tid < 32:
            total, one, other = (self.sum_of_parts(sums, kind, tid % _PAIRS) for kind in range(3))
            # No comparison with NaN holds: lines that are not finite refuse nothing here.
            fits = self.is_exact(one) and self.is_exact(other)
            is_small = cute.arch.vote_any_sync(fits and total * total < share * one * other)
            if tid == 0 and is_small:
                before = cute.arch.atomic_add(shortfall.iterator + SMALL_PAIRS, Int32(1), sem="relaxed", scope="gpu")
                if before > 0 or words[ROOM] == 0 or words[ROOM + 1] == 0:
                    cute.arch.atomic_max(shortfall.iterator, Int32(NEVER), sem="relaxed", scope="gpu")

    @cute.jit
    def is_exact(self, square: Any) -> Any:
        """Return whether neither a sum of squares nor products with it can have overflowed or underflowed."""
        return square > Float64(_LEAST) and square < Float64(_MOST)

    def sum_of_parts(self, sums: Any, kind: int, pair: Any) -> Any:
        """Return a pair's sum of products, or of squares of A or B, over all samples."""
        first = kind * _PARTS * _PAIRS + pair
        return sum(sums[first + part * _PAIRS] for part in range(1, _PARTS)) + sums[first]

    def line(self, mS: Any, cta: Any, number: Any) -> Any:
        """Return a line: those of a CTA are contiguous, and all spread over the matrix."""
        lines = mS.shape[1]
        first = Int32(Int64(cta) * Int64(lines) // PAIR_CTAS)
        return cutlass.min(first + number, lines - 1)

    @cute.jit
    def add_samples(self, matrices, cta, period, sums: cute.Tensor):
        """Add magnitudes of products, and squares, over a warp's part of the samples."""
        mA, mB = matrices
        tid, _, _ = cute.arch.thread_idx()
        lane, part, own = tid % 32, tid // 32 // PAIR_LINES, tid // 32 % PAIR_LINES
        length, each = mA.shape[0], cutlass.const_expr(32 // PAIR_LINES)
        i, j = self.line(mA, cta, own), self.line(mB, cta, lane % PAIR_LINES)
        total, one, other = Float64(0.0), Float64(0.0), Float64(0.0)
        samples, step = cute.ceil_div(length, SAMPLE_RUN * period) * SAMPLE_RUN, cutlass.const_expr(_PARTS * each)
        for first in cutlass.range(lane // PAIR_LINES + part * each, samples, step * _AHEAD, unroll=1):
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
                sums[(kind * _PARTS + part) * _PAIRS + own * PAIR_LINES + lane] = whole

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


def buildable(config: ScalesConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    matrices = (major_tensor(real_of(types), 0 if types[f"{name}_major"] == "k" else 1) for name in "ab")
    words = tuple(Int32(0) for _ in range(SHORTFALL_WORDS))
    return Buildable(EarlyRefusal(config, types), (*matrices, tensor_1d("int32"), Int32(1), Float64(1), words))
