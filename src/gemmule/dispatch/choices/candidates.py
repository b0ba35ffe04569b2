"""The kernels that may take a problem, and how many launches of each its batch needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gemmule.core.arch import Arch
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import GemmProblem, OperandTypes, Problem, split_batch
from gemmule.core.problem_kind import CachedForKinds
from gemmule.core.spec import KernelSpec

#: Kernels that were not chosen, and why.
_Refused = tuple[tuple[str, str], ...]
#: Most launches of a batch of small GEMMs by a kernel that covers fewer batch dimensions than others.
MAX_LAUNCHES_SMALL = 16
#: Most launches of a batch of large GEMMs. A transpose may need any number: it makes a batch's dimensions merge.
MAX_LAUNCHES_LARGE = 4096
#: Multiply-adds from which on a GEMM is large: it takes much longer than a launch.
_LARGE_GEMM_FMAS = 2**22


@CachedForKinds
def candidates_of(
    problem: Problem, among: tuple[tuple[KernelSpec, ...], Arch]
) -> tuple[list[tuple[KernelSpec, _Refused]], _Refused]:
    """Return the kernels among some that may take a problem, by its types and operation.

    Parameters
    ----------
    among : tuple
        The kernels, best first, and the GPU's architecture.
    """
    if isinstance(problem, GemmProblem):
        return _candidates_of_types(among[0], among[1], "gemm", problem.types, own=problem.own_transpose)
    return _candidates_of_types(among[0], among[1], "transpose", None, in_place=problem.in_place)


@cache_for_configs
def _candidates_of_types(
    registry: Sequence[KernelSpec],
    arch: Arch,
    operation: str,
    types: OperandTypes | None,
    *,
    own: bool = False,
    in_place: bool = False,
) -> tuple[list[tuple[KernelSpec, _Refused]], _Refused]:
    """Return the kernels of an operation that take such types on a GPU, each with those before it that refuse them.

    The second result is the kernels after the last that refuse them. All are with their reasons.
    """
    found: list[tuple[KernelSpec, _Refused]] = []
    before: list[tuple[str, str]] = []
    for spec in registry:
        # SYRK kernels are no candidates for plain products, and no reason among their refusals.
        wanted = own or not spec.is_syrk or len(registry) == 1
        if spec.operation == operation and spec.in_place == in_place and wanted:
            reason = spec.refuses_types(types, arch) if spec.refuses_types is not None and types is not None else None
            if reason is not None:
                before.append((spec.name, reason))
            else:
                found.append((spec, tuple(before)))
                before.clear()
    return found, tuple(before)


@cache_for_configs
def by_name(registry: Sequence[KernelSpec]) -> dict[str, KernelSpec]:
    """Return the first kernel of each name."""
    return {spec.name: spec for spec in reversed(registry)}


def supported_name(name: str | None, problem: Problem, arch: Arch, registry: Sequence[KernelSpec]) -> str | None:
    """Return a kernel's name if the kernel is among those to choose from and supports the problem, else None."""
    other = by_name(registry).get(name) if name is not None else None
    return name if other is not None and _supports(other, problem, arch) else None


def _supports(spec: KernelSpec, problem: Problem, arch: Arch) -> bool:
    """Return whether a kernel supports a problem in some config, within the limit of launches."""
    part, launches = part_of(problem, spec)
    return launches <= max_launches(problem) and spec.takes(part, arch)


def max_launches(problem: Problem) -> int:
    """Return the most launches of a batch by a kernel that covers fewer batch dimensions than others."""
    is_large = isinstance(problem, GemmProblem) and problem.m * problem.n * problem.k >= _LARGE_GEMM_FMAS
    return MAX_LAUNCHES_LARGE if is_large else MAX_LAUNCHES_SMALL


def part_of(problem: Problem, spec: KernelSpec) -> tuple[Problem, int]:
    """Return the problem of one launch of a kernel, and the number of launches."""
    if not problem.batch:
        return problem, 1
    part, outer, _ = split_batch(problem, spec.batch_dims)
    return part, math.prod(outer)


def needs_fewer(spec: KernelSpec, problem: Problem, arch: Arch, registry: Sequence[KernelSpec]) -> bool:
    """Return whether a kernel that covers more batch dimensions in a launch supports a problem."""
    return any(one.takes(part_of(problem, one)[0], arch) for one in _covering_more(spec, registry))


def faster_in_fewer(
    spec: KernelSpec, problem: Problem, us: float, arch: Arch, gpu: GpuRates, registry: Sequence[KernelSpec]
) -> str | None:
    """Return the name of a later kernel that takes a batch in fewer launches and less time by prediction, or None.

    Parameters
    ----------
    us : float
        The predicted microseconds of all launches of `spec`.
    """
    for one in _covering_more(spec, registry[registry.index(spec) + 1 :]):
        part, launches = part_of(problem, one)
        if not one.cost_in_us or one.costs is None or one.is_refused(part, arch):
            continue
        found = one.cheapest(part, arch, gpu)
        if found is not None and found[1] * launches < us:
            return one.name
    return None


def why_too_many(spec: KernelSpec, problem: Problem, launches: int, registry: Sequence[KernelSpec]) -> str | None:
    """Return the error if a batch needs more launches than the limit, else None."""
    if launches <= MAX_LAUNCHES_LARGE or not isinstance(problem, GemmProblem):
        return None
    if not any(_covering_more(spec, registry)):
        return None
    return (
        f"it would need {launches} launches for a batch of {problem.batch}, of at most {MAX_LAUNCHES_LARGE}; pass "
        "contiguous copies, or multiply the batch in parts"
    )


def _covering_more(spec: KernelSpec, registry: Sequence[KernelSpec]) -> Iterator[KernelSpec]:
    """Yield the kernels of an operation that cover more batch dimensions in a launch."""
    for one in registry:
        if one.batch_dims > spec.batch_dims and (one.operation, one.in_place) == (spec.operation, spec.in_place):
            yield one
