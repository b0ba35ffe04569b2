"""The specification of a kernel, and the choice of one."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from gemmule.core.dataclass import dataclass

from .arch import Arch
from .config import Config, configs_on
from .gpu_rates import H200_RATES, GpuRates
from .launch import Launch
from .problem import GemmProblem, Problem, inner_problem
from .problem_kind import CachedForKinds
from .spec_caches import Costs, LastCosts, Refuses, RefusesTypes, TypesThenOwn

#: Specialisation of a compiled kernel beyond its config: names and values, e.g. ``(("a", "float16"), …)``.
Signature = tuple[tuple[str, str], ...]
_WhyNot = Callable[[Any, Arch, Any], str | None]
#: Why a kernel was not chosen, or a function that returns it: few reasons are read.
Reason = str | Callable[[], str | None]


@dataclass(frozen=True)
class Buildable:
    """Input of the compiler: a `@cute.jit` callable and placeholders of its arguments."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class NextKernel:
    """The kernel launched after another one, on operands that the first prepared."""

    #: spec, config: The kernel, without a `next_kernel` of its own, and its config.
    spec: KernelSpec
    config: Config
    problem: Problem  #: Its problem, with at most as many batch dimensions as one launch of the first kernel covers.
    operands: Mapping[str, str]  #: Operand of the first problem, or workspace, for each of its operands.
    workspaces: Mapping[str, int]  #: Bytes of the workspaces of all launches, by the names of the launch recipes.
    #: Byte offsets of operands in that memory, where they are not 0.
    beyond: Mapping[str, int] = dataclasses.field(default_factory=dict)
    then: NextKernel | None = None  #: The kernel after it; its workspaces are among those of the first.

    def chain(self) -> Iterator[NextKernel]:
        """Yield this and the later kernels in order."""
        one: NextKernel | None = self
        while one is not None:
            yield one
            one = one.then


def _unset(config: Any, signature: Signature) -> Buildable:
    raise NotImplementedError


