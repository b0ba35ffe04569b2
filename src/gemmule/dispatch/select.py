"""The choice of a kernel for a problem."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence

from gemmule.compiler.toolchain import compiler_installed
from gemmule.core.arch import Arch
from gemmule.core.config import Config
from gemmule.core.dtype import COMPLEX128, FLOAT32, FLOAT64, Precision
from gemmule.core.errors import DTypeError, NoKernelError, UnsupportedError
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.problem import GemmProblem, Problem, contiguous_gemm, split_batch
from gemmule.core.spec import Choice, KernelSpec, Reason, reasons_of, why_not_epilogue

from .choices.candidates import (
    MAX_LAUNCHES_SMALL,
    by_name,
    candidates_of,
    faster_in_fewer,
    max_launches,
    needs_fewer,
    part_of,
    supported_name,
    why_too_many,
)
from .choices.choice_cache import MOST_CHOICES, clear_choices, generation, register_clear
from .choices.config_choice import config_for, is_less
from .choices.form_choice import GEMM_REFERENCE, Choose, best_form, choices_of_forms
from .problem_key import key_of
from .rates_table import rates_for
from .recording import is_recording, record_shape
from .registry import kernels_for, kernels_of, reasons_of_others
from .tuned_file import Entry
from .tuned_table import TunedTable, add_own, table_for


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
        Use the tuned table.

    Raises
    ------
    NoKernelError
        If no kernel supports the problem; its `refused` has every kernel's reason.
    """
    if registry is not None:
        return _runnable(problem, arch, registry, multiprocessors, chip, tuned)
    return _chosen(problem, arch, multiprocessors, chip, tuned, generation())


