"""Rates of a GPU, the parameters of predicted times."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from gemmule.core.dataclass import dataclass

from .arch import Arch
from .errors import ArgumentError

#: Bytes of the L2 cache of a GH100.
_L2_BYTES = 50 << 20


@dataclass(frozen=True)
class GpuRates:
    """Rates of a GPU. Factors multiply the times of an H200."""

    multiprocessors: int = 132  #: Number of SMs.
    memory: float = 4.6e6  #: Memory bandwidth in bytes a microsecond.
    multiply: float = 1.0  #: Factor of the tensor cores' time.
    load: float = 1.0  #: Factor of an SM's loads, writes and waits.
    l2: float = 1.0  #: Factor of L2 traffic.
    launch: float = 1.0  #: Factor of launch overhead.
    learned: str = "H200"  #: Chip of the biases in the learned correction of Hopper's kernels.
    #: Its architecture, by which kernels that follow others are chosen.
    arch: Arch = Arch(9, 0, True)
    #: ``eligible(spec, problem, config)`` is whether a config may be chosen for a product of operands that a kernel
    #: prepares, where not all may: where there is no compiler.
    eligible: Callable[[Any, Any, Any], bool] | None = None

    def __hash__(self) -> int:
        # Rates are keys of many caches, and seldom differ in the others only.
        return hash((self.multiprocessors, self.memory))

    def on(self, arch: Arch) -> GpuRates:
        """Return the rates for a GPU of an architecture."""
        return self if arch == self.arch else _on(self, arch)

    def memory_rate(self, rate: float) -> float:
        """Return the memory rate of a kernel in bytes a microsecond, from its rate on an H200."""
        return rate if self.memory == H200_RATES.memory else rate * self.memory / H200_RATES.memory

    def moved_us(self, nbytes: float, rate: float) -> float:
        """Return the time in microseconds of moving bytes, at `rate` bytes a microsecond on an H200.

        The time of bytes beyond a GH100's L2 cache scales with memory bandwidth.
        """
        beyond = max(nbytes - _L2_BYTES, 0)
        return nbytes / rate + beyond * (1 / self.memory_rate(rate) - 1 / rate)

    def __post_init__(self) -> None:
        for name in ("multiprocessors", *RATES):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ArgumentError(f"rates of a GPU: {name} is {value}; it must be a finite number above 0")
        for name in RATES:
            # Beyond, predicted times would overflow, and compare as NaN.
            value, first = getattr(self, name), getattr(type(self), name)
            if not first / FARTHEST <= value <= first * FARTHEST:
                limits = f"{first / FARTHEST:g} to {first * FARTHEST:g}"
                raise ArgumentError(f"rates of a GPU: {name} is {value}; it must be {limits}, as of a GPU like an H200")


@functools.lru_cache(maxsize=64)
def _on(rates: GpuRates, arch: Arch) -> GpuRates:
    # The same object for the same rates, which caches compare.
    return dataclasses.replace(rates, arch=arch)


#: Largest factor between a rate and an H200's.
FARTHEST = 1000.0
#: Fields that calibration measures.
RATES = ("memory", "multiply", "load", "l2", "launch")
#: Rates of the chips that predictions were fitted to: the same GPU with different memory. The first is the default.
H200_RATES = GpuRates()
H100_RATES = GpuRates(memory=3.2e6, learned="H100")
