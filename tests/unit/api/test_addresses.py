"""Addresses between elements, where a GPU would be stopped by reading, and with it all work of the process on it."""

from __future__ import annotations

import pytest

import gemmule as gm
from gemmule.api.validation import operands
from gemmule.runtime.arrays import ArrayView


class Library:
    """An array library whose arrays are views of device memory."""

    name = "fake"
    orders_reuse = True

    def view(self, x, stream, role):
        return x

    def device_of(self, x, role):
        return x.device

    def current_stream(self, device):
        return 1


def at(address, itemsize, dtype_name):
    return ArrayView((3, 3), dtype_name, itemsize, 0, address=address, strides=(3, 1))


@pytest.mark.parametrize(
    ("itemsize", "dtype_name", "multiple"),
    [(2, "float16", 2), (4, "float32", 4), (8, "float64", 8), (16, "complex128", 8)],
)
def test_an_array_between_elements_is_refused(itemsize, dtype_name, multiple, monkeypatch):
    library = Library()
    monkeypatch.setattr(operands, "library_of", lambda x, role: library)
    good = at(0x1000 + multiple, itemsize, dtype_name)
    assert operands.gather({"a": good, "b": good, "out": good}, None).device == 0
    for off in range(1, multiple):
        for role in ("a", "b", "out"):
            given = {"a": good, "b": good, "out": good} | {role: at(0x1000 + off, itemsize, dtype_name)}
            with pytest.raises(
                gm.ArgumentError, match=rf"^{role} begins at .* multiples of {multiple} only; pass a copy"
            ):
                operands.gather(given, None)
