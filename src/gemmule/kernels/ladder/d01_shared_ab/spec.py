"""Double precision with both operands in shared memory: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT64
from gemmule.core.row_major import ThreadTileConfig, row_major_spec


@dataclasses.dataclass(frozen=True)
class SharedABConfig(ThreadTileConfig):
    """Tiles of a CTA and a thread; the default is the paper's."""

    tile_m: int = 32
    tile_n: int = 64
    tile_k: int = 16
    thread_m: int = 4
    thread_n: int = 1

    @property
    def shared_bytes(self) -> int:
        """One slice of A and one of B."""
        return self.slice_elements * FLOAT64.itemsize


SPEC = row_major_spec(
    package=__package__,
    dtype=FLOAT64,
    summary="float64, row-major: slices of A and B in shared memory, sums in registers",
    configs=(
        SharedABConfig(),
        SharedABConfig(64, 128, 16, 8, 8),
    ),
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
)
