"""A dataset in an HDF5 file as the source of a large product."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ....core.errors import ArgumentError, FileFormatError, ShapeError
from ....files.file_errors import errors_name
from ...journal.fingerprint import file_fingerprint, files_fingerprint, sampled_checksum
from ..matrix import AnyDType, Array, check_extents, native
from ..optional_packages import optional_package
from ..raw_file import RawMatrix
from ..store_errors import hdf5_errors, reason_of
from .hdf5_storage import items_offset, named_files
from .npy_header import resolve_dtype

#: Chunks that HDF5 holds at a time while it reads a piece.
_CHUNKS_HELD = 2


class Hdf5Source:
    """A matrix in an HDF5 file, in any layout and with any filters. Close it after use.

    A contiguous dataset whose type is exactly NumPy's is read past the HDF5 library, by several threads at once; every
    other one through the library, which converts its items and lets one thread read at a time.

    Parameters
    ----------
    dataset : h5py.Dataset
        Two-dimensional.
    name : str
        Name in messages.
    dtype : str, optional
        Type of opaque items, e.g. ``"bfloat16"``.
    file : h5py.File, optional
        Objects closed with this one.

    Raises
    ------
    ShapeError, DTypeError
        If the dataset is no matrix of a type that is multiplied.
    FileFormatError
        If HDF5 cannot read it, or a file is missing in which it has items.
    """

    def __init__(self, dataset: Any, name: str, dtype: str | None = None, *, file: Any = None) -> None:
        self.name = name
        self.order = "C"
        self._file = file
        self._fd = -1
        self._dataset = dataset
        self._items: RawMatrix | None = None
        try:
            with hdf5_errors(name):
                self._describe(dtype)
        except BaseException:
            self.close()
            raise

    def _describe(self, given: str | None) -> None:
        dataset, name = self._dataset, self.name
        if not dataset:
            raise ArgumentError(f"{name}: h5py.Dataset of a closed file; open the file again")
        if len(dataset.shape or ()) != 2:
            raise ShapeError(f"{name}: dataset of shape {dataset.shape}; a matrix has 2 dimensions; reshape it")
        stored = resolve_dtype(dataset.dtype, name, given)
        self.shape: tuple[int, int] = (int(dataset.shape[0]), int(dataset.shape[1]))
        self.dtype: AnyDType = native(stored)
        check_extents(self.shape, self.dtype, name)
        self.stored_itemsize: int = dataset.id.get_type().get_size()
        chunks = dataset.chunks
        self.block_shape: tuple[int, int] = (1, 1) if chunks is None else (int(chunks[0]), int(chunks[1]))
        h5py = optional_package("h5py", name)
        named = named_files(h5py, dataset, name)
        self.scratch_bytes = _CHUNKS_HELD * named.chunk_bytes
        self._named = named.paths
        file = os.path.realpath(dataset.file.filename)
        self.path: str | None = file if os.path.isfile(file) else None
        offset = items_offset(h5py, dataset)
        if offset is not None:
            self._fd = os.open(file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
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
        with hdf5_errors(path):
            file = h5py.File(path, "r")
        try:
            name, dataset = _dataset(h5py, file, path, inner)
        except BaseException:
            file.close()
            raise
        return cls(dataset, f"{path}::/{name}", dtype, file=file)

    def read(self, rows: slice, cols: slice, out: Array) -> int:
        if out.size == 0:
            return 0
        if self._items is not None:
            return self._items.read(rows, cols, out)
        with hdf5_errors(self.name):
            if self._dataset.dtype.kind == "V":
                self._read_opaque(rows, cols, out)
            elif out.flags.c_contiguous:
                self._dataset.read_direct(out, np.s_[rows, cols])
            else:
                np.copyto(out, self._dataset[rows, cols])
        return out.size * self.stored_itemsize

    def _read_opaque(self, rows: slice, cols: slice, out: Array) -> None:
        # Items whose type has a tag are read only as that type.
        h5s = optional_package("h5py.h5s", self.name)
        items = self._dataset.id.get_space()
        items.select_hyperslab((rows.start, cols.start), out.shape)
        raw = np.empty(out.shape, self._dataset.dtype)
        self._dataset.id.read(h5s.create_simple(out.shape), items, raw, self._dataset.id.get_type())
        np.copyto(out, raw.view(out.dtype))

    def fingerprint(self) -> dict[str, Any]:
        """Return the fingerprint of the dataset: of its file, and of the files that it names."""
        look: dict[str, Any] = {"kind": "hdf5", "dataset": self._dataset.name}
        if self.path is None:
            return {**look, "items": sampled_checksum(self)}
        with errors_name(self.path):
            look.update(file_fingerprint(self.path))
        if self._named:
            folder = os.path.dirname(self.path)
            with errors_name(self.name):
                named = files_fingerprint(folder, (os.path.relpath(path, folder) for path in self._named))
            look["named_files"] = list(named.values())
        return look

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._file is not None:
            self._file.close()
            self._file = None


def _dataset(h5py: Any, file: Any, path: str, inner: str | None) -> tuple[str, Any]:
    """Return the dataset and its name."""
    what = "is not there"
    if inner is not None:
        with hdf5_errors(f"{path}::/{inner}"):
            try:
                item = file[inner]
            except KeyError as error:
                # A name that is not there, or a link that leads nowhere.
                link = file.get(inner, getlink=True)
                if isinstance(link, (h5py.SoftLink, h5py.ExternalLink)):
                    there = f" in {link.filename}" if isinstance(link, h5py.ExternalLink) else ""
                    what = f"is a link to {link.path}{there}, which cannot be opened ({reason_of(error)})"
                elif inner in file:
                    raise
            else:
                if isinstance(item, h5py.Dataset):
                    return inner, item
                what = "is a group" if isinstance(item, h5py.Group) else "is not a dataset"
    found: list[str] = []
    with hdf5_errors(path):
        file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
        if inner is None and len(found) == 1:
            return found[0], file[found[0]]
    names = ", ".join(f"{path}::/{name}" for name in found[:8]) or "none"
    if inner is None:
        raise FileFormatError(f"{path}: HDF5 file with {len(found)} datasets; name one of them: {names}")
    raise FileFormatError(f"{path}::/{inner}: {what}; the datasets of the file are {names}")
