"""Ozaki scheme II, guard: the least of all sums of magnitudes, by a product of 8-bit floats that is not written.

Idea
    Emulation errs by a share of the norms of a row of A and a column of B, the native product by a share of the sum of
    magnitudes |A||B|. A product of magnitudes that are rounded down, over a part of K, is a lower bound of that sum.
    Its least element determines the moduli that suffice for all, and later launches return at once where they are not
    needed, so that the host need not wait.
Change from the rung before
    The operands are float8_e5m2, and of the accumulators only the minimum leaves the CTA: an atomic of a warp whose
    tile does not suffice for the fewest moduli.
Data movement
    As of ozaki_products, with a sixteenth of K and no result.
Limits
    The tensor cores, and the epilogue where K is short.
Sources
    As of ozaki_gemm; "Guaranteed DGEMM Accuracy While Using Reduced Precision Tensor Cores Through Extensions of the
    Ozaki Scheme" (Automatic Dynamic Precision, ADP), NVIDIA 2025, whose estimate is from exponents of blocks of K.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, cute, select_

from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.guard import INFINITE_BITS
from gemmule.kernels.emulation.guard_words import NEVER
from gemmule.kernels.emulation.ozaki_config import ProductsConfig
from gemmule.kernels.emulation.ozaki_gemm.early_refusal import is_refused
from gemmule.kernels.emulation.ozaki_products.kernel import ResidueProducts, first_matrices
from gemmule.kernels.hopper.mainloops.operands import flat
from gemmule.kernels.hopper.tile_config import CONSUMERS, MMA_M
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.tensors import major_tensor

#: Chains of minima that do not wait for each other.
_CHAINS = 4


class LeastMagnitude(ResidueProducts):
    """max(S, how many limits INFINITE_BITS - bits of A @ B exceeds): A (M, K, 1), B (N, K, 1) of float8_e5m2.

    S and the limits are at the address of D.
    """

    element, accumulator = cutlass.Float8E5M2, Float32

    def needed(self, mD):
        """Return the sums, or none of them where the product is refused already."""
        return first_matrices(mD, Int32(select_(is_refused(mD), Int32(0), Int32(1))))

    def divisor(self, place):
        """Return nothing: sums are not reduced."""
        del place

    @cute.jit
    def write_tile(self, gD, accumulators, place, warpgroup_idx, divisor):  # noqa: ARG002 - of residues
        """Reduce a warp's part of a tile to its least element, and that into device memory."""
        m0, n0 = place
        values, least = flat(accumulators), Float32(float("inf"))
        if m0 + self.tile_m <= gD.shape[0] and n0 + self.tile_n <= gD.shape[1]:
            least = self.least_of_all(values)
        else:
            least = self.least_inside(gD, values, place, warpgroup_idx)
        below = cute.arch.warp_redux_sync(Int32(INFINITE_BITS) - least.bitcast(Int32), "max")
        limits, shortfall = cute.make_tensor(gD.iterator + 1, cute.make_layout(NEVER)), Int32(0)
        for number in cutlass.range_constexpr(NEVER):
            shortfall = number + 1 if below > limits[number] else shortfall
        if cute.arch.lane_idx() == 0 and shortfall > 0:
            cute.arch.atomic_max(gD.iterator, shortfall, sem="relaxed", scope="gpu")

    @cute.jit
    def least_of_all(self, values: cute.Tensor):
        """Return the least of a thread's elements, by independent chains."""
        found = cute.make_rmem_tensor(cute.make_layout(_CHAINS), Float32)
        found.fill(float("inf"))
        for first in cutlass.range_constexpr(0, self.mma_tiles_m * self.tile_n // 2, _CHAINS):
            for chain in cutlass.range_constexpr(_CHAINS):
                found[chain] = cute.arch.fmin(found[chain], values[first + chain])
        least = found[0]
        for place in cutlass.range_constexpr(1, _CHAINS):
            least = cute.arch.fmin(least, found[place])
        return least

    @cute.jit
    def least_inside(self, gD, values: cute.Tensor, place, warpgroup_idx):
        """Return the least of a thread's elements that are inside the matrix."""
        m0, n0 = place
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid % WARPGROUP // 32, tid % 32
        least = Float32(float("inf"))
        for block in cutlass.range_constexpr(self.mma_tiles_m):
            of_tile = block if cutlass.const_expr(self.pingpong) else warpgroup_idx + CONSUMERS * block
            for half in cutlass.range_constexpr(2):
                row = m0 + of_tile * MMA_M + warp * 16 + lane // 4 + 8 * half
                for n in cutlass.range_constexpr(self.tile_n // 8):
                    for v in cutlass.range_constexpr(2):
                        inside = row < gD.shape[0] and n0 + 8 * n + 2 * (lane % 4) + v < gD.shape[1]
                        value = values[block * self.tile_n // 2 + 4 * n + 2 * half + v]
                        least = cute.arch.fmin(least, Float32(select_(inside, value, Float32(float("inf")))))
        return least


def buildable(config: ProductsConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    a, b = (major_tensor("float8_e5m2", 1, batch=1, vector=16) for _ in range(2))
    d = major_tensor("int32", 1, batch=1)
    return Buildable(LeastMagnitude(config, types), (a, b, d, Int32(1)))