# Slots, as an instance's dictionary of so many fields is slow to read.
@dataclasses.dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel of the registry. Specs import only core and kernels, and kernel.py in `build`.

    A spec states limits in three functions: `refuses_types` by the types alone, `refuses` by the problem, `why_not` by
    the config. In the instance `refuses` and `why_not` include those before; `own_refuses` and `own_why_not` do not,
    for a choice, which evaluates each once. `is_refused` and `takes` are the same as yes or no, one look-up each.

    It states times in `costs` (or `cost`). Before they are predicted `defers_to` may name a kernel that is surely
    faster, after that `faster_alternative` one whose prediction is lower.
    """

    name: str  #: Name of the kernel, e.g. ``gemm_reference``.
    operation: str  #: ``gemm`` or ``transpose``.
    summary: str  #: One line.
    package: str  #: Package of kernel.py, whose import closure is part of the cache's key.
    archs: tuple[Arch, ...]  #: Oldest supported architecture of each kind; newer ones are supported too.
    configs: tuple[Config, ...]  #: Every config, the default one first.
    #: ``signatures(arch)`` are the specialisations that tests compile for `arch`.
    signatures: Callable[[Arch], tuple[Signature, ...]] = dataclasses.field(compare=False)
    #: ``why_not(problem, arch, config)`` is None where the kernel supports the problem, else the reason. With `refuses`
    #: the only statement of the kernel's limits; a spec gives only those that depend on the config.
    why_not: _WhyNot = dataclasses.field(compare=False)
    #: ``signature(problem, config)`` is the specialisation for a problem.
    signature: Callable[[Any, Any], Signature] = dataclasses.field(compare=False)
    #: ``launch(problem, config)`` is the launch recipe. The problem has at most `batch_dims` batch dimensions.
    launch: Callable[[Any, Any], Launch] = dataclasses.field(compare=False)
    #: ``build(config, signature)`` imports kernel.py and returns the compiler's input; by default ``buildable(config,
    #: dict(signature))`` of ``package.kernel``.
    build: Callable[[Any, Signature], Buildable] = dataclasses.field(default=_unset, compare=False)
    batch_dims: int = 1  #: Batch dimensions that one launch covers.
    #: Whether source and target of a transpose are the same memory; all other kernels require distinct memory.
    in_place: bool = False
    #: epilogues, gated, absmax, block_scales: Whether it supports epilogues, those of two products, the absolute
    #: maximum, and scales of A and B by blocks; else `why_not` refuses them.
    epilogues: bool = False
    gated: bool = False
    absmax: bool = False
    block_scales: bool = False
    #: ``cost(problem, config, gpu)`` is a measure of a config's time: the least is chosen, of equals the first. By
    #: default from `costs`. Without either, configs are compared by their tiles.
    cost: Callable[[Any, Any, GpuRates], float] | None = dataclasses.field(default=None, compare=False)
    #: ``next_kernel(problem, config, gpu)`` is launched after the kernel, which only prepares operands.
    next_kernel: Callable[[Any, Any, GpuRates], NextKernel] | None = dataclasses.field(default=None, compare=False)
    #: ``refuses(problem, arch)`` is the reason why no config supports a problem, or None. `why_not` includes it; a
    #: choice evaluates it once, not once a config: once for all products of a kind (`problem_kind`), which it must not
    #: tell apart. The problem has at most `batch_dims` batch dimensions.
    refuses: Refuses | None = dataclasses.field(default=None, compare=False)
    #: ``refuses_types(types, arch)`` is the reason why no product of such types is supported, or None. `refuses`
    #: includes it: a spec gives there only the other reasons. A choice looks it up.
    refuses_types: RefusesTypes | None = dataclasses.field(default=None, compare=False)
    #: ``costs(problem, configs, gpu)`` are the costs of many configs, faster than one by one.
    costs: Costs | None = dataclasses.field(default=None, compare=False)
    #: ``ctas(problem, config)`` is the number of CTAs, where that is faster than the launch recipe.
    ctas: Callable[[Any, Any], int] | None = dataclasses.field(default=None, compare=False)
    cost_in_us: bool = False  #: Whether costs are predicted times in microseconds.
    #: ``extra_configs()`` are additional configs for a search.
    extra_configs: Callable[[], Sequence[Config]] | None = dataclasses.field(default=None, compare=False)
    #: ``faster_alternative(problem, cost, gpu)`` is the name of a later kernel with a lower predicted time, or None.
    faster_alternative: Callable[[Any, float, GpuRates], str | None] | None = dataclasses.field(
        default=None, compare=False
    )
    #: ``defers_to(problem, gpu)`` is the name of a later kernel that is surely faster for a problem, if that takes it,
    #: or None: then no time is predicted.
    defers_to: Callable[[Any, GpuRates], str | None] | None = dataclasses.field(default=None, compare=False)
    #: Whether it is a SYRK kernel, which computes half of a product of a matrix and its own transpose.
    is_syrk: bool = False
    #: own_refuses, own_why_not: `refuses` without the reasons of `refuses_types`, and `why_not` without those of
    #: `refuses`: for a choice, which evaluates one after the other.
    own_refuses: Refuses | None = dataclasses.field(init=False, compare=False)
    #: ``is_refused(problem, arch)`` is whether `refuses` gives a reason: one look-up for a product of a known kind.
    is_refused: Callable[[Any, Arch], bool] = dataclasses.field(init=False, compare=False)
    own_why_not: _WhyNot = dataclasses.field(init=False, compare=False)
    #: ``takes(problem, arch)`` is whether some config supports a problem of at most `batch_dims` batch dimensions: one
    #: look-up like `is_refused`.
    takes: Callable[[Any, Arch], bool] = dataclasses.field(init=False, compare=False)
    #: Configs for GPUs by their SMs; `configs_on` returns them.
    _configs_on: dict[int, tuple[Config, ...]] = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        def fill(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        if self.build is _unset:
            fill("build", functools.partial(_build, self.package))
        if self.cost is None and self.costs is not None:
            fill("cost", functools.partial(_cost, self.costs))
        if self.costs is not None:
            fill("costs", LastCosts(self.costs))
        fill("own_refuses", self.refuses)
        fill("own_why_not", functools.partial(_own_why_not, self, self.why_not))
        if self.refuses_types is not None:
            fill("refuses", TypesThenOwn(self.refuses_types, self.refuses))
        fill("is_refused", CachedForKinds(functools.partial(_is_refused, self.refuses)))
        fill("why_not", functools.partial(_why_not, self))
        fill("takes", CachedForKinds(functools.partial(_takes, self)))
        fill("_configs_on", {})

    @property
    def default(self) -> Config:
        """The first config."""
        return self.configs[0]

    def configs_on(self, gpu: GpuRates | None) -> tuple[Config, ...]:
        """Return the configs for a GPU: persistent ones with one CTA an SM; unchanged for None."""
        if gpu is None:
            return self.configs
        found = self._configs_on.get(gpu.multiprocessors)
        if found is None:
            found = self._configs_on[gpu.multiprocessors] = configs_on(self.configs, gpu.multiprocessors)
        return found

    def cache_costs(self, problem: Problem, configs: Sequence[Any], gpu: GpuRates, costs: Any) -> None:
        """Cache the costs of a problem that were predicted together with others, for the next calls of `costs`."""
        assert isinstance(self.costs, LastCosts)
        self.costs.keep(problem, configs, gpu, costs)

    def by_cost(self, problem: Problem, gpu: GpuRates) -> Iterator[tuple[Config, float]]:
        """Yield the configs and their costs, the least first; the others are not sorted where the first is supported.

        For kernels with `costs`; the problem is none that `refuses`, of at most `batch_dims` batch dimensions.
        """
        assert isinstance(self.costs, LastCosts)
        configs = self.configs_on(gpu)
        if not configs:
            # No cluster fits into a part of a GPU (MIG).
            return
        costs, first = self.costs.with_least(problem, configs, gpu)
        yield configs[first], float(costs[first])
        for number in sorted(range(len(costs)), key=costs.__getitem__):
            if number != first:
                yield configs[number], float(costs[number])

    def least_cost(self, problem: Problem, gpu: GpuRates) -> float:
        """Return the least cost of all configs, whether they are supported or not, infinity where there are none.

        For problems as of `by_cost`.
        """
        assert isinstance(self.costs, LastCosts)
        if not (configs := self.configs_on(gpu)):
            return math.inf
        costs, first = self.costs.with_least(problem, configs, gpu)
        return float(costs[first])

    def cheapest(self, problem: Problem, arch: Arch, gpu: GpuRates) -> tuple[Config, float] | None:
        """Return the supported config of least cost, and the cost; None where no config supports the problem.

        For problems as of `by_cost`.
        """
        supported = (one for one in self.by_cost(problem, gpu) if self.own_why_not(problem, arch, one[0]) is None)
        if (eligible := gpu.eligible) is not None:
            supported = (one for one in supported if eligible(self, problem, one[0]))
        return next(supported, None)


def _build(package: str, config: Any, signature: Signature) -> Any:
    return importlib.import_module(f"{package}.kernel").buildable(config, dict(signature))


def _cost(costs: Costs, problem: Any, config: Any, gpu: GpuRates) -> float:
    return float(costs(problem, [config], gpu)[0])


def _is_refused(refuses: Refuses | None, problem: Problem, arch: Arch) -> bool:
    return refuses is not None and refuses(problem, arch) is not None


def _takes(spec: KernelSpec, problem: Problem, arch: Arch) -> bool:
    if spec.is_refused(problem, arch):
        return False
    # From the last on, which are for 8-bit floats: most others refuse these.
    return any(spec.own_why_not(problem, arch, config) is None for config in reversed(spec.configs))


def _why_not(spec: KernelSpec, problem: Problem, arch: Arch, config: Any) -> str | None:
    if reason := why_not_epilogue(spec, problem):
        return reason
    reason = spec.refuses(inner_problem(problem, spec.batch_dims), arch) if spec.refuses is not None else None
    return reason or spec.own_why_not(problem, arch, config)


def _own_why_not(spec: KernelSpec, own: _WhyNot, problem: Problem, arch: Arch, config: Any) -> str | None:
    return why_not_epilogue(spec, problem) or own(problem, arch, config)


def why_not_epilogue(spec: KernelSpec, problem: Problem) -> str | None:
    """Return why a kernel computes no such epilogue, or None where it does, or the problem has none."""
    epilogue = problem.epilogue if isinstance(problem, GemmProblem) else None
    if epilogue is not None:
        if not spec.epilogues:
            return "it computes no epilogue (a bias or a function of the product)"
        if epilogue.second is not None and not spec.gated:
            return "it computes no gated epilogue (a function of two products)"
        if epilogue.absmax and not spec.absmax:
            return "it computes no absolute maximum"
        if epilogue.scales is not None and not spec.block_scales:
            return "it takes no scales by block"
    return None


def reasons_of(refusals: Iterable[tuple[str, Reason]]) -> tuple[tuple[str, str], ...]:
    """Return the names of kernels and the texts of their reasons."""
    return tuple((name, (reason if isinstance(reason, str) else reason()) or "") for name, reason in refusals)


@dataclass(frozen=True)
class ChainedLaunch:
    """One of the launches of a problem, as every executor queues it."""

    #: spec, config, problem: Kernel, config, and the problem of this launch.
    spec: KernelSpec
    config: Config
    problem: Problem
    launch: Launch  #: The recipe; its grid is not empty.
    #: operands, beyond: As of `NextKernel`.
    operands: Mapping[str, str]
    beyond: Mapping[str, int]


class ProductForm(Protocol):
    """A form in which a product is computed, where not as it is, such as those of `core.product_forms`."""

    @property
    def kernels(self) -> tuple[tuple[KernelSpec, Config], ...]:
        """Kernels and configs of the launches beside those of the product."""

    @property
    def name(self) -> str:
        """Which form it is."""

    @property
    def batch_dims(self) -> int:
        """Return the batch dimensions of a problem that its launches cover, if more than those of the kernel."""

    def product(self, problem: GemmProblem) -> tuple[GemmProblem, dict[str, str]]:
        """Return the problem of the kernel, and the names of operands by its own, where they differ."""

    def steps(self, inner: GemmProblem) -> tuple[Any, ...]:
        """Return the launches beside those of the product, each a `Step`."""

    def workspaces(self, inner: GemmProblem) -> dict[str, int]:
        """Return the bytes of the form's own workspaces by name."""