def choose_forms(
    problem: GemmProblem,
    arch: Arch,
    registry: Sequence[KernelSpec] | None = None,
    *,
    multiprocessors: int | None = None,
    chip: str | None = None,
    tuned: bool = True,
) -> list[Choice]:
    """Return the choice of each form of a product, the best first.

    Parameters and errors as of `choose`.
    """
    gpu = rates_for(chip, multiprocessors).on(arch) if multiprocessors is not None else None

    def choose_own(one: Problem, among: Sequence[KernelSpec]) -> Choice:
        return _choose(one, arch, among, multiprocessors, chip, tuned)

    return choices_of_forms(problem, kernels_of("gemm") if registry is None else registry, choose_own, gpu)


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
    sums of stream-K, and sums of which the rest is computed. Parameters as of `choose`.
    """
    if registry is None and isinstance(problem, GemmProblem) and problem.precision is Precision.IEEE:
        if problem.a.dtype == FLOAT32:
            registry = _single_kernels()
        elif problem.a.dtype in (FLOAT64, COMPLEX128):
            registry = _unshared_kernels()
    choice = choose(problem, arch, registry, multiprocessors=multiprocessors, chip=chip)
    if not isinstance(problem, GemmProblem) or not _has_workspaces(choice, problem):
        return choice
    forms = choose_forms(problem, arch, registry, multiprocessors=multiprocessors, chip=chip)
    return next((one for one in forms if not _has_workspaces(one, problem)), choice)


def _has_workspaces(choice: Choice, problem: GemmProblem) -> bool:
    """Return whether the form of a product has workspaces of its own."""
    if choice.form is None:
        return False
    inner, _, _ = split_batch(problem, choice.batch_dims)
    return any(choice.form.workspaces(inner).values())


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


@functools.lru_cache(MOST_CHOICES)
def _chosen(
    problem: Problem, arch: Arch, multiprocessors: int | None, chip: str | None, tuned: bool, began: int
) -> Choice:
    """Return the choice among all kernels, cached by everything that it depends on."""
    del began
    registry = kernels_for(problem)
    try:
        choice = _runnable(problem, arch, registry, multiprocessors, chip, tuned)
    except NoKernelError:
        every = kernels_of("gemm") if isinstance(problem, GemmProblem) else registry
        if registry is every:
            raise
        # For the reasons of all.
        choice = _runnable(problem, arch, every, multiprocessors, chip, tuned)
    others = reasons_of_others(choice.spec, problem, arch)
    return dataclasses.replace(choice, refusals=(*choice.refusals, *others)) if others else choice


register_clear(_chosen.cache_clear)


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
    gpu = rates_for(chip, multiprocessors).on(arch) if multiprocessors is not None else None

    def choose_own(one: Problem, among: Sequence[KernelSpec]) -> Choice:
        return _choose(one, arch, among, multiprocessors, chip, tuned)

    choice = best_form(problem, registry, choose_own, gpu)
    if choice.spec.name == GEMM_REFERENCE and isinstance(problem, GemmProblem):
        why = functools.partial(_why_reference, problem, choose_own, arch, is_named=len(registry) == 1)
        choice = dataclasses.replace(choice, why_reference=why)
    if compiler_installed():
        return choice
    from .choices.packed_choice import best_compiled, is_choice_compiled, warn_of_packed

    # Without a GPU the virtual one runs the kernel, which needs its PTX.
    if is_choice_compiled(choice, problem, arch, with_ptx=gpu is None):
        return choice

    def choose_compiled(one: Problem, among: Sequence[KernelSpec]) -> Choice:
        found = best_compiled(one, arch, among, gpu)
        if found is None:
            raise NoKernelError(())
        return found

    try:
        found = best_form(problem, registry, choose_compiled, gpu)
    except NoKernelError:
        return choice
    lacking = f"supported, but its compiled kernel ({choice.config}) is in no pack"
    refused = ((choice.spec.name, lacking), *choice.refusals)
    warn_of_packed(choice, problem, found)
    return dataclasses.replace(found, refusals=refused, source=f"{choice.spec.name} [{choice.config}] is in no pack")


def _why_reference(problem: GemmProblem, choose_one: Choose, arch: Arch, *, is_named: bool) -> str | None:
    """Return why the kernel of the same product of contiguous matrices, without C or epilogue, does not compute it."""
    if is_named:
        return "kernel= names it"
    types = problem.types
    m, n, k = (max(extent, 1) for extent in (problem.m, problem.n, problem.k))
    plain = contiguous_gemm(
        m,
        n,
        k,
        (types.a.name, types.b.name, types.d.name),
        batch=problem.batch,
        precision=problem.precision,
    )
    usual = best_form(plain, kernels_of("gemm"), choose_one, None)
    if usual.spec.name == GEMM_REFERENCE:
        return "it is predicted to be the fastest"
    spec, config = usual.spec, usual.config
    then = usual.next_kernel(plain)
    inner = then.problem if then is not None and then.then is None else None
    if then is not None and isinstance(inner, GemmProblem) and inner.batch == problem.batch and inner.k == problem.k:
        # The reason is that of the kernel which multiplies the prepared operands.
        spec, config = then.spec, then.config
        problem = dataclasses.replace(problem, a=inner.a, b=inner.b)
    reason = spec.why_not(problem, arch, config) or "it is predicted to be slower"
    return f"{spec.name}, the usual kernel for these types, does not run: {reason}"


def _choose(
    problem: Problem,
    arch: Arch,
    registry: Sequence[KernelSpec],
    multiprocessors: int | None,
    chip: str | None,
    tuned: bool,
) -> Choice:
    gpu = rates_for(chip, multiprocessors).on(arch) if multiprocessors is not None else None
    measured = None
    if tuned and chip is not None and isinstance(problem, GemmProblem):
        if is_recording():
            record_shape(problem, chip)
        measured = tuned_choice(problem, arch, registry, table_for(chip))
    refused: list[tuple[str, Reason]] = []
    # Kernels that take all but the batch: the reason to be shown, where no kernel takes the problem.
    limited: list[tuple[str, Reason]] = []
    parts: dict[int, tuple[Problem, int]] = {}
    candidates, after = candidates_of(problem, (tuple(registry), arch))
    for spec, before in candidates:
        refused += before
        if measured is not None and spec is measured.spec:
            return dataclasses.replace(measured, refusals=tuple(refused), gpu=gpu or H200_RATES.on(arch))
        if spec.batch_dims not in parts:
            parts[spec.batch_dims] = part_of(problem, spec)
        inner, launches = parts[spec.batch_dims]
        if spec.own_refuses is not None and spec.is_refused(inner, arch):
            refused.append((spec.name, functools.partial(spec.own_refuses, inner, arch)))
            continue
        if spec.defers_to is not None and measured is None and gpu is not None and launches <= MAX_LAUNCHES_SMALL:
            larger = spec.defers_to(inner, gpu) if why_not_epilogue(spec, inner) is None else None
            if (faster := supported_name(larger, problem, arch, registry)) is not None:
                refused.append((spec.name, f"supported, but {faster} has a lower predicted time"))
                continue
        config, reason, by, cost = config_for(spec, inner, arch, gpu)
        if config is None:
            refused.append((spec.name, reason))
        elif launches > max_launches(problem) and needs_fewer(spec, problem, arch, registry):
            refused.append((spec.name, f"it would need {launches} launches, one for each matrix of the batch"))
        elif (too_many := why_too_many(spec, problem, launches, registry)) is not None:
            limited.append((spec.name, too_many))
        elif measured is not None and not (spec.is_syrk and is_less(cost, measured)):
            refused.append((spec.name, f"supported, but {measured.spec.name} was measured to be faster"))
        elif (faster := _faster(spec, problem, parts[spec.batch_dims], cost, arch, gpu, registry)) is not None:
            refused.append((spec.name, f"supported, but {faster} has a lower predicted time"))
        else:
            predicted = cost * launches if cost is not None and spec.cost_in_us else None
            return Choice(spec, config, tuple(refused), by, predicted, gpu=gpu or H200_RATES.on(arch))
    raise NoKernelError(reasons_of((*refused, *after, *limited)))


def _faster(
    spec: KernelSpec,
    problem: Problem,
    part: tuple[Problem, int],
    cost: float | None,
    arch: Arch,
    gpu: GpuRates | None,
    registry: Sequence[KernelSpec],
) -> str | None:
    """Return the name of a later supported kernel with a lower predicted time, or None.

    `part` is the problem of a launch and the number of launches; `cost` is of one.
    """
    if cost is None or gpu is None:
        return None
    inner, launches = part
    if launches > 1 and spec.cost_in_us:
        name = faster_in_fewer(spec, problem, launches * cost, arch, gpu, registry)
        if name is not None:
            return name
    if spec.faster_alternative is None:
        return None
    name = supported_name(spec.faster_alternative(inner, cost, gpu), problem, arch, registry)
    if name is None or (other := by_name(registry)[name]).costs is None:
        return name
    inner, _ = part_of(problem, other)
    found = other.cheapest(inner, arch, gpu)
    # The time may be that of a config that the architecture lacks, such as a cluster.
    if found is not None and found[1] > other.least_cost(inner, gpu) and found[1] >= cost:
        return None
    return name


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
    if config is None or math.prod(outer) > max_launches(problem):
        return None
    predicted = entry.us if found.same else None
    return Choice(spec, config, (), "tuned", predicted, f"{found.source}: {entry.source}")


def tuned_config(spec: KernelSpec, entry: Entry, problem: GemmProblem, arch: Arch) -> Config | None:
    """Return the config of an entry for a part of its product; None if it is invalid or does not support the part."""
    try:
        config = spec.default.of_record(dict(entry.config))
        return config if spec.why_not(problem, arch, config) is None else None
    except (ValueError, TypeError, ArithmeticError):
        # Entries of other versions, or edited ones, must not fail a call. An ArgumentError is a ValueError, and so are
        # numbers too long to be formatted.
        return None


def why_no_gemm(dtypes: tuple[str, ...], arch: Arch) -> str | None:
    """Return why no kernel supports contiguous matrices of these types, or None."""
    try:
        choose(contiguous_gemm(1, 1, 1, dtypes), arch)
    except (DTypeError, UnsupportedError) as error:
        return str(error)
    return None


def why_not_through_gpu(dtypes: tuple[str, ...], arch: Arch) -> str | None:
    """Return why host arrays of these types do not pass through a GPU, or None."""
    if (reason := why_no_gemm(dtypes, arch)) is not None:
        return reason
    problem = contiguous_gemm(1, 1, 1, dtypes)
    # Parts of K are summed in the accumulators' type, and rounded to the result's by another product.
    if problem.scale_type != problem.accumulator:
        return f"{problem.a.dtype} products of host arrays become {problem.d.dtype} on the host"
    return None
