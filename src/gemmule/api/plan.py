"""A plan: what would run, why, and the least that it can cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from gemmule.core.problem import Problem


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
    bound_s : float or None
        Least time in seconds by the chip's peak rate and bandwidth; None where the chip's facts are not known.
    then : str
        Name and config of the kernel that finishes what `kernel` prepares; empty where that does all itself.
    workspace_bytes : int
        Device memory that is taken beyond the arrays while the kernels run.
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
    then: str = ""
    workspace_bytes: int = 0

    def execute(self) -> Any:
        """Run the plan and return the result, as the call that it was planned for would."""
        return self.run()

    def __str__(self) -> str:
        config = " ".join(f"{name}={value}" for name, value in self.config.items())
        lines = [
            f"{self.operation}: {self.kernel}{f' [{config}]' if config else ''} on {self.device} ({self.executor})",
            *([f"then: {self.then}, in {self.workspace_bytes:.3e} bytes of workspace"] if self.then else []),
            f"why: {self.reason}",
            f"work: {f'{self.flop:.3e} operations, ' if self.flop else ''}at least {self.bytes_min:.3e} bytes",
        ]
        if self.bound_s is not None:
            lines.append(f"bound: {self.bound_s * 1e6:.1f} us at the chip's peak rates")
        lines += [f"refused: {name}: {reason}" for name, reason in self.refused]
        return "\n".join(lines)
