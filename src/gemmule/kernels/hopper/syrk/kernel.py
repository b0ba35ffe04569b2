"""A matrix times its own transpose: half of the tiles, each written twice.

Idea
    D = alpha * A @ A.T is symmetric: what lies above the diagonal is the mirror image of what lies below. Only tiles
    that reach to the diagonal or below it are computed. A warpgroup writes its sums box by box, once as they are and
    once transposed, to the mirrored place; `stmatrix` transposes on the way into shared memory, without bank conflicts.
Change from the rung before
    The scheduler walks over a triangle instead of a rectangle, and boxes leave in pairs. All else is the production
    kernel: A comes by the copy engine as A and as B.
Data movement
    Half of the slices of h09 and half of its FLOP, all of its result: M (M + tile_n) / 2 elements are computed, and
    M M are written.
Limits
    Tiles across the diagonal are computed whole: of M = 2048 and tiles of 128 x 192, 96 of 176 tiles. Waves of half as
    many tiles are harder to fill.
Sources
    As of h09; NVIDIA, PTX ISA: stmatrix. BLAS: SYRK, which leaves the other half alone.
"""

from __future__ import annotations

from typing import Any

from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.epilogues.mirrored import MirroredBoxes
from gemmule.kernels.hopper.epilogues.mirrored_rows import MirroredRuns, lines_of
from gemmule.kernels.hopper.gemm.kernel import Production
from gemmule.kernels.hopper.schedulers.triangular import TriangleTiles
from gemmule.kernels.hopper.tile_config import BOX_M, CONSUMERS, THREADS
from gemmule.kernels.parts.tensors import cute_type, major_tensor

from .config import SymmetricConfig


class Symmetric(Production):
    """D = alpha * A @ B for A (M, K, L), B (M, K, L) of the same values, D (M, M, L) in rows, and as M in columns."""

    def __init__(self, config: SymmetricConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.order = TriangleTiles(
            self.tile_m, self.tile_n, self.cluster_m, self.cluster_n, self.cluster_k, config.group
        )
        apart = 1 if self.pingpong else CONSUMERS
        self.plain: Any = MirroredBoxes(
            self.out, BOX_M, self.box_n, self.blocks, self.boxes, apart, self.buffers, turned=False, reads_c=False
        )

    def slices(self) -> tuple[Any, Any]:
        """Return how slices of A and B lie in shared memory."""
        tile = (self.tile_m, self.tile_n, self.tile_k)
        layout_a, layout_b = (LayoutEnum.ROW_MAJOR if along else LayoutEnum.COL_MAJOR for along in self.along_k)
        sA = hopper_helpers.make_smem_layout_a(layout_a, tile, self.element, self.stages)
        return sA, hopper_helpers.make_smem_layout_b(layout_b, tile, self.element_b, self.stages)

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mM: cute.Tensor, mD: cute.Tensor, grid: Int32, alpha, beta):
        sA, sB = self.slices()
        box, count = (BOX_M, self.box_n), CONSUMERS * self.buffers
        sD, sM = (
            hopper_helpers.make_smem_layout_epi(self.out, layout, box, count)
            for layout in (LayoutEnum.ROW_MAJOR, LayoutEnum.COL_MAJOR)
        )
        tma_a, tA = self.map_a(mA, cute.slice_(sA, (None, None, 0)))
        tma_b, tB = self.map_b(mB, cute.slice_(sB, (None, None, 0)))
        store = cpasync.CopyBulkTensorTileS2GOp()
        tma_m, tM = cpasync.make_tiled_tma_atom(store, mM, cute.slice_(sM, (None, None, 0)), box)
        tma_d, tD = cpasync.make_tiled_tma_atom(store, mD, cute.slice_(sD, (None, None, 0)), box)
        self.kernel(tma_a, tA, tma_b, tB, tma_m, tM, tma_d, tD, sA, sB, sD, alpha, beta).launch(
            grid=(grid, 1, 1), block=(THREADS, 1, 1), cluster=(self.size, 1, 1), min_blocks_per_mp=1
        )


class SymmetricRuns(Symmetric):
    """As `Symmetric`, for D (M, M, L) in rows that begin anywhere: threads write it."""

    def __init__(self, config: SymmetricConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        boxes = self.plain
        self.plain = MirroredRuns(
            self.out, BOX_M, self.box_n, self.blocks, self.boxes, boxes.apart, 2, turned=False, reads_c=False
        )

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mD: cute.Tensor, grid: Int32, alpha, beta):
        sA, sB = self.slices()
        lines = hopper_helpers.make_smem_layout_epi(
            self.out, LayoutEnum.ROW_MAJOR, (lines_of(BOX_M), self.box_n), CONSUMERS * 2
        )
        tma_a, tA = self.map_a(mA, cute.slice_(sA, (None, None, 0)))
        tma_b, tB = self.map_b(mB, cute.slice_(sB, (None, None, 0)))
        self.kernel(tma_a, tA, tma_b, tB, None, None, None, mD, sA, sB, lines, alpha, beta).launch(
            grid=(grid, 1, 1), block=(THREADS, 1, 1), cluster=(self.size, 1, 1), min_blocks_per_mp=1
        )


def buildable(config: SymmetricConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""

    def tensor(operand: str, unit: int) -> cute.Tensor:
        return major_tensor(types[operand], unit, batch=1, vector=128 // cute_type(types[operand]).width)

    along = [1 if types[f"{operand}_major"] == "k" else 0 for operand in "ab"]
    acc = cute_type(types["acc"])
    factors, rest = (tensor("a", along[0]), tensor("b", along[1])), (Int32(1), acc(1), acc(0))
    if types["written"] == "threads":
        return Buildable(SymmetricRuns(config, types), (*factors, major_tensor(types["d"], 1, batch=1), *rest))
    return Buildable(Symmetric(config, types), (*factors, tensor("d", 0), tensor("d", 1), *rest))
