"""Array specs: shapes, types and strides without memory, as plans for a chip take them."""

from __future__ import annotations

import sys
from typing import Any, Never

import array_api_compat
import numpy as np

from gemmule.core.dtype import EXTENSION_FLOATS
from gemmule.core.errors import ArgumentError, DTypeError
from gemmule.core.layout import compact_strides

from .view import FACTORS, ArrayView

#: Bits of the bytes between the addresses of two storages: more than any array has.
_STORAGE_BITS = 56


def is_spec(x: Any) -> bool:
    """Return whether an object is a tensor on PyTorch's device meta or a ``jax.ShapeDtypeStruct``."""
    if array_api_compat.is_torch_array(x):
        return bool(x.device.type == "meta")
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.ShapeDtypeStruct)


def no_memory(role: str, kind: str) -> ArgumentError:
    """Return the error of an array spec where an array is needed."""
    return ArgumentError(
        f"{role} is {kind}, which has no elements; pass an array, or plan without any: "
        "gemmule.matmul.plan(a, b, chip='h100'), likewise of other functions"
    )


class SpecLibrary:
    """The array specs of one call, each storage at an address of its own."""

    name = "array specs"
    orders_reuse = True

    def __init__(self) -> None:
        self._storages: list[Any] = []

    def view(self, x: Any, stream: int | None, role: str) -> ArrayView:
        """Return where the elements of a spec would be; JAX's are in C order."""
        del stream
        shape = tuple(x.shape)
        if not array_api_compat.is_torch_array(x):
            dtype = np.dtype(x.dtype)
            address = self._address(id(x))
            return ArrayView(
                shape, _known(dtype.name, role), dtype.itemsize, None, None, address, compact_strides(shape)
            )
        name, itemsize = _known(str(x.dtype).removeprefix("torch."), role), x.element_size()
        address = self._address(x.untyped_storage()._cdata) + x.storage_offset() * itemsize
        conj = role in FACTORS and x.is_conj()
        return ArrayView(shape, name, itemsize, None, None, address, tuple(x.stride()), keepalive=x, conj=conj)

    def _address(self, storage: int) -> int:
        if storage not in self._storages:
            self._storages.append(storage)
        return (1 + self._storages.index(storage)) << _STORAGE_BITS

    def device_of(self, x: Any, role: str = "an array") -> int | None:
        """Return None: the chip of the plan need not be there."""
        del x, role
        return None

    def current_stream(self, device: int) -> int:
        """Specs have no streams."""
        raise AssertionError(f"array specs have no stream on device {device}")

    def empty(self, shape: tuple[int, ...], dtype_name: str, like: Any, stream: int | None) -> Never:
        """Specs have no results."""
        del like, stream
        raise AssertionError(f"array specs have no result of shape {shape} and type {dtype_name}")


def _known(dtype_name: str, role: str) -> str:
    """Return the name of an element type.

    Raises
    ------
    DTypeError
        If it is none of numbers.
    """
    if dtype_name in EXTENSION_FLOATS or hasattr(np, dtype_name):
        return dtype_name
    raise DTypeError(f"{role} is of dtype {dtype_name}, which gemmule does not take; give another one")
