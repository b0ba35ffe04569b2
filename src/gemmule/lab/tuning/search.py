"""Candidates of a search: kernels and configs that take a product and are not predicted to be slow."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.config import Config, configs_on
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.spec import Choice, KernelSpec

#: Configs whose predicted time is so many times the best one's are left out, and of the others all beyond so many.
FACTOR, MOST = 1.5, 12
# Unregistered configs: limit of those considered, and of those tried of a shape.
_MANY, _OF_A_SHAPE = 4, 2


def candidates(
    problem: GemmProblem,
    arch: Arch,
    registry: Sequence[KernelSpec],
    gpu: GpuRates,
    *,
    kernels: Sequence[str] = (),
    factor: float = FACTOR,
    most: int = MOST,
    extra_configs: bool = True,
) -> tuple[Choice, ...]:
    """Return kernels and configs to try for a product.

    Parameters
    ----------
    registry : sequence of KernelSpec
        The kernels, best first.
    kernels : sequence of str, optional
        Names of the only kernels to try. Without it the first that takes the product and, where that one packs operands
        for another, the first that takes them as they are.
    factor : float
        Configs with a predicted time up to this many times the least one are tried.
    most : int
        Most configs of one kernel that are registered; and as many of those that only a search takes into account.
    extra_configs : bool
        Whether to try the latter.
    """
    found: list[Choice] = []
    for spec in registry:
        if spec.operation != "gemm" or (kernels and spec.name not in kernels):
            continue
        if not kernels and found and found[-1].spec.next_kernel is None:
            break
        inner, outer, _ = split_batch(problem, spec.batch_dims)
        if outer or (spec.refuses is not None and spec.refuses(inner, arch)):
            continue
        tried = _pruned(spec, inner, arch, spec.configs_on(gpu), gpu, factor, most)
        if extra_configs and spec.extra_configs is not None and spec.cost is not None:
            more = [one for one in configs_on(tuple(spec.extra_configs()), gpu.multiprocessors) if one not in tried]
            tried = _diverse(tried + _pruned(spec, inner, arch, more, gpu, factor, _MANY * most), most)
        found += [Choice(spec, config, gpu=gpu) for config in tried]
    return tuple(found)


def _shape(config: Config) -> tuple[int, ...]:
    """Return the key of similar configs: their tile."""
    fields = config.as_dict()
    return tuple(fields.get(name, 0) for name in ("tile_m", "tile_n", "cluster_k"))


def _diverse(configs: Sequence[Config], most: int) -> list[Config]:
    """Return the registered ones that come first, then others, no more than two of a shape, `most` beyond the first."""
    found: list[Config] = []
    for config in configs:
        if sum(_shape(other) == _shape(config) for other in found) < _OF_A_SHAPE:
            found.append(config)
    return found[: 2 * most]


def _pruned(
    spec: KernelSpec,
    problem: GemmProblem,
    arch: Arch,
    configs: Sequence[Config],
    gpu: GpuRates,
    factor: float,
    most: int,
) -> list[Config]:
    """Return the cheapest configs that can."""
    if spec.cost is None:
        return [config for config in configs if spec.why_not(problem, arch, config) is None][:most]
    if spec.costs is not None:
        costs = list(spec.costs(problem, configs, gpu))
    else:
        able = [config for config in configs if spec.why_not(problem, arch, config) is None]
        cost = spec.cost
        configs, costs = able, [cost(problem, config, gpu) for config in able]
    found: list[Config] = []
    least = None
    for number in sorted(range(len(configs)), key=costs.__getitem__):
        if len(found) == most or (least is not None and costs[number] > factor * least):
            break
        if spec.why_not(problem, arch, configs[number]) is None:
            found.append(configs[number])
            least = costs[number] if least is None else least
    return found
