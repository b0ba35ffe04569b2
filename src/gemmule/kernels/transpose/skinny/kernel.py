"""Transposes of matrices with a short side: long rows from or to structures, the elements of one index of all rows.

Idea
    A matrix with few rows or columns is a few long rows on one side. On the other side it is an array of structures,
    without gaps. A CTA copies a span of the source to shared memory in whole words, in its order. Then a thread gathers
    the elements of words of the target, and writes them: shared memory reads single bytes as fast as words.
Data movement
    Every element is written once. Tiles are cut where a sector of the target begins, another element in every row: a
    tile reads 64 bytes more of each long row than it writes, and the adjacent tile reads that too. A thread's words are
    so far apart that their elements are equally far apart in shared memory: it computes one address of each element of
    a word.
Limits
    Device memory; with elements of 1 byte also the accesses to shared memory, one an element.
Sources
    "CUDA C++ Programming Guide", shared memory: words of 32 banks; device memory accesses: sectors of 32 bytes.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.transpose.frame import Transpose
from gemmule.kernels.transpose.skinny.config import SkinnyConfig
from gemmule.kernels.transpose.skinny.long_rows import LongRows
from gemmule.kernels.transpose.skinny.structures import Structures
from gemmule.kernels.transpose.tile_config import LINE, TileConfig


class SkinnyTranspose(Transpose):
    """D[i, j, l] = S[i, j, l] for S contiguous along i, and D contiguous along j, one of them without gaps.

    Parameters
    ----------
    config : SkinnyConfig
        The span and the threads.
    types : dict
        ``element``, an opaque type; ``structures``, the side that is an array of structures: ``source`` or ``target``;
        ``short``, the elements of a structure.
    """

    def __init__(self, config: SkinnyConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.from_structures = types["structures"] == "source"
        self.tile = (Structures if self.from_structures else LongRows)(config, types)

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor, pitch: Int32):
        self.kernel(mS, mD, pitch).launch(grid=(1, 1, 1), block=(self.threads, 1, 1))

    @classmethod
    def buildable(cls, config: TileConfig, types: dict[str, str]) -> Buildable:
        found = super().buildable(config, types)
        return Buildable(found.function, (*found.arguments, Int32(1)))

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor, pitch: Int32):
        """Move a span; `pitch` is the bytes in shared memory from a long row of the source to the next."""
        cta, _, _ = cute.arch.block_idx()
        length = mS.shape[1] if cutlass.const_expr(self.from_structures) else mS.shape[0]
        tiles = (length + (self.tile.before + self.tile.span - 1)) // self.tile.span
        tile, at, to = Int32(cta), Int64(0), Int64(0)
        # A single matrix divides nothing.
        if cta >= tiles:
            batch = cta // tiles
            tile = cta - batch * tiles
            l0, l1, l2 = batch % mS.shape[2], batch // mS.shape[2] % mS.shape[3], batch // mS.shape[2] // mS.shape[3]
            at = mS.stride[2] * l0 + mS.stride[3] * l1 + mS.stride[4] * l2
            to = mD.stride[2] * l0 + mD.stride[3] * l1 + mD.stride[4] * l2
        gS, gD = (
            cute.make_tensor(one.iterator + offset, one[None, None, 0, 0, 0].layout)
            for one, offset in ((mS, at), (mD, to))
        )
        # The launch recipe has the size.
        sT = SmemAllocator().allocate_tensor(cutlass.Uint8, cute.make_layout(LINE), LINE).iterator.toint()
        overlap_predecessor()
        start = tile * self.tile.span
        is_whole = tile > 0 and start + self.tile.held + self.pack <= length
        span = start if cutlass.const_expr(self.from_structures) else (start, pitch)
        if is_whole:
            self.tile.move(gS, gD, sT, span, True)
        else:
            self.tile.move(gS, gD, sT, span, False)


buildable = SkinnyTranspose.buildable
