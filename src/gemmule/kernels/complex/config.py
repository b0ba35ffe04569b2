"""Tiles of the complex kernels: those of their real neighbours, for elements of twice the size."""

from __future__ import annotations

from typing import ClassVar

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import COMPLEX64, COMPLEX128
from gemmule.core.errors import ArgumentError
from gemmule.kernels.float64.config import TmaTilesConfig
from gemmule.kernels.simt.config import SimtConfig


@dataclass(frozen=True)
class Complex64Config(SimtConfig):
    """A tile of complex64; fields as of `SimtConfig`. A thread reads vectors of 2 elements."""

    itemsize: ClassVar[int] = COMPLEX64.itemsize


@dataclass(frozen=True)
class Complex128Config(TmaTilesConfig):
    """A tile of complex128; fields as of `TmaTilesConfig`, but `tile_k`, 8 or 16; `stream_k` is without clusters."""

    tile_k: int = 8
    mma_k: int = 8
    itemsize: ClassVar[int] = COMPLEX128.itemsize
    depths: ClassVar[tuple[int, int]] = (8, 16)
    others: ClassVar[int] = 80

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split_k:
            raise ArgumentError(f"config {self}: a tile is shared along K by a cluster or by stream_k, not by both")

    @property
    def whole_from(self) -> float:
        return 0.9 if self.tma else super().whole_from
