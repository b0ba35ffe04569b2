"""What a run of `gemmule bench gemm` measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice

from . import protocol
from .accuracy import ROWS


@dataclasses.dataclass(frozen=True)
class BenchPlan:
    """What is to be measured.

    Attributes
    ----------
    problems : tuple of GemmProblem
        The products, in order.
    choices : tuple of Choice
        The kernels, each with a config.
    seconds : float
        Time to spend on each kernel at each size.
    warm_up_seconds : float
        Load before the first figure.
    seed : int
        Of the random inputs.
    rows : int
        Rows of each result that are compared with the reference.
    chosen : callable, optional
        Gives the kernel and config that a product would be computed by, to be measured too.
    about : mapping
        What the experiment block says of the plan beside the protocol.
    """

    problems: tuple[GemmProblem, ...]
    choices: tuple[Choice, ...]
    seconds: float = 1.0
    warm_up_seconds: float = protocol.WARM_UP_SECONDS
    seed: int = 0
    rows: int = ROWS
    chosen: Callable[[GemmProblem], Choice] | None = None
    about: Mapping[str, object] = dataclasses.field(default_factory=dict)
