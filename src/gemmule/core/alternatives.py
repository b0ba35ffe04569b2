"""The kernels that may be faster than another one, each with its test."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from .gpu_rates import GpuRates

#: ``is_faster(problem, cost, gpu)`` is whether less than `cost` microseconds are predicted.
IsFaster = Callable[[Any, float, GpuRates], bool]


class Alternatives:
    """A kernel's `faster_alternative`: the first kernel, in the order given, whose test says that it is faster."""

    __slots__ = ("_tests",)

    def __init__(self, *tests: tuple[str, IsFaster]) -> None:
        self._tests = tests

    def __call__(self, problem: Any, cost: float, gpu: GpuRates, among: Container[str] | None = None) -> str | None:
        """Return the kernel's name, or None; with `among`, only kernels of these names are tested."""
        for name, is_faster in self._tests:
            if (among is None or name in among) and is_faster(problem, cost, gpu):
                return name
        return None
