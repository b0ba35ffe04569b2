"""A plan: what would run, why, and the least that it can cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gemmule.core.problem import Problem
from gemmule.core.spec import Choice
from gemmule.runtime.arrays import ArrayView

if TYPE_CHECKING:
    from gemmule.outofcore.device.planner.budgets import Budgeted


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a call would run.

    Attributes
    ----------
    operation : str
        ``matmul``, ``gemm`` or ``transpose``.
    executor : str
        ``gpu``, ``host`` or ``vgpu``.
    device : str
        Name of the GPU, of the BLAS or of the virtual GPU.
    kernel : str
        Name of the kernel.
    config : mapping
        Its config.
    reason : str
        Why this executor.
    refused : tuple of (str, str)
        Kernels that were asked before and why they cannot take the problem.
    problem : GemmProblem, TransposeProblem or None
        The problem as kernels see it; None where no kernel takes part.
    flop, bytes_min : int
        Operations, and the fewest bytes to move, in all.
    streaming : Budgeted or None
        For host arrays that do not fit into the GPU's memory: how they pass through it, and what that is expected to
        take at the chip's peak rate.
    bound_s : float or None
        Least time in seconds by the chip's peak rate and bandwidth; None where the chip's facts are not known.
    then : str
        Name and config of the kernel that finishes what `kernel` prepares; empty where that does all itself.
    chosen_by : str
        How kernel and config were chosen: ``tuned``, by a measurement; ``cost``, by the least predicted cost; or
        ``only one``, where nothing was compared. Empty where no kernel takes part.
    chosen_from : str
        Where a tuned config comes from; else empty.
    predicted_us : float or None
        Expected time of the kernels in microseconds, measured before or predicted; None where neither is known.
    epilogue : str
        What is done to each element of a product before it is rounded; empty where nothing is.
    precision : str
        What becomes of a `precision` that was given: whether the kernel makes use of it. Empty for ``'ieee'``.
    choice : Choice or None
        The kernel and its config as the registry has them; None where no kernel takes part.
    places : mapping of str to (str, int)
        On a GPU, for each operand that a product reads the role of its array, and its address.
    """

    operation: str
    executor: str
    device: str
    kernel: str
    config: Mapping[str, int]
    reason: str
    refused: tuple[tuple[str, str], ...]
    problem: Problem | None
    flop: int
    bytes_min: int
    bound_s: float | None
    run: Callable[[], Any] = dataclasses.field(repr=False, compare=False)
    streaming: Budgeted | None = None
    then: str = ""
    chosen_by: str = ""
    chosen_from: str = ""
    predicted_us: float | None = None
    epilogue: str = ""
    precision: str = ""
    choice: Choice | None = dataclasses.field(default=None, repr=False, compare=False)
    places: Mapping[str, tuple[str, int]] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def workspace_bytes(self) -> int:
        """Device memory that is taken beyond the arrays while the kernels run."""
        if self.executor != "gpu" or self.choice is None or self.problem is None:
            return 0
        return sum(self.choice.workspaces(self.problem).values())

    def execute(self) -> Any:
        """Run the plan and return the result, as the call that it was planned for would."""
        return self.run()

    def refreshing(self, views: Iterable[ArrayView], stream: Callable[[], int | None]) -> Plan:
        """Return the plan with the memory of the caller's arrays made ready before each run, on the stream of that."""
        refreshes = [view.refresh for view in views if view.refresh is not None]
        if not refreshes:
            return self

        def run() -> Any:
            for refresh in refreshes:
                refresh(stream())
            return self.run()

        return dataclasses.replace(self, run=run)

    def __str__(self) -> str:
        config = " ".join(f"{name}={value}" for name, value in self.config.items())
        memory = self.workspace_bytes
        lines = [
            f"{self.operation}: {self.kernel}{f' [{config}]' if config else ''} on {self.device} ({self.executor})",
            *([f"then: {self.then}, in {memory:.3e} bytes of workspace"] if self.then else []),
            *([f"workspace: {memory:.3e} bytes"] if memory and not self.then else []),
            *([f"epilogue: {self.epilogue}"] if self.epilogue else []),
            *([f"precision: {self.precision}"] if self.precision else []),
            f"why: {self.reason}",
            f"work: {f'{self.flop:.3e} operations, ' if self.flop else ''}at least {self.bytes_min:.3e} bytes",
        ]
        if self.chosen_by:
            time = f"; {self.predicted_us:.1f} us expected" if self.predicted_us is not None else ""
            lines.append(f"chosen by: {self.chosen_by}{self.chosen_from and f' ({self.chosen_from})'}{time}")
        if self.bound_s is not None:
            lines.append(f"bound: {self.bound_s * 1e6:.1f} us at the chip's peak rates")
        if self.streaming is not None:
            from gemmule.outofcore.device.planner.budgets import binding_line

            plan, expected, budgets = self.streaming.plan, self.streaming.prediction, self.streaming.budgets
            lines.append(
                f"streamed: {plan.strategy}, {plan.tiles} tiles of {plan.tile_m} x {plan.tile_n}, slices {plan.tile_k} "
                f"deep, {plan.device_bytes:.3e} bytes of device memory; {expected.bytes_in:.3e} bytes in, "
                f"{expected.bytes_out:.3e} out; at least {expected.seconds:.3g} s, bound by {expected.bottleneck}"
            )
            lines.append(
                f"budgets: {budgets.device:.3e} bytes of device memory, {self.streaming.pinned_bytes:.3e} of "
                f"{budgets.pinned:.3e} pinned; {binding_line(self.streaming)}"
            )
        lines += [f"refused: {name}: {reason}" for name, reason in self.refused]
        return "\n".join(lines)
