"""The arrays of a call: one library, one device."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any

from gemmule.core.chips import CHIPS
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError, HostMemoryError, UnsupportedError
from gemmule.core.layout import element_alignment
from gemmule.core.problem import Problem
from gemmule.core.roofline import problem_bound
from gemmule.runtime.arrays import ArrayLibrary, ArrayView, library_of
from gemmule.runtime.arrays.array_specs import SpecLibrary, is_spec
from gemmule.runtime.arrays.view import NewArray
from gemmule.runtime.stream import stream_handle

from .rules import itemsize_of


@dataclass(frozen=True)
class Operands:
    """The arrays of a call as memory."""

    library: ArrayLibrary  #: The library that they all come from.
    views: dict[str, ArrayView]  #: Their memory by role.
    device: int | None  #: The GPU that they are on, None for host memory.
    #: The caller's stream; None is the library's current one, whichever that is when the work is queued.
    stream: int | None
    like: Any  #: Array. The first of them, for making others.

    def work_stream(self) -> int | None:
        """Return the stream to work on now; None for host memory."""
        if self.device is None or self.stream is not None:
            return self.stream
        return self.library.current_stream(self.device)

    def new(self, shape: tuple[int, ...], dtype: str, stream: int | None, *, streamable: bool = False) -> NewArray:
        """Return a new array of the library, where the others are; `streamable` as of `EnoughMemory`.

        Raises
        ------
        HostMemoryError
            If there is no room for it in host memory, or in any memory.
        """
        if math.prod(shape) * itemsize_of(dtype) > sys.maxsize:
            raise HostMemoryError(
                f"a result of shape {shape} and type {dtype} is larger than any memory; {_remedy(streamable)}"
            )
        with EnoughMemory(f"a result of shape {shape} and type {dtype}", streamable):
            return self.library.empty(shape, dtype, self.like, stream)

    def keep_until_done(self, stream: int, *others: Any) -> None:
        """Keep the arrays alive for work queued on `stream`, where their library does not see to that."""
        assert self.device is not None
        if not self.library.orders_reuse or stream != self.library.current_stream(self.device):
            from gemmule.runtime.retain import retain

            retain((self.views, self.like, others), self.device, stream)


_OPTIONAL = ("c", "out")


def _remedy(streamable: bool) -> str:
    return "compute it in parts" + ", or into a file with gemmule.outofcore.matmul" * streamable


@dataclasses.dataclass(frozen=True, slots=True)
class EnoughMemory:
    """A context that makes the lack of host memory an error of gemmule's.

    Raises
    ------
    HostMemoryError
        If it runs out.
    """

    what: str  #: Purpose of the memory.
    streamable: bool = False  #: Whether it is for a product that `gemmule.outofcore.matmul` computes.

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # Those of CuPy are of a GPU's memory.
        if isinstance(error, MemoryError) and not (
            isinstance(error, HostMemoryError) or type(error).__module__.startswith("cupy")
        ):
            raise HostMemoryError(
                f"{self.what} does not fit into memory ({error}); {_remedy(self.streamable)}"
            ) from error


def gather(arrays: Mapping[str, Any], stream: Any, *, specs: bool = False) -> Operands:
    """Look at the arrays of a call.

    Parameters
    ----------
    arrays : mapping of str to array
        Arrays by role; those that are None are left out.
    stream : int, stream or None
        The caller's stream; None takes the library's current one.
    specs : bool
        Whether arrays may be specs, which have no memory.

    Raises
    ------
    ArgumentError
        If they come from different libraries or devices, or a stream is given with host arrays.
    """
    given = {role: x for role, x in arrays.items() if x is not None or role not in _OPTIONAL}
    (first, like), *_ = given.items()
    shapes = SpecLibrary()
    libraries = {role: shapes if specs and is_spec(x) else library_of(x, role) for role, x in given.items()}
    library = libraries[first]
    for role, other in libraries.items():
        if other is not library and shapes not in (other, library):
            raise ArgumentError(
                f"{first} comes from {library.name} and {role} from {other.name}; convert one of them, "
                "e.g. with from_dlpack"
            )
    devices = {role: library.device_of(x, role) for role, x in given.items()}
    device = devices[first]
    for role, other_device in devices.items():
        if other_device != device:
            raise ArgumentError(
                f"{first} is on {_place(device)} and {role} on {_place(other_device)}; move one of them"
            )
    if device is None:
        if stream is not None:
            raise ArgumentError("stream was given, but the arrays are in host memory, which has none; leave it out")
        return Operands(library, {role: library.view(x, None, role) for role, x in given.items()}, None, None, like)
    handle = None if stream is None else stream_handle(stream)
    # A library whose current stream can change needs no ordering before it; for the others it is always the same one.
    order = library.current_stream(device) if handle is None else handle
    views = {role: library.view(x, order, role) for role, x in given.items()}
    _check_addresses(views)
    return Operands(library, views, device, handle, like)


def _check_addresses(views: Mapping[str, ArrayView]) -> None:
    # A kernel that reads there is stopped by the GPU, and with it everything else in the process that uses the GPU.
    for role, view in views.items():
        multiple = element_alignment(view.itemsize)
        if view.address % multiple:
            raise ArgumentError(
                f"{role} begins at address {view.address:#x}, but a GPU reads {view.dtype_name} at multiples of "
                f"{multiple} only; pass a copy"
            )


def _place(device: int | None) -> str:
    return "the host" if device is None else f"GPU {device}"


def least_seconds(problem: Problem, device_name: str, *, from_host: bool) -> float | None:
    """Return the least time of a problem on the chip of that name; None if facts of the chip are missing."""
    for chip in CHIPS:
        if device_name in (chip.name, *chip.aliases):
            try:
                return problem_bound(problem, chip, from_host=from_host).seconds
            except UnsupportedError:
                # The chip has no unit for these types whose rate is known.
                return None
    return None
