"""The choice of a config for a grouped product."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from gemmule.compiler.cache import is_compiled
from gemmule.compiler.toolchain import compiler_installed
from gemmule.core.arch import Arch
from gemmule.core.errors import UnsupportedError
from gemmule.core.grouped_problem import GroupedProblem
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.grouped.spec import SPEC

from .rates_table import rates_for
from .select import generation, register_clear

#: Most cached choices.
_MOST_CHOSEN = 4096


def choose_grouped(
    problem: GroupedProblem, arch: Arch, *, multiprocessors: int | None = None, chip: str | None = None
) -> Choice:
    """Return the config of least predicted time; the first one without a number of SMs.

    Parameters
    ----------
    problem, arch, multiprocessors, chip
        As of `select.choose`.

    Raises
    ------
    UnsupportedError
        If the kernel cannot take the problem.
    """
    return _chosen(problem, arch, multiprocessors, chip, generation())


@functools.lru_cache(_MOST_CHOSEN)
def _chosen(
    problem: Any, arch: Arch, multiprocessors: int | None, chip: str | None, began: int
) -> Choice:  # fmt: skip
    del began
    assert SPEC.refuses is not None
    if reason := SPEC.refuses(problem, arch):
        raise UnsupportedError(f"no grouped product: {reason}")
    if multiprocessors is None:
        return Choice(SPEC, next(one for one in SPEC.configs if SPEC.why_not(problem, arch, one) is None))
    gpu = rates_for(chip, multiprocessors)
    found = SPEC.cheapest(problem, arch, gpu)
    if found is None:
        raise UnsupportedError(f"no grouped product: {SPEC.name} has no config for {multiprocessors} multiprocessors")
    choice = Choice(SPEC, found[0], (), "cost", found[1], gpu=gpu)
    if compiler_installed() or _is_compiled(problem, arch, choice.config):
        return choice
    # The best of those that are compiled; if there is none, the choice fails when it runs.
    packed = tuple(one for one in SPEC.configs_on(gpu) if _is_compiled(problem, arch, one))
    found = dataclasses.replace(SPEC, configs=packed).cheapest(problem, arch, gpu) if packed else None
    return choice if found is None else Choice(SPEC, found[0], (), "packed", found[1], gpu=gpu)


def _is_compiled(problem: Any, arch: Arch, config: Any) -> bool:
    return is_compiled(SPEC, config, SPEC.signature(problem, config), arch)


register_clear(_chosen.cache_clear)
