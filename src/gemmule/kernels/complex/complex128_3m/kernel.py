"""complex128 GEMM by three real products for each complex one (3M) on the float64 tensor cores, all layouts.

Idea
    Re = Ar Br - Ai Bi, Im = (Ar + Ai)(Br + Bi) - Ar Br - Ai Bi: three real products instead of four, with three
    accumulators for each element. Sums of parts are made of fragments in registers.
Change from complex128_gemm
    The mainloop, and the parts of the result made from accumulators; schedulers, copies and epilogue are the same.
Data movement
    The tile of 128 x 64 elements: 21 FLOP a byte. For 8 of K a warp reads 8 KiB of fragments of shared memory for its
    32 x 32 accumulators, and adds 16 times for 48 instructions of 16 x 8 x 4.
Limits
    The tensor cores, and power at large sizes. 192 registers of a thread are accumulators. The error of the imaginary
    part is bounded by all parts of A and B (docs/complex.md); an infinity makes it NaN.
Sources
    Higham, "Stability of a method for multiplying complex matrices with three real matrix multiplications", SIAM J.
    Matrix Anal. Appl. 13, 1992.
"""

from __future__ import annotations

from gemmule.core.spec import Buildable
from gemmule.kernels.complex.complex128.kernel import Complex128Gemm, fake_arguments
from gemmule.kernels.complex.complex128.stream_k import StreamKComplex128Gemm, fake_shares
from gemmule.kernels.complex.config import Complex128ThreeMConfig
from gemmule.kernels.parts.schedulers.data_parallel import RasterTileScheduler

from .mainloop import ThreeMMainloop


class ThreeMGemm(Complex128Gemm):
    """The complex128 GEMM by three real products."""

    mainloop_type = ThreeMMainloop


class StreamKThreeMGemm(StreamKComplex128Gemm):
    """The complex128 GEMM by three real products and persistent CTAs."""

    mainloop_type = ThreeMMainloop


def buildable(config: Complex128ThreeMConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    arguments = fake_arguments(types)
    if config.stream_k:
        return Buildable(StreamKThreeMGemm(config, types), (*arguments, fake_shares()))
    return Buildable(ThreeMGemm(config, types), (*arguments, *RasterTileScheduler.fake_args()))
