"""What a search tries: kernels and configs that take a product and are not predicted to be slow."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.spec import Choice, Config, KernelSpec

#: Configs whose predicted time is so many times the best one's are left out, and of the others all beyond so many.
FACTOR, MOST = 1.5, 12


def candidates(
    problem: GemmProblem,
    arch: Arch,
    registry: Sequence[KernelSpec],
    multiprocessors: int,
    *,
    kernels: Sequence[str] = (),
    factor: float = FACTOR,
    most: int = MOST,
) -> tuple[Choice, ...]:
    """Return kernels and configs to try for a product.

    Parameters
    ----------
    problem : GemmProblem
        The product.
    arch : Arch
        The GPU's.
    registry : sequence of KernelSpec
        The kernels, best first.
    multiprocessors : int
        The GPU's.
    kernels : sequence of str, optional
        Names of the only kernels to try. Without it the first that takes the product and, where that one packs operands
        for another, the first that takes them as they are.
    factor : float
        Of a kernel that predicts costs, configs up to this many times the least one are tried.
    most : int
        Most configs of one kernel.
    """
    found: list[Choice] = []
    for spec in registry:
        if spec.operation != "gemm" or (kernels and spec.name not in kernels):
            continue
        if not kernels and found and found[-1].spec.following is None:
            break
        inner, outer, _ = split_batch(problem, spec.batch_dims)
        if outer or (spec.refuses is not None and spec.refuses(inner, arch)):
            continue
        configs = (*spec.configs, *spec.searched)
        able = [config for config in configs if spec.why_not(inner, arch, config) is None]
        found += [Choice(spec, config) for config in _pruned(spec, inner, able, multiprocessors, factor, most)]
    return tuple(found)


def _pruned(
    spec: KernelSpec, problem: GemmProblem, configs: Sequence[Config], multiprocessors: int, factor: float, most: int
) -> list[Config]:
    if spec.cost is None or not configs:
        return list(configs[:most])
    if spec.costs is not None:
        costs = list(spec.costs(problem, configs, multiprocessors))
    else:
        costs = [spec.cost(problem, config, multiprocessors) for config in configs]
    ordered = sorted(range(len(configs)), key=costs.__getitem__)
    return [configs[number] for number in ordered[:most] if costs[number] <= factor * costs[ordered[0]]]
