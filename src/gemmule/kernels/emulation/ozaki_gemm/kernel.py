"""Ozaki scheme II, scales: powers of two that make integers of A's rows and B's columns, products staying in range.

Idea
    float64 products on the tensor cores, which multiply bytes: A and B are made integers of up to 58 bits, these are
    represented by their residues for 15 small moduli, and by the Chinese remainder theorem the residues of the products
    determine the product of the integers. This first launch finds how large the integers may be: by Cauchy and Schwarz
    a dot product is at most the product of two norms.
Change from the rung before
    Nothing is written for an element, one number for a line along K. The dependent launches write and read the rest.
    With a guard some CTAs look for pairs of lines that it must refuse: such a product is spared most of the guard.
Data movement
    Every element is read once, 8 bytes.
Limits
    Memory.
Sources
    Ozaki, Uchino and Imamura 2025, "Ozaki Scheme II: A GEMM-oriented emulation of floating-point matrix multiplication
    using an integer modular technique"; Uchino, Ozaki and Imamura 2025, "High-Performance and Power-Efficient Emulation
    of Matrix Multiplication using INT8 Matrix Engines".
"""

from __future__ import annotations

import cutlass
from cutlass import Float64, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.float64_bits import BIAS, FRACTION, SPECIAL, biased_power
from gemmule.kernels.emulation.guard import NEVER, ZERO_LINE
from gemmule.kernels.emulation.moduli import counts_of, real_of
from gemmule.kernels.emulation.ozaki_config import ACROSS, NOT_FINITE, PAIR_CTAS, THREADS, ScalesConfig
from gemmule.kernels.emulation.residues import norm_limit
from gemmule.kernels.parts.tensors import major_tensor, tensor_1d

from .early_refusal import EarlyRefusal, is_refused

# The largest exponent whose reciprocal is a normal number.
_MOST = 2044


class OzakiScales:
    """S[j] = the exponent of line j's scale for two matrices of float64 or float32 (length, lines), anywhere."""

    def __init__(self, config: ScalesConfig, types: dict[str, str]) -> None:
        self.ahead = config.ahead
        self.along = (types["a_major"] == "k", types["b_major"] == "k")
        counts, self.is_double = counts_of(types), real_of(types) == "float64"
        self.guarded = len(counts) > 1
        self.early = EarlyRefusal(config.ahead, self.is_double, self.along)
        self.limit, self.exponent = norm_limit(counts[0])

    @cute.jit
    def __call__(self, mA: cute.Tensor, sA: cute.Tensor, mB: cute.Tensor, sB: cute.Tensor, grid: Int32, guard=None):
        self.kernel(mA, sA, mB, sB, guard).launch(grid=(grid, 1, 1), block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(self, mA: cute.Tensor, sA: cute.Tensor, mB: cute.Tensor, sB: cute.Tensor, guard=None):
        # Let the dependent grid launch; it waits for this one's end before it reads.
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        smem = SmemAllocator()
        sums = smem.allocate_tensor(Float64, cute.make_layout(THREADS), 16)
        exponents = smem.allocate_tensor(Int32, cute.make_layout(THREADS), 16)
        cta, _, _ = cute.arch.block_idx()
        if cutlass.const_expr(self.guarded):
            # These run first, and what is refused need not be measured.
            if cta < PAIR_CTAS:
                self.early.compare((mA, mB), guard, sums, cta)
            # Warps of a CTA may see the flag differently while it is being set: then nothing that they write is read.
            elif not is_refused(guard[0]):
                self.measure_line((mA, sA), (mB, sB), guard[0], (sums, exponents), cta - PAIR_CTAS)
        else:
            self.measure_line((mA, sA), (mB, sB), None, (sums, exponents), cta)

    @cute.jit
    def measure_line(self, a, b, shortfall, shared, cta):
        """Measure a line of A or of B, or several contiguous ones; each is given with its scales."""
        (first, along), (second, other) = (a, self.along[0]), (b, self.along[1])
        if cutlass.const_expr(along and not other):
            # CTAs with several lines take longer: they are first.
            (first, along), (second, other) = (b, other), (a, along)
        firsts = cute.ceil_div(first[0].shape[1], 1 if along else ACROSS)
        if cta < firsts:
            self.measure(first[0], (first[1], shortfall), *shared, cta, along)
        else:
            self.measure(second[0], (second[1], shortfall), *shared, cta - firsts, other)

    @cute.jit
    def measure(self, mS: cute.Tensor, results, sums, exponents, cta, along: cutlass.Constexpr[bool]):
        """Add the squares of a line, or of several contiguous ones, in units of its largest exponent."""
        tid, _, _ = cute.arch.thread_idx()
        lines = cutlass.const_expr(1 if along else ACROSS)
        step = cutlass.const_expr(THREADS // lines)
        line = cta * lines + tid % lines
        length = mS.shape[0] if line < mS.shape[1] else Int32(0)
        total, exponent = Float64(0.0), Int32(1)
        for first in cutlass.range(tid // lines, length, step * self.ahead):
            values = cute.make_rmem_tensor(cute.make_layout(self.ahead), Float64)
            values.fill(0.0)
            for e in cutlass.range_constexpr(self.ahead):
                if first + e * step < length:
                    number = mS[first + e * step, line]
                    values[e] = number if cutlass.const_expr(self.is_double) else Float64(number)
            words = cute.recast_tensor(values, Int32)
            largest = exponent
            for e in cutlass.range_constexpr(self.ahead):
                largest = cutlass.max(largest, (words[2 * e + 1] & 0x7FFFFFFF) >> (FRACTION - 32))
            total = total * ratio(exponent, largest)
            exponent = largest
            unit = biased_power(2 * BIAS - 1 - cutlass.min(exponent, _MOST))
            for e in cutlass.range_constexpr(self.ahead):
                part = values[e] * unit
                total = total + part * part
        sums[tid], exponents[tid] = total, exponent
        half = cutlass.const_expr(THREADS // 2)
        while cutlass.const_expr(half >= lines):
            cute.arch.sync_threads()
            if tid < half:
                other = exponents[tid + half]
                largest = cutlass.max(exponent, other)
                total = total * ratio(exponent, largest) + sums[tid + half] * ratio(other, largest)
                exponent = largest
                sums[tid], exponents[tid] = total, exponent
            half = cutlass.const_expr(half // 2)
        if tid < lines and line < mS.shape[1]:
            scales, shortfall = results
            scales[line] = self.scale(total, exponent)
            if cutlass.const_expr(self.guarded):
                self.mark(exponent, shortfall)

    @cute.jit
    def mark(self, exponent, shortfall: cute.Tensor):
        """Mark the product as one that is not emulated where a line has an element that is not finite."""
        if exponent == SPECIAL:
            cute.arch.atomic_max(shortfall.iterator, Int32(NEVER), sem="relaxed", scope="gpu")

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
            found = Int32(NOT_FINITE)
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
    guard = ((tensor_1d("int32"), Int32(1), Float64(1)),) if kernel.guarded else ()
    return Buildable(kernel, (*arguments, Int32(1), *guard))
