"""Permutations that keep the last axis: rows are copied whole.

Idea
    Where source and target are contiguous along the same axis nothing is transposed within a row: rows change their
    places. Threads move units of up to 16 bytes, as large as all rows are aligned to, a few lanes a row.
Data movement
    Every element is read once and written once, in the widest accesses that the alignment allows. Where units are less
    than sectors, the lanes of a row begin at a sector of the target, so that no two warps write parts of one.
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
        The lanes of a row, and the units of each.
    types : dict
        ``element``, the opaque type of a unit.
    """

    contiguous = (1, 1)

    def __init__(self, config: RowsConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.lanes, self.along, self.passes = config.lanes, config.along, config.passes(self.item)
        self.rows, self.units, self.step = config.rows(self.item), config.units, config.threads // config.lanes
        # Units before a row's first line of the target.
        self.before = config.before(self.item)

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        tiles_j = (mS.shape[1] + (self.before + self.units - 1)) // self.units
        tiles_i = (mS.shape[0] + (self.rows - 1)) // self.rows
        tile, l0, l1, l2 = Int32(cta), Int32(0), Int32(0), Int32(0)
        # A single matrix divides once only.
        if cta >= tiles_i * tiles_j:
            batch = cta // (tiles_i * tiles_j)
            tile = cta - batch * (tiles_i * tiles_j)
            l0, l1, l2 = batch % mS.shape[2], batch // mS.shape[2] % mS.shape[3], batch // mS.shape[2] // mS.shape[3]
        gS, gD = mS[None, None, l0, l1, l2], mD[None, None, l0, l1, l2]
        j, i = tile % tiles_j * self.units + tid % self.lanes, tile // tiles_j * self.rows + tid // self.lanes
        overlap_predecessor()
        units = cute.make_rmem_tensor(cute.make_layout((self.along, self.passes // self.along)), self.element)
        aheads = []
        for p in cutlass.range_constexpr(self.passes // self.along):
            # Beyond the last row it is read again, and not written.
            row = cutlass.min(i + p * self.step, gS.shape[0] - 1)
            aheads.append(self.units_ahead(gD, row))
            for q in cutlass.range_constexpr(self.along):
                column = j + q * self.lanes - aheads[p]
                units[q, p] = gS[row, cutlass.min(cutlass.max(column, 0), gS.shape[1] - 1)]
        for p in cutlass.range_constexpr(self.passes // self.along):
            for q in cutlass.range_constexpr(self.along):
                row, column = i + p * self.step, j + q * self.lanes - aheads[p]
                if row < gD.shape[0] and column >= 0 and column < gD.shape[1]:
                    gD[row, column] = units[q, p]

    @cute.jit
    def units_ahead(self, gD: cute.Tensor, row):
        """Return the units from where a warp's aligned writes begin to a row of the target."""
        if cutlass.const_expr(self.before == 0):
            return Int32(0)
        place = (gD.iterator + cute.crd2idx((row, 0), gD.layout)).toint()
        return Int32(place & ((self.before + 1) * self.item - 1)) // self.item


buildable = RowsTranspose.buildable
