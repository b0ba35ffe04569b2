"""The choice of a kernel for a problem."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gemmule.compiler.cache import has_any, is_compiled
from gemmule.compiler.toolchain import REMEDY, compiler_installed
from gemmule.core.arch import Arch
from gemmule.core.dtype import COMPLEX128, FLOAT32, FLOAT64, Precision
from gemmule.core.errors import DTypeError, NoKernelError, UnsupportedError
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import (
    GemmProblem,
    OperandTypes,
    Problem,
    contiguous_gemm,
    inner_problem,
    split_batch,
)
from gemmule.core.problem_kind import CachedForKinds
from gemmule.core.spec import Choice, Config, KernelSpec, Reason, Signature, reasons_of, why_not_epilogue

from .problem_key import key_of
from .rates_table import rates_for
from .recording import is_recording, record_shape
from .registry import kernels_of
from .tuned_file import Entry
from .tuned_table import TunedTable, add_own, reload_tables, table_for

#: Kernels that were not chosen, and why.
_Refused = tuple[tuple[str, str], ...]
#: Most launches of a batch of small GEMMs by a kernel that covers fewer batch dimensions than others.
MAX_LAUNCHES_SMALL = 16
#: Most launches of a batch of large GEMMs. A transpose may need any number: it makes a batch's dimensions merge.
MAX_LAUNCHES_LARGE = 4096
#: Multiply-adds from which on a GEMM is large: it takes much longer than a launch.
_LARGE_GEMM_FMAS = 2**22

#: Most cached choices.
_MOST_CHOSEN = 4096
# Number of invalidations. It is part of the key: a choice that was made before one and cached after it is never found.
_generation = [0]
#: Missing compiled kernels that a warning has named.
_warned: set[tuple[str, Config, Signature]] = set()
#: Functions that clear caches derived from choices.
_clear_functions: list[Callable[[], object]] = []


def choose(
    problem: Problem,
    arch: Arch,
    registry: Sequence[KernelSpec] | None = None,
    *,
    multiprocessors: int | None = None,
    chip: str | None = None,
    tuned: bool = True,
) -> Choice:
    """Return the tuned kernel and config, else the supported kernel of least predicted time; of equals, the first.

    Parameters
    ----------
    problem : GemmProblem or TransposeProblem
        The problem.
    arch : Arch
        The GPU's architecture.
    registry : sequence of KernelSpec, optional
        The kernels to choose from, best first; by default all of the operation.
    multiprocessors : int, optional
        The GPU's number of SMs. The config has the least predicted cost; without a cost model it computes least beyond
        the edges with a CTA for each SM, of equals with the largest tiles. None chooses the first supported config.
    chip : str, optional
        The GPU's name in its driver: tuned configurations have precedence, and the product is recorded if
        ``GEMMULE_RECORD`` is set.
    tuned : bool
        Whether tuned configurations count.

    Raises
    ------
    NoKernelError
        If no kernel supports the problem; its `refused` has every kernel's reason.
    """
    if registry is not None:
        return _runnable(problem, arch, registry, multiprocessors, chip, tuned)
    return _chosen(problem, arch, multiprocessors, chip, tuned, _generation[0])


def choose_streamed(
    problem: Problem,
    arch: Arch,
    registry: Sequence[KernelSpec] | None = None,
    *,
    multiprocessors: int | None = None,
    chip: str | None = None,
) -> Choice:
    """Return the choice for a product whose memory is planned: of float32, float64 and complex128 without workspaces.

    Float32 operands that are copied save percents of a product's time, and take as much memory again; so do partial
    sums of stream-K. Parameters as of `choose`.
    """
    if registry is None and isinstance(problem, GemmProblem) and problem.precision is Precision.IEEE:
        if problem.a.dtype == FLOAT32:
            registry = _single_kernels()
        elif problem.a.dtype in (FLOAT64, COMPLEX128):
            registry = _unshared_kernels()
    return choose(problem, arch, registry, multiprocessors=multiprocessors, chip=chip)


@functools.cache
def _single_kernels() -> tuple[KernelSpec, ...]:
    """Return the kernels of products that no other kernel follows."""
    return tuple(spec for spec in kernels_of("gemm") if spec.next_kernel is None)


@functools.cache
def _unshared_kernels() -> tuple[KernelSpec, ...]:
    """Return the kernels of products, without configs of stream-K."""

    def is_shared(config: Config) -> bool:
        return getattr(config, "stream_k", 0) == 1

    found = []
    for spec in kernels_of("gemm"):
        configs = tuple(one for one in spec.configs if not is_shared(one))
        found.append(spec if configs == spec.configs else dataclasses.replace(spec, configs=configs))
    return tuple(found)


@functools.lru_cache(_MOST_CHOSEN)
def _chosen(
    problem: Problem, arch: Arch, multiprocessors: int | None, chip: str | None, tuned: bool, generation: int
) -> Choice:
    """Return the choice among all kernels, cached by everything that it depends on."""
    del generation
    operation = "gemm" if isinstance(problem, GemmProblem) else "transpose"
    return _runnable(problem, arch, kernels_of(operation), multiprocessors, chip, tuned)


def clear_choices() -> None:
    """Clear this process's caches of plans and kernel choices.

    Call it after a change of ``GEMMULE_EXECUTOR``, ``GEMMULE_PACK``, ``GEMMULE_RECORD`` or the user's tuned table:
    cached calls ignore the change otherwise. `load_pack` calls it itself.
    """
    # Before the next generation, which makes none of its choices by the old files.
    reload_tables()
    _generation[0] += 1
    _chosen.cache_clear()
    is_recording.cache_clear()
    for clear in _clear_functions:
        clear()


def generation() -> int:
    """Return the number of invalidations; a choice made before one must not be cached after it."""
    return _generation[0]


def register_clear(clear: Callable[[], object]) -> None:
    """Register a function that clears a cache derived from choices, for `clear_choices`."""
    _clear_functions.append(clear)


def cached_choice(choose: Callable[[Any, Arch, int | None, str | None], Choice]) -> Callable[..., Choice]:
    """Return a choice that is cached until choices are cleared; what a GPU is comes by names, as of `choose`."""

    @functools.lru_cache(_MOST_CHOSEN)
    def cached(problem: Any, arch: Arch, multiprocessors: int | None, chip: str | None, generation: int) -> Choice:
        del generation
        return choose(problem, arch, multiprocessors, chip)

    def chosen(problem: Any, arch: Arch, /, *, multiprocessors: int | None = None, chip: str | None = None) -> Choice:
        return cached(problem, arch, multiprocessors, chip, generation())

    register_clear(cached.cache_clear)
    return functools.update_wrapper(chosen, choose)


def use_tuned(chip: str, entries: Iterable[Entry]) -> None:
    """Add tuned entries of this process, which precede those of files, for a GPU by its name in the driver."""
    add_own(chip, entries)
    clear_choices()


def _runnable(
    problem: Problem,
    arch: Arch,
    registry: Sequence[KernelSpec],
    multiprocessors: int | None,
    chip: str | None,
    tuned: bool,
) -> Choice:
    """Return the choice; where the compiler is not installed, the best that is compiled already, with a warning.

    If nothing compiled supports the problem, the choice is unchanged, and fails when it runs.
    """
    choice = _choose(problem, arch, registry, multiprocessors, chip, tuned)
    if compiler_installed() or _is_compiled(choice, problem, arch):
        return choice
    gpu = choice.gpu if multiprocessors is not None else None
    found = _best_compiled(problem, arch, registry, gpu)
    if found is None:
        return choice
    lacking = f"supported, but its compiled kernel ({choice.config}) is in no pack"
    refused = ((choice.spec.name, lacking), *choice.refusals)
    _warn_of_packed(choice, problem, found)
    return dataclasses.replace(found, refusals=refused, source=f"{choice.spec.name} [{choice.config}] is in no pack")


def _best_compiled(problem: Problem, arch: Arch, registry: Sequence[KernelSpec], gpu: GpuRates | None) -> Choice | None:
    """Return the choice of least predicted time among compiled kernels, else the first of the registry, or None."""
    best: Choice | None = None
    for spec, _ in _candidates(problem, (tuple(registry), arch))[0]:
        if not has_any(spec, arch):
            continue
        inner, launches = _part(problem, spec)
        if spec.is_refused(inner, arch):
            continue
        if launches > _max_launches(problem) and (
            _needs_fewer(spec, problem, arch, registry) or _why_too_many(spec, problem, launches, registry)
        ):
            continue

        def is_compiled(config: Config, spec: KernelSpec = spec) -> bool:
            return _is_compiled(Choice(spec, config, gpu=gpu or H200_RATES), problem, arch)

        config, _, _, cost = _config(spec, inner, arch, gpu, is_compiled)
        if config is None:
            continue
        predicted = cost * launches if cost is not None and spec.cost_in_us else None
        found = Choice(spec, config, (), "packed", predicted, gpu=gpu or H200_RATES)
        if best is None or _is_less(predicted, best):
            best = found
    return best


def _is_compiled(choice: Choice, problem: Problem, arch: Arch) -> bool:
    chain, _ = choice.launches(inner_problem(problem, choice.spec.batch_dims))
    return all(is_compiled(one.spec, one.config, one.spec.signature(one.problem, one.config), arch) for one in chain)


class PackedKernelWarning(UserWarning):
    """The kernel of a choice is in no pack, the compiler is not installed, and another kernel runs."""


def _warn_of_packed(choice: Choice, problem: Problem, found: Choice) -> None:
    """Warn once in a process of each compiled kernel that is missing."""
    missing = (choice.spec.name, choice.config, choice.signature(problem))
    if missing in _warned:
        return
    _warned.add(missing)
    times = (
        f", {found.predicted_us:.3g} us instead of {choice.predicted_us:.3g} us by prediction,"
        if found.predicted_us is not None and choice.predicted_us is not None
        else ""
    )
    warnings.warn(
        f"{choice.spec.name} ({choice.config}) is in no pack, and the kernel compiler is not installed: "
        f"{found.spec.name} ({found.config}) runs{times} instead; {REMEDY}",
        PackedKernelWarning,
        stacklevel=4,
    )


def _choose(
    problem: Problem,
    arch: Arch,
    registry: Sequence[KernelSpec],
    multiprocessors: int | None,
    chip: str | None,
    tuned: bool,
) -> Choice:
    gpu = rates_for(chip, multiprocessors) if multiprocessors is not None else None
    measured = None
    if tuned and chip is not None and isinstance(problem, GemmProblem):
        if is_recording():
            record_shape(problem, chip)
        measured = tuned_choice(problem, arch, registry, table_for(chip))
    refused: list[tuple[str, Reason]] = []
    # Kernels that take all but the batch: the reason to be shown, where no kernel takes the problem.
    limited: list[tuple[str, Reason]] = []
    parts: dict[int, tuple[Problem, int]] = {}
    candidates, after = _candidates(problem, (tuple(registry), arch))
    for spec, before in candidates:
        refused += before
        if measured is not None and spec is measured.spec:
            return dataclasses.replace(measured, refusals=tuple(refused), gpu=gpu or H200_RATES)
        if spec.batch_dims not in parts:
            parts[spec.batch_dims] = _part(problem, spec)
        inner, launches = parts[spec.batch_dims]
        if spec.own_refuses is not None and spec.is_refused(inner, arch):
            refused.append((spec.name, functools.partial(spec.own_refuses, inner, arch)))
            continue
        if spec.defers_to is not None and measured is None and gpu is not None and launches <= MAX_LAUNCHES_SMALL:
            larger = spec.defers_to(inner, gpu) if why_not_epilogue(spec, inner) is None else None
            if (faster := _supported_name(larger, problem, arch, registry)) is not None:
                refused.append((spec.name, f"supported, but {faster} has a lower predicted time"))
                continue
        config, reason, by, cost = _config(spec, inner, arch, gpu)
        if config is None:
            refused.append((spec.name, reason))
        elif launches > _max_launches(problem) and _needs_fewer(spec, problem, arch, registry):
            refused.append((spec.name, f"it would need {launches} launches, one for each matrix of the batch"))
        elif (too_many := _why_too_many(spec, problem, launches, registry)) is not None:
            limited.append((spec.name, too_many))
        elif measured is not None and not (spec.is_syrk and _is_less(cost, measured)):
            refused.append((spec.name, f"supported, but {measured.spec.name} was measured to be faster"))
        elif (faster := _faster(spec, problem, inner, cost, arch, gpu, registry)) is not None:
            refused.append((spec.name, f"supported, but {faster} has a lower predicted time"))
        else:
            predicted = cost * launches if cost is not None and spec.cost_in_us else None
            return Choice(spec, config, tuple(refused), by, predicted, gpu=gpu or H200_RATES)
    raise NoKernelError(reasons_of((*refused, *after, *limited)))


def _is_less(cost: float | None, tuned: Choice) -> bool:
    """Return whether a kernel's predicted time is less than the measured one."""
    return cost is not None and (tuned.predicted_us is None or cost < tuned.predicted_us)


