"""Plans of `gemmule bench`: products, kernels and configs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from gemmule.core.problem import Problem
from gemmule.core.spec import Choice

from . import protocol
from .accuracy import ROWS

P = TypeVar("P", bound=Problem)


@dataclasses.dataclass(frozen=True)
class BenchPlan(Generic[P]):
    """The measurements of a run."""

    problems: tuple[P, ...]  #: The problems, in order.
    choices: tuple[Choice, ...]  #: The kernels, each with a config.
    seconds: float = 1.0  #: Time to spend on each kernel at each size.
    warm_up_seconds: float = protocol.WARM_UP_SECONDS  #: Load before the first figure.
    seed: int = 0  #: Seed of the random inputs.
    rows: int = ROWS  #: Rows of each product that are compared with the reference.
    #: Gives the kernel and config that a call would run, to be measured too.
    chosen: Callable[[P], Choice] | None = None
    #: Fields of the experiment block that describe the plan.
    about: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def points(self) -> int:
        """Steps of the run, for its progress."""
        return len(self.problems) * (len(self.choices) + (self.chosen is not None))
