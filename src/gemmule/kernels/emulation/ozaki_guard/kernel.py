"""Ozaki scheme II, guard: the least of all sums of magnitudes, by a product of 8-bit floats that is not written.

Idea
    Emulation errs by a share of the norms of a row of A and a column of B, the native product by a share of the sum of
    magnitudes |A||B|. A product of magnitudes that are rounded down, over a part of K, is a lower bound of that sum.
    Its least element determines the moduli that suffice for all, and later launches return at once where they are not
    needed, so that the host need not wait. Where the most do not suffice, a line is listed for the native kernel.
Change from the rung before
    The operands are float8_e5m2, and of the accumulators only the minimum leaves the CTA: an atomic of a warp whose
    tile does not suffice for the fewest moduli. Elements of lines that are listed, or of zeros, do not count where they
    would refuse.
Data movement
    As of ozaki_products, with a sixteenth of K and no result.
Limits
    The tensor cores, and the epilogue where K is short.
Sources
    As of ozaki_gemm; "Guaranteed DGEMM Accuracy While Using Reduced Precision Tensor Cores Through Extensions of the
    Ozaki Scheme" (Automatic Dynamic Precision, ADP), NVIDIA 2025, whose estimate is from exponents of blocks of K.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute, select_

from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.guard import INFINITE_BITS, ZERO_LINE
from gemmule.kernels.emulation.guard_words import LIMITS, LISTED, NEVER, ROOM, SHORTFALL_WORDS, UNCERTAIN
from gemmule.kernels.emulation.native_list import is_refused, write_line
from gemmule.kernels.emulation.ozaki_config import LISTED_LATE, ProductsConfig
from gemmule.kernels.emulation.ozaki_products.kernel import ResidueProducts, first_matrices
from gemmule.kernels.hopper.mainloops.operands import flat
from gemmule.kernels.hopper.tile_config import CONSUMERS, MMA_M
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.tensors import major_tensor, tensor_1d

#: Chains of minima that do not wait for each other.
_CHAINS = 4
#: Lanes that have the columns of lane 0.
_SAME = 0x11111111


@cute.jit
def is_ordinary(scales: cute.Tensor, line: Any, lines: Any):
    """Return whether there is such a line, and it is not of zeros, whose products are exact, nor listed before."""
    place = scales.iterator + cutlass.min(line, lines - 1)
    scale = cute.arch.load(place, Int32, sem="relaxed", scope="gpu")
    return line < lines and (scale < ZERO_LINE or scale == LISTED_LATE)


@cute.jit
def list_ordinary(scales: cute.Tensor, places, side: cutlass.Constexpr[int], words: cute.Tensor):
    """List some of a warp's lines, each given with whether it is to be, once.

    The lanes of a warp do so together: each atomic takes as long as all of them.
    """
    fresh, total, before = [], Int32(0), []
    for line, is_found in places:
        scale = Int32(ZERO_LINE)
        if is_found:
            scale = cute.arch.atomic_exch(scales.iterator + line, Int32(LISTED_LATE), sem="relaxed", scope="gpu")
        fresh.append(scale)
    for scale in fresh:
        mask = cute.arch.vote_ballot_sync(scale < ZERO_LINE)
        before.append(total + cute.arch.popc(mask & (Int32(1) << cute.arch.lane_idx()) - 1))
        total = total + cute.arch.popc(mask)
    if total > 0:
        first = Int32(0)
        if cute.arch.lane_idx() == 0:
            first = cute.arch.atomic_add(words.iterator + LISTED + side, total, sem="relaxed", scope="gpu")
        first = cute.arch.shuffle_sync(first, 0)
        for number in cutlass.range_constexpr(len(fresh)):
            if fresh[number] < ZERO_LINE:
                write_line(places[number][0], side, first + before[number], words)


def least_rows(rows: Any) -> Any:
    """Return of how many of a warp's rows a column must be small to be listed: half of 16, or of fewer at the end.

    Of a single one it is the row.
    """
    return cutlass.max(2, cutlass.min(16, rows) // 2)


class LeastMagnitude(ResidueProducts):
    """max(S, how many limits INFINITE_BITS - bits of A @ B exceeds): A (M, K, 1), B (N, K, 1) of float8_e5m2.

    S and the guard's other words are at the address of D.
    """

    element, accumulator = cutlass.Float8E5M2, Float32

    @cute.jit
    def needed(self, mD):
        """Return the sums, or none of them where the product is refused already, or certain to be emulated."""
        is_certain = cute.arch.load(mD.iterator + UNCERTAIN, Int32, sem="relaxed", scope="gpu") == 0
        return first_matrices(mD, Int32(select_(is_certain or is_refused(mD), Int32(0), Int32(1))))

    def factors(self, place, scales):
        """Return the scales of the tile's lines: sums are not reduced."""
        del place
        return scales

    @cute.jit
    def write_tile(self, gD, accumulators, place, warpgroup_idx, factors):
        """Reduce a warp's part of a tile to its least element, and that into device memory."""
        m0, n0 = place
        values, least = flat(accumulators), Float32(float("inf"))
        if m0 + self.tile_m <= gD.shape[0] and n0 + self.tile_n <= gD.shape[1]:
            least = self.least_of_all(values)
        else:
            least = self.least_inside(gD, values, place, warpgroup_idx)
        words = cute.make_tensor(gD.iterator, cute.make_layout(SHORTFALL_WORDS))
        shortfall = self.shortfall(least, words)
        if shortfall == NEVER and words[ROOM] > 0 and not is_refused(words):
            least = self.list_lines(gD.shape, words, values, (place, warpgroup_idx), factors)
            shortfall = self.shortfall(least, words)
        if cute.arch.lane_idx() == 0 and shortfall > 0:
            cute.arch.atomic_max(gD.iterator, shortfall, sem="relaxed", scope="gpu")

    @cute.jit
    def shortfall(self, least, words: cute.Tensor):
        """Return how many choices of moduli do not suffice for a warp's least elements."""
        below, found = cute.arch.warp_redux_sync(Int32(INFINITE_BITS) - least.bitcast(Int32), "max"), Int32(0)
        for number in cutlass.range_constexpr(NEVER):
            found = number + 1 if below > words[LIMITS + number] else found
        return found

    @cute.jit
    def list_lines(self, shape, words, values: cute.Tensor, tile, scales):
        """List lines with an element for which no choice suffices, and return the least of this thread's others.

        Columns are listed where half of this warp's rows have such an element, else the elements' rows: one row of A
        with a large element, or one place along K where all columns of B are large, meets few small elements of the
        other operand.
        """
        ((m0, n0), warpgroup_idx), least = tile, Float32(float("inf"))
        bound = (Int32(INFINITE_BITS) - words[LIMITS + NEVER - 1]).bitcast(Float32)
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid % WARPGROUP // 32, tid % 32
        for block in cutlass.range_constexpr(self.mma_tiles_m):
            of_tile = block if cutlass.const_expr(self.pingpong) else warpgroup_idx + CONSUMERS * block
            row = m0 + of_tile * MMA_M + warp * 16 + lane // 4
            # Bit n is of the n-th 8 columns, of row + 8 h and column 2 t + v in word 2 h + v.
            # Elements outside of the matrix are 0.
            small = [Int32(0) for _ in range(4)]
            for n in cutlass.range_constexpr(self.tile_n // 8):
                for place in cutlass.range_constexpr(4):
                    value = values[block * self.tile_n // 2 + 4 * n + place]
                    small[place] = small[place] | Int32(select_(value < bound, Int32(1), Int32(0))) << n
                    least = cute.arch.fmin(least, Float32(select_(value < bound, Float32(float("inf")), value)))
            self.list_small(small, (row, n0), shape, words, scales)
        return least

    @cute.jit
    def list_small(self, small, place, shape, words: cute.Tensor, scales):
        """List columns and rows of a warp's small elements, given by bits."""
        (row, n0), (rows, columns), lane = place, scales, cute.arch.lane_idx()
        for half in cutlass.range_constexpr(2):
            is_fit = is_ordinary(rows, row + 8 * half, shape[0])
            for v in cutlass.range_constexpr(2):
                small[2 * half + v] = Int32(select_(is_fit, small[2 * half + v], Int32(0)))
        # Of eight lanes with the same columns each has a part of them: those of as many times eight.
        own, others, count = [], [], cutlass.const_expr(self.tile_n // 64)
        for part in cutlass.range_constexpr(count):
            for v in cutlass.range_constexpr(2):
                col = n0 + 64 * part + lane // 4 * 8 + 2 * (lane % 4) + v
                lanes, is_fit = Int32(0), is_ordinary(columns, col, shape[1])
                for n in cutlass.range_constexpr(8):
                    number = self.small_rows(small, 8 * part + n, v)
                    lanes = Int32(select_(lane // 4 == n, number, lanes))
                is_listed = is_fit and lanes >= least_rows(shape[0] - row + lane // 4)
                own.append((col, is_listed))
                others.append(cute.arch.vote_ballot_sync(is_fit and not is_listed))
        list_ordinary(columns, own, 1, words)
        found, lines = [Int32(0), Int32(0)], []
        for n in cutlass.range_constexpr(self.tile_n // 8):
            for v in cutlass.range_constexpr(2):
                rest = Int32(others[n // 8 * 2 + v]) >> n % 8 * 4 + lane % 4
                for half in cutlass.range_constexpr(2):
                    found[half] = found[half] | small[2 * half + v] >> n & rest
        for half in cutlass.range_constexpr(2):
            # Of four lanes with the same row the first has it.
            any_of = Int32(cute.arch.vote_ballot_sync(found[half] & 1 != 0)) >> lane // 4 * 4 & 15
            lines.append((row + 8 * half, any_of != 0 and lane % 4 == 0))
        list_ordinary(rows, lines, 0, words)

    @cute.jit
    def small_rows(self, small, n: cutlass.Constexpr[int], v: cutlass.Constexpr[int]):
        """Return of how many rows of a warp this lane's element of some columns is small."""
        same, lanes = Int32(_SAME) << cute.arch.lane_idx() % 4, Int32(0)
        for half in cutlass.range_constexpr(2):
            lanes = lanes + cute.arch.popc(cute.arch.vote_ballot_sync(small[2 * half + v] >> n & 1 != 0) & same)
        return lanes

    @cute.jit
    def least_of_all(self, values: cute.Tensor):
        """Return the least of a thread's elements, by independent chains."""
        found = cute.make_rmem_tensor(cute.make_layout(_CHAINS), Float32)
        found.fill(float("inf"))
        for first in cutlass.range_constexpr(0, self.mma_tiles_m * self.tile_n // 2, _CHAINS):
            for chain in cutlass.range_constexpr(_CHAINS):
                found[chain] = cute.arch.fmin(found[chain], values[first + chain])
        least = found[0]
        for place in cutlass.range_constexpr(1, _CHAINS):
            least = cute.arch.fmin(least, found[place])
        return least

    @cute.jit
    def least_inside(self, gD, values: cute.Tensor, place, warpgroup_idx):
        """Return the least of a thread's elements that are inside the matrix."""
        m0, n0 = place
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid % WARPGROUP // 32, tid % 32
        least = Float32(float("inf"))
        for block in cutlass.range_constexpr(self.mma_tiles_m):
            of_tile = block if cutlass.const_expr(self.pingpong) else warpgroup_idx + CONSUMERS * block
            for half in cutlass.range_constexpr(2):
                row = m0 + of_tile * MMA_M + warp * 16 + lane // 4 + 8 * half
                for n in cutlass.range_constexpr(self.tile_n // 8):
                    for v in cutlass.range_constexpr(2):
                        inside = row < gD.shape[0] and n0 + 8 * n + 2 * (lane % 4) + v < gD.shape[1]
                        value = values[block * self.tile_n // 2 + 4 * n + 2 * half + v]
                        least = cute.arch.fmin(least, Float32(select_(inside, value, Float32(float("inf")))))
        return least


def buildable(config: ProductsConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    a, b = (major_tensor("float8_e5m2", 1, batch=1, vector=16) for _ in range(2))
    d = major_tensor("int32", 1, batch=1)
    scales = (tensor_1d("int32"), tensor_1d("int32"))
    return Buildable(LeastMagnitude(config, types), (a, b, d, Int32(1), scales))
