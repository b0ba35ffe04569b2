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
from gemmule.kernels.emulation.guard_words import LIMITS, NEVER, ROOM, SHORTFALL_WORDS
from gemmule.kernels.emulation.native_list import is_refused, list_line
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
def list_ordinary(scales: cute.Tensor, line: Any, side: Any, words: cute.Tensor):
    """List a line, once."""
    if cute.arch.atomic_exch(scales.iterator + line, Int32(LISTED_LATE), sem="relaxed", scope="gpu") < ZERO_LINE:
        list_line(line, side, words)


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

    def needed(self, mD):
        """Return the sums, or none of them where the product is refused already."""
        return first_matrices(mD, Int32(select_(is_refused(mD), Int32(0), Int32(1))))

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
            count = self.most_columns(gD.shape, words, values, (place, warpgroup_idx), factors)
            if count <= words[ROOM + 1]:
                least = self.list_lines(gD.shape, words, values, place, warpgroup_idx, factors)
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
    def most_columns(self, shape, words, values: cute.Tensor, tile, scales):
        """Return the most columns that a block of this warp's rows would list: to list one takes longer than to count.

        As `list_lines` counts them.
        """
        ((m0, n0), warpgroup_idx), found = tile, Int32(0)
        bound = (Int32(INFINITE_BITS) - words[LIMITS + NEVER - 1]).bitcast(Float32)
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid % WARPGROUP // 32, tid % 32
        fitting, same = self.ordinary_columns(scales[1], n0, shape[1]), Int32(_SAME) << lane % 4
        for block in cutlass.range_constexpr(self.mma_tiles_m):
            of_tile = block if cutlass.const_expr(self.pingpong) else warpgroup_idx + CONSUMERS * block
            row, count = m0 + of_tile * MMA_M + warp * 16 + lane // 4, Int32(0)
            fits = tuple(is_ordinary(scales[0], row + 8 * half, shape[0]) for half in range(2))
            least = least_rows(shape[0] - row + lane // 4)
            for n in cutlass.range_constexpr(self.tile_n // 8):
                for v in cutlass.range_constexpr(2):
                    lanes = Int32(0)
                    for half in cutlass.range_constexpr(2):
                        value = values[block * self.tile_n // 2 + 4 * n + 2 * half + v]
                        lanes += cute.arch.popc(cute.arch.vote_ballot_sync(fits[half] and value < bound) & same)
                    place = cutlass.const_expr(8 * (n % 4) + n // 4 % 4 * 2 + v)
                    count += Int32(select_(lanes >= least, fitting[n // 16] >> place & 1, Int32(0)))
            for bit in cutlass.range_constexpr(2):
                # Lanes of four have other columns.
                count = count + cute.arch.shuffle_sync_bfly(count, offset=2**bit)
            found = cutlass.max(found, count)
        return found

    @cute.jit
    def ordinary_columns(self, columns: cute.Tensor, n0, end):
        """Return which of a lane's columns of a tile are ordinary: two bits for each 8, of 128 columns in a word.

        Words have the bits of 8 columns 8 bits apart. All loads are issued before the first is used.
        """
        lane, words = cute.arch.lane_idx(), []
        found = [is_ordinary(columns, n0 + 32 * number + lane, end) for number in range(self.tile_n // 32)]
        for number in cutlass.range_constexpr(self.tile_n // 32):
            own = (Int32(cute.arch.vote_ballot_sync(found[number])) >> 2 * (lane % 4) & 0x03030303) << number % 4 * 2
            if cutlass.const_expr(number % 4 == 0):
                words.append(own)
            else:
                words[-1] = words[-1] | own
        return words

    @cute.jit
    def list_lines(self, shape, words, values: cute.Tensor, place, warpgroup_idx, scales):
        """List lines with an element for which no choice suffices, and return the least of this thread's others.

        Columns are listed where half of this warp's rows have such an element, else the elements' rows: one row of A
        with a large element, or one place along K where all columns of B are large, meets few small elements of the
        other operand.
        """
        (m0, n0), least = place, Float32(float("inf"))
        bound = (Int32(INFINITE_BITS) - words[LIMITS + NEVER - 1]).bitcast(Float32)
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid % WARPGROUP // 32, tid % 32
        for block in cutlass.range_constexpr(self.mma_tiles_m):
            of_tile = block if cutlass.const_expr(self.pingpong) else warpgroup_idx + CONSUMERS * block
            row, found = m0 + of_tile * MMA_M + warp * 16 + lane // 4, Int32(0)
            for n in cutlass.range_constexpr(self.tile_n // 8):
                for v in cutlass.range_constexpr(2):
                    # Bit h is of row + 8 h.
                    col, small = n0 + 8 * n + 2 * (lane % 4) + v, Int32(0)
                    for half in cutlass.range_constexpr(2):
                        value = values[block * self.tile_n // 2 + 4 * n + 2 * half + v]
                        if row + 8 * half < shape[0] and col < shape[1]:
                            small = small | Int32(select_(value < bound, Int32(1 << half), Int32(0)))
                            least = cute.arch.fmin(least, Float32(select_(value < bound, Float32(float("inf")), value)))
                    if cute.arch.vote_any_sync(small != 0):
                        found = found | self.small_of_rows(shape, words, (row, col), small, scales)
            for half in cutlass.range_constexpr(2):
                if (found & 1 << half) != 0:
                    list_ordinary(scales[0], row + 8 * half, 0, words)
        return least

    @cute.jit
    def small_of_rows(self, shape, words, place, small, scales):
        """Return which of a lane's elements of a column, by bits, are small because of their rows; else list it."""
        (row, col), (rows, columns) = place, scales
        lanes, column = Int32(0), is_ordinary(columns, col, shape[1])
        for half in cutlass.range_constexpr(2):
            if not column or not is_ordinary(rows, row + 8 * half, shape[0]):
                small = small & ~(1 << half)
            same = cute.arch.vote_ballot_sync((small & 1 << half) != 0) & _SAME << cute.arch.lane_idx() % 4
            lanes = lanes + cute.arch.popc(same)
        if lanes >= least_rows(shape[0] - row + cute.arch.lane_idx() // 4):
            list_ordinary(columns, col, 1, words)
            small = Int32(0)
        return small

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
