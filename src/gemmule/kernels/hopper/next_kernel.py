"""The kernel that multiplies what another one has prepared."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gemmule.core.alternatives import Alternatives
from gemmule.core.arch import Arch
from gemmule.core.config import Config
from gemmule.core.epilogue_inputs import num_b_of
from gemmule.core.errors import ArgumentError, NoKernelError
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.problem_kind import CachedForKinds
from gemmule.core.product_forms import GATE, SUMS, Form, has_sums
from gemmule.core.spec import KernelSpec, NextKernel
from gemmule.kernels.simt.reference.spec import SPEC as REFERENCE

from .refusals import HOPPER

#: Most bytes of copies, or of accumulators, in workspaces.
MOST_WORKSPACE = 16 << 30
#: Microseconds on an H200 from one product to the next.
_LAUNCH = 1.3


class Prepared(NamedTuple):
    """The product of operands that a kernel has prepared."""

    problem: GemmProblem  #: The product.
    #: operands, workspaces: As of `NextKernel`.
    operands: Mapping[str, str]
    workspaces: Mapping[str, int]


@dataclasses.dataclass
class WorkspaceCopy:
    """The copy of an operand in a workspace."""

    #: operand, workspace: Name of the operand, and that of the workspace in launch recipes.
    operand: str
    workspace: str
    copy: StridedMatrix  #: The copy.
    nbytes: int  #: Bytes of the workspace.


def with_copies(problem: GemmProblem, copies: Iterable[WorkspaceCopy]) -> Prepared:
    """Return a product with copies in place of the operands that they are of."""
    matrices = problem.operands()
    operands, workspaces = {name: name for name in matrices}, {}
    for one in copies:
        matrices[one.operand], operands[one.operand] = one.copy, one.workspace
        workspaces[one.workspace] = one.nbytes
    return Prepared(problem.with_operands(problem.batch, matrices), operands, workspaces)


class Launched(NamedTuple):
    """A launch of a product of prepared operands."""

    #: spec, config: Its kernel and config.
    spec: KernelSpec
    config: Config
    problem: GemmProblem  #: Its problem.
    names: Mapping[str, str]  #: Operands of the prepared product, or workspaces, by its own, where they differ.


class Multiplied(NamedTuple):
    """The launches of a product of prepared operands."""

    launches: tuple[Launched, ...]  #: In their order.
    cost: float  #: Predicted cost; infinity without a prediction.
    workspaces: Mapping[str, int] = {}  #: Bytes of their own workspaces by name.


class NextProduct:
    """The product that follows the preparation of its operands, for the spec of the kernel that prepares them.

    A gated epilogue is two products where no kernel takes it, or where two are faster.

    Parameters
    ----------
    prepare : callable
        ``prepare(problem)`` is the product of the prepared operands.
    specs : sequence of KernelSpec
        Kernels that may compute it, best first.
    predicted : callable, optional
        ``predicted(problem, gpu)`` are the kernel that computes it and that kernel's costs, where these are predicted
        together with those of operands as they are; None elsewhere.
    """

    def __init__(
        self,
        prepare: Callable[[GemmProblem], Prepared],
        specs: Sequence[KernelSpec],
        predicted: Callable[[GemmProblem, GpuRates], tuple[KernelSpec, Any] | None] = lambda _problem, _gpu: None,
    ) -> None:
        self.prepare, self.specs, self._predicted = cache_last_call(prepare), specs, predicted
        # A choice needs it several times in a row; a plan and the launch need that of an equal problem later.
        self.chosen = cache_last_call(self._choose)
        self.kernel = cache_last_call(functools.lru_cache(maxsize=256)(self._kernel))
        self._takers = CachedForKinds(self._find_takers)

    def _find_takers(self, problem: GemmProblem, arch: Arch) -> list[KernelSpec]:
        prepared = self.prepare(problem).problem
        return [spec for spec in self.specs if not spec.is_refused(prepared, arch)]

    def _choose(self, problem: GemmProblem, gpu: GpuRates) -> Multiplied:
        prepared = self.prepare(problem).problem
        if (known := self._predicted(problem, gpu)) is not None:
            spec, costs = known
            spec.cache_costs(prepared, spec.configs_on(gpu), gpu, costs)
        found = _choose_among(prepared, self._takers(problem, gpu.arch), gpu)
        earlier = self.specs if found is None else self.specs[: self.specs.index(found[0])]
        other = _in_form(prepared, earlier, gpu)
        if found is not None:
            spec, config, cost = found
            own = Multiplied((Launched(spec, config, prepared, {}),), math.inf if cost is None else cost)
            if other is None or own.cost < other.cost:
                return own
        if other is None:
            raise _no_next(prepared, self.specs, gpu)
        return other

    def _kernel(self, problem: GemmProblem, gpu: GpuRates) -> NextKernel:
        """Return the kernel and config that suit the product."""
        prepared, multiplied = self.prepare(problem), self.chosen(problem, gpu)
        workspaces = {**prepared.workspaces, **multiplied.workspaces}
        found: NextKernel | None = None
        for spec, config, one, names in reversed(multiplied.launches):
            given = {name: names.get(name, name) for name in one.operands()}
            operands = {name: prepared.operands.get(of, of) for name, of in given.items()}
            found = NextKernel(spec, config, one, operands, workspaces, then=found)
        assert found is not None
        return found

    def cost(self, problem: GemmProblem, gpu: GpuRates) -> float:
        """Return the microseconds that the product is expected to take, of kernels that predict times."""
        alone = num_b_of(problem.epilogue) == 1 and gpu.eligible is None
        if alone and (known := self._predicted(problem, gpu)) is not None:
            # The product itself is made when it is needed.
            return float(known[1][known[1].argmin()])
        return self.chosen(problem, gpu).cost

    def why_not(
        self, problem: GemmProblem, specs: Sequence[KernelSpec] | None = None, arch: Arch = HOPPER
    ) -> str | None:
        """Say why no kernel, of `specs` or all, multiplies the prepared operands, or None where some do."""
        prepared = self.prepare(problem).problem
        reason = why_no_next(prepared, self.specs if specs is None else specs, arch)
        return None if reason is None or any(_forms_of(prepared, self.specs, arch)) else reason


def _forms_of(prepared: GemmProblem, specs: Sequence[KernelSpec], arch: Arch) -> Iterator[Form]:
    """Yield the forms of a gated product of prepared operands in which kernels compute it, the best first."""
    if num_b_of(prepared.epilogue) == 1 or not has_sums(prepared) or prepared.needed is not None:
        return
    for form in (Form(GATE), Form(SUMS)):
        if sum(form.workspaces(prepared).values()) <= MOST_WORKSPACE and all(
            not one.k or any(spec.takes(one, arch) for spec in specs) for one, _ in _steps(form, prepared)
        ):
            yield form


def _in_form(prepared: GemmProblem, specs: Sequence[KernelSpec], gpu: GpuRates) -> Multiplied | None:
    """Return the launches of a gated product of prepared operands in the form in which kernels compute it, or None."""
    for form in _forms_of(prepared, specs, gpu.arch):
        if (launches := _launches_of(form, prepared, specs, gpu)) is not None:
            cost = gpu.launch * _LAUNCH * (len(launches) - 1)
            for one in launches:
                assert one.spec.cost is not None
                cost += one.spec.cost(one.problem, one.config, gpu)
            return Multiplied(launches, cost, form.workspaces(prepared))
    return None


def _launches_of(
    form: Form, prepared: GemmProblem, specs: Sequence[KernelSpec], gpu: GpuRates
) -> tuple[Launched, ...] | None:
    """Return the launches of a form, or None where one of them has no eligible kernel."""
    launches = []
    for problem, names in _steps(form, prepared):
        # Epilogues of sums are products of nothing.
        takers = [spec for spec in (specs if problem.k else (REFERENCE,)) if not spec.is_refused(problem, gpu.arch)]
        if (found := _choose_among(problem, takers, gpu)) is None:
            return None
        launches.append(Launched(*found[:2], problem, names))
    return tuple(launches)


def _steps(form: Form, prepared: GemmProblem) -> list[tuple[GemmProblem, Mapping[str, str]]]:
    """Return the products of a form in their order, and names of operands by their own."""
    before: list[tuple[GemmProblem, Mapping[str, str]]] = []
    after = before.copy()
    for one in form.steps(prepared):
        assert isinstance(one.problem, GemmProblem)
        (after if one.is_last else before).append((one.problem, one.operands))
    return [*before, form.product(prepared), *after]


def why_no_next(problem: GemmProblem, specs: Sequence[KernelSpec], arch: Arch = HOPPER) -> str | None:
    """Say why no kernel multiplies prepared operands (the reason of the last), or None where one does.

    Parameters as of `choose_next`.
    """
    if any(spec.takes(problem, arch) for spec in specs):
        return None
    reason = specs[-1].why_not(problem, arch, specs[-1].default)
    return f"no kernel multiplies the prepared operands: {reason}"


def choose_next(
    problem: GemmProblem, specs: Sequence[KernelSpec], gpu: GpuRates
) -> tuple[KernelSpec, Config, float | None]:
    """Return the first kernel that takes a problem, and that no later one is expected to outdo, in its cheapest config.

    Parameters
    ----------
    problem : GemmProblem
        The product of what was prepared.
    specs : sequence of KernelSpec
        Kernels, best first.

    Returns
    -------
    spec, config
        The kernel and its config.
    cost : float or None
        Predicted cost; None of a kernel without a prediction.

    Raises
    ------
    ArgumentError
        If none takes it: the reason of the last.
    NoKernelError
        If none that takes it is eligible.
    """
    found = _choose_among(problem, [spec for spec in specs if not spec.is_refused(problem, gpu.arch)], gpu)
    if found is None:
        raise _no_next(problem, specs, gpu)
    return found


def _no_next(problem: GemmProblem, specs: Sequence[KernelSpec], gpu: GpuRates) -> ArgumentError | NoKernelError:
    if gpu.eligible is not None:
        return NoKernelError(())
    return ArgumentError(why_no_next(problem, specs, gpu.arch) or "")


def _choose_among(
    problem: GemmProblem, specs: Sequence[KernelSpec], gpu: GpuRates
) -> tuple[KernelSpec, Config, float | None] | None:
    """Return `choose_next` of kernels of which none refuses the problem whatever its config, or None."""
    fallback: tuple[KernelSpec, Config, float] | None = None
    names = {spec.name for spec in specs}
    for spec in specs:
        if spec.costs is None:
            if (largest := _largest(spec, problem, gpu)) is not None:
                return spec, largest, None
            continue
        if (chosen := spec.cheapest(problem, gpu.arch, gpu)) is None:
            continue
        config, cost = chosen
        if cost < math.inf and not _is_outdone(spec, problem, cost, gpu, names):
            return spec, config, cost
        # By a later one, which may not take it. Infinite costs say that others should.
        if fallback is None or fallback[2] == math.inf:
            fallback = spec, config, cost
    return fallback


def _is_outdone(spec: KernelSpec, problem: GemmProblem, cost: float, gpu: GpuRates, names: set[str]) -> bool:
    """Return whether a kernel among those of some names has a lower predicted time."""
    if isinstance(spec.faster_alternative, Alternatives):
        # Others are not predicted.
        return spec.faster_alternative(problem, cost, gpu, names) is not None
    return spec.faster_alternative is not None and spec.faster_alternative(problem, cost, gpu) in names


def _largest(spec: KernelSpec, problem: GemmProblem, gpu: GpuRates) -> Config | None:
    """Return the largest tile of which every SM gets one, else the one with the most CTAs; None without any."""

    def preference(config: Config) -> tuple[bool, int]:
        ctas = spec.ctas(problem, config) if spec.ctas is not None else math.prod(spec.launch(problem, config).grid)
        return (False, -config.tile_elements) if ctas >= gpu.multiprocessors else (True, -ctas)

    supported = [one for one in spec.configs_on(gpu) if spec.why_not(problem, gpu.arch, one) is None]
    if gpu.eligible is not None:
        supported = [one for one in supported if gpu.eligible(spec, problem, one)]
    return min(supported, key=preference, default=None)
