"""CuPy arrays."""

from __future__ import annotations

import contextlib
from typing import Any

from gemmule.core.dtype import numpy_dtype
from gemmule.core.errors import ArgumentError

from .cupy_streams import external_stream
from .view import ArrayView, NewArray


class CupyLibrary:
    """CuPy."""

    name = "cupy"
    orders_reuse = True

    def view(self, x: Any, stream: int | None, role: str) -> ArrayView:
        """Return the array's memory. The stream is CuPy's own, so nothing needs ordering."""
        del stream
        if any(stride % x.itemsize for stride in x.strides):
            raise ArgumentError(f"{role} has strides {x.strides} bytes, no multiples of {x.itemsize}; pass a copy")
        return ArrayView(
            shape=x.shape,
            dtype_name=x.dtype.name,
            itemsize=x.itemsize,
            device=self.device_of(x),
            address=x.data.ptr,
            strides=tuple(stride // x.itemsize for stride in x.strides),
            keepalive=x,
        )

    def device_of(self, x: Any, role: str = "an array") -> int | None:
        """Return the GPU that the array is on."""
        del role
        return int(x.device.id)

    def current_stream(self, device: int) -> int:
        """Return CuPy's current stream on that GPU."""
        import cupy

        with cupy.cuda.Device(device):
            return int(cupy.cuda.get_current_stream().ptr)

    def empty(self, shape: tuple[int, ...], dtype_name: str, like: Any, stream: int | None) -> NewArray:
        """Return a new array whose memory the pool ties to `stream`."""
        import cupy

        device = self.device_of(like) or 0
        with cupy.cuda.Device(device):
            on_stream: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
            if stream is not None and stream != self.current_stream(device):
                on_stream = external_stream(cupy, stream, device)
            with on_stream:
                array = cupy.empty(shape, numpy_dtype(dtype_name))
        return NewArray(self.view(array, stream, "the result"), lambda: array)
