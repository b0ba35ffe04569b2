"""Reports: faults, findings of the checks, deadlocks, always with kernel, source line, CTA, warp and lanes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gemmule.core.errors import GemmuleError

from .ptx.module import Instruction, Kernel
from .source_text import line_text, own_name, shown_path


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
    instructions : int
        Instructions of the source line that have them.
    earlier : Instruction or None
        The instruction of a race's earlier access, if known.
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
    instructions: int = 1
    earlier: Instruction | None = None

    @property
    def source(self) -> str:
        """File and line of the kernel's source, as far as the PTX has them."""
        if self.instruction is None or self.instruction.source is None:
            return ""
        return str(self.instruction.source)

    @property
    def kernel_name(self) -> str:
        """The kernel's name in its source, as far as that is known."""
        source = None if self.instruction is None else self.instruction.source
        return own_name(self.kernel, "" if source is None else source.file)

    @property
    def line_text(self) -> str:
        """Text of the source line, as far as it can be read."""
        source = None if self.instruction is None else self.instruction.source
        return "" if source is None else line_text(source.file, source.line)

    def __str__(self) -> str:
        parts = [f"{self.kind} in {self.kernel_name}"]
        if self.instruction is not None and self.instruction.source is not None:
            source, text = self.instruction.source, self.line_text
            parts.append(f"at {shown_path(source.file)}:{source.line}" + (f" `{text}`" if text else ""))
        if self.cta is not None:
            parts.append(f"CTA {self.cta}")
        if self.warp is not None:
            parts.append(f"warp {self.warp}")
        if self.lanes:
            parts.append(f"lanes {ranges(self.lanes)}")
        text = f"{', '.join(parts)}: {self.message}"
        if self.instruction is not None:
            text += f" [PTX {self.instruction}]"
        by = f" by {self.instructions} instructions of the line" if self.instructions > 1 else ""
        return text + (f" ({self.times} times{by})" if self.times > 1 else "")


def kernel_name(kernel: Kernel) -> str:
    """Return the name that a kernel has in its source."""
    files = (one.source.file for one in kernel.instructions if one.source is not None)
    return own_name(kernel.name, next(files, ""))


def merged(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings as they are shown: one for a kind and a source line, and one for a kernel's deadlock."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for number, finding in enumerate(findings):
        place = finding.source or str(number)
        key = (finding.kind, finding.kernel) if finding.kind == "deadlock" else (finding.kind, finding.kernel, place)
        groups.setdefault(key, []).append(finding)
    return tuple(
        _deadlock(group) if group[0].kind == "deadlock" else _of_line(group) if len(group) > 1 else group[0]
        for group in groups.values()
    )


def _of_line(group: Sequence[Finding]) -> Finding:
    """Return the first finding of a source line, with the number of all."""
    return dataclasses.replace(group[0], times=sum(one.times for one in group), instructions=len(group))


def _deadlock(group: Sequence[Finding]) -> Finding:
    """Return one finding for the warps that wait: what each group of them waits for, and where."""
    waits: dict[tuple[str, str], list[Finding]] = {}
    for one in group:
        place = "" if one.instruction is None else one.instruction.place
        # Warps of several CTAs of clusters wait for the same mbarrier, each of its own CTA.
        message = one.message.replace(f" of CTA {one.cta}", "")
        waits.setdefault((message, place), []).append(one)
    if len(waits) == 1 and len(group) == 1:
        return group[0]
    texts = []
    for (message, place), waiting in waits.items():
        ctas = dict.fromkeys(one.cta for one in waiting)
        first = next(iter(ctas))
        warps = sorted({one.warp for one in waiting if one.cta == first and one.warp is not None})
        others = len(ctas) - 1
        more = f" and of {others} more CTA{'s' * (others > 1)}" if others else ""
        verb = message.removeprefix("waits").removeprefix("polls")
        several = len(warps) > 1 or others
        word = ("poll" if message.startswith("polls") else "wait") + "s" * (not several)
        texts.append(f"warp{'s' * (len(warps) > 1)} {ranges(warps)} of CTA {first}{more} {word}{verb}, {place}")
    return dataclasses.replace(group[0], message="; ".join(texts), cta=None, warp=None, lanes=())


class VirtualGpuError(GemmuleError, RuntimeError):
    """A kernel did something wrong on the virtual GPU.

    Attributes
    ----------
    findings : tuple of Finding
        The findings, a deadlock's by warps; the text has them merged.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("\n".join(map(str, merged(findings))))
        self.findings = tuple(findings)

    def __reduce__(self) -> tuple[type[VirtualGpuError], tuple[tuple[Finding, ...]]]:
        """Let the error pass between processes."""
        return type(self), (self.findings,)


class CheckError(VirtualGpuError):
    """A check found fault with a kernel, which ran to its end unless it is a `FaultError` or `DeadlockError`."""


class FaultError(CheckError):
    """A fault that ends a kernel: an access outside of memory, a misaligned one, a trap."""


class DeadlockError(CheckError):
    """Threads wait for an event that cannot happen."""


def ranges(lanes: Sequence[int]) -> str:
    """Write numbers in ascending order as ranges, e.g. ``0-15,31``."""
    parts: list[list[int]] = []
    for lane in lanes:
        if parts and parts[-1][-1] == lane - 1:
            parts[-1][-1] = lane
        else:
            parts.append([lane, lane])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
