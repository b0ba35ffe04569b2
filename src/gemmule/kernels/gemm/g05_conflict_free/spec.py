"""Register tiles, shared memory without bank conflicts: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.core.row_major import RowMajorConfig, row_major_spec


@dataclasses.dataclass(frozen=True)
class ConflictFreeConfig(RowMajorConfig):
    """Tile of C that a CTA computes, and the part of a thread.

    Attributes
    ----------
    tile_m, tile_n, tile_k : int
        Elements; 4 divides tile_k.
    thread_m, thread_n : int
        Elements of C that a thread computes; multiples of 8.
    """

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 8
    thread_m: int = 8
    thread_n: int = 8

    @property
    def tile(self) -> tuple[int, int, int]:
        return (self.tile_m, self.tile_n, self.tile_k)

    @property
    def threads(self) -> int:
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n)

    @property
    def shared_bytes(self) -> int:
        """One slice of A and one of B."""
        return (self.tile_m + self.tile_n) * self.tile_k * FLOAT32.itemsize


SPEC = row_major_spec(
    package="gemmule.kernels.gemm.g05_conflict_free",
    dtype=FLOAT32,
    summary="float32, row-major: A stored transposed, the thread tile split in halves",
    configs=(ConflictFreeConfig(), ConflictFreeConfig(tile_k=16)),
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
)
