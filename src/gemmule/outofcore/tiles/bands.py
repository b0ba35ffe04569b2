"""Bands of tiles of one product, computed by several processes that share nothing but files."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection

from ...core.errors import ArgumentError
from ..journal.finished_tiles import FinishedTiles
from ..journal.journal_file import Journal, remove_band_journals
from ..journal.journaled_sink import JournaledSink
from ..stores.matrix import AnyDType, Finished
from ..stores.target import Target
from .plan import StreamPlan

#: Row and column of a tile in the grid of tiles.
Tile = tuple[int, int]


def cut_into_bands(plan: StreamPlan, finished: Finished | None, workers: int) -> list[tuple[Tile, ...]]:
    """Return the tiles to compute, in bands of adjacent ones: some for each worker, so that none waits long.

    A band is part of one row of tiles (or column, by the plan's order), whose slices its worker reads once.
    """
    tiles = list(plan.order(finished))
    longest = max(-(-len(tiles) // (4 * max(workers, 1))), 1)
    bands: list[tuple[Tile, ...]] = []
    for _, group in itertools.groupby(tiles, key=lambda tile: tile[0 if plan.by_rows else 1]):
        line = tuple(group)
        count = -(-len(line) // longest)
        edges = [len(line) * part // count for part in range(count + 1)]
        bands += [line[start:stop] for start, stop in itertools.pairwise(edges)]
    return bands


class Band:
    """A band of tiles in one process: the sink for them, and what a process before has done of it.

    Its journal is in the folder of the product's. A process that takes over from one that was lost finds in it which
    tiles are stored, and computes the others.

    Parameters
    ----------
    target : Target
        The place of the product, which another process has opened.
    plan : StreamPlan
        The plan of the whole product.
    dtype : dtype
        Element type of the result.
    tiles : collection of tuple
        The tiles of the band.

    Raises
    ------
    ArgumentError
        If another process is at the band.
    """

    def __init__(self, target: Target, plan: StreamPlan, dtype: AnyDType, tiles: Collection[Tile]) -> None:
        self._plan = plan
        self._wanted = {(plan.rows(i).start, plan.cols(j).start) for i, j in tiles}
        if plan.symmetric:
            # The mirror image of a tile is written with it.
            self._wanted |= {(plan.cols(j).start, plan.rows(i).start) for i, j in tiles}
        journal = Journal(band_journal(target.journal, tiles), target.name)
        self._product = target.journal
        fresh = journal.header is None
        try:
            band = {"band": [list(tile) for tile in tiles]}
            journal.check((plan.product.m, plan.product.n))
            if journal.header is None:
                journal.clear()
                journal.start(band)
            elif journal.header != band:
                raise ArgumentError(
                    f"{journal.path}: notes other tiles than those of this band of {target.name}; repeat the command "
                    "that began it, or start afresh with resume=False"
                )
            else:
                journal.go_on()
            self._stored = FinishedTiles(list(journal.tiles))
            self.sink = JournaledSink(target.join((plan.product.m, plan.product.n), dtype), journal)
            # A failure here deletes nothing: others write to the same place.
            self.sink.hold()
        except BaseException:
            if fresh:
                journal.remove()
            journal.close()
            raise

    def leave(self) -> None:
        """Store what was written, and leave the journal to the process that has opened the product.

        If another process took over and finished it meanwhile, nobody would collect the journal.
        """
        self.sink.leave()
        if not os.path.lexists(self._product):
            remove_band_journals(self._product, self.sink.name)

    def finished(self, rows: slice, cols: slice) -> bool:
        """Return whether a tile is none of this band, or is stored."""
        return (rows.start, cols.start) not in self._wanted or self._stored(rows, cols)


def band_journal(journal: str, tiles: Collection[Tile]) -> str:
    """Return the file of the journal of a band, in the folder of the product's."""
    first = min(tiles)
    return f"{journal}.{first[0]}-{first[1]}"


def collect(journal: str, name: str, sink: JournaledSink, tiles: Collection[Tile]) -> bool:
    """Take over what the journal of a band notes, and delete it; return whether nobody is at the band any more."""
    path = band_journal(journal, tiles)
    if not os.path.lexists(path):
        return True
    with contextlib.suppress(ArgumentError):
        band = Journal(path, name)
        try:
            band.check(sink.shape)
            sink.adopt(band.tiles)
            band.remove()
        finally:
            band.close()
        return True
    return False
