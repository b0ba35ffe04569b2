"""The register file of a batch of CTAs, and frames: the registers of the lanes that run now.

A frame is a list of arrays, one for each pair of register and type that instructions name, each with one element for
each running lane; constants stand in the same list. An instruction is a function of a frame, so that it is written once
and runs on any set of lanes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from .lanes import Lanes
from .types import Array

if TYPE_CHECKING:
    from .batch import Batch

#: What registers hold before they are written: a pattern that is easy to see, and a NaN in every float type.
POISON = {1: 0, 2: 0x7FBD, 4: 0x7FBDBEEF, 8: 0x7FFBDEADDEADBEEF}


@dataclasses.dataclass(frozen=True)
class View:
    """A register read or written as a type: which slot of the frame it is, and where the register file keeps it."""

    slot: int
    width: int
    row: int
    dtype: np.dtype[Any]


@dataclasses.dataclass(frozen=True)
class Uses:
    """What a run of instructions needs of the register file.

    Attributes
    ----------
    views : tuple of View
        Slots that must be filled.
    positions : tuple of int
        For each view, which of the touched rows of its width it is.
    rows : dict of int to list of int
        Rows that are touched, by width in bytes, ascending.
    writes : dict of int to list of (int, int)
        Those among them that are written, and which of them they are.
    """

    views: tuple[View, ...]
    positions: tuple[int, ...]
    rows: dict[int, list[int]]
    writes: dict[int, list[tuple[int, int]]]


class Frame(list[Any]):
    """The slots of the running lanes.

    Attributes
    ----------
    batch : Batch
        The CTAs that the lanes belong to.
    lanes : Lanes
        The lanes.
    file : RegisterFile
        Where their registers come from and go to.
    """

    __slots__ = ("_compact", "batch", "file", "lanes")

    def __init__(self, slots: Iterable[Any], batch: Batch, file: RegisterFile, lanes: Lanes) -> None:
        super().__init__(slots)
        self.batch = batch
        self.file = file
        self.lanes = lanes
        self._compact: dict[int, list[Array]] = {}

    def part(self, mask: Array, slots: Iterable[int]) -> Frame:
        """Return a frame of those lanes for which `mask` is true, with copies of those slots."""
        frame = Frame(self.file.template, self.batch, self.file, self.lanes.where(mask))
        for slot in slots:
            frame[slot] = self[slot][mask]
        return frame

    def store(self, uses: Uses) -> None:
        """Write results back to the register file, where this frame is a copy."""
        index = self.lanes.index
        for width, written in uses.writes.items():
            compact = self._compact.get(width)
            if compact is not None:
                table = self.file.rows[width]
                for row, position in written:
                    table[row][index] = compact[position]


class RegisterFile:
    """Registers of all lanes of a batch: for each width an array with one row for each register.

    Parameters
    ----------
    counts : dict of int to int
        Number of registers by width in bytes.
    template : list
        A frame's constants, None where a register belongs.
    batch : Batch
        The CTAs.
    """

    def __init__(self, counts: dict[int, int], template: list[Any], batch: Batch) -> None:
        lanes = batch.lane_count
        self.rows: dict[int, Array] = {
            width: np.full((count, lanes), POISON[width], np.bool_ if width == 1 else np.dtype(f"u{width}"))
            for width, count in counts.items()
        }
        self.template = template
        self._batch = batch
        self._runs: dict[tuple[int, int, int], Frame] = {}

    def view(self, view: View, run: slice) -> Array:
        """Return a register of a range of lanes, as the type that the view says."""
        found: Array = self.rows[view.width][view.row, run].view(view.dtype)
        return found

    def frame(self, lanes: Lanes, uses: Uses) -> Frame:
        """Return a frame for those lanes: the registers themselves for a range, a copy otherwise."""
        if lanes.run is not None:
            key = (id(uses), lanes.run.start, lanes.run.stop)
            found = self._runs.get(key)
            if found is None:
                found = Frame(self.template, self._batch, self, lanes)
                for view in uses.views:
                    found[view.slot] = self.view(view, lanes.run)
                self._runs[key] = found
            return found
        frame = Frame(self.template, self._batch, self, lanes)
        index = lanes.index
        for width, rows in uses.rows.items():
            table = self.rows[width]
            # Row by row: NumPy's selection along both at once takes four times as long.
            frame._compact[width] = [table[row].take(index) for row in rows]
        for view, position in zip(uses.views, uses.positions, strict=True):
            frame[view.slot] = frame._compact[view.width][position].view(view.dtype)
        return frame