def _faster(
    spec: KernelSpec,
    problem: Problem,
    inner: Problem,
    cost: float | None,
    arch: Arch,
    gpu: GpuRates | None,
    registry: Sequence[KernelSpec],
) -> str | None:
    """Return the name of a later supported kernel with a lower predicted time, or None."""
    if spec.faster_alternative is None or cost is None or gpu is None:
        return None
    name = _supported_name(spec.faster_alternative(inner, cost, gpu), problem, arch, registry)
    if name is None or (other := _by_name(registry)[name]).costs is None:
        return name
    part, _ = _part(problem, other)
    found = other.cheapest(part, arch, gpu)
    # The time may be that of a config that the architecture lacks, such as a cluster.
    if found is not None and found[1] > other.least_cost(part, gpu) and found[1] >= cost:
        return None
    return name


def _supported_name(name: str | None, problem: Problem, arch: Arch, registry: Sequence[KernelSpec]) -> str | None:
    """Return a kernel's name if the kernel is among those to choose from and supports the problem, else None."""
    other = _by_name(registry).get(name) if name is not None else None
    return name if other is not None and _supports(other, problem, arch) else None


@cache_for_configs
def _by_name(registry: Sequence[KernelSpec]) -> dict[str, KernelSpec]:
    """Return the first kernel of each name."""
    return {spec.name: spec for spec in reversed(registry)}


