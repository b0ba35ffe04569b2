"""What a profiler sees of a program: kernels, copies, calls into CUDA and named ranges, each with start and end.

Times are nanoseconds of one clock, whose zero means nothing.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Span:
    """Something that takes time.

    Attributes
    ----------
    name : str
        What it is called.
    start_ns, end_ns : int
        When it begins and when it is over.
    """

    name: str
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """How long it takes."""
        return self.end_ns - self.start_ns


@dataclasses.dataclass(frozen=True)
class KernelRun(Span):
    """One launch of a kernel, as it ran on the GPU; its name is that of the device function.

    Attributes
    ----------
    device, stream : int
        The GPU, and the stream as CUPTI numbers it.
    correlation : int
        Number of the call that queued it.
    grid, block : tuple of int
        CTAs, and threads of each.
    registers : int
        Registers of a thread.
    shared_bytes : int
        Shared memory of a CTA, static and dynamic.
    """

    device: int
    stream: int
    correlation: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    shared_bytes: int


@dataclasses.dataclass(frozen=True)
class Copy(Span):
    """One copy to, from or within a GPU, or one fill of its memory; named as nsys names it, e.g. ``memcpy HtoD``.

    Attributes
    ----------
    device, stream, correlation : int
        As of `KernelRun`.
    size : int
        Bytes that are copied or filled.
    """

    device: int
    stream: int
    correlation: int
    size: int


@dataclasses.dataclass(frozen=True)
class Call(Span):
    """One call into the CUDA driver or runtime, on the host.

    Attributes
    ----------
    thread : int
        The operating system's number of the thread.
    correlation : int
        Number that what it queued carries.
    """

    thread: int
    correlation: int


@dataclasses.dataclass(frozen=True)
class Range(Span):
    """A part of the program that was given a name, on the host."""

    thread: int


@dataclasses.dataclass(frozen=True)
class Profile:
    """All that was seen, each kind in order of start.

    Attributes
    ----------
    kernels, copies, calls, ranges : tuple
        The spans.
    lost : int
        Records that did not arrive, or arrived without their times.
    """

    kernels: tuple[KernelRun, ...] = ()
    copies: tuple[Copy, ...] = ()
    calls: tuple[Call, ...] = ()
    ranges: tuple[Range, ...] = ()
    lost: int = 0


@dataclasses.dataclass(frozen=True)
class Transfer(Span):
    """What ran on one of the streams of a product that passes through a device.

    Attributes
    ----------
    stream : str
        Name of the stream, e.g. ``compute``.
    size : int
        Bytes that were copied, or operations that were computed.
    """

    stream: str
    size: int
