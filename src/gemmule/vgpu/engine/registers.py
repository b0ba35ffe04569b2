"""The register file of a batch of CTAs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gemmule.vgpu.types import Array

from .lanes import WARP, Lanes

#: Content of unwritten registers: a pattern that is easy to see, and a NaN in every float type.
POISON = {1: 0, 2: 0x7FBD, 4: 0x7FBDBEEF, 8: 0x7FFBDEADDEADBEEF}

#: Copies of rows by width in bytes.
Copies = dict[int, list[Array] | Array]


@dataclasses.dataclass(frozen=True)
class View:
    """A register read or written as a type: which slot of the frame it is, and its place in the register file."""

    slot: int
    width: int
    row: int
    dtype: np.dtype[Any]


@dataclasses.dataclass(frozen=True)
class RegisterUse:
    """The registers that a run of instructions reads and writes."""

    views: tuple[View, ...]  #: Slots that must be filled.
    positions: tuple[int, ...]  #: For each view, which of the touched rows of its width it is.
    rows: dict[int, list[int]]  #: Rows that are touched, by width in bytes, ascending.
    writes: dict[int, list[tuple[int, int]]]  #: Those among them that are written, and which of them they are.


class RegisterFile:
    """Registers of all lanes of a batch: for each width an array with one row for each register.

    Parameters
    ----------
    counts : dict of int to int
        Number of registers by width in bytes.
    template : list
        A frame's constants, None where a register belongs.
    lanes : int
        Lanes of the batch.
    """

    def __init__(self, counts: dict[int, int], template: list[Any], lanes: int) -> None:
        self.rows: dict[int, Array] = {
            width: np.full((count, lanes), POISON[width], np.bool_ if width == 1 else np.dtype(f"u{width}"))
            for width, count in counts.items()
        }
        # The same memory with all lanes of a warp as one element, which are copied at once.
        self._by_warps = {width: rows.view(f"V{WARP * rows.itemsize}").reshape(-1) for width, rows in self.rows.items()}
        self.template = template

    def view(self, view: View, run: slice) -> Array:
        """Return a register of a range of lanes, as the type of the view."""
        found: Array = self.rows[view.width][view.row, run].view(view.dtype)
        return found

    def copies(self, lanes: Lanes, uses: RegisterUse) -> Copies:
        """Return copies of the touched rows in those lanes, by width in bytes."""
        warps = lanes.whole
        if warps is None:
            # Row by row: NumPy's selection along both at once takes four times as long.
            return {
                width: [self.rows[width][row].take(lanes.index) for row in rows] for width, rows in uses.rows.items()
            }
        return {
            width: self._by_warps[width].take(self._places(width, rows, warps)).view(self.rows[width].dtype)
            for width, rows in uses.rows.items()
        }

    def store(self, lanes: Lanes, uses: RegisterUse, copies: Copies) -> None:
        """Write the results in those copies back."""
        warps = lanes.whole
        for width, written in uses.writes.items():
            found, table = copies[width], self.rows[width]
            if warps is None or isinstance(found, list):
                for row, position in written:
                    table[row][lanes.index] = found[position]
                continue
            rows, positions = zip(*written, strict=True)
            some = found if len(positions) == len(found) else found[list(positions)]
            np.put(self._by_warps[width], self._places(width, rows, warps), some.view(f"V{WARP * table.itemsize}"))

    def _places(self, width: int, rows: Sequence[int], warps: Array) -> Array:
        """Return the places of warps in rows: (rows, warps)."""
        found: Array = np.array(rows)[:, None] * (self.rows[width].shape[1] // WARP) + warps
        return found
