"""A CuTe DSL kernel of your own, checked without a GPU: first with its barrier, then without.

Needs the kernel compiler: ``pip install '.[compiler]'`` in a clone.
"""

import cutlass
import numpy as np
from cutlass import cute
from cutlass.memory import SmemAllocator

from gemmule import vgpu

THREADS = 128


@cute.kernel
def reverse_kernel(x: cute.Tensor, y: cute.Tensor, barrier: cutlass.Constexpr):
    """Reverse each block of elements through shared memory."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    tile = SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(THREADS), 16)
    tile[thread] = x[block * THREADS + thread]
    if cutlass.const_expr(barrier):
        cute.arch.sync_threads()
    y[block * THREADS + thread] = tile[THREADS - 1 - thread]


@cute.jit
def reverse(x: cute.Tensor, y: cute.Tensor, barrier: cutlass.Constexpr):
    """Launch it, as on a GPU."""
    reverse_kernel(x, y, barrier).launch(grid=(cute.size(x) // THREADS, 1, 1), block=(THREADS, 1, 1))


if __name__ == "__main__":
    x, y = np.arange(1024, dtype=np.float32), np.empty(1024, np.float32)
    vgpu.run(reverse, x, y, True)
    np.testing.assert_array_equal(y, x.reshape(-1, THREADS)[:, ::-1].reshape(-1))
    print("with its barrier: right, and no finding")

    try:
        vgpu.run(reverse, x, y, False)
    except vgpu.CheckError as error:
        print("without it:", str(error).splitlines()[0])
    else:
        raise AssertionError("the race was not found")
