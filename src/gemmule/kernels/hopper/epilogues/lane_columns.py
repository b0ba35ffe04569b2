"""Inputs of a fused epilogue that vary by column only, whose columns the lanes of a warp share."""

from __future__ import annotations

from typing import Any

from cutlass import cute

WARP, _COL_STEP = 32, 8


class LaneColumns:
    """Each lane holds every 32nd column of a warpgroup's part of a tile, in few registers.

    So they are loaded before the mainloop, all of them, and the epilogue waits for no load; an element comes by a
    shuffle from the lane that has it, once for an epilogue tile.

    Parameters
    ----------
    values : sequence
        This lane's elements.
    first : int
        The first column of the epilogue tile.
    """

    def __init__(self, values: Any, first: int = 0) -> None:
        self.values, self.first = tuple(values), first
        self._shuffled: dict[tuple[int, int], Any] = {}

    def from_column(self, first: int) -> LaneColumns:
        """Return the same for an epilogue tile that begins at another column."""
        return LaneColumns(self.values, first)

    def __getitem__(self, place: tuple[tuple[int, int], int]) -> Any:
        """Return what this thread needs for element (j, e) of its columns, of any of its rows."""
        coord, _ = place
        if coord not in self._shuffled:
            column = self.first + _COL_STEP * coord[0]
            lane = column % WARP + cute.arch.lane_idx() % 4 * 2 + coord[1]
            self._shuffled[coord] = cute.arch.shuffle_sync(self.values[column // WARP], lane)
        return self._shuffled[coord]


def load_columns(vector: Any, count: int) -> LaneColumns:
    """Issue the loads of `count` columns; `vector` returns an element by its index."""
    return LaneColumns([vector(WARP * number + cute.arch.lane_idx()) for number in range(-(-count // WARP))])
