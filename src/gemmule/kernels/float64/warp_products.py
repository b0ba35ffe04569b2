"""Products of a warp tile by mma.sync: a lane's registers, the reads of its fragments, and the instructions."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.mma_sync import double_mma_name, mma_sync

from .config import BLOCK, COLUMNS, DmmaConfig
from .stage import DEPTH


@dataclass(frozen=True)
class LaneRegisters:
    """Registers of a lane."""

    #: fragments_a, next_a: Tensor. Fragments of the 16 rows of A that are multiplied, and of the next 16.
    fragments_a: Any
    next_a: Any
    fragments_b: Any  #: Tensor. Fragments of all columns of B.
    accumulators: Any  #: Tensor. Accumulators.


class WarpProducts:
    """Products of 16 rows of A with 8 columns of B, for 8 or 16 k, of which a warp tile has `blocks` x `columns`.

    `stageA` and `stageB` read fragments.
    """

    def set_products(self, config: DmmaConfig, stages: tuple[Any, Any]) -> None:
        """Set what follows from a config, and the stages of A and B."""
        self.stageA, self.stageB = stages
        self.tile_m, self.tile_n, self.tile_k = config.tile_m, config.tile_n, config.tile_k
        self.warps_n = config.warps_n
        self.warp_m, self.warp_n = self.tile_m // config.warps_m, self.tile_n // config.warps_n
        self.blocks, self.columns = self.warp_m // BLOCK, self.warp_n // COLUMNS
        # Fragments of 8 or 16 k are read together; an mma.sync takes as many of a lane's words as its K needs.
        self.words, self.mma_words = max(config.mma_k, 8) // DEPTH, config.mma_k // DEPTH
        self.mma_m, self.mma = config.mma_m, double_mma_name(config.mma_m, config.mma_k)

    def lane_registers(self) -> tuple[Any, Any, Any, Any]:
        """Return registers for two fragments of A, for those of B, and accumulators."""
        rows, every = (2, self.words), (self.words, self.columns)
        return registers(rows), registers(rows), registers(every), registers((4, self.blocks, self.columns))

    @cute.jit
    def read_rows(self, rA: cute.Tensor, start, step: cutlass.Constexpr[int]):
        """Read this lane's elements of a step's 16 rows of A."""
        first, block = cutlass.const_expr(divmod(step, self.blocks))
        for word in cutlass.range_constexpr(self.words):
            for half in cutlass.range_constexpr(2):
                rA[half, word] = self.stageA.read(start, 2 * block + half, first * self.words + word)

    @cute.jit
    def read_column(self, rB: cute.Tensor, start, j: cutlass.Constexpr[int], first: cutlass.Constexpr[int]):
        """Read this lane's elements of 8 columns of B, of the `first`-th 8 or 16 k of a k-tile."""
        for word in cutlass.range_constexpr(self.words):
            rB[word, j] = self.stageB.read(start, j, first * self.words + word)

    @cute.jit
    def multiply_column(self, rA: cute.Tensor, rB: cute.Tensor, rC: cute.Tensor):
        """Add the product of 16 rows and 8 columns, by as many instructions as its K and its rows need."""
        for first in cutlass.range_constexpr(0, self.words, self.mma_words):
            words = cutlass.const_expr(range(first, first + self.mma_words))
            b = tuple(rB[word] for word in words)
            if cutlass.const_expr(self.mma_m == BLOCK):
                mma_sync(self.mma, rC, tuple(rA[half, word] for word in words for half in range(2)), b)
            else:
                for half in cutlass.range_constexpr(2):
                    rows = cute.make_tensor(rC.iterator + 2 * half, cute.make_layout(2))
                    mma_sync(self.mma, rows, tuple(rA[half, word] for word in words), b)


def registers(shape: tuple[int, ...]) -> Any:
    """Return registers for float64 elements of a shape."""
    return cute.make_rmem_tensor(cute.make_layout(shape), Float64)