def _supports(spec: KernelSpec, problem: Problem, arch: Arch) -> bool:
    """Return whether a kernel supports a problem in some config, within the limit of launches."""
    part, launches = _part(problem, spec)
    return launches <= _max_launches(problem) and spec.takes(part, arch)


def _max_launches(problem: Problem) -> int:
    """Return the most launches of a batch by a kernel that covers fewer batch dimensions than others."""
    is_large = isinstance(problem, GemmProblem) and problem.m * problem.n * problem.k >= _LARGE_GEMM_FMAS
    return MAX_LAUNCHES_LARGE if is_large else MAX_LAUNCHES_SMALL


def _part(problem: Problem, spec: KernelSpec) -> tuple[Problem, int]:
    """Return the problem of one launch of a kernel, and the number of launches."""
    if not problem.batch:
        return problem, 1
    part, outer, _ = split_batch(problem, spec.batch_dims)
    return part, math.prod(outer)


def tuned_choice(problem: GemmProblem, arch: Arch, registry: Sequence[KernelSpec], table: TunedTable) -> Choice | None:
    """Return the fastest measured kernel for a problem, if it supports it; None without a measurement."""
    key = key_of(problem) if table.has_extents(problem.m, problem.n, problem.k) else None
    found = table.find(key) if key is not None else None
    if found is None:
        return None
    entry = found.entry
    spec = next((spec for spec in registry if spec.name == entry.kernel and spec.operation == "gemm"), None)
    if spec is None:
        # A kernel of another version of gemmule.
        return None
    inner, outer, _ = split_batch(problem, spec.batch_dims)
    config = tuned_config(spec, entry, inner, arch)
    if config is None or math.prod(outer) > _max_launches(problem):
        return None
    predicted = entry.us if found.same else None
    return Choice(spec, config, (), "tuned", predicted, f"{found.source}: {entry.source}")


