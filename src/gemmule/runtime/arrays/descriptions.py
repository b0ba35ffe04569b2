"""Descriptions of a call's arrays: the least reads that distinguish one product from another."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Protocol

from ..replay import NoOverlap, Queue, Replay
from .view import HostArray

#: A key; of arrays on a GPU their addresses, the output's last if there is one, and the library's current stream; of
#: arrays in host memory the memory of each, None for those that are None, and None.
Described = tuple[Any, tuple[Any, ...], int | None]

_EXECUTOR = "GEMMULE_EXECUTOR"
# The dict inside CPython's `os.environ`, whose own lookup of a missing name takes as long as a 4 x 4 product.
_data, _encoded = getattr(os.environ, "_data", None), getattr(os.environ, "encodekey", None)


def _as_given() -> str | None:
    return os.environ.get(_EXECUTOR)


#: Returns something that changes with ``GEMMULE_EXECUTOR``; None where that is not set.
executor_in_environment: Callable[[], Any] = (
    functools.partial(_data.get, _encoded(_EXECUTOR)) if _data is not None and _encoded is not None else _as_given
)


class Repeatable(Protocol):
    """An entry of the call cache: a product on a GPU."""

    @property
    def queue(self) -> Queue:
        """Queues it, given addresses and stream."""

    @property
    def new(self) -> Callable[[], Any]:
        """Makes the output."""

    @property
    def no_overlap(self) -> NoOverlap:
        """Return whether the output certainly overlaps no input; C may be the output itself."""


class CallArrays(Protocol):
    """An array library whose calls are cached."""

    @property
    def host(self) -> HostCallArrays | None:
        """The same for its arrays in host memory, if calls with these are cached."""

    @property
    def guarded(self) -> bool:
        """Return whether guards exist, so that calls with arrays on a GPU are replayed."""

    @property
    def guards_kinds(self) -> bool:
        """Return whether a guard accepts all arrays of a kind, or only those that it was made from."""

    @property
    def wrote(self) -> Callable[[Any], None] | None:
        """Tells the library that an array of the caller's was written; None where it does not want to hear of it."""

    def describe(self, a: Any, b: Any, others: tuple[Any, ...], options: tuple[Any, ...]) -> Described | None:
        """Return the description of a product of these arrays; None where it is unusual.

        The first of the others is C and the last the output; each may be None.
        """


class HostCallArrays(CallArrays, Protocol):
    """An array library whose arrays in host memory are read without questions that a description answers."""

    def learn(self, given: tuple[Any, ...]) -> None:
        """Let `describe` know arrays like these, which a plan has read; some may be None."""

    def host_maker(self, shape: tuple[int, ...], dtype_name: str) -> Callable[[], tuple[Any, HostArray]]:
        """Return a function that makes results, each with its memory."""


class DeviceCallArrays(CallArrays, Protocol):
    """An array library whose arrays are on a GPU."""

    @property
    def address(self) -> Callable[[Any], int]:
        """Gives the address of an array's first element."""

    def device(self, x: Any) -> int:
        """Return the number of the array's GPU."""

    def byte_bounds(self, x: Any) -> tuple[int, int]:
        """Return the bytes from an array's address to its first byte in memory, and to behind its last."""

    def maker(self, x: Any) -> Callable[[], Any]:
        """Return a function that makes arrays of the shape and type of `x`, C-contiguous, where `x` is."""

    def made_on(self, new: Callable[[], Any], device: int, stream: int) -> Any:
        """Return an array of `new`, with memory that the library ties to a stream, which is not the current one."""

    def replay(self, call: Repeatable, inputs: tuple[Any, ...], out: Any, result: Any) -> Replay | None:
        """Return the replay of a product of arrays that a guard lets through; None where there is no guard.

        The inputs are A, B, and C and a bias as far as there are these. `out` is the output that was given, or None;
        `result` the one that was filled.
        """


def bounds_of_strides(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Return the bytes from the first element to the first byte in memory and to behind the last; strides in bytes."""
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    return sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps) + itemsize
