"""Tensor cores by mma.sync for products of few tiles of any alignment: one wait for device memory.

Idea
    A small product takes as long as what each warp does one after another. All elements of a CTA's first k-tiles are
    loaded before one is waited for: 16 bits each where lines begin between words, by cp.async where not. They are
    stored in swizzled stages, and multiplied. Accumulators pass through shared memory once, where those of the slices
    of K and of the cluster are added.
Change from mma_sync_gemm
    That waits for device memory three times for each k-tile where elements pass through registers, computes addresses
    and limits for every element, and writes through shared memory. Tiles are smaller here, warps have fewer
    accumulators, two groups of them share each k-tile (sliced K), and the grid has the tiles of M and N in two
    dimensions: no divisions.
Data movement
    The tile of 32 x 32 reads 32 + 32 lines, 16 FLOP a byte in 16 bits: L2 limits large products.
Limits
    Each element of a line that begins anywhere is an instruction, and a word is one more to join and one to store.
Sources
    PTX ISA: fragments of mma.sync, ldmatrix.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.schedulers.data_parallel import GridTileScheduler
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.parts.vector_epilogue import VectorEpilogue

from .config import TWO_CTAS, SmallMmaConfig
from .epilogue import StagedStore
from .mainloop import SmallMainloop


class MmaSyncSmall:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), row-major C and D (M, N, L)."""

    def __init__(self, config: SmallMmaConfig, types: dict[str, str]) -> None:
        self.fused: Any = VectorEpilogue(types) if "epilogue" in types else None
        self.threads, self.cluster_k = config.threads, config.cluster_k
        self.scheduler = GridTileScheduler(config.tile_m, config.tile_n, config.cluster_k)
        self.mainloop = SmallMainloop(config, types)
        self.epilogue = StagedStore(
            config.tile_m,
            config.tile_n,
            config.threads,
            int(types["d_vector"]),
            config.warps_k,
            config.cluster_k,
            self.fused,
        )

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, extras=None):
        self.kernel(mA, mB, mC, mD, alpha, beta, extras).launch(
            grid=self.scheduler.grid(mD),
            block=(self.threads, 1, 1),
            cluster=(self.cluster_k, 1, 1) if self.cluster_k > 1 else None,
            # Registers for two CTAs on an SM, unless another limit allows one; 128 a thread of 512.
            min_blocks_per_mp=2 if self.threads <= TWO_CTAS else 1,
            # Given, so that the compiler needs no driver; the launch recipe decides.
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, extras=None):
        tile_m, tile_n, batch, rank = self.scheduler.tile()
        m0, n0 = tile_m * self.scheduler.tile_m, tile_n * self.scheduler.tile_n
        gA, gB, gC, gD = (mX[None, None, batch] for mX in (mA, mB, mC, mD))
        rC, stages, (row, col) = self.mainloop.multiply_tile(gA, gB, None, m0, n0, alpha, (rank, self.cluster_k))
        inputs = None
        if cutlass.const_expr(self.fused is not None):
            inputs = self.fused.of_batch(extras, batch)
        # Partial sums overwrite the stages.
        cute.arch.sync_threads()
        self.epilogue.stage(rC, stages, (row, col, self.mainloop.slice_idx()))
        self.epilogue.write(gD, gC, stages, (m0, n0), (alpha, beta), rank, inputs)


def buildable(config: SmallMmaConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""

    def operand(name: str) -> Any:
        element = types[name]
        vector = max(8 * int(types[f"{name}_copies"]) // cute_type(element).width, 1)
        return major_tensor(element, 1 if types[f"{name}_major"] == "k" else 0, batch=1, vector=vector)

    results = tuple(major_tensor(types["d"], 1, batch=1, vector=int(types["d_vector"])) for _ in range(2))
    acc = cute_type(types["acc"])
    kernel = MmaSyncSmall(config, types)
    extras = () if kernel.fused is None else (kernel.fused.fake_args(),)
    return Buildable(kernel, (operand("a"), operand("b"), *results, acc(1), acc(0), *extras))
