"""What a kernel says of itself."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from .arch import Arch
from .errors import ArgumentError
from .gpu_rates import H200_RATES, GpuRates
from .last_call_cache import cache_for_configs
from .launch import Launch
from .problem import GemmProblem, Problem, split_batch

#: What one compiled kernel is specialised for, beyond its config: names and values, e.g. ``(("a", "float16"), …)``.
Signature = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of the kernels' configs: frozen dataclasses with numbers only, from 1 on unless the class says otherwise.

    State: `switches`, names of fields that are 0 or 1; `from_zero`, of those in which 0 has a meaning of its own.
    """

    switches: ClassVar[frozenset[str]] = frozenset()
    from_zero: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        # What is read from a file may be anything: an empty grid would leave a result as it was.
        for name, value in vars(self).items():
            if name in self.switches and value not in (0, 1):
                raise ArgumentError(f"config {self}: {name} must be 0 or 1")
            least = 0 if name in self.switches | self.from_zero else 1
            if value < least:
                raise ArgumentError(f"config {self}: {name} must be {least} or more")

    @property
    def outputs(self) -> int:
        """Elements of the result that a CTA computes; 1 where configs do not differ in it."""
        return 1

    def on(self, multiprocessors: int) -> Config:
        """Return the config with a CTA for each SM of a GPU, where its field `ctas` says how many share all tiles."""
        ctas = vars(self).get("ctas", multiprocessors)
        if ctas == multiprocessors:
            return self
        changed: dict[str, Any] = {"ctas": multiprocessors}
        return dataclasses.replace(self, **changed)

    def as_dict(self) -> dict[str, int]:
        """Return the config's fields."""
        return dict(vars(self))

    def is_recorded(self, fields: Mapping[str, int]) -> bool:
        """Say whether fields of a record name this config; what came later, and is not in it, is as it comes."""
        return self.as_dict() == type(self)().as_dict() | dict(fields)

    def __str__(self) -> str:
        return _text(self)


@functools.lru_cache(maxsize=1024)
def _text(config: Config) -> str:
    # Kept: kernels name the config that they refuse, one after another, with every choice.
    return " ".join(f"{name}={value}" for name, value in config.as_dict().items()) or "default"


