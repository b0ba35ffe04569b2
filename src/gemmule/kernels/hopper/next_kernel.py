"""The kernel that multiplies what another one has prepared."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gemmule.core.errors import ArgumentError
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Config, KernelSpec

from .refusals import HOPPER
from .tile_config import SMS


def choose_next(problem: GemmProblem, specs: Sequence[KernelSpec]) -> tuple[KernelSpec, Config]:
    """Return the first kernel that takes a problem, and that no later one is expected to outdo, in its cheapest config.

    Parameters
    ----------
    problem : GemmProblem
        The product of what was prepared.
    specs : sequence of KernelSpec
        Kernels, best first.

    Raises
    ------
    ArgumentError
        If none takes it: the reason of the last.
    """
    for spec in specs:
        if spec.refuses is not None and spec.refuses(problem, HOPPER):
            continue
        config = _cheapest(spec, problem) if spec.costs is not None else _largest(spec, problem)
        if config is not None:
            return spec, config
    reason = specs[-1].why_not(problem, HOPPER, specs[-1].default)
    raise ArgumentError(f"no kernel multiplies the prepared operands: {reason}")


def _cheapest(spec: KernelSpec, problem: GemmProblem) -> Config | None:
    """Return the config of the least predicted time that takes the problem; None if none does, or another is faster."""
    assert spec.costs is not None
    costs = spec.costs(problem, spec.configs, SMS)
    if spec.outdone is not None and spec.outdone(problem, min(costs)):
        return None
    ordered = (spec.configs[number] for number in sorted(range(len(costs)), key=costs.__getitem__))
    return next((config for config in ordered if spec.why_not(problem, HOPPER, config) is None), None)


def _largest(spec: KernelSpec, problem: GemmProblem) -> Config | None:
    """Return the largest tile of which every SM gets one, else the one with the most CTAs; None if none is taken."""

    def preference(config: Config) -> tuple[bool, int]:
        ctas = math.prod(spec.launch(problem, config).grid)
        return (False, -config.outputs) if ctas >= SMS else (True, -ctas)

    able = [config for config in spec.configs if spec.why_not(problem, HOPPER, config) is None]
    return min(able, key=preference, default=None)
