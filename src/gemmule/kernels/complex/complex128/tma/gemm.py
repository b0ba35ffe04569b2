"""The complex128 GEMM by TMA: that of float64, whose tensor maps are of the parts of elements."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, cute

from gemmule.kernels.complex.config import Complex128Config
from gemmule.kernels.complex.epilogue import ComplexEpilogue
from gemmule.kernels.float64.config import COLUMNS, TMA_BYTES
from gemmule.kernels.float64.gemm.shared_tiles import SharedTileScheduler
from gemmule.kernels.float64.gemm.tma import TmaFloat64Gemm
from gemmule.kernels.float64.stage import ROWS
from gemmule.kernels.hopper.mainloops.operands import OperandStages, TmaLoad, TmaTensor
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .mainloop import TmaComplex128Mainloop

#: Parts of an element, and elements of K of a line.
_PARTS, _DEPTH = 2, TMA_BYTES // 16


class PartStages:
    """Stages of A and B as real matrices: parts are contiguous elements of K (K-major), or of M or N."""

    def __init__(self, tile: tuple[int, int], k_major: tuple[bool, bool], num_stages: int) -> None:
        self.a, self.b = (
            OperandStages((extent, extent, depth), (Float64, Float64), (major, major), num_stages)
            for extent, depth, major in (
                (rows, _PARTS * _DEPTH, major) if major else (_PARTS * rows, _DEPTH, major)
                for rows, major in zip(tile, k_major, strict=True)
            )
        )

    def tma_a(self, mA: Any) -> TmaTensor:
        """Return the TMA load of the k-tiles of A."""
        return self.a.tma_a(mA)

    def tma_b(self, mB: Any) -> TmaTensor:
        """Return the TMA load of the k-tiles of B."""
        return self.b.tma_b(mB)

    def allocate(self, smem: Any) -> tuple[Any, Any]:
        """Allocate the stages, as of `OperandStages`."""
        a, b = (
            smem.allocate_tensor(Float64, layout.outer, 1024, swizzle=layout.inner)
            for layout in (self.a.layout_a(), self.b.layout_b())
        )
        return a, b

    def load_a(self, a: TmaTensor, sA: Any) -> TmaLoad:
        """Return the load of A's k-tiles into sA."""
        return self.a.load_a(a, sA)

    def load_b(self, b: TmaTensor, sB: Any) -> TmaLoad:
        """Return the load of B's k-tiles into sB."""
        return self.b.load_b(b, sB)


class TmaComplex128Gemm(TmaFloat64Gemm):
    """D = alpha * A @ B + beta * C for the parts of A and B, row-major C and D (M, N, L)."""

    def __init__(self, config: Complex128Config, types: dict[str, str]) -> None:
        k_major = types["a_major"] == "k", types["b_major"] == "k"
        self.threads, self.warps = config.threads, config.threads // 32
        self.operands = PartStages((config.tile_m, config.tile_n), k_major, config.stages)
        self.mainloop = TmaComplex128Mainloop(config, k_major, types["conj"])
        self.epilogue = ComplexEpilogue(Float64, types)
        self.shares = SharedTileScheduler(config.threads // WARPGROUP, config.tile_m, config.tile_n, config.group)

    @cute.jit
    def write_tile(self, results, accumulators: cute.Tensor, first, factors):
        tid, _, _ = cute.arch.thread_idx()
        row, col = first[0] + self.mainloop.stageA.row(tid % 32 // 4), first[1] + tid % 4
        for i in cutlass.range_constexpr(self.mainloop.blocks):
            for j in cutlass.range_constexpr(self.mainloop.columns):
                for v in cutlass.range_constexpr(2):
                    at = row + i * ROWS, col + j * COLUMNS + cutlass.const_expr(self.mainloop.stageB.row(v))
                    products = cute.make_rmem_tensor(cute.make_layout((1, 2)), Float64)
                    products[0, 0], products[0, 1] = accumulators[v, i, j], accumulators[2 + v, i, j]
                    self.epilogue.write(*results, products, at, factors, False)
