"""The choice among kernels that are compiled already, where the compiler is not installed."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence

from gemmule.compiler.cache import has_any, is_compiled
from gemmule.compiler.toolchain import REMEDY
from gemmule.core.arch import Arch
from gemmule.core.config import Config
from gemmule.core.errors import NoKernelError
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.problem import Problem, inner_problem
from gemmule.core.spec import Choice, KernelSpec, Signature

from .candidates import candidates_of, max_launches, needs_fewer, part_of, why_too_many
from .choice_cache import register_clear
from .config_choice import config_for, is_less

#: Missing compiled kernels that a warning has named.
_warned: set[tuple[str, Config, Signature]] = set()


def best_compiled(problem: Problem, arch: Arch, registry: Sequence[KernelSpec], gpu: GpuRates | None) -> Choice | None:
    """Return the choice of least predicted time among compiled kernels, else the first of the registry, or None.

    Without a GPU the virtual one runs it, which needs its PTX.
    """
    best: Choice | None = None
    # Kernels that prepare operands choose the product's among compiled ones, too.
    rates = dataclasses.replace(gpu or H200_RATES.on(arch), eligible=_eligible(arch, gpu is None))
    for spec, _ in candidates_of(problem, (tuple(registry), arch))[0]:
        if not has_any(spec, arch):
            continue
        inner, launches = part_of(problem, spec)
        if spec.is_refused(inner, arch):
            continue
        if launches > max_launches(problem) and (
            needs_fewer(spec, problem, arch, registry) or why_too_many(spec, problem, launches, registry)
        ):
            continue

        def eligible(config: Config, spec: KernelSpec = spec) -> bool:
            return is_choice_compiled(Choice(spec, config, gpu=rates), problem, arch, with_ptx=gpu is None)

        try:
            config, _, _, cost = config_for(spec, inner, arch, rates if gpu is not None else None, eligible)
        except NoKernelError:
            # No compiled one multiplies what it prepares.
            continue
        if config is None:
            continue
        predicted = cost * launches if cost is not None and spec.cost_in_us else None
        found = Choice(spec, config, (), "packed", predicted, gpu=rates)
        if best is None or is_less(predicted, best):
            best = found
    return best


@functools.cache
def _eligible(arch: Arch, with_ptx: bool) -> Callable[[KernelSpec, Problem, Config], bool]:
    """Return whether a config is compiled for a problem: one function for each architecture, as rates are compared."""

    def eligible(spec: KernelSpec, problem: Problem, config: Config) -> bool:
        return is_compiled(spec, config, spec.signature(problem, config), arch, with_ptx=with_ptx)

    return eligible


# Another function afterwards, as kernels cache by rates what a pack that is loaded may change.
register_clear(_eligible.cache_clear)


def is_choice_compiled(choice: Choice, problem: Problem, arch: Arch, *, with_ptx: bool = False) -> bool:
    """Return whether all kernels of a choice are compiled."""
    chain, _ = choice.launches(inner_problem(problem, choice.batch_dims))
    compiled = _eligible(arch, with_ptx)
    return all(compiled(one.spec, one.problem, one.config) for one in chain)


class PackedKernelWarning(UserWarning):
    """The kernel of a choice is in no pack, the compiler is not installed, and another kernel runs."""


def warn_of_packed(choice: Choice, problem: Problem, found: Choice) -> None:
    """Warn once in a process of each compiled kernel that is missing."""
    missing = (choice.spec.name, choice.config, choice.signature(problem))
    if missing in _warned:
        return
    _warned.add(missing)
    times = (
        f", predicted {found.predicted_us:.3g} us and not {choice.predicted_us:.3g} us"
        if found.predicted_us is not None and choice.predicted_us is not None
        else ""
    )
    warnings.warn(
        f"{choice.spec.name} ({choice.config}) is in no pack, and the kernel compiler is not installed: "
        f"{found.spec.name} ({found.config}) runs instead{times}; {REMEDY}",
        PackedKernelWarning,
        stacklevel=4,
    )
