"""The config of hopper_gemm_repacked."""

from __future__ import annotations

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError
from gemmule.kernels.hopper.repack_config import RepackConfig


@dataclass(frozen=True)
class PackingConfig(RepackConfig):
    """Division of the copies among threads, and how many operands are copied."""

    packs: int = 2  #: 2: those that TMA cannot load; 1: of two the smaller one.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.packs not in (1, 2):
            raise ArgumentError(f"config {self}: packs must be 1 or 2")
