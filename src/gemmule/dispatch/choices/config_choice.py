"""The choice of a kernel's config."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from gemmule.core.arch import Arch
from gemmule.core.config import Config
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import Problem, split_batch
from gemmule.core.spec import Choice, KernelSpec


def config_for(
    spec: KernelSpec,
    problem: Problem,
    arch: Arch,
    gpu: GpuRates | None,
    eligible: Callable[[Config], bool] | None = None,
) -> tuple[Config | None, str, str, float | None]:
    """Return the config or the reason for none, the criterion of the choice, and the cost if predicted.

    For a problem that is not refused whatever the config. `eligible` excludes further configs; it is evaluated for
    supported ones only.
    """
    configs = spec.configs_on(gpu)
    by = "cost" if gpu is not None and len(configs) > 1 else "single"
    if gpu is None or spec.costs is not None or spec.ctas is not None:
        # The first supported config in order of cost; the others need no check.
        ordered: Iterable[tuple[Config, float | None]] = ((config, None) for config in configs)
        if gpu is not None and spec.costs is not None:
            ordered = spec.by_cost(problem, gpu)
        elif gpu is not None and spec.ctas is not None:
            by_size = _by_size([spec.ctas(problem, config) for config in configs], configs, gpu)
            ordered = ((configs[number], None) for number in by_size)
        for config, cost in ordered:
            if spec.own_why_not(problem, arch, config) is None and (eligible is None or eligible(config)):
                return config, "", by, cost
    else:
        supported = [config for config in configs if spec.own_why_not(problem, arch, config) is None]
        supported = supported if eligible is None else [config for config in supported if eligible(config)]
        if supported:
            config = _least_cost_config(spec, problem, supported, gpu)
            return config, "", by, spec.cost(problem, config, gpu) if spec.cost is not None else None
    return None, spec.own_why_not(problem, arch, spec.default) or "", "", None


def _least_cost_config(spec: KernelSpec, problem: Problem, configs: Sequence[Config], gpu: GpuRates) -> Config:
    """Return the config with the least cost, or the first by the size of its tiles."""
    if spec.cost is not None:
        cost = spec.cost
        return min(configs, key=lambda config: cost(problem, config, gpu))
    ctas = [math.prod(spec.launch(problem, config).grid) for config in configs]
    return configs[_by_size(ctas, configs, gpu)[0]]


def _by_size(ctas: Sequence[int], configs: Sequence[Config], gpu: GpuRates) -> list[int]:
    """Return the order of configs: first those with a CTA for each SM, by their excess computation."""
    enough = [number for number, count in enumerate(ctas) if count >= gpu.multiprocessors]
    enough.sort(key=lambda number: (ctas[number] * configs[number].tile_elements, ctas[number]))
    # Ties go to the last, which has smaller tiles.
    fewer = [number for number in reversed(range(len(ctas))) if ctas[number] < gpu.multiprocessors]
    return [*enough, *sorted(fewer, key=lambda number: -ctas[number])]


def is_less(cost: float | None, other: Choice) -> bool:
    """Return whether a kernel's predicted time is less than that of a choice, which is measured if it is tuned."""
    return cost is not None and (other.predicted_us is None or cost < other.predicted_us)


def predicted_us(choice: Choice, problem: Problem) -> float | None:
    """Return the time of a choice, of a config that was tuned for another chip by the cost model, if that has one."""
    spec = choice.spec
    if choice.predicted_us is not None or choice.chosen_by != "tuned" or spec.cost is None or not spec.cost_in_us:
        # A config that is named may be one that is never chosen.
        return None if choice.predicted_us == math.inf else choice.predicted_us
    inner, outer, _ = split_batch(problem, spec.batch_dims)
    predicted = spec.cost(inner, choice.config, choice.gpu) * math.prod(outer)
    return predicted if math.isfinite(predicted) else None
