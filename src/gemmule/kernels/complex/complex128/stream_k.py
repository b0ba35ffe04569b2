"""Stream-K for the complex128 GEMM: that of float64 with the mainloop and the epilogue of complex elements."""

from __future__ import annotations

from typing import Any

from cutlass import Float64, Int32, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.complex.config import Complex128Config
from gemmule.kernels.complex.epilogue import ComplexEpilogue
from gemmule.kernels.float64.gemm.shared_tiles import SharedTiles
from gemmule.kernels.float64.gemm.stream_k import StreamKFloat64Gemm
from gemmule.kernels.parts.complex_parts import is_used
from gemmule.kernels.parts.tensors import tensor_1d

from .kernel import write_warp_tile
from .mainloop import Complex128Mainloop


@dataclass(frozen=True)
class _WarpTileEpilogue:
    """The epilogue of complex elements, with the methods of `Float64Epilogue`."""

    elements: ComplexEpilogue

    def thread(self) -> Any:
        """Return the number of this thread."""
        tid, _, _ = cute.arch.thread_idx()
        return tid

    @cute.jit
    def write(self, gD: cute.Tensor, gC: cute.Tensor, rC: cute.Tensor, m, n, alpha, beta):
        """Write a warp tile, which begins at (m, n)."""
        write_warp_tile(self.elements, (gD, gC), rC, (m, n), (alpha, beta), False)


class StreamKComplex128Gemm(StreamKFloat64Gemm):
    """The complex128 GEMM by persistent CTAs; the last argument as of `StreamKFloat64Gemm`."""

    def __init__(self, config: Complex128Config, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.mainloop = Complex128Mainloop(config, types)
        self.epilogue = _WarpTileEpilogue(ComplexEpilogue(Float64, types))

    def fill(self, own: Any, operands: Any, work: Any, alpha: Any) -> None:
        """Issue the copies of the first k-tiles of a part."""
        super().fill(own, operands, work, is_used(alpha))

    def multiply_filled(self, own: Any, operands: Any, work: Any, alpha: Any) -> None:
        """Fill the accumulators with the product of a part, whose first k-tiles are in flight."""
        super().multiply_filled(own, operands, work, is_used(alpha))


def fake_shares() -> Any:
    """Return fake workspaces, and what the host divides, for the compiler."""
    return (tensor_1d("float64"), tensor_1d("uint64"), *(Int32(1) for _ in SharedTiles._fields))
