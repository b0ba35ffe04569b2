"""Reports: faults, findings of the checks, deadlocks, always with kernel, source line, CTA, warp and lanes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gemmule.core.errors import GemmuleError

from .ptx.module import Instruction


@dataclasses.dataclass(frozen=True)
class Finding:
    """An error in a kernel.

    Attributes
    ----------
    kind : str
        ``out of bounds``, ``misaligned``, ``uninitialised``, ``race``, ``barrier``, ``deadlock``, ``unfinished`` or
        ``trap``.
    message : str
        The description.
    kernel : str
        Name of the kernel.
    instruction : Instruction or None
        The instruction.
    cta : tuple of int or None
        The CTA's coordinates in the grid.
    warp : int or None
        Warp within the CTA.
    lanes : tuple of int
        Lanes of that warp.
    space : str
        ``global``, ``shared``, ``local`` or nothing.
    address : int or None
        Address of the first of those lanes: for global memory the distance from the first byte of the operand that is
        nearest, negative before it; else within the space.
    times : int
        Occurrences at this place.
    """

    kind: str
    message: str
    kernel: str
    instruction: Instruction | None = None
    cta: tuple[int, int, int] | None = None
    warp: int | None = None
    lanes: tuple[int, ...] = ()
    space: str = ""
    address: int | None = None
    times: int = 1

    @property
    def source(self) -> str:
        """File and line of the kernel's source, as far as the PTX has them."""
        if self.instruction is None or self.instruction.source is None:
            return ""
        return str(self.instruction.source)

    def __str__(self) -> str:
        parts = [f"{self.kind} in {self.kernel}"]
        if self.source:
            parts.append(f"at {self.source}")
        if self.cta is not None:
            parts.append(f"CTA {self.cta}")
        if self.warp is not None:
            parts.append(f"warp {self.warp}")
        if self.lanes:
            parts.append(f"lanes {_ranges(self.lanes)}")
        text = f"{', '.join(parts)}: {self.message}"
        if self.instruction is not None:
            text += f" [PTX {self.instruction}]"
        return text + (f" ({self.times} times)" if self.times > 1 else "")


class VirtualGpuError(GemmuleError, RuntimeError):
    """A kernel did something wrong on the virtual GPU.

    Attributes
    ----------
    findings : tuple of Finding
        The findings.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = tuple(findings)

    def __reduce__(self) -> tuple[type[VirtualGpuError], tuple[tuple[Finding, ...]]]:
        """Let the error pass between processes."""
        return type(self), (self.findings,)


class CheckError(VirtualGpuError):
    """A check found fault with a kernel, which ran to its end unless the error is one of the two below."""


class FaultError(CheckError):
    """A fault that ends a kernel: an access outside of memory, a misaligned one, a trap."""


class DeadlockError(CheckError):
    """Threads wait for an event that cannot happen."""


def _ranges(lanes: Sequence[int]) -> str:
    """Write numbers in ascending order as ranges, e.g. ``0-15,31``."""
    parts: list[list[int]] = []
    for lane in lanes:
        if parts and parts[-1][-1] == lane - 1:
            parts[-1][-1] = lane
        else:
            parts.append([lane, lane])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
