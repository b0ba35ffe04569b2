"""Permutations that keep the last axis: rows are copied whole.

Idea
    Where source and target are contiguous along the same axis nothing is transposed within a row: rows change their
    places. Threads move units of up to 16 bytes, as large as all rows are aligned to, a few lanes a row.
Data movement
    Every element is read once and written once, in the widest accesses that the alignment allows.
Limits
    Device memory; with units of 1 and 2 bytes the number of accesses.
Sources
    "CUDA C++ Programming Guide", device memory accesses: sectors of 32 bytes.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.transpose.frame import Transpose
from gemmule.kernels.transpose.tile_config import RowsConfig


class RowsTranspose(Transpose):
    """D[i, j, l] = S[i, j, l] for S and D contiguous along j.

    Parameters
    ----------
    config : RowsConfig
        The lanes of a row.
    types : dict
        ``element``, the opaque type of a unit.
    """

    contiguous = (1, 1)

    def __init__(self, config: RowsConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.lanes, self.passes = config.lanes, config.passes(self.item)
        self.rows, self.step = config.rows(self.item), config.threads // config.lanes

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        tiles_j = (mS.shape[1] + (self.lanes - 1)) // self.lanes
        tiles_i = (mS.shape[0] + (self.rows - 1)) // self.rows
        tile, l0, l1, l2 = Int32(cta), Int32(0), Int32(0), Int32(0)
        # A single matrix divides once only.
        if cta >= tiles_i * tiles_j:
            batch = cta // (tiles_i * tiles_j)
            tile = cta - batch * (tiles_i * tiles_j)
            l0, l1, l2 = batch % mS.shape[2], batch // mS.shape[2] % mS.shape[3], batch // mS.shape[2] // mS.shape[3]
        gS, gD = mS[None, None, l0, l1, l2], mD[None, None, l0, l1, l2]
        j = tile % tiles_j * self.lanes + tid % self.lanes
        i = tile // tiles_j * self.rows + tid // self.lanes
        overlap_predecessor()
        if j < gS.shape[1]:
            units = cute.make_rmem_tensor(cute.make_layout(self.passes), self.element)
            for p in cutlass.range_constexpr(self.passes):
                # Beyond the last row it is read again, and not written.
                units[p] = gS[cutlass.min(i + p * self.step, gS.shape[0] - 1), j]
            for p in cutlass.range_constexpr(self.passes):
                if i + p * self.step < gD.shape[0]:
                    gD[i + p * self.step, j] = units[p]


buildable = RowsTranspose.buildable
