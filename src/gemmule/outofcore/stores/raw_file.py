"""A matrix whose items are contiguous in a file: long positioned reads into the caller's memory."""

from __future__ import annotations

import os

import numpy as np

from gemmule.core.dataclass import dataclass

from ...core.errors import FileFormatError
from ...files.file_errors import errors_name
from .matrix import Array


@dataclass(frozen=True)
class RawMatrix:
    """Items of a matrix in an open file."""

    descriptor: int  #: The file; it is not closed here.
    name: str  #: Name in messages.
    offset: int  #: Offset of the first item, in bytes.
    shape: tuple[int, int]  #: Rows and columns.
    fortran_order: bool = False  #: Whether columns are contiguous.
    swapped: bool = False  #: Whether the items have the other byte order.

    def read(self, rows: slice, cols: slice, out: Array) -> int:
        """Fill `out` with that piece and return the bytes read.

        Raises
        ------
        FileFormatError
            If the file has become shorter since it was opened.
        FileAccessError
            If the system does not read it.
        """
        if out.size == 0:
            return 0
        along, across, lines = (cols, rows, out.T) if self.fortran_order else (rows, cols, out)
        line_items = self.shape[0] if self.fortran_order else self.shape[1]
        raw = lines.view(np.uint8)
        item = out.dtype.itemsize
        start = self.offset + (along.start * line_items + across.start) * item
        if raw.flags.c_contiguous and (across.stop - across.start == line_items or len(raw) == 1):
            self._fill(raw.reshape(-1), start)
        else:
            self._fill_lines(raw, start, line_items * item)
        if self.swapped:
            lines.byteswap(inplace=True)
        return out.nbytes

    def _fill_lines(self, raw: Array, offset: int, step: int) -> None:
        """Fill lines with a stride of `step` bytes, one call for each line."""
        wanted = raw.shape[1]
        with errors_name(self.name):
            for line in raw:
                count = os.preadv(self.descriptor, (line,), offset)
                if count != wanted:
                    self._fill(line[count:], offset + count)
                offset += step

    def _fill(self, raw: Array, offset: int) -> None:
        view = raw.data
        while view:
            with errors_name(self.name):
                count = os.preadv(self.descriptor, [view], offset)
            if count == 0:
                raise FileFormatError(
                    f"{self.name}: ends at byte {offset}, earlier than when it was opened; write it again"
                )
            view, offset = view[count:], offset + count
