"""A GPU's memory and streams, for products that pass through it: copies and kernels overlap."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gemmule.core.block_triangle import BlockTriangle
from gemmule.core.dtype import Precision
from gemmule.core.problem import GemmProblem, Problem
from gemmule.core.spec import Choice
from gemmule.executor.streams import Array, DeviceMatrix, DeviceProduct

from .device import current, get_device
from .driver import call, driver
from .execute import Launches, bound_launches, launches_of
from .huge_pages import HUGE_PAGE, huge_pages
from .memory import is_pinned
from .numa import bound_to, processors_near
from .stopwatch import closing
from .stream_problems import enlarged, rounding, strided, transpose_of
from .tiles import Chooser
from .workspaces import Workspaces

#: Limit of cached launches.
_MOST_PREPARED = 4096
#: Bytes of the longest line that is copied: drivers take pitches below 2 GiB.
_LONGEST_LINE = 1 << 30


class GpuStreams:
    """A GPU's memory and streams; a `DeviceStreams`.

    Parameters
    ----------
    choose : callable
        Chooses the kernel of a problem for an architecture and a number of SMs.
    precision : Precision
        Type that float32 operands may be rounded to.
    """

    name = "gpu"
    #: Multiples of every kernel's tile, and of the depth of its slices.
    whole = (128, 256, 64)

    def __init__(self, choose: Chooser, ordinal: int = 0, precision: Precision = Precision.IEEE) -> None:
        self.device = get_device(ordinal)
        self.ordinal, self.precision = ordinal, precision
        self._choose = choose
        self._prepared: dict[Any, list[Callable[[], None]]] = {}
        self._works: dict[Any, Launches] = {}
        self._streams: list[int] = []
        self._buffers: list[int] = []
        self._pinned: list[int] = []
        self._registered: list[tuple[int, Array]] = []
        self._events: list[Any] = []
        self._workspaces: dict[int, Workspaces] = {}
        self._lock = threading.Lock()
        self._own = threading.local()
        #: Bytes that copies have moved, by direction.
        self.moved = {"copy_in": 0, "copy_out": 0}

    def __enter__(self) -> GpuStreams:
        return self

    def __exit__(self, *exc: object) -> None:
        with current(self.ordinal):
            steps = [lambda: [call("cuStreamSynchronize", stream) for stream in self._streams], self._release]
            with closing(*steps):
                pass

    def _release(self) -> None:
        for workspaces in self._workspaces.values():
            workspaces.free()
        self._workspaces.clear()
        for address, _ in self._registered:
            call("cuMemHostUnregister", address)
        self._registered.clear()
        for name, handles in (
            ("cuEventDestroy", self._events),
            ("cuStreamDestroy", self._streams),
            ("cuMemFree", self._buffers),
            ("cuMemFreeHost", self._pinned),
        ):
            for handle in handles:
                call(name, handle)
            handles.clear()

    def describe(self) -> str:
        """Name the GPU."""
        return self.device.name

    @contextlib.contextmanager
    def near(self) -> Iterator[None]:
        """Return a block in which this thread, and those that it starts, run on processors near the GPU (NUMA)."""
        with bound_to(processors_near(self.device.pci_bus_id)), self.used():
            yield

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Return a context manager that keeps the GPU's context current in this thread: calls need not set it."""
        with current(self.ordinal):
            before, self._own.used = getattr(self._own, "used", False), True
            try:
                yield
            finally:
                self._own.used = before

    def _context(self) -> contextlib.AbstractContextManager[None]:
        """Return a block in which the GPU's context is this thread's.

        Every call to the driver gives up Python's lock, and where many threads copy it takes a while to have it again.
        """
        return contextlib.nullcontext() if getattr(self._own, "used", False) else current(self.ordinal)

    def allocate(self, nbytes: int) -> int:
        """Return the address of new device memory."""
        with current(self.ordinal):
            address = int(call("cuMemAlloc", max(nbytes, 1)))
        self._buffers.append(address)
        return address

    def pinned(self, nbytes: int) -> Array:
        """Return new pinned memory as bytes; it lives until the block ends."""
        with current(self.ordinal):
            if nbytes >= HUGE_PAGE:
                memory = huge_pages(nbytes)
                call("cuMemHostRegister", memory.ctypes.data, nbytes, int(driver().CU_MEMHOSTREGISTER_PORTABLE))
                self._registered.append((memory.ctypes.data, memory))
                return memory
            address = int(call("cuMemAllocHost", max(nbytes, 1)))
        self._pinned.append(address)
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def direct(self, array: Array) -> bool:
        """Return whether the array's memory is pinned, from its first to its last byte."""
        if not array.size:
            return True
        with current(self.ordinal):
            return is_pinned(array)

    def stream(self, *, rank: int = 0) -> int:
        """Return a new stream, which does not wait for the default one; CTAs of streams of higher rank begin first."""
        flags = int(driver().CUstream_flags.CU_STREAM_NON_BLOCKING)
        with current(self.ordinal):
            # The greatest priority is the lowest number.
            least, greatest = map(int, call("cuCtxGetStreamPriorityRange"))
            priority = (least, (least + greatest) // 2, greatest)[rank + 1]
            stream = int(call("cuStreamCreateWithPriority", flags, priority))
        self._streams.append(stream)
        return stream

    def copy_in(self, stream: int, target: DeviceMatrix, source: Array) -> None:
        self._copy("copy_in", stream, source, target)

    def copy_out(self, stream: int, target: Array, source: DeviceMatrix) -> None:
        self._copy("copy_out", stream, target, source)

    def _copy(self, direction: str, stream: int, host: Array, matrix: DeviceMatrix) -> None:
        if not host.size:
            return
        bindings = driver()
        rows = matrix.order == "C"
        lines, along = host.shape if rows else host.shape[::-1]
        lead = host.strides[0] if rows else host.strides[1]
        width = along * host.itemsize
        if lead == width == matrix.pitch and width * lines <= _LONGEST_LINE:
            # Short lines are copied slowly, also where they join.
            width, lines = width * lines, 1
        copy = bindings.CUDA_MEMCPY2D()
        copy.WidthInBytes, copy.Height = width, lines
        sides = ("src", "dst") if direction == "copy_in" else ("dst", "src")
        for side, kind, address, pitch in (
            (sides[0], "HOST", host.ctypes.data, lead if lines > 1 else width),
            (sides[1], "DEVICE", matrix.buffer + matrix.offset, matrix.pitch if lines > 1 else width),
        ):
            setattr(copy, f"{side}MemoryType", getattr(bindings.CUmemorytype, f"CU_MEMORYTYPE_{kind}"))
            setattr(copy, f"{side}{kind.capitalize()}", address)
            setattr(copy, f"{side}Pitch", pitch)
        with self._context():
            call("cuMemcpy2DAsync", copy, stream)
        with self._lock:
            self.moved[direction] += width * lines

    def multiply(self, stream: int, product: DeviceProduct) -> None:
        """Queue a product by the kernel that is chosen for it."""
        for launch in self.launches(stream, product):
            launch()

    def prepare(self, stream: int, product: DeviceProduct) -> None:
        """Load the kernel, and cache the launch."""
        self.launches(stream, product)

    def launches(self, stream: int, product: DeviceProduct) -> list[Callable[[], None]]:
        """Return the launches of a product: the longest multiplies, others prepare factors or join results."""
        return self._kept(stream, (product,), lambda: self._problem(product), product.like)

    def _kept(
        self,
        stream: int,
        given: tuple[Any, ...],
        made: Callable[[], tuple[Problem, dict[str, int]]],
        like: tuple[int, int] | None = None,
    ) -> list[Callable[[], None]]:
        """Return the launches of a problem, those of before if there are some."""
        key = (stream, *given)
        launches = self._prepared.get(key)
        if launches is None:
            problem, pointers = made()
            # Buffers differ more often than problems.
            work = self._works.get((problem, like))
            if work is None:
                work = launches_of(problem, self._choice_like(problem, like), self.ordinal, tuple(pointers))
                self._works[problem, like] = work
            workspaces = self._workspaces.setdefault(stream, Workspaces(self.ordinal, stream))
            launches = list(bound_launches(work, pointers, self.ordinal, stream, workspaces))
            # The same few come again and again, with the buffers in turn.
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
                self._works.clear()
            self._prepared[key] = launches
        return launches

    def _choice_like(self, problem: Problem, like: tuple[int, int] | None) -> Choice:
        """Return the kernel of a larger product, if it can compute this one too, else this one's own."""
        if like is not None and isinstance(problem, GemmProblem):
            choice = self._choice(enlarged(problem, *like))
            if choice.spec.why_not(problem, self.device.arch, choice.config) is None:
                return choice
        return self._choice(problem)

    def _problem(self, product: DeviceProduct) -> tuple[GemmProblem, dict[str, int]]:
        a, d, c = product.a, product.d, product.c
        operands = {"a": a, "b": product.b, "d": d} | ({"c": c} if c is not None else {})
        matrices = {name: strided(matrix) for name, matrix in operands.items()}
        problem = GemmProblem(
            m=d.rows, n=d.cols, k=a.cols, batch=(), a=matrices["a"], b=matrices["b"], c=matrices.get("c"),
            d=matrices["d"], alpha=product.alpha, beta=product.beta if c is not None else 0, precision=self.precision,
            needed=product.needed,
        )  # fmt: skip
        return problem, {name: matrix.buffer + matrix.offset for name, matrix in operands.items()}

    def waves(self, product: DeviceProduct) -> tuple[int, int, int]:
        """Return the rows and columns that a CTA of a product's kernel computes, and how many CTAs run at a time.

        Zeros for kernels whose tiles are chosen by a model of their time: these leave no wave half empty.
        """
        choice = self._choice(self._problem(product)[0])
        config = choice.config
        if choice.spec.cost_in_us or not (hasattr(config, "tile_m") and hasattr(config, "tile_n")):
            return 0, 0, 0
        return config.tile_m, config.tile_n, self.device.multiprocessors

    def stairs(self, product: DeviceProduct) -> int:
        """Return the rows and columns of a staircase's steps above which a product's kernel computes nothing, or 0."""
        step = max(self.whole[:2])
        choice = self._choice(self._problem(dataclasses.replace(product, needed=BlockTriangle(0, step)))[0])
        # A kernel that leaves something out is not for results that are needed as a whole.
        whole = self._problem(product)[0]
        return step if choice.spec.why_not(whole, self.device.arch, choice.config) is not None else 0

    def choice(self, product: DeviceProduct) -> tuple[Choice, GemmProblem]:
        """Return the kernel and config that are chosen for a product, and its problem."""
        problem, _ = self._problem(product)
        return self._choice_like(problem, product.like), problem

    def _choice(self, problem: Problem) -> Choice:
        return self._choose(
            problem, self.device.arch, multiprocessors=self.device.multiprocessors, chip=self.device.name
        )

    def convert(self, stream: int, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Queue a rounding copy."""
        self.multiply(stream, rounding(target, source))

    def prepare_convert(self, stream: int, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Load the kernel that rounds, and keep the launch."""
        self.prepare(stream, rounding(target, source))

    def transpose(self, stream: int, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Queue a transpose by the kernel that is chosen for it."""
        for launch in self._transposes(stream, target, source):
            launch()

    def prepare_transpose(self, stream: int, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Load the kernel that transposes, and keep the launch."""
        self._transposes(stream, target, source)

    def _transposes(self, stream: int, target: DeviceMatrix, source: DeviceMatrix) -> list[Callable[[], None]]:
        def made() -> tuple[Problem, dict[str, int]]:
            addresses = {name: one.buffer + one.offset for name, one in (("a", source), ("d", target))}
            return transpose_of(target, source), addresses

        return self._kept(stream, (target, source), made)

    def record(self, stream: int) -> Any:
        """Return an event with a timestamp."""
        with self._context():
            event = call("cuEventCreate", int(driver().CUevent_flags.CU_EVENT_BLOCKING_SYNC))
            call("cuEventRecord", event, stream)
        with self._lock:
            self._events.append(event)
        return event

    def wait(self, stream: int, event: Any) -> None:
        with self._context():
            call("cuStreamWaitEvent", stream, event, 0)

    def synchronize(self, event: Any) -> None:
        with self._context():
            call("cuEventSynchronize", event)

    def seconds(self, start: Any, end: Any) -> float:
        """Return the time between two events; it is negative where the first was the later one."""
        with self._context():
            return float(call("cuEventElapsedTime", start, end)) * 1e-3
