"""Spec of the float64 GEMM with both operands in shared memory."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT64
from gemmule.kernels.simt.row_major_config import ThreadTileConfig
from gemmule.kernels.simt.row_major_spec import row_major_spec


@dataclasses.dataclass(frozen=True)
class SharedABConfig(ThreadTileConfig):
    """Tiles of a CTA and a thread; the defaults are the paper's."""

    tile_m: int = 32
    tile_n: int = 64
    tile_k: int = 16
    thread_m: int = 4
    thread_n: int = 1

    @property
    def shared_bytes(self) -> int:
        """One k-tile of A and one of B."""
        return self.k_tile_elements * FLOAT64.itemsize


SPEC = row_major_spec(
    package=__package__,
    dtype=FLOAT64,
    summary="float64, row-major: k-tiles of A and B in shared memory, accumulators in registers",
    configs=(
        SharedABConfig(),
        SharedABConfig(64, 128, 16, 8, 8),
    ),
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
)
