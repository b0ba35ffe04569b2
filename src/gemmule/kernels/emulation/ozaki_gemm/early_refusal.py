"""Ozaki scheme II, guard: samples of some pairs of lines, which may show that the guard must refuse the product.

Idea
    A sum of magnitudes that is small against the product of its lines' norms is too small for emulation. Norms of lines
    are larger than those of their samples, so that samples suffice to say so. Such pairs may be of one line, which the
    native kernel can compute beside the emulated product; where they are of two lines among 64, there are many.
Change from the rung before
    One cluster, the first launch. It sets the guard's words, which all others of the guard raise, instead of a memset.
    Each CTA reads samples of some rows and as many columns, and multiplies its rows with the columns of all.
Data movement
    Samples of 64 rows and columns, in one round of loads up to K = 4096; columns from the other CTAs' shared memory.
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
from gemmule.kernels.emulation.guard_words import NEVER, ROOM, SHORTFALL_WORDS
from gemmule.kernels.emulation.moduli import real_of
from gemmule.kernels.emulation.ozaki_config import (
    PAIR_CTAS,
    PAIR_LINES,
    PAIR_PITCH,
    PAIR_SAMPLES,
    PAIR_SIDE,
    PAIR_THREADS,
    ScalesConfig,
)
from gemmule.kernels.parts.cluster_memory import cluster_address, load_shared, store_word
from gemmule.kernels.parts.mma_sync import double_mma_name, mma_sync
from gemmule.kernels.parts.tensors import major_tensor, tensor_1d

#: Between these squared norms are exact but for roundings, and so are products of two of them.
_LEAST, _MOST = 2.0**-400, 2.0**400
#: Parts of the samples that warps have, each of 8 lines; samples of an instruction, and instructions at once.
_PARTS, _DEPTH, _STEPS = PAIR_THREADS // 32 // PAIR_LINES, 4, 8
#: Doubles of a part of the sums: products of a CTA's rows with all columns, and squares of rows and of columns.
_PRODUCTS = PAIR_LINES * PAIR_SIDE
_SUMS = _PRODUCTS + PAIR_LINES + PAIR_SIDE
#: Words of 32 bits, one a pair, of all CTAs, and how many lines refuse the product.
_FOUND, _LINES = PAIR_SIDE * PAIR_SIDE // 32, 2


class EarlyRefusal:
    """S = words; S[0] = `NEVER` where samples of pairs of several lines have too little of their norms' product.

    The lines are those of matrices (length, lines), spread over these.
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
        smem = SmemAllocator()
        samples = smem.allocate_tensor(Float64, cute.make_layout(2 * PAIR_LINES * PAIR_PITCH), 16)
        sums = smem.allocate_tensor(Float64, cute.make_layout((_SUMS, _PARTS)), 16)
        found = smem.allocate_tensor(Int32, cute.make_layout(_FOUND), 16)
        cta, _, _ = cute.arch.block_idx()
        tid, _, _ = cute.arch.thread_idx()
        if cta == 0 and tid == 0:
            for number in cutlass.range_constexpr(len(words)):
                shortfall[number] = words[number]
        self.add_samples((mA, mB), cta, period, samples, sums)
        cute.arch.sync_threads()
        # Each warp has a row and half of the columns.
        if tid < _PRODUCTS:
            small = self.is_small(sums, (mA, mB), cta, share)
            mask = cute.arch.vote_ballot_sync(small)
            if tid % 32 == 0:
                word = cta * (_PRODUCTS // 32) + tid // 32
                store_word(cluster_address(found.iterator.toint() + 4 * word, Int32(0)), Int32(mask))
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        if cta == 0 and tid < 32:
            self.decide(found, shortfall, words, mA.shape[1])

    @cute.jit
    def is_small(self, sums: cute.Tensor, matrices, cta, share):
        """Return whether a pair has too little of its norms' product."""
        tid, _, _ = cute.arch.thread_idx()
        row, col = tid // PAIR_SIDE, tid % PAIR_SIDE
        places = tid, _PRODUCTS + row, _PRODUCTS + PAIR_LINES + col
        total, one, other = (sum(sums[place, part] for part in range(1, _PARTS)) + sums[place, 0] for place in places)
        # No comparison with NaN holds: lines that are not finite refuse nothing here.
        fits = self.is_exact(one) and self.is_exact(other)
        mA, mB = matrices
        inside = self.line(mA, cta * PAIR_LINES + row) < mA.shape[1] and self.line(mB, col) < mB.shape[1]
        return inside and fits and total * total < share * one * other

    @cute.jit
    def decide(self, found: cute.Tensor, shortfall: cute.Tensor, words, rows):
        """Refuse the product where pairs are of several lines: columns that half of the rows are of, and other rows."""
        lane, any_of = cute.arch.lane_idx(), Int32(0)
        for number in cutlass.range_constexpr(_FOUND // 32):
            any_of = any_of | found[32 * number + lane]
        if cute.arch.vote_any_sync(any_of != 0):
            refused = words[ROOM] == 0 or words[ROOM + 1] == 0
            half = cutlass.max(2, cutlass.min(rows, PAIR_SIDE) // 2)
            low, high = Int32(0), Int32(0)
            for row in cutlass.range(PAIR_SIDE, unroll=1):
                low = low + (found[2 * row] >> lane & 1)
                high = high + (found[2 * row + 1] >> lane & 1)
            whole = cute.arch.vote_ballot_sync(low >= half), cute.arch.vote_ballot_sync(high >= half)
            columns = cute.arch.popc(whole[0]) + cute.arch.popc(whole[1])
            others = Int32(0)
            for number in cutlass.range_constexpr(PAIR_SIDE // 32):
                row = 32 * number + lane
                rest = found[2 * row] & ~Int32(whole[0]) | found[2 * row + 1] & ~Int32(whole[1])
                others = others + cute.arch.popc(cute.arch.vote_ballot_sync(rest != 0))
            if lane == 0 and (refused or columns >= _LINES or others >= _LINES):
                shortfall[0] = Int32(NEVER)

    @cute.jit
    def is_exact(self, square: Any) -> Any:
        """Return whether neither a sum of squares nor products with it can have overflowed or underflowed."""
        return square > Float64(_LEAST) and square < Float64(_MOST)

    def line(self, mS: Any, number: Any) -> Any:
        """Return a line, spread over the matrix; beyond it where there are fewer."""
        return cutlass.max(Int32(Int64(number) * Int64(mS.shape[1]) // PAIR_SIDE), number)

    @cute.jit
    def add_samples(self, matrices, cta, period, samples: cute.Tensor, sums: cute.Tensor):
        """Write sums of a warp's part of the samples: its CTA's rows by the columns of one CTA, and their squares."""
        mA, mB = matrices
        tid, _, _ = cute.arch.thread_idx()
        lane, other, part = tid % 32, tid // 32 % PAIR_CTAS, tid // 32 // PAIR_CTAS
        total = cute.make_rmem_tensor(cute.make_layout(2), Float64)
        total.fill(0.0)
        one, two = Float64(0.0), Float64(0.0)
        count = cute.ceil_div(mA.shape[0], SAMPLE_RUN * period) * SAMPLE_RUN
        own = samples.iterator + lane // _DEPTH * PAIR_PITCH + part * (PAIR_SAMPLES // _PARTS) + lane % _DEPTH
        there = cluster_address(own.toint() + 8 * PAIR_LINES * PAIR_PITCH, Int32(other))
        for first in cutlass.range(0, count, PAIR_SAMPLES, unroll=1):
            self.load_samples((mA, mB), cta, (first, period), samples)
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
            for step in cutlass.range(PAIR_SAMPLES // _PARTS // (_DEPTH * _STEPS), unroll=1):
                x, y = (cute.make_rmem_tensor(cute.make_layout(_STEPS), Float64) for _ in range(2))
                for e in cutlass.range_constexpr(_STEPS):
                    place = (step * _STEPS + e) * _DEPTH
                    x[e] = (own + place).load()
                    (y[e],) = load_shared(Float64, there + 8 * place)
                for e in cutlass.range_constexpr(_STEPS):
                    mma_sync(_MMA, total, (x[e],), (y[e],))
                    one, two = one + x[e] * x[e], two + y[e] * y[e]
            # Others have read what this CTA writes next, or leaves.
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        for bit in cutlass.range_constexpr(2):
            one = one + cute.arch.shuffle_sync_bfly(one, offset=2**bit)
            two = two + cute.arch.shuffle_sync_bfly(two, offset=2**bit)
        row = lane // _DEPTH
        for v in cutlass.range_constexpr(2):
            sums[row * PAIR_SIDE + other * PAIR_LINES + 2 * (lane % _DEPTH) + v, part] = total[v]
        if lane % _DEPTH == 0:
            sums[_PRODUCTS + PAIR_LINES + other * PAIR_LINES + row, part] = two
            if other == 0:
                sums[_PRODUCTS + row, part] = one

    @cute.jit
    def load_samples(self, matrices, cta, places, samples: cute.Tensor):
        """Load magnitudes of samples of this CTA's rows and columns into shared memory, zeros behind the last one."""
        first, period = places
        tid, _, _ = cute.arch.thread_idx()
        own, begin = tid // 32 % PAIR_LINES, tid // 32 // PAIR_LINES * (PAIR_SAMPLES // _PARTS) + tid % 32
        each = cutlass.const_expr(PAIR_SAMPLES // _PARTS // 32)
        values = cute.make_rmem_tensor(cute.make_layout((each, 2)), Float64)
        values.fill(0.0)
        for side in cutlass.range_constexpr(2):
            mS = matrices[side]
            line = self.line(mS, cta * PAIR_LINES + own)
            if line < mS.shape[1]:
                for e in cutlass.range_constexpr(each):
                    number = first + begin + 32 * e
                    k = number // SAMPLE_RUN * (SAMPLE_RUN * period) + number % SAMPLE_RUN
                    if k < mS.shape[0]:
                        element = mS[k, line]
                        values[e, side] = element if cutlass.const_expr(self.is_double) else Float64(element)
        for side in cutlass.range_constexpr(2):
            for e in cutlass.range_constexpr(each):
                place = (side * PAIR_LINES + own) * PAIR_PITCH + begin + 32 * e
                samples[place] = cutlass.max(values[e, side], -values[e, side])


_MMA = double_mma_name(8, _DEPTH)


def buildable(config: ScalesConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    matrices = (major_tensor(real_of(types), 0 if types[f"{name}_major"] == "k" else 1) for name in "ab")
    words = tuple(Int32(0) for _ in range(SHORTFALL_WORDS))
    return Buildable(EarlyRefusal(config, types), (*matrices, tensor_1d("int32"), Int32(1), Float64(1), words))
