"""Tiles of products of few tiles of any alignment."""

from __future__ import annotations

from collections.abc import Iterable

from gemmule.core.config import PORTABLE_CLUSTER
from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import DType
from gemmule.core.errors import ArgumentError
from gemmule.kernels.parts.warp_tile_config import WarpTileConfig

#: Rows and columns of a fragment, of which a warp tile is a multiple, and 64 bytes of elements, of which a tile is.
FRAGMENT, _LINE = 16, 32
#: Most 32-bit registers of a thread for accumulators and the elements of k-tiles, of which each has one.
MOST_REGISTERS = 96
#: Most threads of a CTA that an SM has two of.
TWO_CTAS = 256


@dataclass(frozen=True)
class SmallMmaConfig(WarpTileConfig):
    """Tile of D that a CTA computes, and its warps.

    Attributes
    ----------
    tile_m, tile_n : int
        Elements, 32 or multiples of 64.
    warps_m, warps_n, warps_k : int
        Warps along M, N and K, powers of two. A warp tile is a multiple of 16 x 16; `warps_k` is 1 or 2, and then each
        half of the warps multiplies half of every k-tile (sliced K).
    k_tiles : int
        k-tiles of 128 bytes that are loaded together, while as many are multiplied.
    cluster_k : int
        CTAs of a cluster that share a tile, from sm_90 on, a power of two up to 8: each takes a part of K.
    """

    tile_m: int = 32
    tile_n: int = 32
    warps_m: int = 2
    warps_n: int = 2
    warps_k: int = 2
    k_tiles: int = 2
    cluster_k: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for side, warps in ((self.tile_m, self.warps_m), (self.tile_n, self.warps_n)):
            if (side != _LINE and side % (2 * _LINE)) or side % (FRAGMENT * warps):
                raise ArgumentError(
                    f"config {self}: tile_m and tile_n must be {_LINE} or multiples of {2 * _LINE}, and of {FRAGMENT} "
                    "for each warp"
                )
        powers = (self.tile_m, self.tile_n, self.warps_m, self.warps_n, self.cluster_k)
        if any(value & (value - 1) for value in powers) or self.warps_k > 2:
            raise ArgumentError(
                f"config {self}: tiles, warps_m, warps_n and cluster_k must be powers of two, and warps_k 1 or 2"
            )
        if self.cluster_k > PORTABLE_CLUSTER:
            raise ArgumentError(f"config {self}: cluster_k must be at most {PORTABLE_CLUSTER}")
        if min(self.tile_m, self.tile_n) * self.k_bytes % (FRAGMENT * self.threads):
            raise ArgumentError(f"config {self}: a k-tile must be a multiple of {FRAGMENT} bytes a thread")

    @property
    def stages(self) -> int:
        """Stages in shared memory: those that are multiplied, and as many that are stored."""
        return 2 * self.k_tiles

    @property
    def k_bytes(self) -> int:
        """Bytes of K in a k-tile."""
        return 128

    @property
    def mma_k_bytes(self) -> int:
        """Bytes of K in an mma.sync."""
        return 32

    @property
    def sum_bits(self) -> int:
        """Bits of an accumulator."""
        return 32

    def registers(self, sides: Iterable[int]) -> int:
        """Return a thread's registers for accumulators, and for elements of operands of so many rows or columns."""
        loaded = self.k_tiles * sum(sides) * self.k_bytes // 2
        return (loaded + self.warps_k * self.tile_elements) // self.threads

    def depth(self, dtype: DType) -> int:
        """Return the elements of K in a k-tile."""
        return self.k_bytes // dtype.itemsize

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA: stages, which partial sums overwrite, in rows of 8 words more."""
        partials = 4 * self.warps_k * self.tile_m * (self.tile_n + 8)
        return max((self.tile_m + self.tile_n) * self.k_bytes * self.stages, partials)
