"""GEMM of a tile of D for each CTA or cluster: its launch, and what a CTA runs."""

from __future__ import annotations

from typing import Any

from cutlass import cute


class TileGemm:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), row-major C and D (M, N, L).

    A class of it has `compute_tile`, the scheduler, the threads of a CTA, the CTAs of a cluster and those of an SM.
    """

    compute_tile: Any
    scheduler: Any
    threads: int
    cluster_k: int
    resident: int

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first=None):
        self.kernel(mA, mB, mC, mD, alpha, beta, first).launch(
            grid=(self.scheduler.ctas(mD), 1, 1),
            block=(self.threads, 1, 1),
            cluster=(self.cluster_k, 1, 1) if self.cluster_k > 1 else None,
            min_blocks_per_mp=self.resident,
            # Given, so that the compiler needs no driver; the launch recipe decides.
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first=None):
        self.compute_tile(mA, mB, mC, mD, alpha, beta, first)
