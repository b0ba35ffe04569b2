"""The choice of a config for a grouped product."""

from __future__ import annotations

import functools
from typing import Any

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
        return Choice(SPEC, SPEC.default)
    gpu = rates_for(chip, multiprocessors)
    found = SPEC.cheapest(problem, arch, gpu)
    if found is None:
        raise UnsupportedError(f"no grouped product: {SPEC.name} has no config for {multiprocessors} multiprocessors")
    return Choice(SPEC, found[0], (), "cost", found[1], gpu=gpu)


register_clear(_chosen.cache_clear)
