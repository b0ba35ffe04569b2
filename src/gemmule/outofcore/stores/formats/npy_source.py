"""A .npy file as the source of a large product: long positioned reads into the caller's memory."""

from __future__ import annotations

import dataclasses
import os
import stat
from types import TracebackType
from typing import Any

from ....core.errors import FileFormatError
from ...journal.fingerprint import file_fingerprint
from ..matrix import AnyDType, Array
from ..raw_file import RawMatrix
from .npy_header import read_header


class NpySource:
    """A matrix in a .npy file. Close it, or use it as a context manager.

    Parameters
    ----------
    path : str or path
        The file: C or Fortran order, any byte order.
    dtype : str, optional
        Type of items that the file does not name, e.g. ``"bfloat16"``.

    Raises
    ------
    FileFormatError, ShapeError, DTypeError
        If the file holds no matrix of a supported type, or its size contradicts its header.
    """

    def __init__(self, path: str | os.PathLike[str], dtype: str | None = None) -> None:
        self.name = os.fspath(path)
        # Opening a pipe would wait for somebody to write.
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise FileFormatError(f"{self.name}: is a directory; name a .npy file")
        if not stat.S_ISREG(mode):
            raise FileFormatError(f"{self.name}: not a regular file; pieces are read in any order; copy it first")
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            header = read_header(file, self.name, dtype)
            if status.st_size != header.file_bytes:
                what = "truncated" if status.st_size < header.file_bytes else "followed by other bytes"
                raise FileFormatError(
                    f"{self.name}: expected {header.file_bytes} bytes, found {status.st_size}: the data are {what}; "
                    "write the file again"
                )
            self._fd = os.dup(file.fileno())
        self.shape = header.shape
        self.dtype: AnyDType = header.dtype
        self.order = "F" if header.fortran_order else "C"
        self.stored_itemsize = header.dtype.itemsize
        self.block_shape = (1, 1)
        self.scratch_bytes = 0
        self.path = self.name
        self._items = RawMatrix(
            self._fd, self.name, header.data_offset, header.shape, header.fortran_order, not header.stored.isnative
        )

    def read(self, rows: slice, cols: slice, out: Array) -> int:
        """Fill `out` with that piece and return the bytes read.

        Raises
        ------
        FileFormatError
            If the file has become shorter since it was opened.
        """
        return self._items.read(rows, cols, out)

    def fingerprint(self) -> dict[str, Any]:
        """Return the fingerprint of the file, which changes with it."""
        return {"kind": "npy", **file_fingerprint(self.path)}

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._items = dataclasses.replace(self._items, descriptor=-1)

    def __enter__(self) -> NpySource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
