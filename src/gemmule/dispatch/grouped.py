"""The choice of a config for a grouped product."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from gemmule.compiler.cache import is_compiled
from gemmule.compiler.toolchain import compiler_installed
from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.core.errors import UnsupportedError
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.spec import Choice, KernelSpec
from gemmule.kernels.hopper.grouped.spec import SPEC as HOPPER_GROUPED
from gemmule.kernels.hopper.refusals import why_not_arch
from gemmule.kernels.mma_sync.grouped_gemv.spec import SPEC as GROUPED_GEMV
from gemmule.kernels.simt.grouped.spec import SPEC as SIMT_GROUPED

from .choices.choice_cache import cached_choice
from .rates_table import rates_for


@cached_choice
def choose_grouped(problem: Any, arch: Arch, multiprocessors: int | None, chip: str | None) -> Choice:
    """Return the kernel of the type and the config of least predicted time; the first one without a number of SMs.

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
    able = _able(problem, arch)
    if multiprocessors is None:
        spec = able[0]
        config = next((one for one in spec.configs if spec.why_not(problem, arch, one) is None), None)
        if config is None:
            raise UnsupportedError(f"no grouped product: {spec.why_not(problem, arch, spec.default)}")
        return Choice(spec, config)
    gpu = rates_for(chip, multiprocessors)
    choice = _cheapest(able, problem, arch, gpu)
    if choice is None:
        names = " and ".join(spec.name for spec in able)
        raise UnsupportedError(f"no grouped product: no config of {names} for {multiprocessors} SMs")
    if compiler_installed() or _is_compiled(choice.spec, problem, arch, choice.config):
        return choice
    # The best of those that are compiled; if there is none, the choice fails when it runs.
    packed = _cheapest((_compiled(spec, problem, arch, gpu) for spec in able), problem, arch, gpu)
    return choice if packed is None else dataclasses.replace(packed, chosen_by="packed")


def _able(problem: Any, arch: Arch) -> tuple[KernelSpec, ...]:
    """Return the kernels of the operands' type that take a problem, that of most problems first."""
    kernels: tuple[KernelSpec, ...] = (HOPPER_GROUPED,)
    if problem.a.dtype == problem.b.dtype == FLOAT32:
        kernels = (SIMT_GROUPED,)
    elif problem.axis == "row":
        kernels = (GROUPED_GEMV,) if why_not_arch(arch) else (HOPPER_GROUPED, GROUPED_GEMV)
    refused = [(spec, None if spec.refuses is None else spec.refuses(problem, arch)) for spec in kernels]
    able = tuple(spec for spec, reason in refused if reason is None)
    if not able:
        remedy = "; call matmul for each group, or pass float32 copies to grouped_gemm" if why_not_arch(arch) else ""
        raise UnsupportedError(f"no grouped product: {refused[0][1]}{remedy}")
    return able


def _cheapest(kernels: Iterable[KernelSpec], problem: Any, arch: Arch, gpu: GpuRates) -> Choice | None:
    """Return the kernel and config of least predicted time, or None where no config takes the problem."""
    each = ((spec, spec.cheapest(problem, arch, gpu)) for spec in kernels)
    found = [(cost[1], spec, cost[0]) for spec, cost in each if cost is not None]
    if not found:
        return None
    us, spec, config = min(found, key=lambda one: one[0])
    return Choice(spec, config, (), "cost", us, gpu=gpu)


def _compiled(spec: KernelSpec, problem: Any, arch: Arch, gpu: GpuRates) -> KernelSpec:
    """Return the kernel with those of its configs that are compiled."""
    configs = tuple(one for one in spec.configs_on(gpu) if _is_compiled(spec, problem, arch, one))
    return dataclasses.replace(spec, configs=configs)


def _is_compiled(spec: KernelSpec, problem: Any, arch: Arch, config: Any) -> bool:
    return is_compiled(spec, config, spec.signature(problem, config), arch)
