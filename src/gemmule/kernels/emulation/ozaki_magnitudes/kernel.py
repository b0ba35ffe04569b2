"""Ozaki scheme II, guard: magnitudes of samples of A's rows and B's columns, rounded down to float8_e5m2.

Idea
    The exponent and two bits of the fraction of a float64, with the exponent moved by the scale of its line, are a
    float8_e5m2: three instructions on the upper word.
Change from the rung before
    Of a long K only some runs of 16 elements are read. A complex column of B is two: as it is, for the real part of the
    product, and with its parts exchanged, for the imaginary one.
Data movement
    A sixteenth of A and B is read, and an eighth of that written.
Limits
    Memory, and the launch.
Sources
    As of ozaki_guard.
"""

from __future__ import annotations

import cutlass
from cutlass import Float64, Int32, Uint32, cute

from gemmule.core.dtype import dtype_named
from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.float64_bits import BIAS, FRACTION
from gemmule.kernels.emulation.guard import MAGNITUDE_SHIFTS, NEVER, SAMPLE_RUN, ZERO_LINE
from gemmule.kernels.emulation.moduli import real_of
from gemmule.kernels.emulation.ozaki_config import PARTS, THREADS, MagnitudesConfig
from gemmule.kernels.parts.tensors import major_tensor, tensor_1d
from gemmule.kernels.parts.words import packed, words_at

# Bits of the fraction, the bias of the exponent, and the largest finite number, as an integer.
_FRACTION, _BIAS, _MOST = 2, 15, 0x7B


class OzakiMagnitudes:
    """E[:, j] = |S[samples, j]| * 2**(scale[j] - 40), rounded down, for two matrices (length, lines)."""

    def __init__(self, config: MagnitudesConfig, types: dict[str, str]) -> None:
        del config
        self.along = (types["a_major"] == "k", types["b_major"] == "k")
        self.is_double, self.shift = real_of(types) == "float64", MAGNITUDE_SHIFTS[dtype_named(real_of(types))]
        # Forms of a column of B.
        self.forms = PARTS if "planes" in types else 1

    @cute.jit
    def __call__(self, mA, sA: cute.Tensor, eA: cute.Tensor, mB, sB: cute.Tensor, eB: cute.Tensor, guard, grid: Int32):
        self.kernel(mA, sA, eA, mB, sB, eB, guard).launch(grid=(grid, 1, 1), block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(self, mA: cute.Tensor, sA: cute.Tensor, eA: cute.Tensor, mB: cute.Tensor, sB: cute.Tensor, eB, guard):
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        cta, _, _ = cute.arch.block_idx()
        firsts = cute.ceil_div(eA.shape[0] // SAMPLE_RUN * eA.shape[1], THREADS)
        shortfall, period = guard
        if shortfall[0] != NEVER:
            if cta < firsts:
                self.encode((mA, sA, eA), cta, period, self.along[0], 1)
            else:
                self.encode((mB, sB, eB), cta - firsts, period, self.along[1], self.forms)

    @cute.jit
    def encode(self, matrices, cta, period, along: cutlass.Constexpr[bool], forms: cutlass.Constexpr[int]):
        """Encode a run for each thread; contiguous threads read contiguous elements."""
        mS, scales, mE = matrices
        tid, _, _ = cute.arch.thread_idx()
        number, runs, lines = Uint32(cta * THREADS + tid), Uint32(mE.shape[0] // SAMPLE_RUN), Uint32(mE.shape[1])
        if number < runs * lines:
            if cutlass.const_expr(along):
                line, run = Int32(number // runs), Int32(number % runs)
            else:
                line, run = Int32(number % lines), Int32(number // lines)
            first = run * SAMPLE_RUN * period
            values = cute.make_rmem_tensor(cute.make_layout(SAMPLE_RUN), Float64)
            values.fill(0.0)
            source, exchanged = line, Int32(0)
            if cutlass.const_expr(forms > 1):
                source, exchanged = line // forms, line % forms
            for e in cutlass.range_constexpr(SAMPLE_RUN):
                if first + e < mS.shape[0]:
                    number_of = mS[first + (e ^ exchanged), source]
                    values[e] = number_of if cutlass.const_expr(self.is_double) else Float64(number_of)
            scale, words = scales[source], cute.recast_tensor(values, Uint32)
            moved = (scale - self.shift + _BIAS - BIAS) << _FRACTION
            found = cute.make_rmem_tensor(cute.make_layout(4), Uint32)
            for w in cutlass.range_constexpr(4):
                four = cute.make_rmem_tensor(cute.make_layout(4), Uint32)
                for e in cutlass.range_constexpr(4):
                    upper = words[2 * (4 * w + e) + 1] & Uint32(0x7FFFFFFF)
                    bits = cutlass.min(cutlass.max(Int32(upper >> (FRACTION - 32 - _FRACTION)) + moved, 0), _MOST)
                    # Subnormal float64 have no such exponent: they count as zeros.
                    normal = upper >= Uint32(1 << (FRACTION - 32))
                    four[e] = Uint32(bits if normal or scale == ZERO_LINE else Int32(0))
                found[w] = packed(four)
            start = mE.iterator + cute.crd2idx((run * SAMPLE_RUN, line), mE.layout)
            cute.autovec_copy(found, words_at(start, 4))


def buildable(config: MagnitudesConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    arguments = []
    for name in "ab":
        arguments += [
            major_tensor(real_of(types), 0 if types[f"{name}_major"] == "k" else 1),
            tensor_1d("int32"),
            major_tensor("uint8", 0, vector=16),
        ]
    return Buildable(OzakiMagnitudes(config, types), (*arguments, (tensor_1d("int32"), Int32(1)), Int32(1)))
