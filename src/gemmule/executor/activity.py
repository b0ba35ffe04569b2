"""Activity of a profiled program: kernels, copies, CUDA calls and named ranges, each with start and end.

Times are nanoseconds of one clock with an arbitrary zero.
"""

from __future__ import annotations

from gemmule.core.dataclass import dataclass


@dataclass(frozen=True)
class Span:
    """A named span of time."""

    name: str  #: Name.
    #: start_ns, end_ns: Start and end.
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """Duration."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class KernelRun(Span):
    """One launch of a kernel on the GPU, by the name of its function."""

    #: device, stream: The GPU, and CUPTI's number of the stream.
    device: int
    stream: int
    correlation: int  #: CUPTI's correlation ID, which the launching call has too.
    #: grid, block: CTAs, and threads of each.
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int  #: Registers of a thread.
    shared_bytes: int  #: Shared memory of a CTA, static and dynamic.


@dataclass(frozen=True)
class Copy(Span):
    """One memcpy to, from or within a GPU, or one memset, named as in nsys, e.g. ``memcpy HtoD``."""

    #: device, stream, correlation: As of `KernelRun`.
    device: int
    stream: int
    correlation: int
    size: int  #: Bytes copied or set.


@dataclass(frozen=True)
class Call(Span):
    """One call of the CUDA driver or runtime API."""

    thread: int  #: The operating system's thread ID.
    correlation: int  #: CUPTI's correlation ID.


@dataclass(frozen=True)
class Range(Span):
    """A named range of the program on the host (NVTX)."""

    thread: int


@dataclass(frozen=True)
class Profile:
    """The activity of a program, each kind in order of start."""

    #: kernels, copies, calls, ranges: The spans.
    kernels: tuple[KernelRun, ...] = ()
    copies: tuple[Copy, ...] = ()
    calls: tuple[Call, ...] = ()
    ranges: tuple[Range, ...] = ()
    lost: int = 0  #: Number of dropped records, and of records without times.


@dataclass(frozen=True)
class Transfer(Span):
    """A copy or a computation on one of the streams of an out-of-core product."""

    stream: str  #: Name of the stream, e.g. ``compute``.
    size: int  #: Bytes copied, or operations computed.
