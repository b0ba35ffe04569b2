"""A device, a baseline and kernels for tests of the laboratory: NumPy computes, and the clock is scripted."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

import numpy as np

# It binds the registry where it is imported first, which must not be while a test replaces the registry.
import gemmule.dispatch.select  # noqa: F401
from gemmule.core.arch import Arch
from gemmule.core.config import Config
from gemmule.core.dtype import Kind
from gemmule.core.errors import UnsupportedError
from gemmule.kernels.simt.reference.spec import SPEC as REFERENCE
from gemmule.lab.products import as_matrix


@dataclasses.dataclass(frozen=True)
class TileConfig(Config):
    tile_m: int = 64
    stages: int = 2


CONFIGS = (TileConfig(), TileConfig(tile_m=128), TileConfig(tile_m=128, stages=3))


def kernel_spec(name, why_not=lambda problem, arch, config: None, configs=CONFIGS):
    """A kernel of that name, without predicted times; nothing is ever compiled."""
    return dataclasses.replace(REFERENCE, name=name, why_not=why_not, configs=configs, cost=None, cost_in_us=False)


def only(*dtypes):
    """A why_not that takes those types, in rows."""

    def why_not(problem, arch, config):
        if problem.a.dtype.name not in dtypes:
            return f"takes {', '.join(dtypes)}, not {problem.a.dtype}"
        return None if problem.layout == "nn" else f"takes A and B in rows, not {problem.layout}"

    return why_not


class FakeOperands:
    def __init__(self, problem, inputs, sets):
        self.problem, self.sets = problem, sets
        self.a, self.b = (as_matrix(inputs[name], getattr(problem, name)) for name in "ab")
        self.outputs = [np.zeros((*problem.batch, problem.m, problem.n), problem.d.dtype.numpy()) for _ in range(sets)]

        self.poisoned = set()

    @property
    def bytes(self):
        return self.sets * self.problem.bytes_min

    def poison(self, byte):
        for output in self.outputs:
            output.view(np.uint8)[...] = byte
        self.poisoned = set(range(self.sets))

    def output(self, index):
        return self.outputs[index].copy()

    def product(self):
        p = self.problem
        wide = np.int64 if p.d.dtype.kind is Kind.INTEGER else p.accumulator.numpy()
        return (self.a.astype(wide) @ self.b.astype(wide)).astype(p.d.dtype.numpy())


class FakeWork:
    """Writes the product into the next buffer set; `spoil` may change what is written.

    What was timed is written only where the outputs were poisoned, so that tests take no time.
    """

    def __init__(self, name, operands, seconds: Callable[[], float], spoil=None):
        self.name, self.operands, self.seconds, self.spoil = name, operands, seconds, spoil
        self.calls = 0

    def sample(self, calls):
        for _ in range(min(calls, self.operands.sets) if getattr(self.operands, "poisoned", ()) else 0):
            self()
            calls -= 1
        self.calls += calls

    def __call__(self):
        index = self.calls % self.operands.sets
        target = self.operands.outputs[index]
        value = self.operands.product()
        self.calls += 1
        if self.operands.sets > 0 and hasattr(self.operands, "poisoned"):
            self.operands.poisoned.discard(index)
        if self.spoil is None:
            target[...] = value
        else:
            self.spoil(target, value, self.calls)


class FakeWatch:
    def __init__(self, device, work, calls, graph):
        self.device, self.work, self.calls, self.graph = device, work, calls, graph

    def queue(self):
        self.device.log.append((self.work.name, self.calls, self.graph))
        seconds = self.work.seconds()
        self.work.sample(self.calls)
        return lambda: seconds


class FakeReadings:
    def summary(self):
        return {"clock_mhz": 1700, "clock_mhz_min": 1650, "power_w": 600.5, "power_w_max": 650.0}


class FakeDevice:
    """`seconds` gives a call's time by the name of the kernel; `spoil` changes what a kernel of that name writes."""

    name, pci_bus_id, arch, l2_bytes = "NVIDIA H100 80GB HBM3", "0000:00:00.0", Arch(9, 0, True), 1 << 20
    no_sensors = None
    cuda = "13.1"
    multiprocessors = 132

    def __init__(self, seconds=None, spoil=None, free=1 << 40):
        self.seconds, self.spoil, self.free = seconds or {}, spoil or {}, free
        self.log: list[tuple[str, int, bool]] = []
        self.sets: list[int] = []

    def memory_free(self):
        return self.free

    @contextlib.contextmanager
    def operands(self, problem, inputs, sets):
        self.sets.append(sets)
        yield FakeOperands(problem, inputs, sets)

    def clock(self, name):
        seconds = self.seconds.get(name, 1e-3)
        return seconds if callable(seconds) else lambda: seconds

    def kernel(self, problem, choice, operands):
        error = self.spoil.get(choice.spec.name)
        if isinstance(error, Exception):
            raise error
        return FakeWork(choice.spec.name, operands, self.clock(choice.spec.name), error)

    @contextlib.contextmanager
    def stopwatch(self, work, calls, *, graph):
        yield FakeWatch(self, work, calls, graph)

    def kernel_names(self, work):
        return [f"device_{work.name}"]

    @contextlib.contextmanager
    def readings(self):
        yield FakeReadings()

    def link_rates(self):
        return 55e9, 54e9


class FakeTorch:
    """PyTorch's call, timed by the device's clock as "torch"; `refuses` says why it takes nothing."""

    version = "2.11.0"

    def __init__(self, device, refuses=None):
        self.device, self.refuses = device, refuses

    def work(self, problem, operands):
        if self.refuses:
            raise UnsupportedError(self.refuses)
        return FakeWork("torch", operands, self.device.clock("torch"))


@dataclasses.dataclass
class FakeAlgorithm:
    work: FakeWork
    description: dict


class FakeBaseline:
    """Three algorithms called y0, y1, y2, timed by the device's clock; `refuses` says why it takes nothing."""

    version = "13.1.0"

    def __init__(self, device, refuses=None):
        self.device, self.refuses = device, refuses

    @contextlib.contextmanager
    def algorithms(self, problem, operands):
        if self.refuses:
            raise UnsupportedError(self.refuses)
        spoil = self.device.spoil
        names = ["y0", "y1", "y2"]
        yield [
            FakeAlgorithm(FakeWork(name, operands, self.device.clock(name), spoil.get(name)), {"tile": f"tile_{name}"})
            for name in names
        ]
