"""One thread an element, neighbouring threads along a row: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.core.row_major import RowMajorConfig, row_major_spec


@dataclasses.dataclass(frozen=True)
class NaiveCoalescedConfig(RowMajorConfig):
    """Threads of a CTA, one for each element of its block of C.

    Attributes
    ----------
    block_m, block_n : int
        Rows and columns of the block.
    """

    block_m: int = 32
    block_n: int = 32

    @property
    def tile(self) -> tuple[int, int, int]:
        return (self.block_m, self.block_n, 1)

    @property
    def threads(self) -> int:
        return self.block_m * self.block_n


SPEC = row_major_spec(
    package=__package__,
    dtype=FLOAT32,
    summary="float32, row-major: one thread an element, neighbouring threads along a row of C",
    configs=(
        NaiveCoalescedConfig(),
        NaiveCoalescedConfig(16, 16),
    ),
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
)
