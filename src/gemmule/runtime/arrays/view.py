"""Views of arrays: memory, shape, strides and type, and the library that an array comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from gemmule.core.dataclass import dataclass

HostArray = np.ndarray[Any, np.dtype[Any]]

#: Roles of arrays whose conjugates kernels read in place.
FACTORS = ("a", "b")
#: Roles of arrays that a call writes.
WRITTEN = ("out", "absmax")
#: Bytes of the greatest alignment that kernels are chosen by.
MOST_ALIGNED = 256


@dataclass(frozen=True)
class ArrayView:
    """An array's memory."""

    shape: tuple[int, ...]  #: Extents.
    dtype_name: str  #: Element type as NumPy and ml_dtypes call it.
    itemsize: int  #: Bytes per element.
    device: int | None  #: The GPU that the memory is on; None for host memory.
    host: HostArray | None = None  #: The memory as a NumPy array, for host memory.
    address: int = 0  #: Address of the first element, for device memory.
    strides: tuple[int, ...] = ()  #: Elements from one index to the next, for device memory.
    readonly: bool = False  #: The memory must not be written.
    keepalive: object = None  #: Object. What must live as long as the memory is used.
    #: Makes the memory ready, each time before a plan reads or writes it on a stream: fills what is a copy, and refuses
    #: memory that is not there any more.
    refresh: Callable[[int | None], None] | None = dataclasses.field(default=None, compare=False)
    conj: bool = False  #: The array is the complex conjugate of its memory.

    @property
    def alignment(self) -> int:
        """Bytes that the address is a multiple of, up to 256."""
        return min((self.address & -self.address) or MOST_ALIGNED, MOST_ALIGNED)


@dataclass(frozen=True)
class NewArray:
    """An array to be written."""

    view: ArrayView  #: Its memory.
    finish: Callable[[], Any]  #: Returns the library's array, once its writing is queued.


class ArrayLibrary(Protocol):
    """An array library: how its arrays are read and made."""

    @property
    def name(self) -> str:
        """Name of the library."""

    @property
    def orders_reuse(self) -> bool:
        """Return whether freed memory is reused only after the work on the library's current stream."""

    def view(self, x: Any, stream: int | None, role: str) -> ArrayView:
        """Return the memory of an array of this library.

        Parameters
        ----------
        x : array
            The array.
        stream : int or None
            The stream that will use it; work of the library that makes the array is ordered before it, where the
            library does not use that very stream.
        role : str
            The array's name in messages.
        """

    def current_stream(self, device: int) -> int:
        """Return the handle of the stream that the library works on now."""

    def device_of(self, x: Any, role: str = "an array") -> int | None:
        """Return the GPU that the array is on, None for host memory; `role` is its name in messages."""

    def empty(self, shape: tuple[int, ...], dtype_name: str, like: Any, stream: int | None) -> NewArray:
        """Return a new C-contiguous array on the device of `like`, to be written on `stream` if that is a GPU."""
