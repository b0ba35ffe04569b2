"""How the result of a warpgroup's part of a tile is cut into boxes, which leave through shared memory."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class BoxLayout:
    """The boxes of a warpgroup.

    Attributes
    ----------
    out : type
        Of the elements of the result.
    box_m, box_n : int
        Rows and columns of a box.
    blocks, boxes : int
        Blocks of 64 rows that the warpgroup has of a tile, and boxes of a block.
    apart : int
        Blocks of the tile from one of this warpgroup's to the next.
    buffers : int
        Boxes of the warpgroup in shared memory, taken in turn; with an epilogue they divide those of a tile.
    turned : bool
        Whether lines of a box are columns.
    reads_c : bool
        Whether there is a C.
    """

    out: Any
    box_m: int
    box_n: int
    blocks: int
    boxes: int
    apart: int
    buffers: int
    turned: bool
    reads_c: bool

    @property
    def box_bytes(self) -> int:
        """Bytes of a box in shared memory."""
        bits: int = self.box_m * self.box_n * self.out.width
        return bits // 8
