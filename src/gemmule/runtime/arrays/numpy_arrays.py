"""NumPy arrays: taken by pointer and dtype, since their DLPack refuses bf16, fp8, read-only and big-endian arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.core.dtype import EXTENSION_FLOATS, numpy_dtype
from gemmule.core.errors import ArgumentError, DTypeError

from .descriptions import Described, executor_in_environment
from .view import ArrayView, HostArray, NewArray


class NumpyLibrary:
    """NumPy."""

    name = "numpy"
    orders_reuse = True

    def call_arrays(self) -> NumpyArrays:
        """Return the describer of the arrays of repeated calls."""
        return _CALL_ARRAYS

    def view(self, x: HostArray, stream: int | None, role: str) -> ArrayView:
        """Return the array itself."""
        del stream
        # NumPy imports its masked arrays when they are first used, which takes 5 ms.
        if "numpy.ma" in sys.modules and isinstance(x, np.ma.MaskedArray):
            remedy = "data" if role == "out" else "filled(value)"
            raise ArgumentError(f"{role} is a masked array, which would lose its mask; pass {role}.{remedy}")
        # A scalar is a value: what is written goes into a copy of it.
        fixed = isinstance(x, np.generic)
        x = np.asarray(x)
        if x.dtype.kind not in "biufc" and x.dtype.name not in EXTENSION_FLOATS:
            remedy = "convert it with astype first"
            if x.dtype.names:
                remedy = f"pass one of its fields, {role}[{x.dtype.names[0]!r}]"
            raise DTypeError(f"{role} is of dtype {x.dtype}, which gemmule does not take; {remedy}")
        return ArrayView(x.shape, x.dtype.name, x.itemsize, None, host=x, readonly=fixed or not x.flags.writeable)

    def device_of(self, x: HostArray, role: str = "an array") -> int | None:
        del x, role
        return None

    def current_stream(self, device: int) -> int:
        """NumPy has no streams."""
        raise AssertionError(f"NumPy has no stream on device {device}")

    def empty(self, shape: tuple[int, ...], dtype_name: str, like: HostArray, stream: int | None) -> NewArray:
        del like
        array = np.empty(shape, numpy_dtype(dtype_name))
        return NewArray(self.view(array, stream, "the result"), lambda: array)


class NumpyArrays:
    """NumPy's arrays in repeated calls."""

    # NumPy does not count writes.
    guarded, guards_kinds, wrote = False, False, None

    @property
    def host(self) -> NumpyArrays:
        """All of them are in host memory."""
        return self

    def describe(self, a: Any, b: Any, others: tuple[Any, ...], options: tuple[Any, ...]) -> Described | None:
        """Return the description of a product of these arrays; None where one is no plain array."""
        given = (a, b, *others)
        key: list[Any] = [self, executor_in_environment(), options]
        for x in given:
            if x is None:
                key.append(None)
            elif type(x) is np.ndarray and x.flags.aligned:
                key += x.dtype, x.shape, x.strides
            else:
                return None
        return tuple(key), given, None

    def learn(self, given: tuple[Any, ...]) -> None:
        """Do nothing: every array can be described."""

    def host_maker(self, shape: tuple[int, ...], dtype_name: str) -> Callable[[], tuple[Any, HostArray]]:
        """Return a function that makes results, each with its memory."""
        dtype = numpy_dtype(dtype_name)

        def new() -> tuple[Any, HostArray]:
            result = np.empty(shape, dtype)
            return result, result

        return new


_CALL_ARRAYS = NumpyArrays()
