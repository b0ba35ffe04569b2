"""Ozaki scheme II, guard: samples of some pairs of lines, which may show that the guard must refuse the product.

Idea
    A sum of magnitudes that is small against the product of its lines' norms is too small for emulation. Norms of lines
    are larger than those of their samples, so that samples suffice to say so. Such pairs may be of one line, which the
    native kernel can compute beside the emulated product; where they are of two lines among 64, there are many.
Change from the rung before
    One cluster, beside the CTAs that measure all lines, which what it finds may stop. Each CTA multiplies some samples
    of all of these rows and columns, and adds the sums of all CTAs for some pairs.
Data movement
    Samples of 64 rows and columns, in one round of loads up to K = 8192; sums from the other CTAs' shared memory.
Limits
    The launch, and the latency of memory.
Sources
    As of ozaki_guard.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, Int32, Int64, cute, select_
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.guard import SAMPLE_RUN
from gemmule.kernels.emulation.guard_words import ROOM
from gemmule.kernels.emulation.moduli import real_of
from gemmule.kernels.emulation.native_list import refuse
from gemmule.kernels.emulation.ozaki_config import (
    FEWEST_EARLY,
    PAIR_CTAS,
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
#: Rows and columns of a product, samples of an instruction, and products of a warp: of its rows with two times columns.
_SIDE, _DEPTH, _PRODUCTS = 8, 4, 2
#: Warps that share a side of all pairs, and runs of samples that a CTA reads at a time.
_ACROSS, _RUNS = PAIR_SIDE // (_SIDE * _PRODUCTS), PAIR_SAMPLES // SAMPLE_RUN
#: Sums of a CTA: of all pairs, and squares of all lines; the pairs that it compares; a bit for each pair in words.
_PAIRS = PAIR_SIDE * PAIR_SIDE
_SUMS, _OWN, _FOUND = _PAIRS + 2 * PAIR_SIDE, _PAIRS // PAIR_CTAS, _PAIRS // 32
#: Lines of a large matrix that refuse the product.
_LINES = 2
_MMA = double_mma_name(_SIDE, _DEPTH)


class EarlyRefusal:
    """S = words; S[0] = `NEVER` where samples of pairs of several lines have too little of their norms' product.

    The lines are those of matrices (length, lines), spread over these.
    """

    def __init__(self, config: ScalesConfig, types: dict[str, str]) -> None:
        del config
        self.is_double = real_of(types) == "float64"

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, shortfall: cute.Tensor, period: Int32, share: Float64):
        self.kernel(mA, mB, shortfall, period, share).launch(
            grid=(PAIR_CTAS, 1, 1), block=(PAIR_THREADS, 1, 1), cluster=(PAIR_CTAS, 1, 1)
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, shortfall: cute.Tensor, period, share):
        # In this order: the dependent grid reads elements, and raises the words, before it waits.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        smem = SmemAllocator()
        samples = smem.allocate_tensor(Float64, cute.make_layout((PAIR_PITCH, PAIR_SIDE, 2)), 16)
        sums = smem.allocate_tensor(Float64, cute.make_layout(_SUMS), 16)
        found = smem.allocate_tensor(Int32, cute.make_layout(_FOUND), 16)
        cta, _, _ = cute.arch.block_idx()
        tid, _, _ = cute.arch.thread_idx()
        self.add_samples((mA, mB), (cta, period), samples, sums)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        total, squares = Float64(0.0), samples.iterator
        if tid < _OWN:
            total = self.sum_of_ctas(sums, cta * _OWN + tid)
        elif tid < _OWN + 2 * PAIR_SIDE:
            # The samples were read.
            squares[tid - _OWN] = self.sum_of_ctas(sums, _PAIRS + tid - _OWN)
        cute.arch.sync_threads()
        if tid < _OWN:
            row, col = (cta * _OWN + tid) // PAIR_SIDE, tid % PAIR_SIDE
            one, other = squares[row], squares[PAIR_SIDE + col]
            # No comparison with NaN holds: lines that are not finite refuse nothing here.
            fits = self.is_exact(one) and self.is_exact(other)
            inside = self.line(mA, row) < mA.shape[1] and self.line(mB, col) < mB.shape[1]
            mask = cute.arch.vote_ballot_sync(inside and fits and total * total < share * one * other)
            if tid % 32 == 0:
                word = found.iterator.toint() + 4 * ((cta * _OWN + tid) // 32)
                store_word(cluster_address(word, Int32(0)), Int32(mask))
        # Others have read the sums of this CTA, which may leave, and written what they have found.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        if cta == 0 and tid < 32:
            self.decide(found, shortfall, mA.shape[1])

    @cute.jit
    def sum_of_ctas(self, sums: cute.Tensor, number):
        """Return a sum of all CTAs' samples."""
        address = sums.iterator.toint() + 8 * number
        values = [load_shared(Float64, cluster_address(address, Int32(cta)))[0] for cta in range(PAIR_CTAS)]
        total = values[0]
        for cta in cutlass.range_constexpr(1, PAIR_CTAS):
            total = total + values[cta]
        return total

    @cute.jit
    def decide(self, found: cute.Tensor, shortfall: cute.Tensor, rows):
        """Refuse the product where pairs are of several lines: columns that half of the rows are of, and other rows."""
        lane, any_of = cute.arch.lane_idx(), Int32(0)
        for number in cutlass.range_constexpr(_FOUND // 32):
            any_of = any_of | found[32 * number + lane]
        if cute.arch.vote_any_sync(any_of != 0):
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
            if lane == 0 and (others >= self.too_many(shortfall, 0) or columns >= self.too_many(shortfall, 1)):
                refuse(shortfall)

    def too_many(self, shortfall: Any, side: int) -> Any:
        """Return how many lines refuse the product: a share of 64 of many lines, else more than there is room for."""
        room = shortfall[ROOM + side]
        return select_(room >= FEWEST_EARLY, Int32(_LINES), room + 1)

    @cute.jit
    def is_exact(self, square: Any) -> Any:
        """Return whether neither a sum of squares nor products with it can have overflowed or underflowed."""
        return square > Float64(_LEAST) and square < Float64(_MOST)

    def line(self, mS: Any, number: Any) -> Any:
        """Return a line: two are contiguous, those spread over the matrix; beyond it where there are fewer."""
        places = cutlass.const_expr(PAIR_SIDE // 2)
        first = Int32(Int64(number // 2) * Int64(mS.shape[1]) // places) // 2 * 2
        return cutlass.max(first + number % 2, number)

    @cute.jit
    def add_samples(self, matrices, own, samples: cute.Tensor, sums: cute.Tensor):
        """Write sums of magnitudes of all pairs, and of squares of all lines, over this CTA's samples."""
        mA, _ = matrices
        cta, period = own
        tid, _, _ = cute.arch.thread_idx()
        lane, row, col = tid % 32, tid // 32 // _ACROSS * _SIDE, tid // 32 % _ACROSS * (_SIDE * _PRODUCTS)
        line, first = lane // _DEPTH, lane % _DEPTH
        totals = cute.make_rmem_tensor(cute.make_layout((2, _PRODUCTS)), Float64)
        squares = cute.make_rmem_tensor(cute.make_layout(1 + _PRODUCTS), Float64)
        totals.fill(0.0)
        squares.fill(0.0)
        runs = cute.ceil_div(mA.shape[0], SAMPLE_RUN * period)
        for begin in cutlass.range(cta * _RUNS, runs, PAIR_CTAS * _RUNS, unroll=1):
            self.load_samples(matrices, (begin, period), samples)
            cute.arch.sync_threads()
            for step in cutlass.range_constexpr(PAIR_SAMPLES // _DEPTH):
                k = _DEPTH * step + first
                x = samples[k, row + line, 0]
                squares[0] = squares[0] + x * x
                for number in cutlass.range_constexpr(_PRODUCTS):
                    y = samples[k, col + _SIDE * number + line, 1]
                    squares[1 + number] = squares[1 + number] + y * y
                    mma_sync(_MMA, totals[None, number], (x,), (y,))
            # Read before they are written again.
            cute.arch.sync_threads()
        for number in cutlass.range_constexpr(_PRODUCTS):
            for v in cutlass.range_constexpr(2):
                place = (row + line) * PAIR_SIDE + col + _SIDE * number + 2 * first + v
                sums[place] = totals[v, number]
        for number in cutlass.range_constexpr(1 + _PRODUCTS):
            for bit in cutlass.range_constexpr(2):
                squares[number] = squares[number] + cute.arch.shuffle_sync_bfly(squares[number], offset=2**bit)
        # All warps of a side have the same.
        if first == 0 and col == 0:
            sums[_PAIRS + row + line] = squares[0]
        if first == 0 and row == 0:
            for number in cutlass.range_constexpr(_PRODUCTS):
                sums[_PAIRS + PAIR_SIDE + col + _SIDE * number + line] = squares[1 + number]

    @cute.jit
    def load_samples(self, matrices, places, samples: cute.Tensor):
        """Load magnitudes of some runs of all lines into shared memory, zeros behind the last one.

        A warp loads those of two contiguous lines of each matrix, contiguous in memory or in sectors.
        """
        begin, period = places
        tid, _, _ = cute.arch.thread_idx()
        own, inside = tid // 32 * 2 + tid % 2, tid % 32 // 2
        values = cute.make_rmem_tensor(cute.make_layout((_RUNS, 2)), Float64)
        values.fill(0.0)
        for side in cutlass.range_constexpr(2):
            mS = matrices[side]
            line = self.line(mS, own)
            if line < mS.shape[1]:
                for run in cutlass.range_constexpr(_RUNS):
                    k = (begin + run) * (SAMPLE_RUN * period) + inside
                    if k < mS.shape[0]:
                        element = mS[k, line]
                        values[run, side] = element if cutlass.const_expr(self.is_double) else Float64(element)
        for side in cutlass.range_constexpr(2):
            for run in cutlass.range_constexpr(_RUNS):
                value = values[run, side]
                samples[run * SAMPLE_RUN + inside, own, side] = cutlass.max(value, -value)


def buildable(config: ScalesConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    matrices = (major_tensor(real_of(types), 0 if types[f"{name}_major"] == "k" else 1) for name in "ab")
    return Buildable(EarlyRefusal(config, types), (*matrices, tensor_1d("int32"), Int32(1), Float64(1)))
