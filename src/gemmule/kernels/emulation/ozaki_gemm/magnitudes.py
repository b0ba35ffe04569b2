"""Magnitudes for the guard: samples of lines in float8_e5m2, rounded down, by the CTA that has measured the lines.

The exponent and two bits of the fraction of a float64, with the exponent moved by the scale of its line, are a
float8_e5m2: three instructions on the upper word. Of a long K only some runs of 16 elements are read, from a cache. A
complex column of B is two: as it is, for the real part of the product, and with its parts exchanged, for the imaginary
one.
"""

from __future__ import annotations

import cutlass
from cutlass import Float64, Int32, Uint32, cute

from gemmule.core.dtype import dtype_named
from gemmule.kernels.emulation.float64_bits import BIAS, FRACTION
from gemmule.kernels.emulation.guard import MAGNITUDE_SHIFTS, SAMPLE_RUN, ZERO_LINE
from gemmule.kernels.emulation.ozaki_config import THREADS
from gemmule.kernels.parts.words import packed, words_at

# Bits of the fraction, the bias of the exponent, and the largest finite number, as an integer.
_FRACTION, _BIAS, _MOST = 2, 15, 0x7B
#: Elements of a run that a thread encodes at a time.
_PART = 8


class Magnitudes:
    """E[:, j] = |S[samples, j]| * 2**(scale[j] - shift), rounded down, for lines of a matrix (length, lines)."""

    def __init__(self, real: str) -> None:
        self.is_double, self.shift = real == "float64", MAGNITUDE_SHIFTS[dtype_named(real)]

    @cute.jit
    def encode(
        self,
        matrices,
        words: cute.Tensor,
        first_line,
        period,
        lines: cutlass.Constexpr[int],
        forms: cutlass.Constexpr[int],
    ):
        """Encode samples of contiguous lines, half a run by a thread, and return the largest of this thread's.

        Contiguous threads have contiguous lines, and a thread has only one.

        Parameters
        ----------
        matrices : tuple of Tensor
            S, and E, which has `forms` columns for each line.
        words : Tensor
            Shared memory; its second half begins with the lines' scales.
        first_line : Int32
            The first of the `lines`.
        period : Int32
            Period of the sampled runs along K.
        """
        mS, mE = matrices
        tid, _, _ = cute.arch.thread_idx()
        columns, largest = cutlass.const_expr(lines * forms), Int32(0)
        for number in cutlass.range(tid, mE.shape[0] // _PART * columns, THREADS, unroll=1):
            column, sample = number % columns, number // columns * _PART
            source, k = first_line + column // forms, sample // SAMPLE_RUN * (SAMPLE_RUN * period) + sample % SAMPLE_RUN
            if source < mS.shape[1]:
                scale = words[THREADS // 2 + column // forms]
                found, largest = self.packed_part(mS, (source, k, column % forms), scale, largest)
                start = mE.iterator + cute.crd2idx((sample, first_line * forms + column), mE.layout)
                cute.autovec_copy(found, words_at(start, _PART // 4))
        return largest

    @cute.jit
    def fill(self, mE: cute.Tensor, column):
        """Write the largest magnitudes, so that all sums with a line pass."""
        words = cute.make_rmem_tensor(cute.make_layout(4), Uint32)
        words.fill(_MOST * 0x01010101)
        for sample in cutlass.range(0, mE.shape[0], 16, unroll=1):
            cute.autovec_copy(words, words_at(mE.iterator + cute.crd2idx((sample, column), mE.layout), 4))

    @cute.jit
    def packed_part(self, mS: cute.Tensor, place, scale, largest):
        """Return part of a run, packed, and the largest magnitude of it and of those before.

        `place` is the line, the first element, and 1 to exchange parts or 0.
        """
        line, first, exchanged = place
        values = cute.make_rmem_tensor(cute.make_layout(_PART), Float64)
        values.fill(0.0)
        for e in cutlass.range_constexpr(_PART):
            if first + e < mS.shape[0]:
                number = mS[first + (e ^ exchanged), line]
                values[e] = number if cutlass.const_expr(self.is_double) else Float64(number)
        words = cute.recast_tensor(values, Uint32)
        moved = (scale - self.shift + _BIAS - BIAS) << _FRACTION
        found = cute.make_rmem_tensor(cute.make_layout(_PART // 4), Uint32)
        for w in cutlass.range_constexpr(_PART // 4):
            four = cute.make_rmem_tensor(cute.make_layout(4), Uint32)
            for e in cutlass.range_constexpr(4):
                upper = words[2 * (4 * w + e) + 1] & Uint32(0x7FFFFFFF)
                bits = cutlass.min(cutlass.max(Int32(upper >> (FRACTION - 32 - _FRACTION)) + moved, 0), _MOST)
                # Subnormal float64 have no such exponent: they count as zeros. Lines of zeros, and those that are
                # listed already, pass.
                normal = upper >= Uint32(1 << (FRACTION - 32))
                exponent = bits if normal or scale >= ZERO_LINE else Int32(0)
                four[e], largest = Uint32(exponent), cutlass.max(largest, exponent)
            found[w] = packed(four)
        return found, largest
