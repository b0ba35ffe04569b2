"""Asynchronous copies of k-tiles of several matrices at once."""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.async_copy import copy_vector_async

from .config import BatchedStage


@dataclass(frozen=True)
class BatchedCopies:
    """Copies of an operand's k-tiles, `length` elements each, by all threads of a CTA."""

    stage: BatchedStage
    matrices: int
    length: int
    threads: int
    element: str  #: Name of the operand's type.
    partial: bool = False  #: Whether lines may end within a copy.

    @property
    def in_line(self) -> int:
        """Copies of a line."""
        return self.stage.length // self.length

    @property
    def count(self) -> int:
        """Copies of a thread."""
        return self.matrices * self.stage.lines * self.in_line // self.threads

    def step(self, p: int) -> tuple[int, int, int]:
        """Return the matrix, the line and the element of copy `p`, from those of the first one."""
        line, copy = divmod(p * self.threads, self.in_line)
        return line // self.stage.lines, line % self.stage.lines, copy * self.length

    @cute.jit
    def origin(self):
        """Return the matrix, the line and the element of this thread's first copy."""
        tid, _, _ = cute.arch.thread_idx()
        line = tid // self.in_line
        return line // self.stage.lines, line % self.stage.lines, tid % self.in_line * self.length

    @cute.jit
    def issue(self, mX: cute.Tensor, first, stage, depth):
        """Issue the copies of a k-tile, zeros outside the matrices.

        Parameters
        ----------
        mX : Tensor
            Matrices, (rows, K, L).
        first : tuple of Int32
            First row, k and matrix.
        stage : Int32
            Address in shared memory.
        depth : Int32
            k that are multiplied.
        """
        matrix, line, element = self.origin()
        row, k = (line, element) if cutlass.const_expr(self.stage.k_major) else (element, line)
        row, k, matrix_0 = first[0] + row, first[1] + k, first[2] + matrix
        along = cutlass.const_expr(0 if self.stage.k_major else 1)
        left = (mX.shape[0] - row, depth - k)
        source = mX.iterator + cute.crd2idx((row, k, matrix_0), mX.layout)
        for half in cutlass.range_constexpr(2):
            # The compiler warns of static loops of 64 turns.
            for p in cutlass.range_constexpr(half * self.count // 2, (half + 1) * self.count // 2):
                matrices, lines, elements = cutlass.const_expr(self.step(p))
                valid = Int32(0)
                if lines < left[along] and elements < left[1 - along] and matrices < mX.shape[2] - matrix_0:
                    valid = Int32(self.length)
                    if cutlass.const_expr(self.partial):
                        valid = cutlass.min(valid, Int32(left[1 - along] - elements))
                target = stage + (matrix + matrices) * self.stage.matrix_bytes
                target += self.stage.offset(line + lines, element + elements)
                copy_vector_async(
                    cute.make_ptr(mX.element_type, target, cute.AddressSpace.smem, assumed_align=self.bytes),
                    source + (matrices * mX.stride[2] + lines * mX.stride[along] + elements * mX.stride[1 - along]),
                    self.length,
                    valid,
                )

    @property
    def bytes(self) -> int:
        """Bytes of a copy."""
        return self.length * self.stage.itemsize
