"""Square tiles in shared memory, one thread an element: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.core.row_major import RowMajorConfig, row_major_spec


@dataclasses.dataclass(frozen=True)
class SharedTileConfig(RowMajorConfig):
    """Side of the square tiles.

    Attributes
    ----------
    side : int
        Rows, columns and depth: a CTA has side * side threads.
    """

    side: int = 32

    @property
    def tile(self) -> tuple[int, int, int]:
        return (self.side, self.side, self.side)

    @property
    def threads(self) -> int:
        return self.side * self.side

    @property
    def shared_bytes(self) -> int:
        """One tile of A and one of B."""
        return 2 * self.side * self.side * FLOAT32.itemsize


SPEC = row_major_spec(
    package=__package__,
    dtype=FLOAT32,
    summary="float32, row-major: square tiles of A and B in shared memory, one thread an element",
    configs=(
        SharedTileConfig(),
        SharedTileConfig(16),
    ),
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
)
