"""CuPy arrays, in one call and in repeated ones, and CuPy's own objects for streams that others have made."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import numpy_dtype
from gemmule.core.errors import ArgumentError

from ..replay import LOW, Replay, replay_same_arrays
from .descriptions import Described, Repeatable, bounds_of_strides
from .view import ArrayView, NewArray


class CupyLibrary:
    """CuPy."""

    name = "cupy"
    orders_reuse = True

    def call_arrays(self) -> CupyArrays:
        """Return the describer of the arrays of repeated calls."""
        return _call_arrays()

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


class CupyArrays:
    """CuPy's arrays.

    Parameters
    ----------
    cupy : module
        CuPy.
    """

    guarded, guards_kinds, wrote, host = True, False, None, None

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._type = cupy.ndarray
        self._current_device: Callable[[], int] = cupy.cuda.runtime.getDevice
        self._current_stream = cupy.cuda.get_current_stream
        self._devices = int(cupy.cuda.runtime.getDeviceCount())

    @staticmethod
    def address(x: Any) -> int:
        """Return the address of the array's first element."""
        return int(x.data.ptr)

    def describe(self, a: Any, b: Any, others: tuple[Any, ...], options: tuple[Any, ...]) -> Described | None:
        """Return the description of a product of these arrays. On another GPU than CuPy's current one it is unusual."""
        kind, device = self._type, self._current_device()
        if type(b) is not kind:
            return None
        da, db = a.data, b.data
        if da.device_id != device or db.device_id != device:
            return None
        pa, pb = da.ptr, db.ptr
        addresses: tuple[int, ...] = (pa, pb)
        low = pa | pb
        # A decision for A and B in the same memory holds for such pairs only.
        key: tuple[Any, ...] = (options, device, a.dtype, b.dtype, a.shape, b.shape, a.strides, b.strides, pa == pb)
        c = others[0]
        for place, x in enumerate(others):
            if x is not None:
                if type(x) is not kind or (dx := x.data).device_id != device:
                    return None
                px = dx.ptr
                key = (key, place, x is c, x.dtype, x.shape, x.strides)
                addresses, low = (*addresses, px), low | px
        if low & LOW:
            key = (key, *[address & -address & LOW for address in addresses])
        return key, addresses, int(self._current_stream(device).ptr)

    def device(self, x: Any) -> int:
        return int(x.data.device_id)

    def byte_bounds(self, x: Any) -> tuple[int, int]:
        """Return where the array's memory begins and ends."""
        return bounds_of_strides(x.shape, x.strides, x.itemsize)

    def maker(self, x: Any) -> Callable[[], Any]:
        """Return a function that makes arrays like `x`."""
        return functools.partial(self._cupy.empty, x.shape, x.dtype)

    def made_on(self, new: Callable[[], Any], device: int, stream: int) -> Any:
        """Return an array of `new`, made while a stream is the current one; its GPU is."""
        with external_stream(self._cupy, stream, device):
            return new()

    def replay(self, call: Repeatable, inputs: tuple[Any, ...], out: Any, result: Any) -> Replay | None:
        """Return the replay of a product of these very arrays, while their shapes are what they are."""
        device = self.device(result)
        new = None
        if out is None:
            if self._devices > 1:
                # Another one may be current, where a result would be made.
                return None
            new = call.new
        given = inputs if out is None or any(x is out for x in inputs) else (*inputs, out)
        addresses = tuple([int(x.data.ptr) for x in inputs])
        if out is not None:
            addresses = (*addresses, int(out.data.ptr))
            if not call.no_overlap(addresses, any(x is out for x in inputs)):
                return None
        return replay_same_arrays(given, addresses, new, call.queue, self._current_stream, device)


@functools.cache
def _call_arrays() -> CupyArrays:
    import cupy

    return CupyArrays(cupy)


@dataclass(frozen=True)
class _Handle:
    """A stream by its address, as the CUDA stream protocol describes one."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def external_stream(cupy: Any, stream: int, device: int) -> Any:
    """Return CuPy's object for a stream; `device` is its GPU, and the current one."""
    from_external = getattr(cupy.cuda.Stream, "from_external", None)
    # CuPy 14 has the protocol, and deprecates its predecessor.
    return cupy.cuda.ExternalStream(stream, device) if from_external is None else from_external(_Handle(stream))
