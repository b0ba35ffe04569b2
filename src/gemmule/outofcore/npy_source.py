"""A .npy file as the source of a large product: long positioned reads into the caller's memory."""

from __future__ import annotations

import os
import stat
from types import TracebackType

import numpy as np

from ..core.errors import FileFormatError
from .matrix import AnyDType, Array
from .npy_header import read_header


class NpySource:
    """A matrix in a .npy file. Close it, or use it as a context manager.

    Parameters
    ----------
    path : str or path
        The file: C or Fortran order, any byte order.
    dtype : str, optional
        Type of items that the file does not name, e.g. ``"bfloat16"``.

    Attributes
    ----------
    identity : tuple of int
        Device and inode of the file.

    Raises
    ------
    FileFormatError, ShapeError, DTypeError
        If the file does not hold a matrix of a type that is multiplied, or its size is not what its header says.
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
        self.grain = (1, 1)
        self.scratch_bytes = 0
        self.identity = (status.st_dev, status.st_ino)
        self._header = header
        self._swap = not header.stored.isnative

    def read(self, rows: slice, cols: slice, out: Array) -> int:
        """Fill `out` with that piece and return the bytes read.

        Raises
        ------
        FileFormatError
            If the file has become shorter since it was opened.
        """
        if out.size == 0:
            return 0
        along, across, lines = (cols, rows, out.T) if self.order == "F" else (rows, cols, out)
        line_items = self.shape[0] if self.order == "F" else self.shape[1]
        raw = lines.view(np.uint8)
        item = self.dtype.itemsize
        start = self._header.data_offset + (along.start * line_items + across.start) * item
        if raw.flags.c_contiguous and (across.stop - across.start == line_items or len(raw) == 1):
            self._fill(raw.reshape(-1), start)
        else:
            for index, line in enumerate(raw):
                self._fill(line, start + index * line_items * item)
        if self._swap:
            lines.byteswap(inplace=True)
        return out.nbytes

    def _fill(self, raw: Array, offset: int) -> None:
        view = raw.data
        while view:
            try:
                count = os.preadv(self._fd, [view], offset)
            except OSError as error:
                raise OSError(error.errno, f"reading it failed: {error.strerror}", self.name) from error
            if count == 0:
                raise FileFormatError(
                    f"{self.name}: ends at byte {offset}, earlier than when it was opened; write it again"
                )
            view, offset = view[count:], offset + count

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> NpySource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
