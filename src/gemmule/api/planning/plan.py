"""The plan of a call: executor, kernel, reasons, and a lower bound of the time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import Kind, Precision, dtype_named
from gemmule.core.problem import GemmProblem, Problem
from gemmule.core.quantities import duration, short_quantity
from gemmule.core.spec import Choice, Reason, reasons_of
from gemmule.dispatch.choices.config_choice import predicted_us
from gemmule.runtime.arrays import ArrayView

from ..validation.rules import is_complex, itemsize_of
from .plan_lines import arithmetic_of, bound_of, copies_text, precision_text, rewrite_text

if TYPE_CHECKING:
    from gemmule.outofcore.device.planner.budgets import Budgeted
    from gemmule.runtime.replay import Queue

    from ..validation.product import Product


class HostGemm(Protocol):
    """A GEMM of host arrays: by BLAS, or by a GPU with copies there and back."""

    def run(self, a: Any, b: Any, out: Any, c: Any, /) -> None:
        """Compute alpha a b + beta c into `out`, arrays of NumPy."""


@dataclasses.dataclass(slots=True)
class Execution:
    """State of an executed plan that later calls of its kind reuse."""

    #: Queues the launches, packed once, given the addresses of the plan's `places` in their order, of the array for the
    #: absolute maximum if there is one, and of the output. None before, and where there are none or too many.
    queue: Queue | None = None
    gemm: HostGemm | None = None  #: The host's product, for host arrays.
    clears_absmax: bool = False  #: Whether the launches clear the absolute maximum.


@dataclass(frozen=True)
class Plan:
    """The plan of a call: executor, device, kernel, config, and the reasons.

    Attributes
    ----------
    operation : str
        ``matmul``, ``gemm`` or ``transpose``.
    executor : str
        ``gpu``, ``cpu`` or ``vgpu``.
    device : str
        Name of the GPU, of the BLAS or of the virtual GPU.
    kernel : str
        Name of the kernel.
    config : mapping
        Its config.
    reason : str
        Why this executor.
    problem : object or None
        The problem as kernels see it: extents, operands, epilogue; None where no kernel takes part.
    flop, bytes_min : int
        Floating-point operations, and the fewest bytes to move, in all.
    streaming : object or None
        For host arrays larger than the GPU's memory: how they are streamed through it, and the predicted time at the
        chip's peak rate.
    bound_s : float or None
        Least time in seconds by the chip's peak rate and bandwidth; None where the chip's facts are not known.
    next_kernel : str
        Name and config of the kernel that is launched after `kernel`, which prepares its operands; empty without one.
    chosen_by : str
        How kernel and config were chosen: ``tuned``, by a measurement; ``cost``, by the least predicted cost;
        ``single``, without a comparison; or ``packed``, among compiled kernels, as the compiler is not installed. Empty
        where no kernel takes part.
    chosen_from : str
        Source of a tuned config, or of the rates of a `chip` that has none of its own, or that `kernel` names it; else
        empty.
    predicted_us : float or None
        Time of the kernels in microseconds, from a tuned table or predicted; None without either.
    epilogue : str
        Function of each element, applied before rounding; empty without one.
    rewrite : str
        Preparation of a `c` in another layout or type than the result's, or of an epilogue that the kernel does not
        compute; empty elsewhere.
    why_reference : str
        Why the slow reference kernel runs; empty where another one does.
    precision : str
        Whether the kernel uses the `precision` of the call; empty for ``'ieee'``.
    """

    operation: str
    executor: str
    device: str
    kernel: str
    reason: str
    flop: int
    bytes_min: int
    run: Callable[[], Any] = dataclasses.field(repr=False, compare=False)
    config: Mapping[str, int] = dataclasses.field(default_factory=dict)
    problem: Problem | None = None
    bound_s: float | None = None
    streaming: Budgeted | None = None
    next_kernel: str = ""
    chosen_by: str = ""
    chosen_from: str = ""
    predicted_us: float | None = None
    epilogue: str = ""
    rewrite: str = ""
    why_reference: str = ""
    precision: str = ""
    # For gemmule's own modules, not part of the public interface:
    #: The kernel and its config as the registry has them; None where no kernel takes part.
    choice: Choice | None = dataclasses.field(default=None, repr=False, compare=False)
    #: The kernels that were not chosen, and their reasons, unread.
    refusals: tuple[tuple[str, Reason], ...] = dataclasses.field(default=(), repr=False, compare=False)
    #: On a GPU, for each operand of a GEMM the role of its array, and its address.
    places: Mapping[str, tuple[str, int]] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    #: The validated GEMM, where the host computes it.
    product: Product | None = dataclasses.field(default=None, repr=False, compare=False)
    execution: Execution = dataclasses.field(default_factory=Execution, repr=False, compare=False)
    #: Runs the guard of ``precision='ozaki'`` alone, where a kernel takes part.
    guard: Callable[[], tuple[str, ...]] | None = dataclasses.field(default=None, repr=False, compare=False)

    def decision(self) -> tuple[str, ...]:
        """Run the guard of ``precision='ozaki'`` on the arrays, wait for it, and return what it decides.

        `execute` decides the same for the same numbers, on the device and without synchronising.

        Returns
        -------
        tuple of str
            ``'ozaki-14'``, ``'ozaki-15'``, ``'ozaki-16'``, ``'bf16x6'`` or ``'ieee'``, the native kernel, for each
            matrix of a batch of float64, or for each launch of one of float32; without a guard the kernel's precision.
            ``'ozaki-14, ieee in 2 rows and 1 column'`` where the native kernel computes these alone, of a real times a
            complex matrix those of the real product.
        """
        return self.guard() if self.guard is not None else (Precision.IEEE.value,)

    @property
    def refused(self) -> tuple[tuple[str, str], ...]:
        """Kernels earlier in the order of choice, and why each cannot compute the problem.

        ``describe(verbose=True)`` alone prints them.
        """
        return reasons_of(self.refusals)

    @property
    def copies(self) -> str:
        """Operands copied into a workspace first, with its bytes and the predicted time; or empty."""
        if self.choice is None or not isinstance(self.problem, GemmProblem):
            return ""
        return copies_text(self.choice, self.problem, self.predicted_us)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of device memory for workspaces while the kernels run."""
        if self.executor != "gpu" or self.choice is None or self.problem is None:
            return 0
        return sum(self.choice.workspaces(self.problem).values())

    def execute(self) -> Any:
        """Run the plan and return the result of the planned call."""
        return self.run()

    def with_refresh(self, views: Iterable[ArrayView], stream: Callable[[], int | None]) -> Plan:
        """Return a plan that refreshes the memory of the caller's arrays before each run, on its stream."""
        refreshes = [view.refresh for view in views if view.refresh is not None]
        if not refreshes:
            return self

        def run() -> Any:
            for refresh in refreshes:
                refresh(stream())
            return self.run()

        return dataclasses.replace(self, run=run)

    def __str__(self) -> str:
        return self.describe()

    def describe(self, *, verbose: bool = False) -> str:
        """Return the executor and kernel in the first line, and the reasons in the others.

        Parameters
        ----------
        verbose : bool
            Whether to list the refused kernels, each with its reason.
        """
        lines = [self._verdict(), f"why: {self.reason}"]
        if self.chosen_by:
            source = self.chosen_from
            if not source and self.chosen_by == "single":
                virtual = self.executor == "vgpu"
                source = _VIRTUAL if virtual else "the kernel's only config"
            lines.append(f"chosen by: {self.chosen_by}{source and f' ({source})'}")
        if self.config:
            lines.append(f"config: {' '.join(f'{name}={value}' for name, value in self.config.items())}")
        lines += self._kernel_lines()
        lines.append(self._work_line())
        if self.streaming is not None:
            lines += _streaming_lines(self.streaming)
        if verbose:
            lines += [f"refused: {name}: {reason}" for name, reason in self.refused]
        elif self.refusals:
            count = len(self.refusals)
            lines.append(f"refused: {count} kernel{'s' * (count != 1)}; plan.describe(verbose=True) lists reasons")
        return "\n".join(lines)

    def _verdict(self) -> str:
        """Return the kernel, where it runs, and the expected time and rate."""
        text = f"{self.operation}: {self.kernel} on {self.device} ({self.executor})"
        if self.predicted_us is None:
            return text
        seconds = self.predicted_us / 1e6
        rate = f", {short_quantity(self.flop / seconds, f'{self._unit}/s')}" if self.flop and seconds > 0 else ""
        return f"{text}; expected {duration(seconds)}{rate}"

    def _kernel_lines(self) -> list[str]:
        memory = self.workspace_bytes
        lines = [f"followed by: {self.next_kernel}"] if self.next_kernel else []
        lines += [f"copies: {self.copies}"] if self.copies else []
        lines += [f"workspace: {short_quantity(memory, 'B')}"] if memory else []
        lines += [f"epilogue: {self.epilogue}"] if self.epilogue else []
        lines += [f"rewritten: {self.rewrite}"] if self.rewrite else []
        lines += [f"reference kernel: {self.why_reference}"] if self.why_reference else []
        return lines + ([f"precision: {self.precision}"] if self.precision else [])

    @property
    def _unit(self) -> str:
        """Unit of the operations."""
        if isinstance(self.problem, GemmProblem):
            return "OP" if self.problem.accumulator.kind is Kind.INTEGER else "FLOP"
        names = [self.product.view(role).dtype_name for role in "ab"] if self.product is not None else []
        return "OP" if names and all(dtype_named(one).kind is Kind.INTEGER for one in names) else "FLOP"

    def _work_line(self) -> str:
        work = f"{short_quantity(self.flop, self._unit)}, " if self.flop else ""
        bound = f"; at least {duration(self.bound_s)} at the chip's peak rates" if self.bound_s is not None else ""
        if bound and self.choice is not None and isinstance(self.problem, GemmProblem):
            used = arithmetic_of(self.choice, self.problem)
            # Fewer or cheaper operations than those of IEEE arithmetic may do.
            bound += "" if used is Precision.IEEE else f" with precision={used.value!r}"
        return f"work: {work}at least {short_quantity(self.bytes_min, 'B')} to move{bound}"


