"""Stream-K for the complex128 GEMM: that of float64, with the mainloop and the epilogue of complex elements."""

from __future__ import annotations

from typing import Any

from cutlass import Float64, cute

from gemmule.kernels.complex.epilogue import ComplexEpilogue
from gemmule.kernels.float64.gemm.shared_tiles import fake_shares
from gemmule.kernels.float64.gemm.stream_k import StreamKFloat64Gemm
from gemmule.kernels.parts.complex_parts import is_used

from .mainloop import Complex128Mainloop
from .warp_tile_writes import WarpTileWrites

__all__ = ["StreamKComplex128Gemm", "fake_shares"]


class StreamKComplex128Gemm(WarpTileWrites, StreamKFloat64Gemm):
    """The complex128 GEMM by persistent CTAs; the last argument is as of `StreamKFloat64Gemm`."""

    mainloop_type = Complex128Mainloop

    def epilogue_of(self, types: dict[str, str]) -> Any:
        """As of `StreamKFloat64Gemm`."""
        return ComplexEpilogue(Float64, types)

    @cute.jit
    def thread(self):
        """As of `StreamKFloat64Gemm`."""
        tid, _, _ = cute.arch.thread_idx()
        return tid

    @cute.jit
    def write_tile(self, results, accumulators: cute.Tensor, origin, corner, factors):
        """As of `StreamKFloat64Gemm`."""
        place, mirrored = (origin[0] + corner[0], origin[1] + corner[1]), self.epilogue.is_mirrored(*origin)
        self.write(*results, accumulators, place, factors, mirrored, self.mainloop.columns)

    def is_used(self, alpha: Any) -> Any:
        """As of `StreamKFloat64Gemm`."""
        return is_used(alpha) != 0
