"""The transpose without limits: a tile through shared memory with a predicate on every access.

Idea
    A CTA of 32 x 8 threads moves a 32 x 32 tile. It reads along the source's contiguous direction into shared memory
    and writes along the target's, so that both sides are coalesced whatever the strides are.
Data movement
    Every element is read once and written once: 2 * itemsize bytes an element, and no arithmetic.
Limits
    None on shapes, strides or alignment: extents, strides and offsets are 64 bits wide, accesses one element wide. A
    warp moves 32 elements at once: 32 bytes of 1-byte elements, a quarter of a line.
Sources
    M. Harris, "An Efficient Matrix Transpose in CUDA C/C++", NVIDIA technical blog: the padded tile.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int64, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.tensors import cute_type, dynamic_tensor
from gemmule.kernels.transpose.tile_config import ReferenceConfig


class TransposeReference:
    """Copies element (i, j, l0, l1, l2) of one tensor to the same element of another, whatever their strides."""

    def __init__(self, config: ReferenceConfig, element: Any) -> None:
        self.tile, self.rows = config.tile, config.rows
        self.element = element

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor):
        tiles = cute.ceil_div(mS.shape[0], self.tile) * cute.ceil_div(mS.shape[1], self.tile)
        grid = cutlass.Int32(tiles * mS.shape[2] * mS.shape[3] * mS.shape[4])
        self.kernel(mS, mD).launch(grid=(grid, 1, 1), block=(self.tile, self.rows, 1))

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tx, ty, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        # One element of padding: the elements of a column are in different banks.
        layout = cute.make_layout((self.tile, self.tile), stride=(self.tile + 1, 1))
        sT = SmemAllocator().allocate_tensor(self.element, layout, 16)

        # cute.size keeps the 64 bits of an extent, where .shape and cute.ceil_div would give 32.
        M, N, L0, L1, L2 = (cute.size(mS, mode=[mode]) for mode in range(5))
        tiles_j = (N + self.tile - 1) // self.tile
        tiles = (M + self.tile - 1) // self.tile * tiles_j
        tile = Int64(cta)
        while tile < tiles * L0 * L1 * L2:
            l2 = tile // (tiles * L0 * L1)
            l1 = tile // (tiles * L0) % L1
            l0 = tile // tiles % L0
            i0 = tile % tiles // tiles_j * self.tile
            j0 = tile % tiles_j * self.tile
            for p in cutlass.range_constexpr(self.tile // self.rows):
                i, j = self.walk(tx, ty + p * self.rows, mS.stride[0])
                if i0 + i < M and j0 + j < N:
                    sT[i, j] = mS[i0 + i, j0 + j, l0, l1, l2]
            cute.arch.sync_threads()
            for p in cutlass.range_constexpr(self.tile // self.rows):
                i, j = self.walk(tx, ty + p * self.rows, mD.stride[0])
                if i0 + i < M and j0 + j < N:
                    mD[i0 + i, j0 + j, l0, l1, l2] = sT[i, j]
            cute.arch.sync_threads()
            tile += ctas

    @cute.jit
    def walk(self, fast, slow, stride_i):
        """Return (i, j) of a thread: contiguous along i where the stride is 1, else along j."""
        i, j = slow, fast
        if stride_i == 1:
            i, j = fast, slow
        return i, j


def buildable(config: ReferenceConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for that element type, with fake arguments."""
    name = types["element"]
    return Buildable(TransposeReference(config, cute_type(name)), (dynamic_tensor(name, 5), dynamic_tensor(name, 5)))
