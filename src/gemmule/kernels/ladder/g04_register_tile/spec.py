"""Tiles of 128 x 128, 8 x 8 elements a thread: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.core.row_major import ThreadTileConfig, row_major_spec


@dataclasses.dataclass(frozen=True)
class RegisterTileConfig(ThreadTileConfig):
    """Tiles of a CTA and a thread."""

    run: ClassVar[int] = 4
    in_runs: ClassVar[tuple[str, ...]] = ("tile_k", "thread_n")

    @property
    def shared_bytes(self) -> int:
        """One slice of A and one of B."""
        return self.slice_elements * FLOAT32.itemsize


SPEC = row_major_spec(
    package=__package__,
    dtype=FLOAT32,
    summary="float32, row-major: 128 x 128 tiles, 8 x 8 elements a thread, 16-byte copies",
    configs=(RegisterTileConfig(),),
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
)
