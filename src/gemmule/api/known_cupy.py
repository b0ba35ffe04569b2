"""CuPy's arrays as a repeated call reads them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from gemmule.runtime.arrays.cupy_streams import external_stream

from . import recent
from .known_arrays import LOW, Described, Repeatable, reach_of


class CupyArrays:
    """CuPy's arrays.

    Parameters
    ----------
    cupy : module
        CuPy.
    """

    guarded, guards_kinds, wrote = True, False, None

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
        """Return what a product of these arrays is known by. On another GPU than CuPy's current one it is unusual."""
        kind, device = self._type, self._current_device()
        if type(b) is not kind:
            return None
        da, db = a.data, b.data
        if da.device_id != device or db.device_id != device:
            return None
        pa, pb = da.ptr, db.ptr
        addresses: tuple[int, ...] = (pa, pb)
        low = pa | pb
        # What is decided where A and B are the same memory holds only where they are.
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
        """Return the array's GPU."""
        return int(x.data.device_id)

    def reach(self, x: Any) -> tuple[int, int]:
        """Return where the array's memory begins and ends."""
        return reach_of(x.shape, x.strides, x.itemsize)

    def maker(self, x: Any) -> Callable[[], Any]:
        """Return what makes arrays like `x`."""
        return functools.partial(self._cupy.empty, x.shape, x.dtype)

    def made_on(self, new: Callable[[], Any], device: int, stream: int) -> Any:
        """Return what `new` makes while a stream is the current one; its GPU is."""
        with external_stream(self._cupy, stream, device):
            return new()

    def again(self, kept: Repeatable, inputs: tuple[Any, ...], out: Any, result: Any) -> recent.Again | None:
        """Return what repeats a product of these very arrays, while their shapes are what they are."""
        device = self.device(result)
        new = None
        if out is None:
            if self._devices > 1:
                # Another one may be current, where a result would be made.
                return None
            new = kept.new
        given = inputs if out is None or any(x is out for x in inputs) else (*inputs, out)
        addresses = tuple([int(x.data.ptr) for x in inputs])
        if out is not None:
            addresses = (*addresses, int(out.data.ptr))
            if not kept.apart(addresses, any(x is out for x in inputs)):
                return None
        return of_these(given, addresses, new, kept.queue, self._current_stream, device)


def of_these(
    given: tuple[Any, ...],
    addresses: tuple[int, ...],
    new: Callable[[], Any] | None,
    queue: recent.Queue,
    stream: Callable[[int], Any],
    device: int,
) -> recent.Again:
    """Return what repeats a product of these very arrays.

    An array of CuPy's keeps its type and its memory for life. Its shape can be set, and its strides with it; to a shape
    that it had before, which means the same elements.

    Parameters
    ----------
    given : tuple of array
        The inputs, and the output if it is given and none of them. They are not kept alive.
    addresses : tuple of int
        Of the inputs in their order, and of an output that is given.
    new : callable or None
        Makes the output, where none is given.
    queue : callable
        Queues the product.
    stream : callable
        Gives the current stream of a GPU.
    device : int
        The GPU.
    """
    known: tuple[tuple[Callable[[], Any], tuple[int, ...]], ...] = tuple([(weakref.ref(x), x.shape) for x in given])

    def again(a: Any, b: Any, out: Any, c: Any = None, bias: Any = None, named: int | None = None) -> Any:
        now = stream(device).ptr
        if named is not None and named != now:
            return None
        # In the order of `given`: what is called by other identities is not found here.
        arrays = (a, b, out) if c is bias is None else (a, b, *[x for x in (c, bias, out) if x is not None])
        for (reference, shape), x in zip(known, arrays, strict=False):
            # Another array may have the identity of one that is gone.
            if reference() is not x or x.shape != shape:
                return None
        if new is None:
            queue(addresses, now)
            return out
        out = new()
        at = out.data.ptr
        if at & recent.LOW:
            return None
        queue((*addresses, at), now)
        return out

    return again