def tuned_config(spec: KernelSpec, entry: Entry, problem: GemmProblem, arch: Arch) -> Config | None:
    """Return the config of an entry for a part of its product; None if it is invalid or does not support the part."""
    try:
        config = type(spec.default)(**dict(entry.config))
        return config if spec.why_not(problem, arch, config) is None else None
    except (ValueError, TypeError, ArithmeticError):
        # Entries of other versions, or edited ones, must not fail a call. An ArgumentError is a ValueError, and so are
        # numbers too long to be formatted.
        return None


@CachedForKinds
def _candidates(
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


def _needs_fewer(spec: KernelSpec, problem: Problem, arch: Arch, registry: Sequence[KernelSpec]) -> bool:
    """Return whether a kernel that covers more batch dimensions in a launch supports a problem."""
    return any(one.takes(_part(problem, one)[0], arch) for one in _covering_more(spec, registry))


def _why_too_many(spec: KernelSpec, problem: Problem, launches: int, registry: Sequence[KernelSpec]) -> str | None:
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


def _config(
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
    # Of equals the last, whose tiles are smaller.
    fewer = [number for number in reversed(range(len(ctas))) if ctas[number] < gpu.multiprocessors]
    return [*enough, *sorted(fewer, key=lambda number: -ctas[number])]


def why_no_gemm(dtypes: tuple[str, ...], arch: Arch) -> str | None:
    """Return why no kernel supports contiguous matrices of these types, or None."""
    try:
        choose(contiguous_gemm(1, 1, 1, dtypes), arch)
    except (DTypeError, UnsupportedError) as error:
        return str(error)
    return None
