"""A Zarr array as the place of a result, before it is opened."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from typing import Any

from ....core.errors import ArgumentError, DTypeError, FileFormatError
from ....files.file_errors import errors_name
from ....files.temporary_file import check_own
from ...journal.journal_file import header_of
from ...journal.temporary_files import check_folder, check_output, hidden_path, store_folder
from ..matrix import AnyDType, MatrixSource
from ..optional_packages import optional_package
from .npy_header import NAMED_BY_USER
from .zarr_sink import ZarrSink
from .zarr_source import metadata_of, node_type

#: Default rows and columns of a chunk: 4 MiB of float32.
CHUNK = 1024


class ZarrTarget:
    """A Zarr array, version 3, that a product will be written to; a `Target`.

    Parameters
    ----------
    path : str
        Folder of the store; made if it is not there.
    inner : str or None
        Place of the array in the store; None where the store is the array.
    shape : tuple of int
        Rows and columns of the result.
    dtype : dtype
        Its element type.
    chunks : tuple of int, optional
        Rows and columns of a chunk.
    shards : tuple of int, optional
        Rows and columns of a shard, multiples of those of a chunk; without them every chunk is a file.

    Raises
    ------
    ArgumentError
        If the shards are not made of whole chunks, or the store is not one that takes the array.
    DTypeError
        If Zarr has no name for the element type.
    UnsupportedError
        If zarr is not installed.
    """

    def __init__(
        self,
        path: str,
        inner: str | None,
        shape: tuple[int, int],
        dtype: AnyDType,
        chunks: tuple[int, int] | None = None,
        shards: tuple[int, int] | None = None,
    ) -> None:
        self.name = path if inner is None else f"{path}::{inner}"
        if dtype.name in NAMED_BY_USER:
            raise DTypeError(
                f"{self.name}: the zarr package has no {dtype.name}; write it to .npy, or give out_dtype='float32'"
            )
        self._zarr = optional_package("zarr", self.name)
        default = [max(min(CHUNK, extent), 1) for extent in shape]
        if shards is not None and chunks is None:
            # The largest chunk up to the usual size that shards are made of.
            default = [next(part for part in range(min(CHUNK, shard), 0, -1) if shard % part == 0) for shard in shards]
        self._shape, self._dtype = shape, dtype
        self._chunks = chunks or (default[0], default[1])
        self._shards = shards
        for chunk, shard in zip(self._chunks, shards or self._chunks, strict=True):
            if shard % chunk:
                lower, upper = shard - shard % chunk, shard + chunk - shard % chunk
                nearest = f"{lower} and {upper} are" if lower else f"{upper} is"
                raise ArgumentError(
                    f"{self.name}: shards of {shards} do not hold whole chunks of {self._chunks}; {shard} is no "
                    f"multiple of {chunk}; {nearest}"
                )
        self.block_shape = self._shards or self._chunks
        self.scratch_bytes = 3 * self.block_shape[0] * self.block_shape[1] * dtype.itemsize
        store = os.path.realpath(path)
        if inner is not None and not {".", ".."}.isdisjoint(inner.split("/")):
            raise ArgumentError(
                f"{self.name}: a place in a store has no . and .. in it; name the place from the store on"
            )
        self._places = [store, *(inner.split("/") if inner else [])]
        label = "::".join([os.path.basename(store), *self._places[1:]])
        self.temporary = hidden_path(os.path.join(os.path.dirname(store), label), ".partial")
        self.journal = hidden_path(os.path.join(os.path.dirname(store), label), ".journal")

    def check(self, force: bool, inputs: Sequence[MatrixSource]) -> None:
        """Refuse an array that may not be written, and a store that does not take it."""
        check_folder(self._places[0], self.name)
        for depth in range(1, len(self._places)):
            group = os.path.join(*self._places[:depth])
            if os.path.lexists(group) and node_type(group) != "group":
                raise ArgumentError(f"{group}: exists and is not a Zarr group, version 3; choose another output")
            if metadata_of(group).get("consolidated_metadata"):
                raise ArgumentError(
                    f"{group}: has consolidated metadata, which would not name the result; take consolidated_metadata "
                    "out of its zarr.json, or choose another output"
                )
        final = os.path.join(*self._places)
        check_output(final, force=force, inputs=inputs, folder=True, name=self.name)
        for source in inputs:
            if source.path and final.startswith(os.path.realpath(source.path) + os.sep):
                raise ArgumentError(f"{self.name}: is inside the input {source.name}; choose another output")
        if os.path.isdir(final) and os.listdir(final) and node_type(final) != "array":
            raise ArgumentError(f"{self.name}: exists and is not a Zarr array, version 3; choose another output")

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "zarr",
            "chunks": list(self._chunks),
            "shards": None if self._shards is None else list(self._shards),
            "groups": len(self._places) - self._depth(),
        }

    def check_temporary(self) -> None:
        """Refuse a temporary folder that is not ours."""
        if os.path.lexists(self.temporary):
            check_own(self.temporary, folder=True)

    def unfinished(self) -> bool:
        self.check_temporary()
        before = header_of(self.journal)
        if before is None or not os.path.lexists(self.temporary):
            # A header is written once the array is there.
            return False
        if not os.path.lexists(os.path.join(*self._places)):
            return True
        if before.get("shape") != list(self._shape) or before.get("stored") != self.describe():
            # Another product, which the caller refuses.
            return True
        # After a killed replacement the replaced result may be here: the journal does not describe it.
        folder = os.path.join(self.temporary, *self._places[self._depth() :])
        return node_type(folder) == "array" and self._is_ours(self._opened(folder, "r"))

    def open(
        self, shape: tuple[int, int], dtype: AnyDType, *, force: bool, inputs: Sequence[MatrixSource], again: bool
    ) -> ZarrSink:
        """Open the array, with what a run before has left if `again`, else without."""
        self.check(force, inputs)
        depth = self._depth()
        folder = os.path.join(self.temporary, *self._places[depth:])
        if again:
            interrupted = _interrupted_writes(self.temporary)
            sink = self.join(shape, dtype, force=force)
            # After the array's check: a refusal changes nothing.
            for path in interrupted:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            return sink
        self.check_temporary()
        shutil.rmtree(self.temporary, ignore_errors=True)
        try:
            with errors_name(self.name, written=True):
                array = self._make(folder, shape, dtype, depth)
        except BaseException:
            shutil.rmtree(self.temporary, ignore_errors=True)
            raise
        return self._sink(array, depth, force)

    def join(self, shape: tuple[int, int], dtype: AnyDType, *, force: bool = True) -> ZarrSink:
        del shape, dtype
        depth = self._depth()
        check_own(self.temporary, folder=True)
        folder = os.path.join(self.temporary, *self._places[depth:])
        array = self._opened(folder, "r+")
        if not self._is_ours(array):
            found = f"{tuple(array.shape)} {array.dtype} in chunks of {array.chunks}, shards of {array.shards}"
            raise self._unusable(folder, f"is an array of {found}, not the one that was begun")
        return self._sink(array, depth, force)

    def _opened(self, folder: str, mode: str) -> Any:
        """Open the array in a folder of a run before."""
        try:
            return self._zarr.open_array(self._store(folder), mode=mode, config={"write_empty_chunks": True})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise self._unusable(folder, f"cannot be opened ({type(error).__name__}: {error})") from error

    def _unusable(self, folder: str, reason: str) -> FileFormatError:
        text = " ".join(f"{reason}; everything is left as it is".split())
        return FileFormatError(f"{folder}: the unfinished work on {self.name} {text}; start afresh with resume=False")

    def _is_ours(self, array: Any) -> bool:
        """Return whether an array has the shape, the type and the blocks of the result."""
        found = tuple(array.shape), array.dtype, tuple(array.chunks), array.shards and tuple(array.shards)
        return found == (self._shape, self._dtype, self._chunks, self._shards)

    def _sink(self, array: Any, depth: int, force: bool) -> ZarrSink:
        final = os.path.join(*self._places[:depth])
        inner = self._places[depth:]
        # A folder that is made later on is nobody's to replace, and one with more than the array never is.
        replace = force and not inner and node_type(final) == "array"
        return ZarrSink(array, self.name, partial=self.temporary, final=final, inner=inner, replace=replace)

    def _store(self, folder: str) -> Any:
        # Not by its name, which zarr would take for a URL where it has colons.
        return optional_package("zarr.storage", self.name).LocalStore(folder)

    def _depth(self) -> int:
        """Return how many places from the store on make the path that appears at the end: the first that is new."""
        for depth in range(1, len(self._places)):
            if not os.path.lexists(os.path.join(*self._places[:depth])):
                return depth
        return len(self._places)

    def _make(self, folder: str, shape: tuple[int, int], dtype: AnyDType, depth: int) -> Any:
        os.mkdir(self.temporary)
        array = self._zarr.create_array(
            self._store(folder),
            shape=shape,
            chunks=self._chunks,
            shards=self._shards,
            dtype=dtype,
            # Sums of products have no pattern that a compressor would find.
            compressors=None,
            filters=None,
            config={"write_empty_chunks": True},
        )
        for place in range(depth, len(self._places)):
            self._zarr.create_group(self._store(os.path.join(self.temporary, *self._places[depth:place])))
        for root, _, files in os.walk(self.temporary):
            for name in files:
                descriptor = os.open(os.path.join(root, name), os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            store_folder(root)
        store_folder(os.path.dirname(self.temporary))
        return array


def _interrupted_writes(folder: str) -> list[str]:
    """Refuse links in a folder, and return the temporary files that zarr leaves when it is killed while it writes."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                check_own(entry.path, folder=True)
                found += _interrupted_writes(entry.path)
                continue
            check_own(entry.path)
            if entry.name.endswith(".partial"):
                found.append(entry.path)
    return found
