"""Double precision with both operands in shared memory: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT64
from gemmule.core.row_major import RowMajorConfig, row_major_spec


@dataclasses.dataclass(frozen=True)
class SharedABConfig(RowMajorConfig):
    """Tile of C that a CTA computes, and the part of a thread.

    Attributes
    ----------
    tile_m, tile_n, tile_k : int
        Elements.
    thread_m, thread_n : int
        Elements of C that a thread computes; multiples of 1.
    """

    tile_m: int = 32
    tile_n: int = 64
    tile_k: int = 16
    thread_m: int = 4
    thread_n: int = 1

    @property
    def tile(self) -> tuple[int, int, int]:
        return (self.tile_m, self.tile_n, self.tile_k)

    @property
    def threads(self) -> int:
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n)

    @property
    def shared_bytes(self) -> int:
        """One slice of A and one of B."""
        return (self.tile_m + self.tile_n) * self.tile_k * FLOAT64.itemsize


SPEC = row_major_spec(
    package="gemmule.kernels.gemm.d01_shared_ab",
    dtype=FLOAT64,
    summary="float64, row-major: slices of A and B in shared memory, sums in registers",
    configs=(
        SharedABConfig(),
        SharedABConfig(64, 128, 16, 8, 8),
    ),
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
)
