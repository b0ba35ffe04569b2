"""Batches of matrices that fit into shared memory: memory is read and written as two runs without gaps.

Idea
    Matrices without gaps that follow one another are one run of the source, and their transposes one run of the target.
    A CTA copies whole matrices to shared memory as they are, by bulk copies, and gathers the words of the run of the
    target element by element: shared memory reads single bytes as fast as words. Rows may begin and end anywhere, as no
    sector but those at the ends of a CTA's run is shared.
Data movement
    Every element is read once and written once. Lanes of a warp write adjacent words, whose elements in shared memory
    are rows apart: where a row of the source has an odd number of elements no bank is met twice. Behind the last row of
    a matrix its first ones follow again, an element further: so the elements of a word are equally far apart where a
    row of the target ends within it, too.
Limits
    Device memory, and the accesses to shared memory, one an element.
Sources
    "CUDA C++ Programming Guide", shared memory: words of 32 banks; bulk asynchronous copies.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, cute
from cutlass.memory import SmemAllocator

from gemmule.core.row_major import VECTOR_BYTES
from gemmule.core.spec import Buildable
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.transpose.blocks.origins import strided
from gemmule.kernels.transpose.frame import Words
from gemmule.kernels.transpose.tile_config import LINE
from gemmule.kernels.transpose.whole_matrices.config import WholeMatricesConfig
from gemmule.kernels.transpose.whole_matrices.matrices import Matrices


class WholeMatricesTranspose(Words):
    """D[l, i, j] = S[l, j, i] for S contiguous along i, and D contiguous along j.

    Parameters
    ----------
    config : WholeMatricesConfig
        Threads of a CTA.
    types : dict
        ``element``, an opaque type.
    """

    def __init__(self, config: WholeMatricesConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.matrices = Matrices(config, types)

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor, numbers: tuple[Int32, ...]):
        self.kernel(mS, mD, numbers).launch(
            grid=(1, 1, 1),
            block=(self.threads, 1, 1),
            # Given, so that the compiler needs no driver.
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor, numbers: tuple[Int32, ...]):
        """Move matrices.

        The only axis of `mS` and `mD` is that of the matrices. `numbers` are the elements of a row of the source and of
        the target, the divisors by both, and by the elements that follow again behind a matrix; and the
        matrices of a CTA, and how far apart they are in shared memory.
        """
        length, width, by_length, by_width, by_again, matrices, pitch = numbers
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        first = cta * matrices
        count = cutlass.min(matrices, mS.shape[0] - first)
        smem = SmemAllocator()
        full = smem.allocate_array(Int64, 1)
        shared = smem.allocate_tensor(cutlass.Uint8, cute.make_layout(LINE), LINE).iterator.toint()
        if tid == 0:
            # Each thread that copies matrices arrives.
            cute.arch.mbarrier_init(full, cutlass.min(count, self.threads))
            cute.arch.mbarrier_init_fence()
        size = length * width
        source, target = (one.iterator.toint() + Int64(first) * (size * self.item) for one in (mS, mD))
        place = shared + Int32(source & (VECTOR_BYTES - 1))
        end = mS.iterator.toint() + Int64(mS.shape[0]) * (size * self.item)
        cute.arch.sync_threads()
        overlap_predecessor()
        if tid < count:
            self.matrices.read((source, end), place, (tid, count, size, pitch), full)
        cute.arch.mbarrier_wait(full, 0)
        cute.arch.sync_threads()
        self.matrices.put_again(place, count, (length, size, by_again, pitch))
        cute.arch.sync_threads()
        run, sizes = (target, count * size), (length, width, by_length, pitch - length)
        self.matrices.write_ends(run, place, sizes, by_width)
        self.matrices.write(run, place, (*sizes, by_width))


def buildable(config: WholeMatricesConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for a specialisation, with fake arguments."""
    tensors = [strided(types["element"], 1) for _ in range(2)]
    return Buildable(WholeMatricesTranspose(config, types), (*tensors, (Int32(1),) * 7))
