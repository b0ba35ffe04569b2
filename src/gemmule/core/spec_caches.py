"""Caches of the functions of a kernel's specification: its costs, and whether it refuses problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .arch import Arch
from .gpu_rates import GpuRates
from .problem import GemmProblem, OperandTypes

Refuses = Callable[[Any, Arch], str | None]
RefusesTypes = Callable[[OperandTypes, Arch], str | None]
#: Costs of configs: an array of NumPy's is as good as a sequence.
Costs = Callable[[Any, Sequence[Any], GpuRates], Any]


class LastCosts:
    """A kernel's `costs`; those of the last two calls are cached.

    The kernels of a choice ask for each other's: of a product with operands as they are, and with prepared ones.
    """

    __slots__ = ("_costs", "_last")

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._last: tuple[tuple[object, object, object, tuple[Any, int]], ...] = ()

    def __reduce__(self) -> tuple[object, ...]:
        return LastCosts, (self._costs,)

    def __call__(self, problem: Any, configs: Sequence[Any], gpu: GpuRates) -> list[float]:
        costs = self.with_least(problem, configs, gpu)[0]
        return costs.tolist() if isinstance(costs, np.ndarray) else list(costs)

    def with_least(self, problem: Any, configs: Sequence[Any], gpu: GpuRates) -> tuple[Any, int]:
        """Return the costs, and the number of the first of the least ones."""
        found = self.known(problem, configs, gpu)
        return found or self.keep(problem, configs, gpu, self._costs(problem, configs, gpu))

    def known(self, problem: Any, configs: Sequence[Any], gpu: GpuRates) -> tuple[Any, int] | None:
        """Return the cached result of `with_least`, or None."""
        for one in self._last:
            if one[0] is problem and one[1] is configs and one[2] is gpu:
                return one[3]
        return None

    def keep(self, problem: Any, configs: Sequence[Any], gpu: GpuRates, costs: Any) -> tuple[Any, int]:
        """Cache costs. The tuple is replaced as a whole, for other threads."""
        found = costs, int(costs.argmin()) if isinstance(costs, np.ndarray) else costs.index(min(costs))
        self._last = (problem, configs, gpu, found), *self._last[:1]
        return found


class TypesThenOwn:
    """A kernel's `refuses`: by types, then by its own; the result of the last call is cached, as by `cache_last_call`.

    Each kernel has one, which can be pickled: a choice queries several kernels for the same problem.
    """

    __slots__ = ("_last", "_own", "_types")

    def __init__(self, types: RefusesTypes, own: Refuses | None) -> None:
        self._types, self._own = types, own
        self._last: tuple[object, object, str | None] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return TypesThenOwn, (self._types, self._own)

    def __call__(self, problem: GemmProblem, arch: Arch) -> str | None:
        last = self._last
        if last is not None and last[0] is problem and last[1] is arch:
            return last[2]
        own = self._own
        found = self._types(problem.types, arch) or (own(problem, arch) if own is not None else None)
        self._last = problem, arch, found
        return found