@dataclasses.dataclass(frozen=True)
class Buildable:
    """What the compiler is given: a `@cute.jit` callable and the stand-ins for its arguments."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class NextKernel:
    """The kernel that is launched after another one, on operands that this prepared.

    Attributes
    ----------
    spec : KernelSpec
        The kernel, which has no next kernel itself.
    config : Config
        Its config.
    problem : GemmProblem or TransposeProblem
        What it computes, with at most as many batch dimensions as the first kernel takes.
    operands : mapping of str to str
        For each of its operands the problem's own, or the workspace that the first kernel filled.
    workspaces : mapping of str to int
        Bytes of device memory that all launches need in addition, by names that launch recipes use.
    beyond : mapping of str to int
        For operands that begin later than what `operands` names, how many bytes later.
    then : NextKernel or None
        The kernel that is launched after it; its workspaces are among those of the first one.
    """

    spec: KernelSpec
    config: Config
    problem: Problem
    operands: Mapping[str, str]
    workspaces: Mapping[str, int]
    beyond: Mapping[str, int] = dataclasses.field(default_factory=dict)
    then: NextKernel | None = None

    def chain(self) -> Iterator[NextKernel]:
        """Yield it, and what is launched after it, in order."""
        one: NextKernel | None = self
        while one is not None:
            yield one
            one = one.then


def _unset(config: Any, signature: Signature) -> Buildable:
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class KernelSpec:
    """A kernel as the registry knows it. Making one imports nothing but core.

    Attributes
    ----------
    name : str
        Folder and name of the kernel, e.g. ``gemm_reference``.
    operation : str
        ``gemm`` or ``transpose``.
    summary : str
        One line.
    package : str
        The package that holds kernel.py; the import closure of that is part of the cache's key.
    archs : tuple of Arch
        Oldest architecture of each kind that the kernel claims: it runs there and on newer ones.
    configs : tuple of Config
        Every config, the default one first.
    signatures : callable
        ``signatures(arch)`` are the specialisations that tests compile for `arch`: every combination of element types
        that matters.
    why_not : callable
        ``why_not(problem, arch, config)`` is None where the kernel can take the problem, else the reason. With
        `refuses` the only statement of the kernel's limits: a spec gives here only what depends on the config.
    signature : callable
        ``signature(problem, config)`` is what the kernel must be specialised for.
    launch : callable
        ``launch(problem, config)`` is the launch recipe. The problem has at most `batch_dims` batch dimensions.
    build : callable, optional
        ``build(config, signature)`` imports kernel.py and returns what is to be compiled; ``buildable(config,
        dict(signature))`` of ``package.kernel`` unless given.
    batch_dims : int
        Batch dimensions that one launch covers.
    in_place : bool
        Whether it transposes within one memory; all others read the source while they write the target.
    epilogues : bool
        Whether it knows epilogues; where it does not, `why_not` refuses them by itself.
    gated, absmax : bool
        Whether it knows epilogues of two factors, and the absolute maximum; so too.
    cost : callable, optional
        ``cost(problem, config, gpu)`` is roughly the time of a config on a GPU, in any unit: the least is chosen, of
        equals the first. By `costs` where that is given. Without both, configs are compared by the size of their tiles.
    next_kernel : callable, optional
        ``next_kernel(problem, config, gpu)`` is launched after the kernel, where this only prepares operands.
    refuses : callable, optional
        ``refuses(problem, arch)`` is the reason for which no config takes a problem, or None: `why_not` begins with it,
        and a choice evaluates it once instead of once a config. The problem has at most `batch_dims` batch dimensions.
    costs : callable, optional
        ``costs(problem, configs, gpu)`` are the costs of many configs, faster than one after the other.
    ctas : callable, optional
        ``ctas(problem, config)`` is how many CTAs a launch has, where that is faster to tell than by the launch recipe.
    cost_in_us : bool
        Whether costs are microseconds, and may be told as a prediction.
    further : callable, optional
        ``further()`` are configs that only a search takes into account, beside `configs`.
    outdone : callable, optional
        ``outdone(problem, cost, gpu)`` is the name of a later kernel that is expected to be faster than this one with
        that cost, where it takes the problem too; else None.
    mirrors : bool
        Whether it computes a half of products of a matrix and its own transpose, which plain products say nothing of.
    """

    name: str
    operation: str
    summary: str
    package: str
    archs: tuple[Arch, ...]
    configs: tuple[Config, ...]
    signatures: Callable[[Arch], tuple[Signature, ...]] = dataclasses.field(compare=False)
    why_not: Callable[[Any, Arch, Any], str | None] = dataclasses.field(compare=False)
    signature: Callable[[Any, Any], Signature] = dataclasses.field(compare=False)
    launch: Callable[[Any, Any], Launch] = dataclasses.field(compare=False)
    build: Callable[[Any, Signature], Buildable] = dataclasses.field(default=_unset, compare=False)
    batch_dims: int = 1
    in_place: bool = False
    epilogues: bool = False
    gated: bool = False
    absmax: bool = False
    cost: Callable[[Any, Any, GpuRates], float] | None = dataclasses.field(default=None, compare=False)
    next_kernel: Callable[[Any, Any, GpuRates], NextKernel] | None = dataclasses.field(default=None, compare=False)
    refuses: Callable[[Any, Arch], str | None] | None = dataclasses.field(default=None, compare=False)
    costs: Callable[[Any, Sequence[Any], GpuRates], Sequence[float]] | None = dataclasses.field(
        default=None, compare=False
    )
    ctas: Callable[[Any, Any], int] | None = dataclasses.field(default=None, compare=False)
    cost_in_us: bool = False
    further: Callable[[], Sequence[Config]] | None = dataclasses.field(default=None, compare=False)
    outdone: Callable[[Any, float, GpuRates], str | None] | None = dataclasses.field(default=None, compare=False)
    mirrors: bool = False

    def __post_init__(self) -> None:
        def fill(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        if self.build is _unset:
            fill("build", functools.partial(_build, self.package))
        if self.cost is None and self.costs is not None:
            fill("cost", functools.partial(_cost, self.costs))
        if self.refuses is not None:
            fill("why_not", functools.partial(_refused_first, self.refuses, self.why_not, self.batch_dims))
        if not (self.epilogues and self.gated and self.absmax):
            known = (self.epilogues, self.gated, self.absmax)
            fill("why_not", functools.partial(_without_epilogue, self.why_not, known))

    @property
    def default(self) -> Config:
        """The config used where nothing better is known."""
        return self.configs[0]

    def configs_on(self, gpu: GpuRates | None) -> tuple[Config, ...]:
        """Return the configs with as many CTAs as a GPU has SMs; as they are where None is known."""
        return self.configs if gpu is None else configs_on(self.configs, gpu.multiprocessors)

    def cheapest(self, problem: Problem, arch: Arch, gpu: GpuRates) -> tuple[Config, float] | None:
        """Return the config with the least cost of those that take a problem, and the cost; None where none does.

        For kernels that are given costs of many configs; the problem has at most `batch_dims` batch dimensions.
        """
        assert self.costs is not None
        configs = self.configs_on(gpu)
        costs = self.costs(problem, configs, gpu)
        for number in sorted(range(len(costs)), key=costs.__getitem__):
            if self.why_not(problem, arch, configs[number]) is None:
                return configs[number], costs[number]
        return None


@cache_for_configs
def configs_on(configs: tuple[Config, ...], multiprocessors: int) -> tuple[Config, ...]:
    """Return configs with as many CTAs as a GPU has SMs, without those whose clusters have more."""
    found = tuple(one.on(multiprocessors) for one in configs if getattr(one, "cluster", 1) <= multiprocessors)
    return configs if found == configs else found


def _build(package: str, config: Any, signature: Signature) -> Buildable:
    found: Buildable = importlib.import_module(f"{package}.kernel").buildable(config, dict(signature))
    return found


def _cost(
    costs: Callable[[Any, Sequence[Any], GpuRates], Sequence[float]], problem: Any, config: Any, gpu: GpuRates
) -> float:
    return costs(problem, [config], gpu)[0]


def _refused_first(
    refuses: Callable[[Any, Arch], str | None],
    why_not: Callable[[Any, Arch, Any], str | None],
    batch_dims: int,
    problem: Any,
    arch: Arch,
    config: Any,
) -> str | None:
    return refuses(split_batch(problem, batch_dims)[0], arch) or why_not(problem, arch, config)


def _without_epilogue(
    why_not: Callable[[Any, Arch, Any], str | None],
    known: tuple[bool, bool, bool],
    problem: Problem,
    arch: Arch,
    config: Any,
) -> str | None:
    epilogue = problem.epilogue if isinstance(problem, GemmProblem) else None
    if epilogue is not None:
        epilogues, gated, absmax = known
        if not epilogues:
            return "it computes no epilogue (a bias or a function of the product)"
        if epilogue.second is not None and not gated:
            return "it computes no gated epilogue (a function of two products)"
        if epilogue.absmax and not absmax:
            return "it keeps no absolute maximum"
    return why_not(problem, arch, config)


@dataclasses.dataclass(frozen=True)
class ChainedLaunch:
    """One of the launches that make a problem, as every executor queues it.

    Attributes
    ----------
    spec, config, problem
        Kernel, config, and what this launch computes.
    launch : Launch
        The recipe; its grid is not empty.
    operands : mapping of str to str
        The problem's own operand, or the workspace, for each name of the recipe that calls it otherwise.
    beyond : mapping of str to int
        Bytes from the beginning of that memory to the operand, where it does not begin there.
    """

    spec: KernelSpec
    config: Config
    problem: Problem
    launch: Launch
    operands: Mapping[str, str]
    beyond: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Choice:
    """A kernel chosen for a problem.

    Attributes
    ----------
    spec, config
        Kernel and config.
    refused : tuple of (str, str)
        Kernels that were asked before, and why they are not taken.
    chosen_by : str
        ``tuned``: it was measured; ``cost``: its predicted cost is the least; ``only one``: nothing else was compared.
    predicted_us : float or None
        Expected time in microseconds: the one that was measured, or the predicted one; None where neither is known.
    source : str
        Where a tuned config comes from; empty for others.
    gpu : GpuRates
        Rates of the GPU that it was chosen for: the next kernel is chosen by them too.
    """

    spec: KernelSpec
    config: Config
    refused: tuple[tuple[str, str], ...] = ()
    chosen_by: str = "only one"
    predicted_us: float | None = None
    source: str = ""
    gpu: GpuRates = H200_RATES

    def signature(self, problem: Problem) -> Signature:
        """Return what the kernel must be specialised for."""
        return self.spec.signature(problem, self.config)

    def next_kernel(self, problem: Problem) -> NextKernel | None:
        """Return what is launched after the kernel for a problem with any batch, or None."""
        if self.spec.next_kernel is None:
            return None
        inner, _, _ = split_batch(problem, self.spec.batch_dims)
        return self.spec.next_kernel(inner, self.config, self.gpu)

    def launches(self, inner: Problem) -> tuple[tuple[ChainedLaunch, ...], dict[str, int]]:
        """Return the launches that make a problem, in order, and the bytes of their workspaces by name.

        A launch with an empty grid has nothing to prepare, and is left out: a product of K = 0 has no operands to pack,
        but a result to write. The last launch writes the result; where its grid is empty, nothing is launched.

        Parameters
        ----------
        inner : GemmProblem or TransposeProblem
            A problem of at most `spec.batch_dims` batch dimensions.
        """
        chain = [ChainedLaunch(self.spec, self.config, inner, self.spec.launch(inner, self.config), {}, {})]
        workspaces: dict[str, int] = {}
        if self.spec.next_kernel is not None:
            then = self.spec.next_kernel(inner, self.config, self.gpu)
            workspaces.update(then.workspaces)
            for one in then.chain():
                recipe = one.spec.launch(one.problem, one.config)
                chain.append(ChainedLaunch(one.spec, one.config, one.problem, recipe, one.operands, one.beyond))
        if 0 in chain[-1].launch.grid:
            return (), {}
        taken = tuple(one for one in chain if 0 not in one.launch.grid)
        return taken, workspaces | {one.name: one.nbytes for step in taken for one in step.launch.workspaces}

    def workspaces(self, problem: Problem) -> dict[str, int]:
        """Return the bytes of device memory that its launches need beyond the operands, by name."""
        return self.launches(split_batch(problem, self.spec.batch_dims)[0])[1]
