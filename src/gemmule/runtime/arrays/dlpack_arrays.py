"""Arrays of any other library that speaks DLPack or the CUDA array interface, JAX among them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gemmule.core.dtype import EXTENSION_FLOATS, numpy_dtype, opaque_dtype
from gemmule.core.errors import ArgumentError, GemmuleError
from gemmule.core.layout import compact_strides
from gemmule.runtime.device import current, ordinal_of_address
from gemmule.runtime.driver import call, driver
from gemmule.runtime.stream import LEGACY_DEFAULT

from .view import ArrayView, NewArray

# DLPack's device types.
_HOST = (1, 3)
_CUDA = (2, 13)
# Errors of producers that do not export an array: BufferError by the standard, others in practice.
_REFUSALS = (BufferError, TypeError, ValueError, RuntimeError, AttributeError, KeyError, NotImplementedError)


class DlpackLibrary:
    """A library used through protocols only; results are returned through its own ``from_dlpack``."""

    name = "dlpack"
    orders_reuse = False

    def view(self, x: Any, stream: int | None, role: str) -> ArrayView:
        """Return the array's memory; the producer orders its work before `stream`."""
        device = self.device_of(x, role)
        if device is None:
            try:
                host = np.from_dlpack(x)
            except _REFUSALS as error:
                raise _not_handed_over(x, role, error) from error
            readonly = not host.flags.writeable
            return ArrayView(host.shape, host.dtype.name, host.itemsize, None, host=host, readonly=readonly)
        from cuda.core.utils import StridedMemoryView

        try:
            memory = StridedMemoryView.from_any_interface(x, stream_ptr=stream)
        except _REFUSALS as error:
            raise _not_handed_over(x, role, error) from error
        if memory.dtype is None:
            raise ArgumentError(f"{role} is of type {type(x).__name__} of a dtype that NumPy does not know; convert it")
        strides = memory.strides if memory.strides is not None else compact_strides(tuple(memory.shape))
        return ArrayView(
            shape=tuple(memory.shape),
            dtype_name=memory.dtype.name,
            itemsize=memory.dtype.itemsize,
            device=device,
            address=memory.ptr,
            strides=tuple(strides),
            readonly=memory.readonly,
            keepalive=memory,
        )

    def device_of(self, x: Any, role: str = "an array") -> int | None:
        try:
            if not hasattr(x, "__dlpack_device__"):
                address, _ = x.__cuda_array_interface__["data"]
                return ordinal_of_address(address) if address else 0
            kind, ordinal = map(int, x.__dlpack_device__())
        except GemmuleError:
            raise
        except _REFUSALS as error:
            raise _not_handed_over(x, role, error) from error
        if kind not in (*_HOST, *_CUDA):
            raise ArgumentError(
                f"{role} is on a device of DLPack's type {kind}; gemmule takes host memory and "
                "CUDA devices; move it to one of them"
            )
        return None if kind in _HOST else ordinal

    def current_stream(self, device: int) -> int:
        """Return the legacy default stream: the library names no other."""
        del device
        return LEGACY_DEFAULT

    def empty(self, shape: tuple[int, ...], dtype_name: str, like: Any, stream: int | None) -> NewArray:
        """Return memory that the library takes through its own ``from_dlpack`` when its writing is queued."""
        namespace = like.__array_namespace__() if hasattr(like, "__array_namespace__") else None
        if not hasattr(namespace, "from_dlpack") or dtype_name in EXTENSION_FLOATS:
            raise ArgumentError(
                f"a new {dtype_name} array cannot be handed to {type(like).__module__}; pass out, or convert to "
                "PyTorch, CuPy, JAX or NumPy arrays"
            )
        assert namespace is not None
        ordinal = self.device_of(like)
        if ordinal is None or stream is None:
            host = np.empty(shape, numpy_dtype(dtype_name))
            view = ArrayView(shape, dtype_name, host.itemsize, None, host=host)
            return NewArray(view, lambda: namespace.from_dlpack(host))
        result = DeviceResult(shape, dtype_name, ordinal, stream)
        return NewArray(result.view, lambda: namespace.from_dlpack(result))


def _not_handed_over(x: Any, role: str, error: Exception) -> ArgumentError:
    """Return the error of a library that fails to hand its array over: its protocols may raise anything."""
    return ArgumentError(
        f"{role} is of type {type(x).__name__} and cannot be read by DLPack or the CUDA array interface "
        f"({type(error).__name__}: {' '.join(str(error).split())}); convert it to a NumPy, PyTorch, CuPy or JAX array"
    )


@functools.cache
def _home_stream(ordinal: int) -> int:
    """Return the stream on which results are allocated and given back.

    It is neither the legacy default stream, whose use breaks captures, nor one that the caller could destroy.
    """
    with current(ordinal):
        return int(call("cuStreamCreate", driver().CUstream_flags.CU_STREAM_NON_BLOCKING))


def _order(ordinal: int, first: int, then: int) -> None:
    """Let the work queued on stream `then` from now on wait for what is queued on `first`."""
    if first == then:
        return
    with current(ordinal):
        event = call("cuEventCreate", driver().CUevent_flags.CU_EVENT_DISABLE_TIMING)
        call("cuEventRecord", event, first)
        call("cuStreamWaitEvent", then, event, 0)
        call("cuEventDestroy", event)


class DeviceResult:
    """A new array in device memory, exported by DLPack in order with the stream that writes it.

    A type that NumPy does not have is handed over as the unsigned integer of its size.

    Parameters
    ----------
    shape : tuple of int
        Its extents; it is C-contiguous.
    dtype_name : str
        Its element type.
    stream : int
        Stream on which it is allocated and written.
    """

    def __init__(self, shape: tuple[int, ...], dtype_name: str, ordinal: int, stream: int) -> None:
        from cuda.core import Device, Stream
        from cuda.core.utils import StridedMemoryView

        dtype = numpy_dtype(dtype_name)
        self.ordinal, self.stream = ordinal, stream
        home = _home_stream(ordinal)
        with current(ordinal):
            device = Device(ordinal)
            device.set_current()
            size = max(int(np.prod(shape)) * dtype.itemsize, 1)
            buffer = device.memory_resource.allocate(size, stream=Stream.from_handle(home))
        _order(ordinal, home, stream)
        # DLPack's exporters know the types of NumPy only: others travel as unsigned integers.
        passed = opaque_dtype(dtype.itemsize).numpy() if dtype_name in EXTENSION_FLOATS else dtype
        self._memory = StridedMemoryView.from_buffer(buffer, shape, dtype=passed)
        strides = compact_strides(shape)
        self.view = ArrayView(
            shape, dtype_name, dtype.itemsize, ordinal, address=int(buffer.handle), strides=strides, keepalive=self
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type and number."""
        kind, ordinal = self._memory.__dlpack_device__()
        return int(kind), int(ordinal)

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """Return the capsule; `stream` will see the finished result."""
        consumer = LEGACY_DEFAULT if stream is None else stream
        if consumer != -1:
            _order(self.ordinal, self.stream, consumer)
        # The memory goes back on its own stream, not before it is written.
        _order(self.ordinal, self.stream, _home_stream(self.ordinal))
        return self._memory.__dlpack__(stream=-1, **options)