#: Why the kernel on the virtual GPU need not be that of a GPU.
_VIRTUAL = "the first kernel that takes it; chip='h100' chooses as on an H100"


def _streaming_lines(streaming: Budgeted) -> list[str]:
    """Return how host arrays pass through the GPU's memory, and within which budgets."""
    from gemmule.outofcore.device.planner.budgets import binding_line

    plan, expected, budgets = streaming.plan, streaming.prediction, streaming.budgets
    return [
        f"streamed: {plan.strategy}, {plan.tiles} tiles of {plan.tile_m} x {plan.tile_n}, k-tiles of {plan.tile_k}; "
        f"{short_quantity(expected.bytes_in, 'B')} in, {short_quantity(expected.bytes_out, 'B')} out; at least "
        f"{expected.seconds:.3g} s, bound by {expected.bottleneck}",
        f"budgets: {short_quantity(plan.device_bytes, 'B')} of {short_quantity(budgets.device, 'B')} device memory, "
        f"{short_quantity(streaming.pinned_bytes, 'B')} of {short_quantity(budgets.pinned, 'B')} pinned; "
        f"{binding_line(streaming)}",
    ]


def planned(
    product: Product,
    executor: str,
    device: str,
    choice: Choice | None,
    reason: str,
    problem: GemmProblem | None,
    run: Callable[[], Any],
) -> Plan:
    """Return the plan of a product.

    Parameters
    ----------
    executor, device, reason, problem, run
        As of `Plan`.
    choice : Choice or None
        Kernel and config, where one runs.
    """
    shape = product.shape
    factors = 2 if product.ending is not None and product.ending.expression.gated else 1
    factors <<= sum(is_complex(product.operands.views[role].dtype_name) for role in "ab")
    on_host = product.operands.device is None
    written = math.prod(shape.result)
    then = choice.next_kernel(problem) if executor != "cpu" and choice and problem else None
    return Plan(
        operation=product.operation,
        executor=executor,
        device=device,
        kernel=choice.spec.name if executor != "cpu" and choice else "blas",
        config=choice.config.as_dict() if executor != "cpu" and choice else {},
        reason=reason,
        refusals=choice.refusals if choice else (),
        problem=problem,
        flop=2 * shape.m * shape.n * factors * shape.k * math.prod(shape.batch),
        bytes_min=problem.bytes_min if problem else _bytes_min(product),
        bound_s=bound_of(choice, problem, device, from_host=on_host) if executor == "gpu" and problem else None,
        run=run,
        next_kernel=", ".join(dict.fromkeys(f"{one.spec.name} [{one.config}]" for one in then.chain())) if then else "",
        chosen_by=choice.chosen_by if executor != "cpu" and choice else "",
        chosen_from=choice.source if executor != "cpu" and choice else "",
        predicted_us=predicted_us(choice, problem) if executor == "gpu" and choice and problem and written else None,
        epilogue=product.ending.text if product.ending is not None else "",
        rewrite=rewrite_text(choice, problem) if executor != "cpu" and choice and problem else "",
        why_reference=choice.why_reference() or "" if executor != "cpu" and choice and choice.why_reference else "",
        precision=precision_text(product.precision, executor, choice, problem),
        choice=choice,
    )


def _bytes_min(product: Product) -> int:
    """Return the bytes of a product's arrays, each element of an input once."""
    result = math.prod(product.shape.result) * itemsize_of(product.out_dtype)
    return result + sum(_distinct_bytes(view) for role, view in product.operands.views.items() if role != "out")


def _distinct_bytes(view: ArrayView) -> int:
    strides = view.strides if view.host is None else view.host.strides
    own = (extent if stride else min(extent, 1) for extent, stride in zip(view.shape, strides, strict=True))
    return math.prod(own) * view.itemsize


def kernel_fields(choice: Choice, problem: Any) -> dict[str, Any]:
    """Return the fields of a plan that say which kernel runs."""
    return {
        "kernel": choice.spec.name, "config": choice.config.as_dict(), "problem": problem, "choice": choice,
        "chosen_by": choice.chosen_by, "predicted_us": choice.predicted_us,
    }  # fmt: skip
