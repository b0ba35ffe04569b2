"""A sink whose finished tiles survive a crash: data first, then the journal."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol

import numpy as np

from ...core.errors import WrongResultError
from ..stores.matrix import AnyDType, Array, MatrixSink, MatrixSource
from .coverage import coverage_flaw
from .journal_file import Journal, Rectangle, remove_band_journals


class UnfinishedSink(MatrixSink, Protocol):
    """A sink that can be left as it is, to be taken up again by another process."""

    def keep(self) -> str:
        """Leave what was written; return where it is. Does nothing after a commit."""


class JournaledSink:
    """A sink that journals the stored tiles. Leaving the block without a commit keeps the journaled tiles.

    Tiles are stored and journaled by a thread of its own, several at once where they come faster than the disk writes:
    write, store the data, write the lines, store the lines.

    Parameters
    ----------
    sink : UnfinishedSink
        Destination of tiles.
    journal : Journal
        The journal; this object owns both from now on.

    Attributes
    ----------
    partial_path : str or None
        After leaving the block without a commit: where the finished tiles are, None if there were none.
    """

    def __init__(self, sink: UnfinishedSink, journal: Journal) -> None:
        self.name = sink.name
        self.shape = sink.shape
        self.dtype: AnyDType = sink.dtype
        self.block_shape = sink.block_shape
        self.scratch_bytes = sink.scratch_bytes
        self.partial_path: str | None = None
        self._sink = sink
        self._journal = journal
        self._written: list[tuple[Rectangle, int]] = []
        self._noted = len(journal.tiles)
        self._found = list(journal.tiles)
        self._computed: list[Rectangle] = []
        self._lock = threading.Lock()
        self._storer = ThreadPoolExecutor(1, "gemmule-store")
        self._storing: Future[None] | None = None
        self._busy = False
        self._open = True

    def write(self, row: int, col: int, tile: Array) -> int:
        """Put `tile` at (row, col); return the bytes written. It counts as finished some time later."""
        if self._storing is not None and self._storing.done():
            # Raises what storing has raised.
            self._storing.result()
        written = self._sink.write(row, col, tile)
        entry = (row, col, tile.shape[0], tile.shape[1]), checksum(tile)
        with self._lock:
            self._computed.append(entry[0])
            self._written.append(entry)
            if not self._busy:
                self._busy = True
                self._storing = self._storer.submit(self._store)
        return written

    def adopt(self, tiles: Mapping[Rectangle, int]) -> None:
        """Note tiles that others have written and stored, with their CRC-32."""
        self._journal.append(tiles.items())
        self._computed += tiles
        self._noted += len(tiles)

    def hold(self) -> None:
        """Keep the stored tiles when the block is left, though nothing may be journaled here: others are writing."""
        self._noted = max(self._noted, 1)

    def leave(self) -> dict[Rectangle, int]:
        """Store what was written, and close sink and journal without a commit; return all that the journal notes."""
        self.flush()
        self._close()
        self._sink.keep()
        self._journal.close()
        return self._journal.tiles

    def flush(self) -> None:
        """Wait until everything that was written is stored and journaled."""
        with self._lock:
            storing = self._storing
        if storing is not None:
            storing.result()
        self._sink.flush()

    def written(self) -> MatrixSource:
        """Return the written matrix, to be read back before the commit. The caller closes it."""
        return self._sink.written()

    def commit(self) -> None:
        """Let the finished matrix appear, and delete the journal.

        Raises
        ------
        WrongResultError
            If a part of it was not computed, or more than once.
        """
        self.flush()
        flaw = coverage_flaw(self.shape, self._found, self._computed)
        if flaw is not None:
            raise WrongResultError(
                f"{self.name}: {flaw}; the result does not appear; start afresh with resume=False, and report it if "
                "that fails again"
            )
        self._sink.commit()
        self._close()
        # A journal that outlives its result does no harm: it has no data any more.
        self._journal.remove()
        # Workers of a killed client may have written and journaled more.
        remove_band_journals(self._journal.path, self.name)

    def abort(self) -> None:
        if self._open:
            self._close()
            self._sink.abort()
            self._journal.remove()

    def __enter__(self) -> JournaledSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._open:
            return
        # Writes in flight complete, so that no finished tile is lost.
        self._storer.shutdown()
        if not self._noted:
            self.abort()
            return
        self._close()
        self.partial_path = self._sink.keep()
        self._journal.close()

    def _close(self) -> None:
        self._open = False
        self._storer.shutdown(cancel_futures=True)

    def _store(self) -> None:
        """Store and note what was written, until nothing more comes."""
        while True:
            with self._lock:
                written, self._written = self._written, []
                if not written:
                    self._busy = False
                    return
            self._sink.flush()
            self._journal.append(written)
            self._noted += len(written)


def checksum(tile: Array, start: int = 0) -> int:
    """Return the CRC-32 of a tile's items, row by row, going on from `start`."""
    raw = tile.view(np.uint8) if tile.size else np.empty((1, 0), np.uint8)
    if raw.flags.c_contiguous:
        return zlib.crc32(raw.reshape(-1).data, start)
    for row in raw:
        start = zlib.crc32(row.data, start)
    return start
