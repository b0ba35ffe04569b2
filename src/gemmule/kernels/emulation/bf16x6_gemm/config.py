"""The configs of the kernel that splits float32 into parts of bfloat16."""

from __future__ import annotations

import dataclasses

from gemmule.core.errors import ArgumentError
from gemmule.core.spec import Config

#: Contiguous elements that a thread splits: 32 bytes in, three times 16 bytes out.
RUN = 8


@dataclasses.dataclass(frozen=True)
class SplitConfig(Config):
    """How the operands are split.

    Attributes
    ----------
    threads : int
        Threads of a CTA, a multiple of 32.
    runs : int
        Vectors of 8 contiguous elements that each of them splits.
    """

    threads: int = 256
    runs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads % 32 or not 32 <= self.threads <= 1024:
            raise ArgumentError(f"config {self}: threads must be a multiple of 32 up to 1024")
