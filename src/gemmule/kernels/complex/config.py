"""Tiles of the complex kernels: those of their real neighbours, for elements of twice the size."""

from __future__ import annotations

from typing import ClassVar

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import COMPLEX64, COMPLEX128
from gemmule.kernels.float64.config import DmmaConfig
from gemmule.kernels.parts.hopper_facts import SMS
from gemmule.kernels.simt.config import SimtConfig


@dataclass(frozen=True)
class Complex64Config(SimtConfig):
    """A tile of complex64; fields as of `SimtConfig`. A thread reads vectors of 2 elements."""

    itemsize: ClassVar[int] = COMPLEX64.itemsize


@dataclass(frozen=True)
class Complex128Config(DmmaConfig):
    """A tile of complex128; fields as of `DmmaConfig`, but `tile_k`, 8 or 16."""

    tile_k: int = 8
    mma_k: int = 8
    stream_k: int = 0  #: 1: persistent CTAs; tiles that do not fill a wave are shared k-tile by k-tile.
    ctas: int = SMS  #: SMs of the chip: with `stream_k` each has as many CTAs as run at once.
    switches: ClassVar[frozenset[str]] = frozenset({"stream_k"})
    itemsize: ClassVar[int] = COMPLEX128.itemsize
    depths: ClassVar[tuple[int, int]] = (8, 16)
    others: ClassVar[int] = 80
