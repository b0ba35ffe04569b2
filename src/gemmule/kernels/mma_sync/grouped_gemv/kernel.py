"""Grouped GEMV: rows that each name their matrix, as the slots of a token in a mixture of experts.

Idea
    One row by a matrix reads the matrix once, and computes next to nothing: the time is that of reading. Weights pass
    by shared memory: each lane loads 16 contiguous bytes of two lines, which are its fragments of mma.sync as they
    are. The warps of a CTA share its columns, and split K.
Compared with hopper_grouped
    No tile of 64 rows, of which one has elements, no stages, no barriers in the loop; small CTAs, several on each SM,
    so that one starts while another one loads.
Data movement
    The matrices that rows name, once: 1 FLOP a byte of 16-bit weights. The CTAs of all rows' first columns come first,
    so that rows of one matrix read it from memory once. 7 of 8 columns of an mma.sync are zeros.
Limits
    Memory. Lines are whole 16 bytes, along K.
Sources
    PTX ISA: fragments of mma.sync.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, cute, select_
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.pdl import launch_dependents, wait_for_predecessor
from gemmule.kernels.parts.tensors import major_tensor
from gemmule.kernels.parts.vector_epilogue import VectorEpilogue

from .config import MMA_COLUMNS, GemvConfig
from .mainloop import GemvMainloop, lines_of

#: Elements of 16 bytes.
_VECTOR = 8


class GroupedGemv:
    """D[m, n] = sum over k of A[m, k] B[n, k, matrices[m]]; A is (M, K, 1), B (N, K, L), D (M, N, 1), row-major."""

    def __init__(self, config: GemvConfig, types: dict[str, str]) -> None:
        self.config, self.mainloop = config, GemvMainloop(config, types)
        self.fused: Any = VectorEpilogue(types) if "epilogue" in types else None
        self.num_b = 2 if self.fused is not None and self.fused.expression.gated else 1
        #: Columns of D.
        self.columns = config.tile_n // self.num_b

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mD: cute.Tensor, matrices: cute.Tensor, extras, mB_up=None):
        self.kernel(mA, mB, mD, matrices, extras, mB_up).launch(
            grid=(mD.shape[0], cute.ceil_div(mD.shape[1], self.columns), 1),
            block=(self.config.threads, 1, 1),
            min_blocks_per_mp=1,
            # Given, so that the compiler needs no driver; the launch recipe decides.
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mD: cute.Tensor, matrices: cute.Tensor, extras, mB_up=None):
        row, tile, _ = cute.arch.block_idx()
        partials = SmemAllocator().allocate_tensor(
            Float32, cute.make_layout((self.config.tile_n, self.config.warps)), 16
        )
        wait_for_predecessor()
        launch_dependents()
        matrix = matrices[row]
        # The sums of a row without a matrix are those of no k.
        is_matrix = Boolean(matrix >= 0) & Boolean(matrix < mB.shape[2])
        nbytes = Int32(select_(is_matrix, mA.shape[1] * (mA.element_type.width // 8), Int32(0)))
        number = Int32(select_(is_matrix, matrix, Int32(0)))
        lines: Any = ()
        fragments = cutlass.const_expr(self.columns // MMA_COLUMNS)
        for mX in (mB, mB_up)[: self.num_b]:
            lines = (*lines, *lines_of(mX[None, None, number], tile * self.columns, fragments))
        vector = (mA.iterator + cute.crd2idx((row, Int32(0), Int32(0)), mA.layout)).toint()
        sums = self.mainloop.multiply(lines, vector, nbytes)
        lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
        if lane % 4 == 0:
            for fragment in cutlass.range_constexpr(cute.size(sums, mode=[1])):
                for half in cutlass.range_constexpr(2):
                    column = MMA_COLUMNS * fragment + MMA_COLUMNS // 2 * half + lane // 4
                    partials[column, warp] = sums[2 * half, fragment]
        cute.arch.sync_threads()
        thread, _, _ = cute.arch.thread_idx()
        column = tile * self.columns + thread
        if thread < self.columns and column < mD.shape[1]:
            self.write(mD[None, None, 0], partials, thread, (row, column), is_matrix, extras)

    @cute.jit
    def write(self, gD: cute.Tensor, partials: cute.Tensor, thread, at, is_matrix, extras):
        """Write the element at a row and column, whose partial sums are those of column `thread` of the tile."""
        values = [self.total(partials, thread + number * self.columns) for number in range(self.num_b)]
        value = values[0][0]
        if cutlass.const_expr(self.fused is not None):
            addend = cute.make_rmem_tensor(cute.make_layout(1), Float32)
            addend.fill(0)
            up = values[1] if cutlass.const_expr(self.num_b > 1) else None
            inputs = self.fused.of_batch(extras, Int32(0))
            fused = self.fused.values(values[0], up, addend, inputs, at, gD, Float32(1), Float32(0))
            # Zero without a matrix, whatever the epilogue is.
            value = Float32(select_(is_matrix, fused[0], Float32(0)))
        gD[at] = value.to(gD.element_type)

    @cute.jit
    def total(self, partials: cute.Tensor, column):
        """Return the sum of a column's partial sums in the order of the warps, as a vector of one element."""
        found = cute.make_rmem_tensor(cute.make_layout(1), Float32)
        found[0] = partials[column, 0]
        for warp in cutlass.range_constexpr(1, self.config.warps):
            found[0] = found[0] + partials[column, warp]
        return found


def buildable(config: GemvConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    kernel = GroupedGemv(config, types)
    a, b = (major_tensor(types[operand], 1, batch=1, vector=_VECTOR) for operand in "ab")
    d = major_tensor(types["d"], 1, batch=1)
    matrices = cute.runtime.make_fake_compact_tensor(Int32, (cute.sym_int32(),), assumed_align=4)
    extras = None if kernel.fused is None else kernel.fused.fake_args()
    b_up = major_tensor(types["b"], 1, batch=1, vector=_VECTOR) if kernel.num_b > 1 else None
    return Buildable(kernel, (a, b, d, matrices, extras, b_up))
