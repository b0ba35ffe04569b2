"""Transposes to short rows without gaps: tiles of whole rows of the target, which are contiguous in memory.

Idea
    Rows of the target that are short and unaligned share a sector with each neighbour. Rows that follow one another
    without gaps are one run of memory: a CTA takes whole rows, keeps them in shared memory as they will be in device
    memory, and copies the run in vectors. Only the ends of the run share a vector with other CTAs.
Change from transpose_whole_sectors
    As there, a lane reads the aligned words that hold its elements, completes them by the next lane's, and exchanges
    4 rows' words (2 of elements of 2 bytes) into words of the target's rows. A lane goes along the rows, so that it
    has the word before as well: shifted by that, each word begins where a word of the run does.
Data movement
    Every element is written once, in vectors of 16 bytes. A warp reads 128 bytes of a row of the source and moves 124.
    Lanes are 4 rows (2 of elements of 2 bytes) apart, as many words as a row has elements: if those are odd, the lanes
    of a warp fill different banks.
Limits
    Device memory.
Sources
    "CUDA C++ Programming Guide", shared memory: words of 32 banks; device memory accesses: sectors of 32 bytes.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, cute
from cutlass.memory import SmemAllocator

from gemmule.core.row_major import VECTOR_BYTES
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.transpose.frame import Transpose
from gemmule.kernels.transpose.tile_config import LINE
from gemmule.kernels.transpose.whole_rows.config import WholeRowsConfig
from gemmule.kernels.transpose.whole_rows.tile import WholeRowsTile


class WholeRowsTranspose(Transpose):
    """D[i, j, l] = S[i, j, l] for S contiguous along i, and D contiguous along j and without gaps along i.

    Parameters
    ----------
    config : WholeRowsConfig
        The tile.
    types : dict
        As of WholeRowsTile.
    """

    def __init__(self, config: WholeRowsConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.tile = WholeRowsTile(config, types)
        self.resident = config.resident(self.item)

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor):
        # The carveout is given so that the compiler needs no driver.
        self.kernel(mS, mD).launch(
            grid=(1, 1, 1),
            block=(self.threads, 1, 1),
            min_blocks_per_mp=self.resident,
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        cta, _, _ = cute.arch.block_idx()
        tiles = cute.ceil_div(mS.shape[0], self.tile.tile_i)
        tile, at, to = Int32(cta), Int64(0), Int64(0)
        # A single matrix divides nothing.
        if cta >= tiles:
            batch = cta // tiles
            tile = cta - batch * tiles
            l0, l1, l2 = batch % mS.shape[2], batch // mS.shape[2] % mS.shape[3], batch // mS.shape[2] // mS.shape[3]
            at = mS.stride[2] * l0 + mS.stride[3] * l1 + mS.stride[4] * l2
            to = mD.stride[2] * l0 + mD.stride[3] * l1 + mD.stride[4] * l2
        gS = cute.make_tensor(mS.iterator + at, mS[None, None, 0, 0, 0].layout)
        i0 = tile * self.tile.tile_i
        run = (mD.iterator + to).toint() + Int64(i0) * (mS.shape[1] * self.item)
        # The launch recipe has the size.
        shared = SmemAllocator().allocate_tensor(cutlass.Uint8, cute.make_layout(LINE), LINE).iterator.toint()
        # Where the run begins in shared memory: as far behind a vector as in device memory.
        sT = shared + Int32(run & (VECTOR_BYTES - 1))
        overlap_predecessor()
        self.tile.read(gS, sT, i0)
        cute.arch.sync_threads()
        self.tile.write(run, sT, cutlass.min(mS.shape[0] - i0, self.tile.tile_i) * mS.shape[1] * self.item)


buildable = WholeRowsTranspose.buildable
