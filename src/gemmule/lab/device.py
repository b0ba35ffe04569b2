"""Protocols of a device and of a baseline, as an executor gives them to the laboratory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from gemmule.core.arch import Arch
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice

from .products import Array

#: Queues one call, on the next buffer set; nothing waits for it.
Work = Callable[[], None]


class Operands(Protocol):
    """The operands of a product in device memory, as many times as there are buffer sets."""

    sets: int

    @property
    def bytes(self) -> int:
        """Bytes of all sets."""

    def poison(self, byte: int) -> None:
        """Fill the output of every set with a byte."""

    def output(self, index: int) -> Array:
        """Return the output of a set, (m, n), once what was queued is done."""


class Stopwatch(Protocol):
    """Times samples of a fixed number of calls."""

    calls: int

    def queue(self) -> Callable[[], float]:
        """Queue a sample; the function that is returned waits for it and gives the seconds of one call."""


class Readings(Protocol):
    """Clocks and watts."""

    def summary(self) -> Mapping[str, float]:
        """Return the figures of a record: clock_mhz, clock_mhz_min, power_w, power_w_max; empty without sensors."""


class BenchDevice(Protocol):
    """A device that kernels are measured on."""

    #: name, pci_bus_id: Its name, and where it sits.
    name: str
    pci_bus_id: str
    arch: Arch  #: Architecture that kernels are compiled for.
    l2_bytes: int  #: Size of its L2 cache.
    no_sensors: str | None  #: Why clocks and watts are not sampled; None where they are.
    cuda: str  #: Version of CUDA that the driver speaks.

    def memory_free(self) -> int:
        """Return the bytes that may be taken."""

    def operands(self, problem: GemmProblem, inputs: Mapping[str, Array], sets: int) -> AbstractContextManager[Any]:
        """Bring inputs into the device's memory, `sets` times; gives an `Operands`."""

    def kernel(self, problem: GemmProblem, choice: Choice, operands: Any) -> Work:
        """Return a kernel that goes from buffer set to buffer set, the first one first."""

    def stopwatch(self, work: Work, calls: int, *, graph: bool) -> AbstractContextManager[Stopwatch]:
        """Give a stopwatch; `graph` captures the calls of a sample once and replays them."""

    def kernel_names(self, work: Work) -> list[str]:
        """Return the names of the device's kernels that one call launches."""

    def readings(self) -> AbstractContextManager[Readings]:
        """Sample clocks and watts while the block runs."""


class BaselineAlgorithm(Protocol):
    """One way in which the baseline computes a product."""

    @property
    def work(self) -> Work:
        """Queues one call."""

    @property
    def description(self) -> Mapping[str, Any]:
        """Identity among devices."""


class Framework(Protocol):
    """A library that users multiply with today: one call, by its own choice of algorithm."""

    version: str

    def work(self, problem: GemmProblem, operands: Any) -> Work:
        """Return its call, from buffer set to buffer set; raise UnsupportedError where it does not take the product."""


class Baseline(Protocol):
    """The library that kernels are held against."""

    version: str

    def algorithms(self, problem: GemmProblem, operands: Any) -> AbstractContextManager[list[Any]]:
        """Give its algorithms for a product, the one that it would choose first.

        Raises UnsupportedError where it does not take the product.
        """
