"""Device memory of our own, for host arrays that pass through a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.core.errors import DeviceMemoryError

from .device import current, primary_context
from .driver import call, check, driver

Array = np.ndarray[Any, np.dtype[Any]]


_USABLE_SHARE = 0.8


class DeviceBuffer:
    """Device memory in stream order, given back when the block that it was opened in ends.

    Parameters
    ----------
    nbytes : int
        Size; 0 allocates nothing.
    stream : int
        Stream that allocation, copies and release are ordered in.

    Raises
    ------
    DeviceMemoryError
        If the GPU has too little free memory.
    """

    def __init__(self, nbytes: int, ordinal: int, stream: int) -> None:
        self.nbytes, self.ordinal, self.stream = nbytes, ordinal, stream
        self.address = 0
        if nbytes:
            with current(ordinal):
                try:
                    self.address = int(call("cuMemAllocAsync", nbytes, stream))
                except DeviceMemoryError as error:
                    free, total = call("cuMemGetInfo")
                    raise DeviceMemoryError(
                        error.call,
                        error.status,
                        f"{nbytes} bytes are needed on GPU {ordinal}, which has {free} of {total} free: {error.detail}",
                    ) from error

    def __enter__(self) -> DeviceBuffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def free(self) -> None:
        """Give the memory back once the work queued so far is done."""
        if self.address:
            with current(self.ordinal):
                call("cuMemFreeAsync", self.address, self.stream)
            self.address = 0

    def upload(self, array: Array) -> None:
        """Copy a C-contiguous host array to the start of the buffer; it may be changed when the call returns."""
        if array.nbytes:
            with current(self.ordinal):
                call("cuMemcpyHtoDAsync", self.address, array.ctypes.data, array.nbytes, self.stream)
                # A pageable source is staged before the call returns, a pinned one is not.
                call("cuStreamSynchronize", self.stream)

    def download(self, array: Array) -> None:
        """Copy from the start of the buffer into a C-contiguous host array, and wait for it."""
        if array.nbytes:
            with current(self.ordinal):
                call("cuMemcpyDtoHAsync", array.ctypes.data, self.address, array.nbytes, self.stream)
                call("cuStreamSynchronize", self.stream)


class LentMemory:
    """Device memory in stream order that is taken again and again: with as few questions as can be.

    Parameters
    ----------
    nbytes : int
        Size, more than 0.
    """

    def __init__(self, nbytes: int, ordinal: int) -> None:
        bindings = driver()
        self._nbytes, self._ordinal, self._context = nbytes, ordinal, int(primary_context(ordinal))
        self._current, self._success = bindings.cuCtxGetCurrent, bindings.CUresult.CUDA_SUCCESS
        self._take, self._give = bindings.cuMemAllocAsync, bindings.cuMemFreeAsync

    def lend(self, use: Callable[[int], None], stream: int) -> None:
        """Call a function with the memory's address, and give it back once the work queued by then is done.

        Raises
        ------
        DeviceMemoryError
            If the GPU has too little free memory.
        """
        status, context = self._current()
        if status == self._success and int(context) == self._context:
            status, memory = self._take(self._nbytes, stream)
            if status == self._success:
                try:
                    use(int(memory))
                finally:
                    (status,) = self._give(memory, stream)
                    if status != self._success:
                        check("cuMemFreeAsync", int(status))
                return
        # Another context is current, or memory is short; the driver's error says which.
        with DeviceBuffer(self._nbytes, self._ordinal, stream) as buffer:
            use(buffer.address)


def is_pinned(array: Array) -> bool:
    """Return whether an array's memory is pinned, from its first to its last byte."""
    first, end = np.lib.array_utils.byte_bounds(array)
    return all(_in_pinned_memory(address) for address in (first, end - 1))


def _in_pinned_memory(address: int) -> bool:
    bindings = driver()
    kind = bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    status, found = bindings.cuPointerGetAttribute(kind, address)
    # The driver returns an error for addresses of ordinary memory.
    return bool(
        status == bindings.CUresult.CUDA_SUCCESS and int(found) == int(bindings.CUmemorytype.CU_MEMORYTYPE_HOST)
    )


def clear(address: int, nbytes: int, ordinal: int, stream: int) -> None:
    """Queue the zeroing of device memory."""
    with current(ordinal):
        call("cuMemsetD8Async", address, 0, nbytes, stream)


def usable_memory(ordinal: int) -> int:
    """Return the bytes of a GPU's free memory that may be taken; the rest is left to others and to the allocator."""
    with current(ordinal):
        free, _ = call("cuMemGetInfo")
    return int(free * _USABLE_SHARE)
