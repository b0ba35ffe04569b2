"""Spec of the GEMM with register tiles, two stages in shared memory."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.kernels.simt.row_major_config import ThreadTileConfig
from gemmule.kernels.simt.row_major_spec import row_major_spec


@dataclasses.dataclass(frozen=True)
class DoubleBufferConfig(ThreadTileConfig):
    """Tiles of a CTA and a thread."""

    vector: ClassVar[int] = 4
    in_vectors: ClassVar[tuple[str, ...]] = ("tile_k", "thread_m", "thread_n")

    @property
    def shared_bytes(self) -> int:
        """Two k-tiles of A and two of B."""
        return 2 * self.k_tile_elements * FLOAT32.itemsize


SPEC = row_major_spec(
    package=__package__,
    dtype=FLOAT32,
    summary="float32, row-major: two buffers in shared memory, one barrier a k-tile",
    configs=(DoubleBufferConfig(),),
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
)
