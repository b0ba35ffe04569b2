"""Plans for a chip by its name: what a GPU would run, which need not be there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Never

from gemmule.core.arch import Arch
from gemmule.core.chip import Chip
from gemmule.core.chips import CHIPS, chip_named
from gemmule.core.errors import ArgumentError, UnsupportedError, shown
from gemmule.core.problem import Problem
from gemmule.core.spec import Choice, KernelSpec
from gemmule.dispatch.rates_table import known_rates
from gemmule.runtime.arrays import ArrayView

from ..validation.product import Product
from .choice import choose_for_chip, wanted_executor
from .device_products import problem_in_place
from .plan import Plan, kernel_fields, planned
from .plan_lines import bound_of
from .vgpu_products import as_device_view


@dataclasses.dataclass(frozen=True)
class Target:
    """The target of a plan: an executor, or a chip by its name."""

    executor: str | None  #: The requested executor.
    chip: Chip | None  #: The chip that the caller names, or None.

    @property
    def elsewhere(self) -> Chip | None:
        """The chip of a plan that is for reading only, or None."""
        return None if self.executor == "vgpu" else self.chip

    @property
    def names_kernels(self) -> bool:
        """Whether the plan may name its kernel."""
        return self.executor == "vgpu" or self.chip is not None


def target_of(executor: Any, name: Any) -> Target:
    """Return the target that the arguments `executor` and `chip` of a plan mean.

    Raises
    ------
    ArgumentError
        If there is no such executor or chip, or the chip comes with the host's executor.
    UnsupportedError
        If no kernels are compiled for the chip.
    """
    if name is None:
        return Target(wanted_executor(executor), None)
    if not isinstance(name, str):
        raise ArgumentError(f"chip={shown(name)} is not a name; give one, as chip='h100'")
    if executor == "cpu":
        raise ArgumentError(f"chip={name!r} plans for a GPU, but executor='cpu' is given; leave one of them out")
    supported = [one for one in CHIPS if _arch_of(one) is not None]
    chip = chip_named(name, supported)
    if chip not in supported:
        known = ", ".join(one.name for one in supported)
        raise UnsupportedError(f"chip={name!r}: no kernels are compiled for a {chip.name}; choose one of {known}")
    # The environment's choice concerns calls on this machine.
    return Target(None if executor is None else wanted_executor(executor), chip)


def _arch_of(chip: Chip) -> Arch | None:
    try:
        return Arch.for_device(*chip.capability)
    except UnsupportedError:
        return None


def device_views(views: Mapping[str, ArrayView]) -> dict[str, ArrayView]:
    """Return the arrays of a call with their layout in a GPU's memory."""
    return {role: view if view.host is None else as_device_view(view) for role, view in views.items()}


def plan_for_chip(product: Product, chip: Chip, registry: Sequence[KernelSpec] | None) -> Plan:
    """Plan a product on a chip, from the kernels of a registry, or all if there is none."""
    problem, _ = problem_in_place(product, device_views(product.operands.views))
    choice = choose_for_chip(problem, chip, registry)
    refuse = Refusal(chip)
    plan = planned(product, "gpu", chip.name, choice, refuse.reason, problem, refuse)
    return dataclasses.replace(plan, guard=refuse, **predictions(problem, choice, chip))


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Refuses to execute a plan for a chip."""

    chip: Chip

    @property
    def reason(self) -> str:
        """Reason of the plan."""
        return "chip= is given: arrays count as in its memory, without a transfer; the plan cannot be executed"

    def __call__(self) -> Never:
        raise ArgumentError(
            f"this plan is for {self.chip.name}, which chip= names; leave chip out, with arrays in memory, to run it"
        )


def predictions(problem: Problem, choice: Choice, chip: Chip) -> dict[str, Any]:
    """Return the fields of a plan that depend on the rates of a chip.

    Without rates of its own no time is predicted, other than by a measurement.
    """
    return {"bound_s": bound_of(choice, problem, chip.name, from_host=False), **_of_rates(choice, chip)}


def _of_rates(choice: Choice, chip: Chip) -> dict[str, Any]:
    if choice.chosen_by == "tuned" or known_rates(chip.driver_name, chip.sms).own:
        return {}
    by_rates = {"chosen_from": "by the rates of another GPU: none were measured on this chip"}
    return {"predicted_us": None} | (by_rates if choice.chosen_by == "cost" else {})


def fields_for_chip(choice: Choice | None, problem: Any, chip: Chip) -> dict[str, Any]:
    """Return the fields of the plan of a grouped product or a quantisation; without a choice memory is cleared."""
    refuse = Refusal(chip)
    fields = {"executor": "gpu", "device": chip.name, "reason": refuse.reason, "run": refuse, "guard": refuse}
    if choice is None:
        return fields | {"kernel": "memset"}
    return fields | kernel_fields(choice, problem) | _of_rates(choice, chip)
