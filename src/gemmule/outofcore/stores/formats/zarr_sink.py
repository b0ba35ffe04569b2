"""A Zarr array as the sink of a large product."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from ....core.errors import ArgumentError
from ....files.file_errors import errors_name
from ....files.temporary_file import check_own
from ...journal.temporary_files import appear_folder, signals_held, store_folder
from ..matrix import AnyDType, Array
from .zarr_source import ZarrSource, array_folder, metadata_of, node_type


class ZarrArraySink:
    """A two-dimensional, writable Zarr array that receives a product. What an aborted product wrote stays in it."""

    def __init__(self, array: Any, name: str) -> None:
        source = ZarrSource(array, name)
        self.name = name
        self.shape = source.shape
        self.dtype: AnyDType = source.dtype
        block = array.shards or array.chunks
        self.block_shape: tuple[int, int] = (int(block[0]), int(block[1]))
        # A block is put together and encoded.
        self.scratch_bytes = 3 * block[0] * block[1] * self.dtype.itemsize
        self._array = array

    def write(self, row: int, col: int, tile: Array) -> int:
        """Put `tile` at (row, col); return the bytes written.

        Raises
        ------
        ArgumentError
            If the tile does not begin and end where chunks (or shards) do: the store would read and write the rest of a
            block, and of two tiles that are written at once one would be lost.
        """
        for start, extent, end, side in zip((row, col), tile.shape, self.shape, self.block_shape, strict=True):
            if start % side or (extent % side and start + extent != end):
                raise ArgumentError(
                    f"{self.name}: a tile of {tile.shape[0]} x {tile.shape[1]} at ({row}, {col}) cuts through blocks "
                    f"of {self.block_shape[0]} x {self.block_shape[1]}; tiles are multiples of that, or end at the edge"
                )
        # One block after another: memory for one at a time.
        for top in range(0, tile.shape[0], self.block_shape[0]):
            for left in range(0, tile.shape[1], self.block_shape[1]):
                block = tile[top : top + self.block_shape[0], left : left + self.block_shape[1]]
                bottom, right = row + top + block.shape[0], col + left + block.shape[1]
                with errors_name(self.name, written=True):
                    self._array[row + top : bottom, col + left : right] = block
        return tile.nbytes

    def flush(self) -> None:
        """Do nothing: the array has stored what it was given."""

    def written(self) -> ZarrSource:
        return ZarrSource(self._array, self.name)

    def commit(self) -> None:
        """Do nothing: the array is there already."""

    def abort(self) -> None:
        """Do nothing."""


class ZarrSink(ZarrArraySink):
    """A Zarr array that is made in a hidden folder, and appears under its name only when it is complete.

    Used as a context manager: leaving the block without a commit removes the folder.

    Parameters
    ----------
    array : zarr.Array
        The array in the hidden folder.
    name : str
        Name of the result in messages.
    partial, final : str
        The hidden folder, and the name that it will get.
    inner : sequence of str
        Path of the array in the temporary folder: folder names; none where the folder is the array.
    replace : bool
        Whether an array that has the final name may be replaced.
    """

    def __init__(
        self, array: Any, name: str, *, partial: str, final: str, inner: Sequence[str] = (), replace: bool = False
    ) -> None:
        super().__init__(array, name)
        self._partial = partial
        self._final = final
        self._inner = list(inner)
        self._replace = replace
        self._folder = array_folder(array) or partial
        self._unstored: set[str] = set()
        self._lock = threading.Lock()
        self._open = True

    def write(self, row: int, col: int, tile: Array) -> int:
        written = super().write(row, col, tile)
        blocks = [
            range(start // block, -(-(start + extent) // block))
            for start, extent, block in zip((row, col), tile.shape, self.block_shape, strict=True)
        ]
        files = {self._array.metadata.encode_chunk_key((i, j)) for i in blocks[0] for j in blocks[1]}
        with self._lock:
            self._unstored |= files
        return written

    def flush(self) -> None:
        """Return when all that was written is on the disk: the files, then the folders that name them."""
        with self._lock:
            files, self._unstored = self._unstored, set()
        folders = set()
        for file in sorted(files):
            path = os.path.join(self._folder, file)
            # A block of nothing but the fill value has no file.
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    with errors_name(self.name, written=True):
                        os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            while (path := os.path.dirname(path)) not in folders and path.startswith(self._folder):
                folders.add(path)
        for path in sorted(folders, reverse=True):
            with contextlib.suppress(FileNotFoundError):
                store_folder(path)

    def commit(self) -> None:
        """Let the finished array appear under its name, at once and for good.

        Groups that somebody else has made meanwhile are taken as they are; no array but the one to replace is touched.

        Raises
        ------
        ArgumentError
            If something else has the name by now; the finished array stays where it is.
        """
        self.flush()
        check_own(self._partial, folder=True)
        with signals_held():
            self._appear()
            self._open = False

    def _appear(self) -> None:
        for depth in range(len(self._inner) + 1):
            source, final = (os.path.join(place, *self._inner[:depth]) for place in (self._partial, self._final))
            try:
                appear_folder(source, final, replace=self._replace and node_type(final) == "array")
            except FileExistsError:
                found = metadata_of(final)
                if depth == len(self._inner) or found.get("node_type") != "group" or found.get("consolidated_metadata"):
                    # Nothing that was computed may go with the error.
                    self._open = False
                    array = os.path.join(self._partial, *self._inner)
                    raise ArgumentError(
                        f"{self.name}: {final} was made while the result was computed, and is not replaced; the "
                        f"finished result is in {array}; move it to where you want it"
                    ) from None
                continue
            if depth:
                # Groups alone are left, and they are there.
                shutil.rmtree(self._partial, ignore_errors=True)
            return

    def keep(self) -> str:
        """Leave the hidden folder as it is, and return its name. Does nothing after a commit."""
        self._open = False
        return self._partial

    def abort(self) -> None:
        """Remove the hidden folder. Does nothing after a commit."""
        if self._open:
            self._open = False
            shutil.rmtree(self._partial, ignore_errors=True)

    def __enter__(self) -> ZarrSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
