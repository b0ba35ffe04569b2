"""Counts: sums of a launch, and one row for each instruction; as JSON or as a table."""

from __future__ import annotations

import dataclasses
import json
from typing import Any


@dataclasses.dataclass
class InstructionCounts:
    """Counts of one instruction of a kernel."""

    line: int  #: Line in the PTX text.
    source: str  #: File and line of the kernel's source.
    text: str  #: The instruction.
    kind: str  #: Its class.
    #: warps, threads: How many warps, and how many of their threads, executed it.
    warps: int = 0
    threads: int = 0
    requests: int = 0  #: Memory requests: executions by a warp with at least one active thread.
    bytes: int = 0  #: Bytes that threads requested.
    #: sectors, ideal_sectors: 32-byte sectors of global memory that were touched, and the fewest that would hold the
    #: same elements.
    sectors: int = 0
    ideal_sectors: int = 0
    lines: int = 0  #: 128-byte lines of global memory that were touched.
    #: wavefronts, ideal_wavefronts: Passes of shared memory, and their number without bank conflicts.
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    #: Bytes of shared memory that TMA writes, in all CTAs that receive them, or reads, and that wgmma reads.
    engine_bytes: int = 0


@dataclasses.dataclass
class Counts:
    """Counts of a launch.

    Attributes
    ----------
    kernel : str
        Name of the kernel.
    instructions : list of InstructionCounts
        One row for each instruction, in the order of the code.
    flop : int
        Floating-point operations.
    barriers : int
        Barriers that warps arrived at.
    bytes_by_level : dict of str to int
        Bytes through the L1 caches, the L2 cache and memory, by the cache model; empty where it did not run.
    hit_rates : dict of str to float
        Share of the sectors requested by loads that hit, for L1 and L2.
    reads : dict of str to int
        Bytes that loads took from the L2 cache and from memory, by the cache model.
    """

    kernel: str
    instructions: list[InstructionCounts]
    flop: int = 0
    barriers: int = 0
    bytes_by_level: dict[str, int] = dataclasses.field(default_factory=dict)
    hit_rates: dict[str, float] = dataclasses.field(default_factory=dict)
    reads: dict[str, int] = dataclasses.field(default_factory=dict)

    def by_class(self) -> dict[str, dict[str, int]]:
        """Return executions by warps and by threads for each class of instructions."""
        found: dict[str, dict[str, int]] = {}
        for row in self.instructions:
            entry = found.setdefault(row.kind, {"warps": 0, "threads": 0})
            entry["warps"] += row.warps
            entry["threads"] += row.threads
        return {kind: entry for kind, entry in sorted(found.items()) if entry["warps"]}

    def total(self, name: str, *kinds: str) -> int:
        """Return the sum of a column over instructions, those of the classes `kinds` if any are given."""
        rows = (row for row in self.instructions if not kinds or row.kind in kinds)
        return sum(getattr(row, name) for row in rows)

    @property
    def coalescing(self) -> float:
        """Fewest sectors that would do, as a share of those touched."""
        sectors = self.total("sectors")
        return self.total("ideal_sectors") / sectors if sectors else 1.0

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts that conflicts of banks added."""
        return self.total("wavefronts") - self.total("ideal_wavefronts")

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "kernel": self.kernel,
            "flop": self.flop,
            "barriers": self.barriers,
            "warp_instructions": self.total("warps"),
            "thread_instructions": self.total("threads"),
            "global_requests": sum(row.requests for row in self.instructions if row.sectors),
            "global_sectors": self.total("sectors"),
            "global_ideal_sectors": self.total("ideal_sectors"),
            "shared_wavefronts": self.total("wavefronts"),
            "shared_ideal_wavefronts": self.total("ideal_wavefronts"),
            "bank_conflicts": self.bank_conflicts,
            "bytes_by_level": self.bytes_by_level,
            "hit_rates": self.hit_rates,
            "reads": self.reads,
            "by_class": self.by_class(),
            "instructions": [dataclasses.asdict(row) for row in self.instructions if row.warps],
        }

    def to_json(self) -> str:
        """Return everything as JSON."""
        return json.dumps(self.as_dict(), indent=1)

    def table(self) -> str:
        """Return sums, classes, and the memory instructions by source line, as text."""
        lines = [
            f"{self.kernel}: {self.total('warps'):,} warp instructions, {self.flop:,} FLOP, {self.barriers:,} barriers",
            f"global memory: {self.total('sectors'):,} sectors, {self.coalescing:.1%} of them needed",
            f"shared memory: {self.total('wavefronts'):,} wavefronts, {self.bank_conflicts:,} by bank conflicts",
        ]
        if self.bytes_by_level:
            levels = ", ".join(f"{level} {count:,}" for level, count in self.bytes_by_level.items())
            rates = ", ".join(f"{level} {rate:.1%}" for level, rate in self.hit_rates.items())
            lines.append(f"bytes: {levels}; hits: {rates}")
        lines += ["", f"{'class':<18}{'warps':>14}{'threads':>16}"]
        lines += [f"{kind:<18}{row['warps']:>14,}{row['threads']:>16,}" for kind, row in self.by_class().items()]
        lines += ["", f"{'requests':>12}{'sectors':>12}{'ideal':>12}{'wavefronts':>12}{'ideal':>12}  where"]
        for row in self.instructions:
            if row.requests:
                lines.append(
                    f"{row.requests:>12,}{row.sectors:>12,}{row.ideal_sectors:>12,}{row.wavefronts:>12,}"
                    f"{row.ideal_wavefronts:>12,}  {row.source or f'PTX {row.line}'}: {row.text}"
                )
        return "\n".join(lines)
