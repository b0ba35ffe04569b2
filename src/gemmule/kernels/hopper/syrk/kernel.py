"""SYRK: a matrix times its own transpose, half of the tiles, each written twice.

Idea
    D = alpha * A @ A.T is symmetric: the upper triangle mirrors the lower one. Only tiles
    that reach to the diagonal or below it are computed. A warpgroup writes its accumulators by epilogue tiles, once as
    they are and once transposed, to the mirrored place; `stmatrix` transposes on the way into shared memory, without
    bank conflicts.
Compared with hopper_gemm
    `hopper_gemm` with a triangular scheduler and a mirrored epilogue. A is loaded by TMA as A and as B.
Data movement
    Half of the k-tiles of `hopper_gemm` and half of its FLOP, all of its D: M (M + tile_n) / 2 elements are computed,
    and M M are written.
Limits
    Tiles across the diagonal are computed whole: of M = 2048 and tiles of 128 x 192, 96 of 176 tiles. Waves of half as
    many tiles are harder to fill.
Sources
    As of `hopper_gemm`; NVIDIA, PTX ISA: stmatrix. BLAS: SYRK, which leaves the other half alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cutlass import Int32, cute

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.epilogues.symmetric_store import Mirrored, MirroredRows, PaddedRowLayout
from gemmule.kernels.hopper.gemm.kernel import HopperGemm
from gemmule.kernels.hopper.mainloops.operands import Matrices, TmaTensor
from gemmule.kernels.hopper.schedulers.triangular import TriangularScheduler
from gemmule.kernels.parts.tensors import cute_type, major_tensor

from .config import TILES_PER_STAGE, SyrkConfig


class HopperSyrk(HopperGemm):
    """D = alpha * A @ A.T for A (M, K, L), which is B, too; D (M, M, L) row-major, and its transpose column-major."""

    def __init__(self, config: SyrkConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        cluster = (config.cluster_m, config.cluster_n, config.cluster_k)
        self.scheduler = TriangularScheduler(self.tile_m, self.tile_n, config.group, *cluster)
        self.use_epilogue()

    def use_epilogue(self) -> None:
        """Write D by TMA, epilogue tiles and their mirror images."""
        self.epi_layout: Any = dataclasses.replace(self.epi_layout, tiles_per_stage=TILES_PER_STAGE)
        self.epilogue: Any = Mirrored(self.epi_layout)

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mDt: cute.Tensor, mD: cute.Tensor, grid: Int32, scale):
        a, b = self.operands.tma_a(mA), self.operands.tma_b(mB)
        d_transposed, d = self.epi_layout.tma_store(mDt, transposed=True), self.epi_layout.tma_store(mD)
        self.launch(Matrices(a, b, d=d, d_transposed=d_transposed), grid, scale)


class HopperSyrkUnaligned(HopperSyrk):
    """As `HopperSyrk`, for row-major D (M, M, L) of any alignment: threads write it."""

    def use_epilogue(self) -> None:
        """Write D by threads, rows of one epilogue tile and of its mirror image at a time."""
        fields = dataclasses.asdict(self.epi_layout) | {"epi_stages": 1, "tiles_per_stage": TILES_PER_STAGE}
        self.epi_layout = PaddedRowLayout(**fields)
        self.epilogue = MirroredRows(self.epi_layout)

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mD: cute.Tensor, grid: Int32, scale):
        a, b = self.operands.tma_a(mA), self.operands.tma_b(mB)
        self.launch(Matrices(a, b, d=TmaTensor(None, mD)), grid, scale)


def buildable(config: SyrkConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""

    def tensor(operand: str, contiguous_mode: int) -> cute.Tensor:
        return major_tensor(types[operand], contiguous_mode, batch=1, vector=128 // cute_type(types[operand]).width)

    modes = [1 if types[f"{operand}_major"] == "k" else 0 for operand in "ab"]
    acc = cute_type(types["acc"])
    operands, rest = (tensor("a", modes[0]), tensor("b", modes[1])), (Int32(1), (acc(1), acc(0)))
    if types["written"] == "threads":
        return Buildable(HopperSyrkUnaligned(config, types), (*operands, major_tensor(types["d"], 1, batch=1), *rest))
    return Buildable(HopperSyrk(config, types), (*operands, tensor("d", 0), tensor("d", 1), *rest))
