"""The tiles of a result that are stored, and whether they are sound."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gemmule.core.cpus import usable_cpus

from ..stores.matrix import MatrixSource
from .journal_file import Rectangle
from .journaled_sink import UnfinishedSink, checksum

#: Bytes that a thread reads at a time of the tiles that it checks.
_BLOCK_BYTES = 2 << 20
_THREADS = 4


class FinishedTiles:
    """The rectangles of a result that are stored.

    Parameters
    ----------
    rectangles : collection of tuple
        First row, first column, rows and columns of each. They may overlap: runs may have cut a tile differently.
    """

    def __init__(self, rectangles: Sequence[Rectangle]) -> None:
        self._sorted = sorted(rectangles)
        self._whole = {(row, col): (rows, cols) for row, col, rows, cols in rectangles}

    def __call__(self, rows: slice, cols: slice) -> bool:
        """Return whether all of such a tile is stored."""
        shape = rows.stop - rows.start, cols.stop - cols.start
        first_piece = self._whole.get((rows.start, cols.start))
        if first_piece is None or first_piece == shape:
            # One of the pieces within a tile begins at its corner.
            return first_piece is not None
        # A tile may have been written in pieces.
        first, last = (bisect.bisect_left(self._sorted, (edge,)) for edge in (rows.start, rows.stop))
        inside = [
            piece
            for piece in self._sorted[first:last]
            if piece[0] + piece[2] <= rows.stop and cols.start <= piece[1] and piece[1] + piece[3] <= cols.stop
        ]
        if sum(height * width for _, _, height, width in inside) < shape[0] * shape[1]:
            return False
        return _cover(inside, rows, cols)


def _cover(pieces: Sequence[Rectangle], rows: slice, cols: slice) -> bool:
    """Return whether pieces cover their tile."""
    row_edges = sorted({rows.start, rows.stop}.union(*((row, row + height) for row, _, height, _ in pieces)))
    col_edges = sorted({cols.start, cols.stop}.union(*((col, col + width) for _, col, _, width in pieces)))
    # Between neighbouring edges a tile is covered wholly or not at all.
    covered = np.zeros((len(row_edges) - 1, len(col_edges) - 1), np.bool_)
    for row, col, height, width in pieces:
        top, bottom = (bisect.bisect_left(row_edges, edge) for edge in (row, row + height))
        left, right = (bisect.bisect_left(col_edges, edge) for edge in (col, col + width))
        covered[top:bottom, left:right] = True
    return bool(covered.all())


def sound_tiles(sink: UnfinishedSink, tiles: Mapping[Rectangle, int]) -> list[Rectangle]:
    """Return the tiles whose items still have the journal's CRC-32."""
    written = sink.written()
    try:
        with ThreadPoolExecutor(min(_THREADS, usable_cpus()), "gemmule-check") as threads:
            sound = threads.map(
                lambda item: _read_checksum(written, sink.block_shape[0], item[0]) == item[1], tiles.items()
            )
            return [rectangle for rectangle, is_sound in zip(tiles, sound, strict=True) if is_sound]
    finally:
        written.close()


def _read_checksum(source: MatrixSource, block: int, rectangle: Rectangle) -> int:
    row, col, rows, cols = rectangle
    height = max(_BLOCK_BYTES // max(cols * source.dtype.itemsize, 1), 1)
    height = min(height + -height % block, rows)
    buffer = np.empty((height, cols), source.dtype)
    total = 0
    for start in range(0, rows, max(height, 1)):
        part = buffer[: min(height, rows - start)]
        source.read(slice(row + start, row + start + len(part)), slice(col, col + cols), part)
        total = checksum(part, total)
    return total
