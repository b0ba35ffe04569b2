"""Tiles of the float32 kernels with a cp.async mainloop."""

from __future__ import annotations

import dataclasses

from gemmule.core.dtype import FLOAT32
from gemmule.core.errors import ArgumentError
from gemmule.core.spec import Config

#: Elements of the vectors that a thread moves: 16 bytes of float32.
VECTOR = 4
#: Lanes of a warp along M and N.
LANES_M, LANES_N = 4, 8
#: Elements of a sector of device memory; divides tile_k.
SECTOR = 8


@dataclasses.dataclass(frozen=True)
class CpAsyncConfig(Config):
    """Tile of C that a CTA computes, the warps that share it, and the k-tiles in flight.

    Attributes
    ----------
    tile_m, tile_n, tile_k : int
        Elements; tile_k is a multiple of 8.
    warps_m, warps_n : int
        Warps along M and N. A warp tile is a multiple of 16 x 32.
    stages : int
        Stages in shared memory, at least 2.
    group : int
        Tiles that CTAs take downwards before they go to the right.
    """

    tile_m: int = 128
    tile_n: int = 256
    tile_k: int = 8
    warps_m: int = 2
    warps_n: int = 4
    stages: int = 4
    group: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        warp_m, warp_n = LANES_M * VECTOR * self.warps_m, LANES_N * VECTOR * self.warps_n
        copied = VECTOR * self.threads
        if self.tile_m % warp_m or self.tile_n % warp_n or self.tile_k % SECTOR or self.stages < 2:
            raise ArgumentError(
                f"config {self}: tile_m must be a multiple of {warp_m}, tile_n of {warp_n}, tile_k of {SECTOR}, and "
                "stages 2 or more"
            )
        if self.tile_m * self.tile_k % copied or self.tile_n * self.tile_k % copied:
            raise ArgumentError(f"config {self}: a k-tile must be a multiple of {copied} elements, {VECTOR} a thread")

    @property
    def outputs(self) -> int:
        return self.tile_m * self.tile_n

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps_m * self.warps_n

    def leading_dimension(self, extent: int, k_major: bool) -> int:
        """Return the elements from one k to the next in shared memory: the leading dimension of a stage.

        Columns of a K-major operand are transposed on the way, by threads along K, and padded, so that these meet
        different banks.
        """
        return extent + VECTOR if k_major else extent

    def shared_bytes(self, a_k_major: bool, b_k_major: bool) -> int:
        """Return the shared memory of a CTA."""
        sides = self.leading_dimension(self.tile_m, a_k_major) + self.leading_dimension(self.tile_n, b_k_major)
        return sides * self.tile_k * self.stages * FLOAT32.itemsize
