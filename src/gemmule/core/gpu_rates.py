"""Rates of a GPU that predicted times are computed from."""

from __future__ import annotations

import dataclasses
import math

from .errors import ArgumentError

#: Bytes of the L2 cache of a GH100.
_L2_BYTES = 50 << 20


@dataclasses.dataclass(frozen=True)
class GpuRates:
    """What predicted times depend on of a GPU. Kernels' times are those of an H200; factors multiply them.

    Attributes
    ----------
    multiprocessors : int
        Number of SMs.
    memory : float
        Bytes that memory moves in a microsecond.
    multiply : float
        Factor of what tensor cores multiply.
    load : float
        Factor of what an SM loads, writes and waits for.
    l2 : float
        Factor of what the L2 cache delivers to all SMs.
    launch : float
        Factor of a launch.
    learned : str
        Chip whose biases the learned correction of Hopper's kernels adds.
    """

    multiprocessors: int = 132
    memory: float = 4.6e6
    multiply: float = 1.0
    load: float = 1.0
    l2: float = 1.0
    launch: float = 1.0
    learned: str = "H200"

    def memory_rate(self, rate: float) -> float:
        """Return the bytes a microsecond that a kernel moves from memory, of one that moves so many on an H200."""
        return rate if self.memory == H200_RATES.memory else rate * self.memory / H200_RATES.memory

    def moved_us(self, nbytes: float, rate: float) -> float:
        """Return the time in microseconds of moving bytes of which an H200 moves `rate` in one, of its L2 or of memory.

        Those beyond the L2 cache of a GH100 take as much longer as memory is slower.
        """
        beyond = max(nbytes - _L2_BYTES, 0)
        return nbytes / rate + beyond * (1 / self.memory_rate(rate) - 1 / rate)

    def __post_init__(self) -> None:
        for name in ("multiprocessors", *RATES):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ArgumentError(f"rates of a GPU: {name} is {value}; it must be a finite number above 0")


#: Names of the rates that are measured.
RATES = ("memory", "multiply", "load", "l2", "launch")
#: Rates of the chips that predictions were fitted to: one processor, with memory of its own. The first is the default.
H200_RATES = GpuRates()
H100_RATES = GpuRates(memory=3.2e6, learned="H100")
