"""A dataset in an HDF5 file as the source of a large product."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..core.errors import FileFormatError, ShapeError
from .extras import optional_package
from .fingerprint import file_fingerprint
from .matrix import AnyDType, Array, native
from .npy_header import resolve_dtype
from .raw_file import RawMatrix

#: Chunks that HDF5 holds at a time while it reads a piece.
_CHUNKS_HELD = 2


class Hdf5Source:
    """A matrix in an HDF5 file, contiguous or in chunks, compressed or not. Close it after use.

    A contiguous dataset is read past the HDF5 library, by several threads at once; a chunked one through it, which lets
    one thread read at a time.

    Parameters
    ----------
    dataset : h5py.Dataset
        Two-dimensional.
    name : str
        What messages call it.
    dtype : str, optional
        Type of opaque items, e.g. ``"bfloat16"``.
    owned : bool
        Whether closing this closes the dataset's file.

    Raises
    ------
    ShapeError, DTypeError
        If the dataset is no matrix of a type that is multiplied.
    """

    def __init__(self, dataset: Any, name: str, dtype: str | None = None, *, owned: bool = False) -> None:
        self.name = name
        self._file = dataset.file if owned else None
        self._fd = -1
        try:
            if len(dataset.shape or ()) != 2:
                raise ShapeError(f"{name}: dataset of shape {dataset.shape}; a matrix has 2 dimensions; reshape it")
            stored = resolve_dtype(dataset.dtype, name, dtype)
        except BaseException:
            self.close()
            raise
        self.shape: tuple[int, int] = (int(dataset.shape[0]), int(dataset.shape[1]))
        self.dtype: AnyDType = native(stored)
        self.order = "C"
        self.stored_itemsize = stored.itemsize
        chunks = dataset.chunks
        self.grain: tuple[int, int] = (1, 1) if chunks is None else (int(chunks[0]), int(chunks[1]))
        self.scratch_bytes = 0 if chunks is None else _CHUNKS_HELD * chunks[0] * chunks[1] * stored.itemsize
        self.path: str = os.path.realpath(dataset.file.filename)
        self._dataset = dataset
        self._items: RawMatrix | None = None
        offset = dataset.id.get_offset()
        if offset is not None and not dataset.external and not dataset.is_virtual:
            self._fd = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            self._items = RawMatrix(self._fd, name, offset, self.shape, swapped=not stored.isnative)

    @classmethod
    def open(cls, path: str, inner: str | None, dtype: str | None = None) -> Hdf5Source:
        """Open the dataset called `inner` in the file at `path`; where there is only one dataset it needs no name.

        Raises
        ------
        UnsupportedError
            If h5py is not installed.
        FileFormatError
            If the file cannot be read, or has no such dataset.
        """
        h5py = optional_package("h5py", path)
        os.stat(path)
        try:
            file = h5py.File(path, "r")
        except OSError as error:
            raise FileFormatError(f"{path}: HDF5 cannot read it ({error}); write the file again") from None
        try:
            name, dataset = _dataset(h5py, file, path, inner)
        except BaseException:
            file.close()
            raise
        return cls(dataset, f"{path}::/{name}", dtype, owned=True)

    def read(self, rows: slice, cols: slice, out: Array) -> int:
        """Fill `out` with that piece and return the bytes read."""
        if out.size == 0:
            return 0
        if self._items is not None:
            return self._items.read(rows, cols, out)
        try:
            # Opaque items are taken as they are.
            raw = out.view(self._dataset.dtype) if self._dataset.dtype.kind == "V" else out
            if raw.flags.c_contiguous:
                self._dataset.read_direct(raw, np.s_[rows, cols])
            else:
                np.copyto(raw, self._dataset[rows, cols])
        except OSError as error:
            raise FileFormatError(f"{self.name}: HDF5 cannot read it ({error}); write the file again") from None
        return out.nbytes

    def fingerprint(self) -> dict[str, Any]:
        """Return what tells the file from one that was changed."""
        return {"kind": "hdf5", "dataset": self._dataset.name, **file_fingerprint(self.path)}

    def close(self) -> None:
        """Close what was opened."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._file is not None:
            self._file.close()
            self._file = None


def _dataset(h5py: Any, file: Any, path: str, inner: str | None) -> tuple[str, Any]:
    """Return the dataset and its name."""
    item = None if inner is None else file.get(inner)
    if isinstance(item, h5py.Dataset):
        return str(inner), item
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    if inner is None and len(found) == 1:
        return found[0], file[found[0]]
    names = ", ".join(f"{path}::/{name}" for name in found[:8]) or "none"
    if inner is None:
        raise FileFormatError(f"{path}: HDF5 file with {len(found)} datasets; name one of them: {names}")
    what = "is a group" if item is not None else "is not there"
    raise FileFormatError(f"{path}::/{inner}: {what}; the datasets of the file are {names}")
