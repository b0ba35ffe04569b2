"""The GPU as the laboratory sees it: operands in memory, kernels to call, a stopwatch, sensors."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

from gemmule.core.errors import UnsupportedError
from gemmule.core.problem import Problem, TransposeProblem
from gemmule.core.spec import Choice

from .cublaslt import CublasLt
from .device import current, get_device
from .driver import call, driver
from .execute import prepared_launches
from .memory import Array, DeviceBuffer, usable_memory
from .rotation import ALIGNMENT, OperandSets, Rotation
from .sensors import Readings, Sensors
from .stopwatch import Graph, Stopwatch, closing, lead_in, new_stream
from .torch_gemm import TorchGemm
from .transposes import TransposeBaselines
from .workspaces import Workspaces

#: Size of the copies that the host link is timed with.
_LINK_BYTES = 256 << 20


class BenchGpu:
    """One GPU, with a stream of its own. Made by `bench_gpu`.

    Attributes
    ----------
    name, pci_bus_id, arch, multiprocessors, l2_bytes
        Facts of the GPU.
    no_sensors : str or None
        Why clocks and watts are not sampled.
    cuda : str
        Version of CUDA that the driver speaks.
    """

    def __init__(self, ordinal: int, stream: int, lead: Graph) -> None:
        device = get_device(ordinal)
        self.name, self.pci_bus_id, self.arch = device.name, device.pci_bus_id, device.arch
        self.multiprocessors = device.multiprocessors
        attribute = driver().CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
        self.l2_bytes = int(call("cuDeviceGetAttribute", attribute, call("cuDeviceGet", ordinal)))
        version = int(call("cuDriverGetVersion"))
        self.cuda = f"{version // 1000}.{version % 1000 // 10}"
        self._ordinal, self._stream, self._lead = ordinal, stream, lead
        self._sensors: Sensors | None = None
        self.no_sensors: str | None = None
        try:
            self._sensors = Sensors(device.pci_bus_id)
        except UnsupportedError as error:
            self.no_sensors = str(error)

    def memory_free(self) -> int:
        """Return the bytes of device memory that may be taken."""
        return usable_memory(self._ordinal)

    @contextlib.contextmanager
    def operands(self, problem: Problem, inputs: Mapping[str, Array], sets: int) -> Iterator[OperandSets]:
        operands = OperandSets(problem, inputs, sets, self._ordinal, self._stream)
        with closing(self.wait, operands.close):
            yield operands

    def workspaces(self) -> Workspaces:
        """Return memory for what kernels need beyond their operands; a context manager."""
        return Workspaces(self._ordinal, self._stream)

    def kernel(self, problem: Problem, choice: Choice, operands: OperandSets) -> Rotation:
        """Return a kernel on every buffer set in turn, its parameters packed; in place means in the outputs."""

        def queued(index: int) -> Callable[[], None]:
            addresses = operands.addresses(index)
            if isinstance(problem, TransposeProblem) and problem.in_place:
                # The source stays as it is for what comes after.
                addresses = addresses | {"a": addresses["d"]}
            prepared = prepared_launches(problem, choice, addresses, self._ordinal, self._stream, operands.workspaces)
            launches = list(prepared)

            def queue() -> None:
                for launch in launches:
                    launch()

            return launches[0] if len(launches) == 1 else queue

        return Rotation([queued(index) for index in range(operands.sets)])

    @contextlib.contextmanager
    def stopwatch(self, work: Callable[[], None], calls: int, *, graph: bool) -> Iterator[Stopwatch]:
        """Give a stopwatch for samples of `calls` calls."""
        watch = Stopwatch(work, calls, self._lead, graph=graph, ordinal=self._ordinal, stream=self._stream)
        with closing(self.wait, watch.close):
            yield watch

    def kernel_names(self, work: Callable[[], None]) -> list[str]:
        graph = Graph(work, self._ordinal, self._stream)
        with closing(graph.close):
            return graph.kernels()

    @contextlib.contextmanager
    def readings(self) -> Iterator[Readings]:
        """Sample clocks and watts while the block runs; nothing is sampled where there are no sensors."""
        if self._sensors is None:
            yield Readings()
            return
        with self._sensors.readings() as readings:
            yield readings

    def wait(self) -> None:
        """Wait for all that was queued."""
        with current(self._ordinal):
            call("cuStreamSynchronize", self._stream)

    def link_rates(self) -> tuple[float, float]:
        """Return the bandwidth of copies between pinned memory and the GPU in bytes a second: to the GPU, and back."""
        with current(self._ordinal), DeviceBuffer(_LINK_BYTES, self._ordinal, self._stream) as buffer:
            host = int(call("cuMemAllocHost", _LINK_BYTES))
            with closing(self.wait, lambda: call("cuMemFreeHost", host)):
                there = self._seconds("cuMemcpyHtoDAsync", buffer.address, host)
                back = self._seconds("cuMemcpyDtoHAsync", host, buffer.address)
        return _LINK_BYTES / there, _LINK_BYTES / back

    def _seconds(self, copy: str, target: int, source: int) -> float:
        best = float("inf")
        for _ in range(5):
            self.wait()
            start = time.perf_counter()
            call(copy, target, source, _LINK_BYTES, self._stream)
            self.wait()
            best = min(best, time.perf_counter() - start)
        return best

    def transposes(self) -> TransposeBaselines:
        """Return the baselines of transposes: the copy, and other libraries."""
        return TransposeBaselines(self._ordinal, self._stream)

    def torch_gemm(self) -> TorchGemm:
        """Return PyTorch's product on the same stream.

        Raises
        ------
        UnsupportedError
            If PyTorch is not installed, or sees no GPU.
        """
        with current(self._ordinal):
            return TorchGemm(self._ordinal, self._stream)

    @contextlib.contextmanager
    def cublaslt(self) -> Iterator[CublasLt]:
        """Open cuBLASLt on it.

        Raises
        ------
        UnsupportedError
            If it is not installed.
        """
        with current(self._ordinal):
            library = CublasLt(self._ordinal, self._stream)
            with closing(self.wait, library.close):
                yield library


@contextlib.contextmanager
def bench_gpu(ordinal: int = 0) -> Iterator[BenchGpu]:
    """Open a GPU for measurements.

    Raises
    ------
    UnsupportedError
        If there is no GPU.
    """
    driver()
    with new_stream(ordinal) as stream:
        scratch = DeviceBuffer(ALIGNMENT, ordinal, stream)
        with closing(scratch.free):
            lead = lead_in(scratch.address, ordinal, stream)
            with closing(lead.close):
                yield BenchGpu(ordinal, stream, lead)
