"""Ozaki scheme II, scales: powers of two that make integers of A's rows and B's columns, products staying in range.

Idea
    float64 products on the tensor cores, which multiply bytes: A and B are made integers of up to 58 bits, these are
    represented by their residues for 15 small moduli, and by the Chinese remainder theorem the residues of the products
    determine the product of the integers. This first launch finds how large the integers may be: by Cauchy and Schwarz
    a dot product is at most the product of two norms.
Change from the rung before
    Nothing is written for an element, one number for a line along K. The dependent launches write and read the rest.
    With a guard exponents are summed too: where the geometric means of all lines are large enough, the fewest moduli
    suffice, and no product of magnitudes is needed. Each CTA encodes samples of the lines that it has measured. A line
    that has only small ones, or a number that is not finite, is listed for the native kernel; where there is no room
    for it the product is refused, and what is not measured yet need not be.
Data movement
    Every element is read once, 8 bytes; with a guard up to a sixteenth of them again, from a cache.
Limits
    Memory.
Sources
    Ozaki, Uchino and Imamura 2025, "Ozaki Scheme II: A GEMM-oriented emulation of floating-point matrix multiplication
    using an integer modular technique"; Uchino, Ozaki and Imamura 2025, "High-Performance and Power-Efficient Emulation
    of Matrix Multiplication using INT8 Matrix Engines".
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Boolean, Float64, Int32, Int64, cute, select_
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.float64_bits import BIAS, FRACTION, SPECIAL, biased_power
from gemmule.kernels.emulation.guard import MEAN_SPAN, ZERO_LINE
from gemmule.kernels.emulation.guard_words import UNCERTAIN
from gemmule.kernels.emulation.moduli import counts_of, real_of
from gemmule.kernels.emulation.native_list import is_refused, list_line
from gemmule.kernels.emulation.ozaki_config import EARLY_PERIOD, NOT_EMULATED, PARTS, THREADS, ScalesConfig
from gemmule.kernels.emulation.residues import norm_limit
from gemmule.kernels.parts.tensors import major_tensor, tensor_1d

from .magnitudes import Magnitudes

# The largest exponent whose reciprocal is a normal number.
_MOST = 2044
#: Rounds of loads between two looks at whether the product is refused, of K-major lines, and of MN-major ones, which
#: take many.
_ROUNDS, _ROUNDS_ACROSS = 4, 1
#: Places among the exponents in shared memory: the lines' scales, which of them are listed, and sums of exponents.
_SCALES, _LISTED, _LOGARITHMS = THREADS // 2, THREADS // 4 * 3, THREADS


class OzakiScales:
    """S[j] = the exponent of line j's scale for two matrices of float64 or float32 (length, lines), anywhere."""

    def __init__(self, config: ScalesConfig, types: dict[str, str]) -> None:
        self.ahead, self.deep, self.resident = config.ahead, config.deep, config.resident
        self.across, self.together = config.across, config.together
        self.along = (types["a_major"] == "k", types["b_major"] == "k")
        counts, self.is_double = counts_of(types), real_of(types) == "float64"
        self.guarded = len(counts) > 1
        self.magnitudes = Magnitudes(real_of(types))
        #: Columns of magnitudes for a line of A and of B.
        self.forms = (1, PARTS if "planes" in types else 1)
        self.limit, self.exponent = norm_limit(counts[0])

    @cute.jit
    def __call__(self, mA: cute.Tensor, sA: cute.Tensor, mB: cute.Tensor, sB: cute.Tensor, grid: Int32, guard=None):
        self.kernel(mA, sA, mB, sB, guard).launch(
            grid=(grid, 1, 1),
            block=(THREADS, 1, 1),
            min_blocks_per_mp=self.resident,
            # Given, so that the compiler needs no driver; the launch recipe decides.
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, sA: cute.Tensor, mB: cute.Tensor, sB: cute.Tensor, guard=None):
        # Let the dependent grid launch; it waits for this one's end before it reads.
        cute.arch.griddepcontrol_launch_dependents()
        smem = SmemAllocator()
        sums = smem.allocate_tensor(Float64, cute.make_layout(THREADS), 16)
        exponents = smem.allocate_tensor(Int32, cute.make_layout(2 * THREADS), 16)
        cta, _, _ = cute.arch.block_idx()
        if cutlass.const_expr(self.guarded):
            # Pairs of lines are compared meanwhile, which began when all elements had been written and the words set.
            # Warps of a CTA may see the flag differently while it is being set: then nothing that they write is read.
            if not is_refused(guard[0]):
                self.measure_line((mA, sA, guard[4]), (mB, sB, guard[5]), guard, (sums, exponents), cta)
            if cta == 0:
                # A grid must not end before its predecessor.
                cute.arch.griddepcontrol_wait()
        else:
            cute.arch.griddepcontrol_wait()
            self.measure_line((mA, sA, None), (mB, sB, None), None, (sums, exponents), cta)

    @cute.jit
    def measure_line(self, a, b, guard, shared, cta):
        """Measure a line of A or of B, or several contiguous ones; each is given with its scales and magnitudes.

        CTAs with MN-major lines take longer: they are first. Then come some of the others, evenly spread, so that many
        lines that cannot be scaled refuse the product before all are measured.
        """
        side = cutlass.const_expr(1 if self.along[0] and not self.along[1] else 0)
        first, second = (b, a) if cutlass.const_expr(side) else (a, b)
        firsts, seconds = self.early_ctas(first[0], side), self.early_ctas(second[0], 1 - side)
        every = firsts * EARLY_PERIOD if cutlass.const_expr(self.along[side]) else firsts
        is_late = cta >= firsts + seconds
        if cta < firsts or (is_late and cta < every + seconds):
            own = cta - select_(is_late, seconds, Int32(0))
            self.measure(first, guard, shared, self.spread(own, firsts, side), side)
        else:
            own = cta - select_(is_late, every, firsts)
            self.measure(second, guard, shared, self.spread(own, seconds, 1 - side), 1 - side)

    @cute.jit
    def early_ctas(self, mS: cute.Tensor, side: cutlass.Constexpr[int]):
        """Return how many CTAs of an operand are among the first."""
        ctas = cute.ceil_div(mS.shape[1], self.lines(side))
        return cute.ceil_div(ctas, EARLY_PERIOD) if cutlass.const_expr(self.along[side]) else ctas

    def spread(self, cta: Any, early: Any, side: int) -> tuple[Any, Any]:
        """Return which lines of an operand its CTA measures, and whether these are among the first of many."""
        if self.along[side]:
            return cta % early * EARLY_PERIOD + cta // early, cta < early
        return cta, False

    def lines(self, side: int) -> int:
        """Return how many lines of A (`side` 0) or B a CTA measures."""
        return self.together if self.along[side] else self.across

    @cute.jit
    def measure(self, matrices, guard, shared, group, side: cutlass.Constexpr[int]):
        """Add the squares of a group of contiguous lines, in units of each one's largest exponent."""
        mS, scales, _ = matrices
        (sums, exponents), (cta, is_early) = shared, group
        tid, _, _ = cute.arch.thread_idx()
        along, lines = cutlass.const_expr(self.along[side]), cutlass.const_expr(self.lines(side))
        if cutlass.const_expr(self.guarded):
            if tid < lines:
                exponents[_LISTED + tid] = Int32(0)
            cute.arch.sync_threads()
        step = cutlass.const_expr(THREADS // lines)
        # Contiguous threads have contiguous elements, of a K-major line or of as many others.
        inside, first = (tid // step, tid % step) if cutlass.const_expr(along) else (tid % lines, tid // lines)
        own = (cta * lines + inside, exponents.iterator + _LISTED + inside, (side, is_early))
        measured, refused = self.sum_of_squares(mS, own, guard, first, (step, along))
        of_warp = cutlass.const_expr(1 if along else lines)
        total, exponent, logarithms = self.warp_sum(measured, of_warp)
        if tid % 32 < of_warp:
            place = tid // 32 * of_warp + tid % 32
            sums[place], exponents[place], exponents[_LOGARITHMS + place] = total, exponent, logarithms
        cute.arch.sync_threads()
        line = cta * lines + tid
        if tid < lines and line < mS.shape[1]:
            warps = cutlass.const_expr(step // 32 if along else THREADS // 32)
            begin = tid * warps if cutlass.const_expr(along) else tid
            total, exponent, logarithms = self.sum_of_warps(sums, exponents, begin, warps, of_warp)
            found = self.scale(total, exponent)
            scales[line] = found
            if cutlass.const_expr(self.guarded):
                # Of scaled elements. Zeros count as 2**-BIAS, which must be small beside others.
                of_line = Int64(logarithms) + Int64(mS.shape[0]) * Int64(found - BIAS)
                of_line = Int64(select_(exponent > MEAN_SPAN, of_line, Int64(-1)))
                if found < ZERO_LINE and of_line < Int64(guard[3]):
                    cute.arch.atomic_max(guard[0].iterator + UNCERTAIN, Int32(1), sem="relaxed", scope="gpu")
                # Other elements than those that are read now.
                exponents[_SCALES + tid] = found
                self.list_once(exponent == SPECIAL, (line, exponents.iterator + _LISTED + tid, own[2]), guard[0])
        if cutlass.const_expr(self.guarded):
            if tid == 0:
                exponents[THREADS - 1] = Int32(refused)
            cute.arch.sync_threads()
            # What one thread has seen, as all of the CTA must take the same way.
            if exponents[THREADS - 1] == 0:
                self.encode(matrices, guard, exponents, (cta * lines, is_early), side)

    @cute.jit
    def encode(self, matrices, guard, words, group, side: cutlass.Constexpr[int]):
        """Encode samples of lines, and list those whose samples are all small."""
        (mS, scales, mE), (first, is_early) = matrices, group
        tid, _, _ = cute.arch.thread_idx()
        lines, forms = cutlass.const_expr(self.lines(side)), cutlass.const_expr(self.forms[side])
        columns = cutlass.const_expr(lines * forms)
        largest = self.magnitudes.encode((mS, mE), words, first, guard[1], lines, forms)
        for bit in cutlass.range_constexpr(5):
            if cutlass.const_expr(2**bit >= columns):
                largest = cutlass.max(largest, cute.arch.shuffle_sync_bfly(largest, offset=2**bit))
        if tid % 32 < columns:
            words[tid // 32 * columns + tid % 32] = largest
        cute.arch.sync_threads()
        if tid < columns and first + tid // forms < mS.shape[1]:
            for warp in cutlass.range_constexpr(THREADS // 32):
                largest = cutlass.max(largest, words[warp * columns + tid])
            if largest < guard[2]:
                self.magnitudes.fill(mE, first * forms + tid)
                scales[first + tid // forms] = Int32(NOT_EMULATED)
                list_line(first + tid // forms, side, guard[0], is_early)

    @cute.jit
    def warp_sum(self, found, lines: cutlass.Constexpr[int]):
        """Return what the lanes that have the same of contiguous lines have `found` together."""
        total, exponent, logarithms = found
        largest = exponent
        for bit in cutlass.range_constexpr(5):
            if cutlass.const_expr(2**bit >= lines):
                largest = cutlass.max(largest, cute.arch.shuffle_sync_bfly(largest, offset=2**bit))
        total = total * ratio(exponent, largest)
        for bit in cutlass.range_constexpr(5):
            if cutlass.const_expr(2**bit >= lines):
                total = total + cute.arch.shuffle_sync_bfly(total, offset=2**bit)
                if cutlass.const_expr(self.guarded):
                    logarithms = logarithms + cute.arch.shuffle_sync_bfly(logarithms, offset=2**bit)
        return total, largest, logarithms

    @cute.jit
    def sum_of_warps(
        self,
        sums: cute.Tensor,
        exponents: cute.Tensor,
        first,
        warps: cutlass.Constexpr[int],
        of_warp: cutlass.Constexpr[int],
    ):
        """Return what the warps have found of a line, from the `first` on, together."""
        total, largest, logarithms = Float64(0.0), Int32(1), Int32(0)
        for warp in cutlass.range_constexpr(warps):
            largest = cutlass.max(largest, exponents[first + warp * of_warp])
        for warp in cutlass.range_constexpr(warps):
            total = total + sums[first + warp * of_warp] * ratio(exponents[first + warp * of_warp], largest)
            logarithms = logarithms + exponents[_LOGARITHMS + first + warp * of_warp]
        return total, largest, logarithms

    @cute.jit
    def sum_of_squares(self, mS: cute.Tensor, own, guard, first, form: cutlass.Constexpr[tuple[int, bool]]):
        """Return what is found of some elements of a line, and if it was given up.

        That is the sum of their squares, the exponent of its unit, and the sum of their exponents.
        """
        line, step, ahead = (
            own[0],
            cutlass.const_expr(form[0]),
            cutlass.const_expr(self.ahead if form[1] else self.deep),
        )
        length = mS.shape[0] if line < mS.shape[1] else Int32(0)
        found, refused = (Float64(0.0), Int32(1), Int32(0)), Boolean(False)
        span = cutlass.const_expr(step * ahead * (_ROUNDS if form[1] else _ROUNDS_ACROSS))
        # Of MN-major lines, which take many rounds, a half of the next one is loaded when that of this one is added.
        halves = [cute.make_rmem_tensor(cute.make_layout(ahead // 2), Float64) for _ in range(2)]
        if cutlass.const_expr(not form[1]):
            for half in cutlass.range_constexpr(2):
                self.load(halves[half], mS, line, (first + half * (span // 2), length, step))
        for begin in cutlass.range(0, length, span, unroll=1):
            if not refused:
                seen = Boolean(False)
                if cutlass.const_expr(self.guarded):
                    # Loaded with the elements, used after them.
                    seen = is_refused(guard[0])
                if cutlass.const_expr(form[1]):
                    end = cutlass.min(length, begin + span)
                    for place in cutlass.range(begin + first, end, step * ahead):
                        values = cute.make_rmem_tensor(cute.make_layout(ahead), Float64)
                        self.load(values, mS, line, (place, end, step))
                        found = self.add_squares(values, found)
                else:
                    for half in cutlass.range_constexpr(2):
                        found = self.add_squares(halves[half], found)
                        self.load(halves[half], mS, line, (begin + span + first + half * (span // 2), length, step))
                if cutlass.const_expr(self.guarded):
                    # At once: these lines may take as long as all others.
                    self.list_once(found[1] == SPECIAL, own, guard[0])
                    refused = seen
        return found, refused

    @cute.jit
    def load(self, values: cute.Tensor, mS: cute.Tensor, line, places):
        """Load elements of a line, zeros beyond its end; `places` are the first, the end, and the step between them."""
        first, end, step = places
        values.fill(0.0)
        for e in cutlass.range_constexpr(cute.size(values)):
            if first + e * step < end:
                number = mS[first + e * step, line]
                values[e] = number if cutlass.const_expr(self.is_double) else Float64(number)

    @cute.jit
    def add_squares(self, values: cute.Tensor, found):
        """Return what was found before, with some elements added."""
        total, exponent, logarithms = found
        ahead = cutlass.const_expr(cute.size(values))
        words = cute.recast_tensor(values, Int32)
        largest = exponent
        for e in cutlass.range_constexpr(ahead):
            biased = (words[2 * e + 1] & 0x7FFFFFFF) >> (FRACTION - 32)
            # Beyond the end there are zeros.
            largest, logarithms = cutlass.max(largest, biased), logarithms + biased
        total = total * ratio(exponent, largest)
        unit = biased_power(2 * BIAS - 1 - cutlass.min(largest, _MOST))
        for e in cutlass.range_constexpr(ahead):
            part = values[e] * unit
            total = total + part * part
        return total, largest, logarithms

    @cute.jit
    def list_once(self, is_special, own, shortfall: cute.Tensor):
        """List a line with a number that is not finite, by the first of its threads: line, its mark, and its kind."""
        line, mark, (side, is_early) = own
        if is_special:
            before = cute.arch.atomic_exch(mark, Int32(1), sem="relaxed", scope="cta")
            if before == 0:
                list_line(line, side, shortfall, is_early)

    @cute.jit
    def scale(self, total, exponent):
        """Return the largest scale with which the norm stays below its limit; 0 for a line of zeros."""
        bits = total.bitcast(Int64)
        of_total = Int32(bits >> FRACTION) - BIAS
        fraction = ((bits & (2**FRACTION - 1)) | (BIAS << FRACTION)).bitcast(Float64)
        beyond = of_total + 2 * (cutlass.min(exponent, _MOST) - BIAS + 1) + (1 if fraction > self.limit else 0)
        found = (self.exponent - beyond) >> 1
        if total == 0.0:
            found = Int32(ZERO_LINE if self.guarded else 0)
        if exponent == SPECIAL:
            found = Int32(NOT_EMULATED)
        return found


@cute.jit
def ratio(exponent, largest):
    """Return the factor of squares when their unit grows; 0 where they underflow."""
    field = BIAS + 2 * (cutlass.min(exponent, _MOST) - cutlass.min(largest, _MOST))
    return biased_power(cutlass.max(field, 0))


def buildable(config: ScalesConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    arguments = []
    for name in "ab":
        arguments += [major_tensor(real_of(types), 0 if types[f"{name}_major"] == "k" else 1), tensor_1d("int32")]
    kernel = OzakiScales(config, types)
    magnitudes = (major_tensor("uint8", 0, vector=16) for _ in "ab")
    guard = ((tensor_1d("int32"), *(Int32(1) for _ in range(3)), *magnitudes),) if kernel.guarded else ()
    return Buildable(kernel, (*arguments, Int32(1), *guard))
