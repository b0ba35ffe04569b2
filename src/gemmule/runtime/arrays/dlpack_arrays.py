"""Arrays of any other library that speaks DLPack or the CUDA array interface, JAX among them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gemmule.core.dtype import numpy_dtype, opaque_dtype
from gemmule.core.errors import ArgumentError
from gemmule.core.layout import compact_strides
from gemmule.runtime.device import current
from gemmule.runtime.driver import call, driver
from gemmule.runtime.stream import LEGACY_DEFAULT

from .view import ArrayView, NewArray

_DLPACK_CPU = 1


class DlpackLibrary:
    """A library known by its protocols only. Results are handed back through its own ``from_dlpack``."""

    name = "dlpack"
    orders_reuse = False

    def view(self, x: Any, stream: int | None) -> ArrayView:
        """Return the array's memory; the producer orders its work before `stream`."""
        if self.device_of(x) is None:
            host = np.from_dlpack(x)
            return ArrayView(host.shape, host.dtype.name, None, host=host, readonly=not host.flags.writeable)
        from cuda.core.utils import StridedMemoryView

        memory = StridedMemoryView.from_any_interface(x, stream_ptr=stream)
        if memory.dtype is None:
            raise ArgumentError(f"an array of {type(x).__name__} has a dtype that NumPy and ml_dtypes do not know")
        strides = memory.strides if memory.strides is not None else compact_strides(tuple(memory.shape))
        return ArrayView(
            shape=tuple(memory.shape),
            dtype_name=memory.dtype.name,
            device=memory.device_id,
            address=memory.ptr,
            strides=tuple(strides),
            itemsize=memory.dtype.itemsize,
            readonly=memory.readonly,
            keepalive=memory,
        )

    def device_of(self, x: Any) -> int | None:
        """Return the GPU that the array is on."""
        if hasattr(x, "__dlpack_device__"):
            kind, ordinal = x.__dlpack_device__()
            return None if int(kind) == _DLPACK_CPU else int(ordinal)
        return 0

    def current_stream(self, device: int) -> int:
        """Return the legacy default stream: the library does not tell another one."""
        del device
        return LEGACY_DEFAULT

    def empty(self, shape: tuple[int, ...], dtype_name: str, like: Any, stream: int | None) -> NewArray:
        """Refuse: the library's allocator is not known."""
        del shape, dtype_name, stream
        raise ArgumentError(
            f"gemmule cannot make arrays of {type(like).__module__}; pass out, or PyTorch, CuPy, JAX or NumPy arrays"
        )


class DeviceResult:
    """A new array in device memory that hands itself over by DLPack, in order with the stream that writes it.

    A type that NumPy does not have is handed over as the unsigned integer of its size.

    Parameters
    ----------
    shape : tuple of int
        Its extents; it is C-contiguous.
    dtype_name : str
        Its element type.
    ordinal : int
        The GPU.
    stream : int
        Stream on which it is allocated and written.
    """

    def __init__(self, shape: tuple[int, ...], dtype_name: str, ordinal: int, stream: int) -> None:
        from cuda.core import Device, Stream
        from cuda.core.utils import StridedMemoryView

        dtype = numpy_dtype(dtype_name)
        self.ordinal, self.stream = ordinal, stream
        with current(ordinal):
            device = Device(ordinal)
            device.set_current()
            size = max(int(np.prod(shape)) * dtype.itemsize, 1)
            buffer = device.memory_resource.allocate(size, stream=Stream.from_handle(stream))
        # DLPack's exporters know the types of NumPy only: others travel as unsigned integers.
        passed = opaque_dtype(dtype.itemsize).numpy() if hasattr(ml_dtypes, dtype_name) else dtype
        self._memory = StridedMemoryView.from_buffer(buffer, shape, dtype=passed)
        strides = compact_strides(shape)
        self.view = ArrayView(
            shape, dtype_name, ordinal, None, int(buffer.handle), strides, dtype.itemsize, keepalive=self
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type and number."""
        kind, ordinal = self._memory.__dlpack_device__()
        return int(kind), int(ordinal)

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """Return the capsule; `stream` will see the finished result."""
        consumer = LEGACY_DEFAULT if stream is None else stream
        if consumer not in (-1, self.stream):
            flag = driver().CUevent_flags.CU_EVENT_DISABLE_TIMING
            with current(self.ordinal):
                event = call("cuEventCreate", flag)
                call("cuEventRecord", event, self.stream)
                call("cuStreamWaitEvent", consumer, event, 0)
                call("cuEventDestroy", event)
        return self._memory.__dlpack__(stream=-1, **options)
