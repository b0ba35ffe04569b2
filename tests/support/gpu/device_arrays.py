"""NumPy arrays in device memory of exactly their size, with strides of any kind."""

from __future__ import annotations

import numpy as np

from gemmule.core.layout import StridedMatrix
from gemmule.runtime.memory import DeviceBuffer
from support.oracle import elements_spanned

STREAM = 0
#: What every byte holds at first, and those between elements to the end.
_FILL = 0x5A


class DeviceMatrix:
    """A batch of matrices in device memory: element (i, j) of matrix l is where its strides say.

    The buffer spans exactly the elements that the strides reach, so that an access outside is an access out of bounds.
    All bytes are `_FILL` until elements are put there. `offset` elements of lead make its address misaligned. What lies
    between the elements must stay as it is. With `chunk` the buffer ends at a multiple of so many bytes.
    """

    def __init__(self, dtype, shape, strides, offset=0, chunk=1):
        self.dtype, self.shape, self.strides = dtype, shape, strides
        low, high = elements_spanned(shape, strides)
        self.first = offset - low
        size = -(-(offset + high - low) * dtype.itemsize // chunk) * chunk
        self.storage = np.full(size, _FILL, np.uint8).view(dtype.numpy())
        self.buffer = DeviceBuffer(self.storage.nbytes, 0, STREAM)
        self.buffer.upload(self.storage)

    def host_view(self):
        # NumPy cannot restride every dtype of ml_dtypes: the bits stand in.
        bits = self.storage.view(f"V{self.storage.itemsize}")
        return self.elements(bits).view(self.storage.dtype)

    def elements(self, storage):
        strides = [stride * storage.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(storage[self.first :], self.shape, strides)

    def put(self, values):
        self.host_view()[...] = values
        self.buffer.upload(self.storage)
        return self

    def get(self):
        self.buffer.download(self.storage)
        between = np.ones(self.storage.size, np.bool_)
        self.elements(between)[...] = False
        strayed = (self.storage.view(np.uint8).reshape(-1, self.storage.itemsize)[between] != _FILL).sum()
        assert not strayed, f"{strayed} bytes were written between the elements"
        return self.host_view().copy()

    @property
    def address(self):
        return self.buffer.address + self.first * self.storage.itemsize

    def matrix(self):
        rows, cols = self.shape[-2:]
        alignment = min(self.address & -self.address, 16)
        return StridedMatrix(self.dtype, rows, cols, *self.strides[-2:], self.strides[:-2], alignment)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.buffer.free()


def strides_of(kind: str, batch: tuple[int, ...], rows: int, cols: int) -> tuple[int, ...]:
    """Strides of (rows, cols) matrices: row, col, padded, gapped, reversed, broadcast in the batch, or apart.

    Those apart are contiguous row-major matrices with an element between two of them; whole ones have rows and steps of
    the batch in multiples of 8 elements.
    """
    row, col = {
        "row": (cols, 1),
        "col": (1, rows),
        "padded": (cols + 3, 1),
        "gapped": (2 * cols * 3, 3),
        "reversed": (-cols, -1),
        "broadcast": (cols, 1),
        "apart": (cols, 1),
        "whole": (-(-cols // 8) * 8, 1),
    }[kind]
    between = {"apart": 1, "whole": 8}.get(kind, 5)
    size = max(rows * abs(row), cols * abs(col), 1) + between
    outer = []
    for extent in reversed(batch):
        outer.append(0 if kind == "broadcast" else size)
        size = size * extent + (8 if kind == "whole" else 7)
    return (*reversed(outer), row, col)
