"""Times work on a GPU with the device's own clock: events around calls, or around a graph of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from gemmule.core.errors import DriverError

from .device import current
from .driver import call, driver
from .graph_nodes import kernel_name

#: Nodes of the lead-in graph. Each takes one to two microseconds, and the host queues a sample in less than their sum.
_LEAD_NODES = 64


@contextlib.contextmanager
def closing(*steps: Callable[[], object]) -> Iterator[None]:
    """Take steps at the end; after an error they may fail, and the error is the one that is raised."""
    try:
        yield
    except BaseException:
        for step in steps:
            with contextlib.suppress(Exception):
                step()
        raise
    for step in steps:
        step()


@contextlib.contextmanager
def new_stream(ordinal: int) -> Iterator[int]:
    """Make a stream that does not wait for the default one; give its handle."""
    with current(ordinal):
        stream = call("cuStreamCreate", int(driver().CUstream_flags.CU_STREAM_NON_BLOCKING))
        with closing(lambda: call("cuStreamSynchronize", stream), lambda: call("cuStreamDestroy", stream)):
            yield int(stream)


class Graph:
    """Calls captured from a stream, to be replayed as one.

    Parameters
    ----------
    queue : callable
        Queues the calls on `stream`.
    stream : int
        The driver's handle of the stream, not the default one.
    """

    def __init__(self, queue: Callable[[], None], ordinal: int, stream: int) -> None:
        self._ordinal, self._stream = ordinal, stream
        with current(ordinal):
            # A library's first calls may do what a stricter mode forbids; no other work uses this stream.
            call("cuStreamBeginCapture", stream, driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
            try:
                queue()
            except BaseException:
                # A capture that failed ends with an error of its own; what made it fail is what counts.
                with contextlib.suppress(DriverError):
                    call("cuStreamEndCapture", stream)
                raise
            self._graph = call("cuStreamEndCapture", stream)
            self._executable = call("cuGraphInstantiate", self._graph, 0)
            call("cuGraphUpload", self._executable, stream)

    def __call__(self) -> None:
        """Queue the graph on its stream."""
        call("cuGraphLaunch", self._executable, self._stream)

    def kernels(self) -> list[str]:
        """Return the names of the kernels that the graph launches, in order of capture, as the driver knows them."""
        with current(self._ordinal):
            _, count = call("cuGraphGetNodes", self._graph, 0)
            nodes, _ = call("cuGraphGetNodes", self._graph, count) if count else ([], 0)
            return [name for node in nodes if (name := kernel_name(node)) is not None]

    def close(self) -> None:
        """Give the graph back."""
        with current(self._ordinal):
            call("cuGraphExecDestroy", self._executable)
            call("cuGraphDestroy", self._graph)


class Stopwatch:
    """Times a fixed number of calls of some work, sample by sample.

    Before each sample the GPU gets a hundred microseconds of almost nothing, so that the host is ahead of it when the
    first call starts: what a launch takes on the host does not enter.

    Parameters
    ----------
    work : callable
        Queues one call on the stream.
    calls : int
        Calls of a sample.
    lead : Graph
        The lead-in, see `lead_in`.
    graph : bool
        Capture the calls once, as a graph, and replay it.
    stream : int
        The driver's handle of the stream.
    """

    def __init__(
        self, work: Callable[[], None], calls: int, lead: Graph, *, graph: bool, ordinal: int, stream: int
    ) -> None:
        self.calls = calls
        self._ordinal, self._stream, self._lead = ordinal, stream, lead

        def run() -> None:
            for _ in range(calls):
                work()

        self._graph = Graph(run, ordinal, stream) if graph else None
        self._run: Callable[[], None] = self._graph or run

    def queue(self) -> Callable[[], float]:
        """Queue a sample; the function that is returned waits for it and gives the seconds of one call."""
        with current(self._ordinal):
            start, end = (call("cuEventCreate", int(driver().CUevent_flags.CU_EVENT_DEFAULT)) for _ in range(2))
            self._lead()
            call("cuEventRecord", start, self._stream)
            self._run()
            call("cuEventRecord", end, self._stream)

        def seconds() -> float:
            with current(self._ordinal):
                call("cuEventSynchronize", end)
                milliseconds = float(call("cuEventElapsedTime", start, end))
                for event in (start, end):
                    call("cuEventDestroy", event)
            return milliseconds * 1e-3 / self.calls

        return seconds

    def close(self) -> None:
        """Give the graph back."""
        if self._graph is not None:
            self._graph.close()


def lead_in(address: int, ordinal: int, stream: int) -> Graph:
    """Return a graph that keeps the GPU busy with next to nothing; it writes 4 bytes at `address` again and again."""

    def write() -> None:
        for _ in range(_LEAD_NODES):
            call("cuMemsetD8Async", address, 0, 4, stream)

    return Graph(write, ordinal, stream)
