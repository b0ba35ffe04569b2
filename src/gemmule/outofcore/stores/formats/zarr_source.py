"""A Zarr array as the source of a large product."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from ....core.errors import FileFormatError, ShapeError
from ....files.file_errors import errors_name
from ...journal.fingerprint import files_fingerprint, sampled_checksum
from ..matrix import AnyDType, Array, check_extents, native
from ..optional_packages import optional_package
from ..store_errors import reason_of, zarr_errors
from .npy_header import resolve_dtype

#: Metadata of an array, versions 3 and 2.
_ARRAY_METADATA = ("zarr.json", ".zarray")


class ZarrSource:
    """A matrix in a Zarr array, in chunks or in shards of them.

    Parameters
    ----------
    array : zarr.Array
        Two-dimensional, in any store.
    name : str
        Name in messages.
    dtype : str, optional
        Type of raw items, e.g. ``"bfloat16"``.

    Raises
    ------
    ShapeError, DTypeError
        If the array is no matrix of a type that is multiplied.
    FileFormatError
        If zarr cannot read its metadata.
    """

    def __init__(self, array: Any, name: str, dtype: str | None = None) -> None:
        self.name = name
        with zarr_errors(name):
            shape, chunks, raw = array.shape, array.chunks, np.dtype(array.dtype)
        if len(shape) != 2:
            raise ShapeError(f"{name}: array of shape {shape}; a matrix has 2 dimensions; reshape it")
        if len(chunks) != 2 or min(chunks) < 1:
            raise FileFormatError(f"{name}: metadata gives chunks of {chunks}; a chunk has an item; write it again")
        self.shape: tuple[int, int] = (int(shape[0]), int(shape[1]))
        self._raw: AnyDType = raw
        stored = resolve_dtype(raw, name, dtype)
        self.dtype: AnyDType = native(stored)
        check_extents(self.shape, self.dtype, name)
        self.order = "C"
        self.stored_itemsize = stored.itemsize
        self.block_shape: tuple[int, int] = (int(chunks[0]), int(chunks[1]))
        # Chunks are read several at a time, each of them encoded and decoded.
        at_once = int(optional_package("zarr", name).config.get("async.concurrency"))
        self.scratch_bytes = 2 * at_once * self.block_shape[0] * self.block_shape[1] * stored.itemsize
        self.path = array_folder(array)
        self._array = array

    @classmethod
    def open(cls, path: str, inner: str | None, dtype: str | None = None) -> ZarrSource:
        """Open the array called `inner` in the store at `path`, or the array that the store is.

        Raises
        ------
        UnsupportedError
            If zarr is not installed.
        FileFormatError
            If there is no such array.
        """
        zarr = optional_package("zarr", path)
        os.stat(path)
        name = path if inner is None else f"{path}::{inner}"
        try:
            with zarr_errors(name):
                # Not by its name, which zarr would take for a URL where it has colons.
                array = zarr.open_array(_store(path), path=inner or "", mode="r")
        except FileFormatError as error:
            folder = os.path.join(path, inner or "")
            described = any(os.path.lexists(os.path.join(folder, metadata)) for metadata in _ARRAY_METADATA)
            if described and node_type(folder) != "group":
                raise
            raise FileFormatError(f"{name}: {_instead(zarr, path, inner, error)}") from error
        return cls(array, name, dtype)

    def read(self, rows: slice, cols: slice, out: Array) -> int:
        from zarr.buffer.cpu import NDBuffer

        if out.size:
            raw = out.view(self._raw) if self._raw.kind == "V" else out
            with zarr_errors(self.name):
                if self._raw == raw.dtype:
                    self._array.get_basic_selection((rows, cols), out=NDBuffer.from_numpy_array(raw))
                else:
                    np.copyto(raw, self._array[rows, cols])
        return out.nbytes

    def fingerprint(self) -> dict[str, Any]:
        """Return the fingerprint of the array, which changes with it."""
        if self.path is None:
            return {"kind": "zarr", "metadata": str(self._array.metadata), "items": sampled_checksum(self)}
        files = (
            os.path.relpath(os.path.join(folder, name), self.path)
            for folder, _, names in os.walk(self.path)
            for name in names
        )
        with errors_name(self.name):
            return {"kind": "zarr", **files_fingerprint(self.path, files)}

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _store(path: str) -> Any:
    return optional_package("zarr.storage", path).LocalStore(path, read_only=True)


def array_folder(array: Any) -> str | None:
    """Return the folder of an array, None if its store is no folder."""
    root = getattr(_inmost(array.store), "root", None)
    return None if root is None else os.path.realpath(os.path.join(root, array.path))


def metadata_of(folder: str) -> dict[str, Any]:
    """Return the metadata of a node of a Zarr store, version 3; empty where a folder is none."""
    try:
        with open(os.path.join(folder, "zarr.json"), encoding="utf-8") as file:
            metadata = json.load(file)
    except (OSError, ValueError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def node_type(folder: str) -> str | None:
    """Return ``array`` or ``group`` where a folder is a node of a Zarr store, version 3."""
    return metadata_of(folder).get("node_type")


def same_array(first: Any, second: Any) -> bool:
    """Return whether two objects are one Zarr array: the same path of the same store."""
    if any(type(each).__module__.partition(".")[0] != "zarr" for each in (first, second)):
        return False
    return bool(first.path == second.path and _same_store(_inmost(first.store), _inmost(second.store)))


def _same_store(first: Any, second: Any) -> bool:
    # Stores in memory are equal where their contents are, which those of two arrays of zeros are.
    held = getattr(first, "_store_dict", None)
    if held is not None:
        return held is getattr(second, "_store_dict", None)
    # Stores of one place are unequal where only one of them may be written.
    if hasattr(first, "fs") and hasattr(second, "fs"):
        return bool(first.fs == second.fs and first.path == second.path)
    return bool(first == second)


def _inmost(store: Any) -> Any:
    """Return the store that others are wrapped around, for instance to log what they do."""
    while type(store).__module__.partition(".")[0] == "zarr" and hasattr(store, "_store"):
        store = store._store
    return store


def _instead(zarr: Any, path: str, inner: str | None, error: FileFormatError) -> str:
    """Say what is there in place of an array; `error` is that of opening the array."""
    try:
        with zarr_errors(path):
            group = zarr.open_group(_store(path), mode="r")
    except FileFormatError:
        return f"is not a Zarr array ({reason_of(error.__cause__ or error)}); name one"
    with zarr_errors(path):
        members = group.members(max_depth=None)
    arrays = sorted(name for name, member in members if isinstance(member, zarr.Array))
    names = ", ".join(f"{path}::{name}" for name in arrays[:8]) or "none"
    what = "is a Zarr group" if inner is None else "is not there, or is a group"
    return f"{what}; name one of its arrays: {names}"