@dataclass(frozen=True)
class Choice:
    """A kernel chosen for a problem."""

    #: spec, config: Kernel and config.
    spec: KernelSpec
    config: Config
    #: Kernels of higher rank, and why they were not chosen; `refused` has the texts.
    refusals: tuple[tuple[str, Reason], ...] = dataclasses.field(default=(), compare=False)
    #: ``tuned``: by measured time; ``cost``: by least predicted cost; ``single``: without alternative; ``packed``:
    #: compiled already, where the compiler is not installed.
    chosen_by: str = "single"
    predicted_us: float | None = None  #: Measured or predicted time in microseconds, if there is one.
    source: str = ""  #: Source of a tuned config; of a packed kernel, the one that is missing; empty for others.
    gpu: GpuRates = H200_RATES  #: Rates of the GPU of the choice, by which the next kernel is chosen too.
    form: ProductForm | None = None  #: The form in which the kernel computes a product; None for the product as it is.
    #: Returns why the reference kernel was chosen; None where another one was.
    why_reference: Callable[[], str | None] | None = dataclasses.field(default=None, compare=False)

    @property
    def refused(self) -> tuple[tuple[str, str], ...]:
        """Kernels of higher rank, and why they were not chosen."""
        return reasons_of(self.refusals)

    @property
    def batch_dims(self) -> int:
        """Batch dimensions that the launches cover; those of a form may be more than a kernel's."""
        return self.spec.batch_dims if self.form is None else max(self.spec.batch_dims, self.form.batch_dims)

    def product(self, problem: Problem) -> tuple[Problem, dict[str, str]]:
        """Return the problem that the kernel computes, and the given operands' names by its own, where they differ."""
        if self.form is None or not isinstance(problem, GemmProblem):
            return problem, {}
        return self.form.product(problem)

    def further(self, inner: Problem) -> tuple[tuple[ChainedLaunch, ...], tuple[ChainedLaunch, ...]]:
        """Return the launches beside those of the product, which its form takes: those before it, and those after."""
        if self.form is None or not isinstance(inner, GemmProblem):
            return (), ()
        found: tuple[list[ChainedLaunch], list[ChainedLaunch]] = ([], [])
        for one, (spec, config) in zip(self.form.steps(inner), self.form.kernels, strict=True):
            step = one.by(spec)
            problem = inner_problem(step.problem, spec.batch_dims)
            launch = spec.launch(problem, config)
            found[step.is_last].append(ChainedLaunch(spec, config, problem, launch, step.operands, step.beyond))
        return tuple(found[0]), tuple(found[1])

    def signature(self, problem: Problem) -> Signature:
        """Return the kernel's specialisation for a problem, that of each launch."""
        return self.spec.signature(self.product(inner_problem(problem, self.batch_dims))[0], self.config)

    def next_kernel(self, problem: Problem) -> NextKernel | None:
        """Return the kernel launched after this one, for a problem with any batch, or None."""
        if self.spec.next_kernel is None:
            return None
        inner, _ = self.product(inner_problem(problem, self.batch_dims))
        return self.spec.next_kernel(inner, self.config, self.gpu)

    def launches(self, inner: Problem) -> tuple[tuple[ChainedLaunch, ...], dict[str, int]]:
        """Return the launches of a problem in order, and the bytes of their workspaces by name.

        Launches with an empty grid are left out, e.g. the packing of operands for K = 0. The last launch writes the
        result; if its grid is empty, there are no launches. `inner` has at most `batch_dims` batch dimensions.
        """
        product, given = self.product(inner)
        chain = [ChainedLaunch(self.spec, self.config, product, self.spec.launch(product, self.config), given, {})]
        workspaces: dict[str, int] = {}
        if self.spec.next_kernel is not None:
            then = self.spec.next_kernel(product, self.config, self.gpu)
            workspaces.update(then.workspaces)
            for one in then.chain():
                recipe = one.spec.launch(one.problem, one.config)
                operands = {**given, **{name: given.get(of, of) for name, of in one.operands.items()}}
                chain.append(ChainedLaunch(one.spec, one.config, one.problem, recipe, operands, one.beyond))
        if self.form is not None and isinstance(inner, GemmProblem):
            workspaces |= self.form.workspaces(inner)
            before, after = self.further(inner)
            chain = [*before, *chain, *after]
        if 0 in chain[-1].launch.grid:
            return (), {}
        launches = tuple(one for one in chain if 0 not in one.launch.grid)
        return launches, workspaces | {one.name: one.nbytes for step in launches for one in step.launch.workspaces}

    def clears_absmax(self, problem: Problem) -> bool:
        """Return whether the launches of a problem clear its absolute maximum, which else is cleared before them."""
        chain, _ = self.launches(inner_problem(problem, self.batch_dims))
        return bool(chain) and chain[-1].launch.clears_absmax

    def workspaces(self, problem: Problem) -> dict[str, int]:
        """Return the bytes of the launches' workspaces by name."""
        return self.launches(inner_problem(problem, self.batch_dims))[1]
