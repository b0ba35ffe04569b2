"""Tiles of the mma.sync GEMM."""

from __future__ import annotations

import math
from typing import ClassVar

from gemmule.core.config import LARGEST_CLUSTER
from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import DType
from gemmule.core.errors import ArgumentError
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.warp_tile_config import WarpTileConfig

#: Bytes that a copy may move at once; 1 and 2 are those of an element.
COPIES = (16, 8, 4, 2, 1)
#: Bytes of K of a fragment; rows and columns of a subtile, of which an epilogue writes two at once; and the bytes of
#: shared memory that a warp needs for two of these: 16 rows of at most 80 words.
FRAGMENT_BYTES, SUBTILE_M, SUBTILE_N, WARP_BYTES = 32, 16, 32, 5120
#: Sides of tiles are multiples of the first, 64 bytes of 16 bits; bytes of the lines of a tile.
_TILE_UNIT, _LINE_BYTES, _LONG_LINE = 32, 64, 128
#: With `split_k`, elements that a thread moves at once to and from a workspace.
_VECTOR = 4


@dataclass(frozen=True)
class MmaSyncConfig(WarpTileConfig):
    """Tile of C that a CTA computes, the warps that share it, and the k-tiles in flight.

    Attributes
    ----------
    tile_m, tile_n : int
        Elements, multiples of 32; of 64, where elements have 8 bits.
    k_bytes : int
        Depth of a k-tile in bytes, 64 or 128: 128 bytes are 64 elements of 16 bits.
    warps_m, warps_n : int
        Warps along M and N. A warp tile is a multiple of 16 x 32.
    stages : int
        Stages in shared memory, at least 2.
    mma_k_bytes : int
        Depth of an mma.sync in bytes, 32 or 16: m16n8k16 or m16n8k8 for elements of 16 bits.
    sum_bits : int
        32, or 16 for accumulators in float16: coarser than other kernels, so that no search may take it.
    group : int
        Tiles that CTAs take downwards before they go to the right.
    cluster_k : int
        CTAs of a cluster that share a tile, from sm_90 on: each takes a part of K, and some write parts of the tile.
    split_k : int
        1: each tile is shared evenly among as many clusters as run at once, through a workspace.
    """

    tile_m: int = 128
    tile_n: int = 128
    k_bytes: int = 128
    warps_m: int = 2
    warps_n: int = 2
    stages: int = 3
    mma_k_bytes: int = 32
    sum_bits: int = 32
    group: int = 8
    cluster_k: int = 1
    split_k: int = 0

    switches: ClassVar[frozenset[str]] = frozenset({"split_k"})

    def __post_init__(self) -> None:
        super().__post_init__()
        unit_m, unit_n = (math.lcm(_TILE_UNIT, unit) for unit in (SUBTILE_M * self.warps_m, SUBTILE_N * self.warps_n))
        if self.tile_m % unit_m or self.tile_n % unit_n or self.stages < 2:
            raise ArgumentError(
                f"config {self}: tile_m must be a multiple of {unit_m}, tile_n of {unit_n}, and stages 2 or more"
            )
        if self.k_bytes not in (64, 128) or self.mma_k_bytes not in (16, 32) or self.sum_bits not in (16, 32):
            raise ArgumentError(
                f"config {self}: k_bytes must be 64 or 128, mma_k_bytes 16 or 32, and sum_bits 16 or 32"
            )
        copied = max(COPIES) * self.threads
        if self.tile_m * self.k_bytes % copied or self.tile_n * self.k_bytes % copied:
            raise ArgumentError(f"config {self}: a k-tile must be a multiple of {copied} bytes, {max(COPIES)} a thread")
        if self.tile_m // self.warps_m * (self.tile_n // self.warps_n) % (2 * SUBTILE_M * SUBTILE_N):
            raise ArgumentError(f"config {self}: a warp tile must be two subtiles of {SUBTILE_M} x {SUBTILE_N} or more")
        if not 1 <= self.cluster_k <= LARGEST_CLUSTER or (
            self.cluster_k > 1 and (self.sum_bits == 16 or self.staging_bytes > self.shared_bytes)
        ):
            raise ArgumentError(
                f"config {self}: cluster_k must be 1 to {LARGEST_CLUSTER}, and above 1 partial sums must be of 32 bits "
                "and fit into the stages"
            )
        if self.split_k and (
            self.threads % WARPGROUP
            or self.tile_elements % (_VECTOR * self.threads * self.cluster_k)
            or self.tile_n & (self.tile_n - 1)
        ):
            raise ArgumentError(
                f"config {self}: with split_k=1, tile_m * tile_n must be a multiple of {_VECTOR} elements for each "
                f"thread of the cluster, tile_n a power of two, and threads a multiple of {WARPGROUP}"
            )
        if self.shared_bytes < WARP_BYTES * self.threads // 32:
            raise ArgumentError(f"config {self}: its stages are too small for the epilogue; add stages")

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA."""
        return (self.tile_m + self.tile_n) * self.k_bytes * self.stages

    @property
    def staging_bytes(self) -> int:
        """Shared memory of the partial sums of a CTA."""
        return self.tile_elements // (2 * SUBTILE_M * SUBTILE_N) * WARP_BYTES

    @property
    def share_elements(self) -> int:
        """Elements of a tile that each CTA of the cluster writes, or with `split_k` publishes."""
        return self.tile_elements // self.cluster_k

    def takes(self, dtype: DType) -> bool:
        """Return whether tiles have whole lines of such elements, and warp tiles whole ones or equal parts of one."""
        for side, warps in ((self.tile_m, self.warps_m), (self.tile_n, self.warps_n)):
            nbytes, of_warp = side * dtype.itemsize, side // warps * dtype.itemsize
            line = _LONG_LINE if nbytes % _LONG_LINE == 0 else _LINE_BYTES
            if nbytes % line or (of_warp % line and line % of_warp):
                return False
        return True

    def depth(self, dtype: DType) -> int:
        """Return the elements of K in a k-tile."""
        return self.k_bytes // dtype.itemsize


#: Rows and columns of the tile that predicted times are given for.
TILE = 64
#: CTAs of a cluster that share a tile along K.
PARTS_OF_K = (1, 2, 4, 8)
