"""Choosing a kernel for a problem."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision, dtype_named
from gemmule.core.errors import DTypeError, NoKernelError, UnsupportedError
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem, Problem, TransposeProblem, split_batch
from gemmule.core.spec import Choice, Config, KernelSpec

from .problem_key import key_of
from .rates_table import rates_for
from .recording import record_shape
from .registry import REGISTRY
from .tuned_file import Entry
from .tuned_table import TunedTable, table_for

#: Launches of one product beyond which a kernel that covers more of the batch at once is better.
MAX_LAUNCHES = 16


#: What was chosen for the problems of this process, by everything that the choice depends on.
_chosen: dict[tuple[Problem, Arch, int | None, str | None, bool, int], Choice] = {}
_MOST_CHOSEN = 4096
# How many times choices were forgotten: what was chosen before the last time and is kept only after it, is never found.
_generation = [0]
#: What clears the caches of other rooms that keep choices, or what was made of them.
_forgetters: list[Callable[[], object]] = []


def choose(
    problem: Problem,
    arch: Arch,
    registry: Sequence[KernelSpec] = REGISTRY,
    *,
    multiprocessors: int | None = None,
    chip: str | None = None,
    tuned: bool = True,
) -> Choice:
    """Return the kernel and config that were measured to be fastest, else the first that can in its cheapest config.

    Parameters
    ----------
    problem : GemmProblem or TransposeProblem
        What is to be computed.
    arch : Arch
        The GPU's architecture.
    registry : sequence of KernelSpec
        The kernels to choose from, best first.
    multiprocessors : int, optional
        The GPU's: the config is the one with the least predicted cost, or, of kernels that predict none, the one that
        computes least beyond the edges and gives each of them a CTA, of equals the one with the largest tiles. None
        takes the first that can.
    chip : str, optional
        The GPU's name as its driver gives it: then tuned configurations come first, and the product is recorded where
        ``GEMMULE_RECORD`` asks for it.
    tuned : bool
        Whether tuned configurations count; without them the choice is that of a product which nobody has measured.

    Raises
    ------
    NoKernelError
        If none can; its `refused` gives every kernel's reason.
    """
    if registry is not REGISTRY:
        return _choose(problem, arch, registry, multiprocessors, chip, tuned)
    asked = (problem, arch, multiprocessors, chip, tuned, _generation[0])
    choice = _chosen.get(asked)
    if choice is None:
        choice = _choose(problem, arch, registry, multiprocessors, chip, tuned)
        if len(_chosen) >= _MOST_CHOSEN:
            _chosen.clear()
        _chosen[asked] = choice
    return choice


def forget_choices() -> None:
    """Choose anew from now on, everywhere in this process: tuned configurations have changed."""
    _generation[0] += 1
    _chosen.clear()
    for forget in _forgetters:
        forget()


def generation() -> int:
    """Return a number that changes when choices are forgotten: one made before then must not be kept after it."""
    return _generation[0]


def forgets_choices(forget: Callable[[], object]) -> None:
    """Let `forget_choices` call a function, which clears a cache that keeps choices, or what was made of them."""
    _forgetters.append(forget)


def use_tuned(chip: str, entries: Iterable[Entry]) -> None:
    """Let this process take tuned entries before those of files, on the GPU that its driver calls by that name."""
    table_for(chip).remember(entries)
    forget_choices()


def _choose(
    problem: Problem,
    arch: Arch,
    registry: Sequence[KernelSpec],
    multiprocessors: int | None,
    chip: str | None,
    tuned: bool,
) -> Choice:
    operation = "gemm" if isinstance(problem, GemmProblem) else "transpose"
    in_place = isinstance(problem, TransposeProblem) and problem.in_place
    own = isinstance(problem, GemmProblem) and problem.own_transpose
    gpu = rates_for(chip, multiprocessors) if multiprocessors is not None else None
    measured = None
    if tuned and chip is not None and isinstance(problem, GemmProblem):
        record_shape(problem, chip)
        measured = tuned_choice(problem, arch, registry, table_for(chip))
    refused: list[tuple[str, str]] = []
    parts: dict[int, tuple[Problem, tuple[int, ...]]] = {}
    most_dims = _most_batch_dims(operation, registry)
    for spec in registry:
        if spec.operation != operation or spec.in_place != in_place:
            continue
        if spec.mirrors and not own and len(registry) > 1:
            # It is there for other products; to name it with every one would only be in the way.
            continue
        if measured is not None and spec is measured.spec:
            return dataclasses.replace(measured, refused=tuple(refused), gpu=gpu or H200_RATES)
        if spec.batch_dims not in parts:
            parts[spec.batch_dims] = split_batch(problem, spec.batch_dims)[:2]
        inner, outer = parts[spec.batch_dims]
        config, reason, by, cost = _config(spec, inner, arch, gpu)
        launches = math.prod(outer)
        if config is None:
            refused.append((spec.name, reason))
        elif launches > MAX_LAUNCHES and spec.batch_dims < most_dims:
            refused.append((spec.name, f"it would take {launches} launches, one for each matrix of the batch"))
        elif measured is not None and not (spec.mirrors and _is_less(cost, measured)):
            refused.append((spec.name, f"it can, and {measured.spec.name} was measured to be faster"))
        elif (faster := _faster(spec, problem, inner, cost, arch, gpu, registry)) is not None:
            refused.append((spec.name, f"it can, and {faster} is expected to be faster"))
        else:
            predicted = cost * launches if cost is not None and spec.cost_in_us else None
            return Choice(spec, config, tuple(refused), by, predicted, gpu=gpu or H200_RATES)
    raise NoKernelError(refused)


def _is_less(cost: float | None, tuned: Choice) -> bool:
    """Return whether a kernel is expected to be faster than what was measured, which is all of a product."""
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
    """Return the name of a later kernel that takes the problem and is expected to be faster, or None."""
    if spec.outdone is None or cost is None or gpu is None:
        return None
    name = spec.outdone(inner, cost, gpu)
    other = next((one for one in registry if one.name == name), None)
    if other is None:
        return None
    part, outer, _ = split_batch(problem, other.batch_dims)
    able = math.prod(outer) <= MAX_LAUNCHES and any(
        other.why_not(part, arch, one) is None for one in other.configs_on(gpu)
    )
    return other.name if able else None


def tuned_choice(problem: GemmProblem, arch: Arch, registry: Sequence[KernelSpec], table: TunedTable) -> Choice | None:
    """Return what was measured to be fastest for a problem, if it still takes it; None where nothing was measured."""
    key = key_of(problem)
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
    if config is None or math.prod(outer) > MAX_LAUNCHES:
        return None
    predicted = entry.us if found.same else None
    return Choice(spec, config, (), "tuned", predicted, f"{found.source}: {entry.source}")


def tuned_config(spec: KernelSpec, entry: Entry, problem: GemmProblem, arch: Arch) -> Config | None:
    """Return the config of an entry for a part of its product; None where it cannot be made, or does not take it."""
    try:
        config = type(spec.default)(**dict(entry.config))
        return config if spec.why_not(problem, arch, config) is None else None
    except (ValueError, TypeError, ArithmeticError):
        # Another version wrote it, or somebody by hand: a call does not fail because of it. An ArgumentError is a
        # ValueError, and so are numbers too long to be told.
        return None


@cache_last_call
def _most_batch_dims(operation: str, registry: Sequence[KernelSpec]) -> int:
    return max(spec.batch_dims for spec in registry if spec.operation == operation)


def _config(
    spec: KernelSpec, problem: Problem, arch: Arch, gpu: GpuRates | None
) -> tuple[Config | None, str, str, float | None]:
    """Return the config that suits, or why there is none; what it was chosen by, and its cost where that is known."""
    if spec.refuses is not None and (reason := spec.refuses(problem, arch)):
        return None, reason, "", None
    configs = spec.configs_on(gpu)
    by = "cost" if gpu is not None and len(configs) > 1 else "only one"
    if gpu is None or spec.costs is not None or spec.ctas is not None:
        # The first that can, of the cheapest first: the others need not be asked.
        costs: Sequence[float | None] = [None] * len(configs)
        order = list(range(len(configs)))
        if gpu is not None and spec.costs is not None:
            known = costs = spec.costs(problem, configs, gpu)
            order.sort(key=known.__getitem__)
        elif gpu is not None and spec.ctas is not None:
            order = _by_size([spec.ctas(problem, config) for config in configs], configs, gpu)
        for number in order:
            if spec.why_not(problem, arch, configs[number]) is None:
                return configs[number], "", by, costs[number]
    else:
        able = [config for config in configs if spec.why_not(problem, arch, config) is None]
        if able:
            config = _suitable(spec, problem, able, gpu)
            return config, "", by, spec.cost(problem, config, gpu) if spec.cost is not None else None
    return None, spec.why_not(problem, arch, spec.default) or "", "", None


def _suitable(spec: KernelSpec, problem: Problem, configs: Sequence[Config], gpu: GpuRates) -> Config:
    """Return the config with the least cost, or the first by the size of its tiles."""
    if spec.cost is not None:
        cost = spec.cost
        return min(configs, key=lambda config: cost(problem, config, gpu))
    ctas = [math.prod(spec.launch(problem, config).grid) for config in configs]
    return configs[_by_size(ctas, configs, gpu)[0]]


def _by_size(ctas: Sequence[int], configs: Sequence[Config], gpu: GpuRates) -> list[int]:
    """Return configs by number: first those with a CTA for each SM, by what they compute beyond the edges."""
    enough = [number for number, count in enumerate(ctas) if count >= gpu.multiprocessors]
    enough.sort(key=lambda number: (ctas[number] * configs[number].outputs, ctas[number]))
    # Of equals the last, whose tiles are smaller.
    fewer = [number for number in reversed(range(len(ctas))) if ctas[number] < gpu.multiprocessors]
    return [*enough, *sorted(fewer, key=lambda number: -ctas[number])]


def contiguous_gemm(
    m: int,
    n: int,
    k: int,
    dtypes: tuple[str, str, str],
    *,
    c_dtype: str | None = None,
    batch: tuple[int, ...] = (),
    alpha: float | int = 1,
    beta: float | int = 0,
    precision: Precision = Precision.IEEE,
) -> GemmProblem:
    """Return the product of contiguous matrices: what host arrays become on a GPU.

    Parameters
    ----------
    m, n, k : int
        A is (m, k), B is (k, n), the result (m, n).
    dtypes : tuple of str
        Types of A, B and the result.
    c_dtype : str, optional
        Type of the matrix to add.
    batch, alpha, beta, precision
        As of GemmProblem.

    Raises
    ------
    DTypeError
        If kernels do not know a type.
    """
    a, b, d = map(dtype_named, dtypes)
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        batch=batch,
        a=contiguous(a, m, k, batch),
        b=contiguous(b, k, n, batch),
        c=contiguous(dtype_named(c_dtype), m, n, batch) if c_dtype is not None else None,
        d=contiguous(d, m, n, batch),
        alpha=alpha,
        beta=beta,
        precision=precision,
    )


def why_no_gemm(dtypes: tuple[str, str, str], c_dtype: str | None, arch: Arch) -> str | None:
    """Say why no kernel multiplies contiguous matrices of those types, or None where one does."""
    try:
        choose(contiguous_gemm(1, 1, 1, dtypes, c_dtype=c_dtype), arch)
    except (DTypeError, UnsupportedError) as error:
        return str(error)
    return None
