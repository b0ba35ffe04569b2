"""The config of kernels that copy operands to workspaces for another kernel, vector by vector."""

from __future__ import annotations

from gemmule.core.config import Config
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError

#: Vectors of 16 bytes that two threads write beside each other where lines are gathered: a sector.
PAIR = 2
#: Keys of a signature for the types of operands in their order, the last for a third one only, and the value for none.
OPERANDS, NONE = ("element", "second", "third"), "none"


@dataclass(frozen=True)
class RepackConfig(Config):
    """Division of the copies among threads."""

    threads: int = 128  #: Threads of a CTA, a multiple of 32.
    vectors: int = 2  #: Vectors of 16 source bytes that each of them copies.

    def __post_init__(self) -> None:
        if self.threads % 32 or not 32 <= self.threads <= 1024 or self.vectors < 1:
            raise ArgumentError(f"config {self}: threads must be a multiple of 32 up to 1024, vectors 1 or more")
