"""The choice of a config for a grouped product."""

from __future__ import annotations

import dataclasses
from typing import Any

from gemmule.compiler.cache import is_compiled
from gemmule.compiler.toolchain import compiler_installed
from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.core.errors import UnsupportedError
from gemmule.core.spec import Choice, KernelSpec
from gemmule.kernels.hopper.grouped.spec import SPEC as HOPPER_GROUPED
from gemmule.kernels.simt.grouped.spec import SPEC as SIMT_GROUPED

from .rates_table import rates_for
from .select import cached_choice


@cached_choice
def choose_grouped(problem: Any, arch: Arch, multiprocessors: int | None, chip: str | None) -> Choice:
    """Return the kernel of the type, and its config of least predicted time; the first one without a number of SMs.

    Parameters
    ----------
    problem : GroupedProblem
        The problem.
    arch, multiprocessors, chip
        As of `select.choose`.

    Raises
    ------
    UnsupportedError
        If the kernel cannot take the problem.
    """
    spec = SIMT_GROUPED if problem.a.dtype == problem.b.dtype == FLOAT32 else HOPPER_GROUPED
    assert spec.refuses is not None
    if reason := spec.refuses(problem, arch):
        raise UnsupportedError(f"no grouped product: {reason}")
    if multiprocessors is None:
        return Choice(spec, next(one for one in spec.configs if spec.why_not(problem, arch, one) is None))
    gpu = rates_for(chip, multiprocessors)
    found = spec.cheapest(problem, arch, gpu)
    if found is None:
        raise UnsupportedError(f"no grouped product: {spec.name} has no config for {multiprocessors} SMs")
    choice = Choice(spec, found[0], (), "cost", found[1], gpu=gpu)
    if compiler_installed() or _is_compiled(spec, problem, arch, choice.config):
        return choice
    # The best of those that are compiled; if there is none, the choice fails when it runs.
    packed = tuple(one for one in spec.configs_on(gpu) if _is_compiled(spec, problem, arch, one))
    found = dataclasses.replace(spec, configs=packed).cheapest(problem, arch, gpu) if packed else None
    return choice if found is None else Choice(spec, found[0], (), "packed", found[1], gpu=gpu)


def _is_compiled(spec: KernelSpec, problem: Any, arch: Arch, config: Any) -> bool:
    return is_compiled(spec, config, spec.signature(problem, config), arch)
