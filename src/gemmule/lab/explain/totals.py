"""Counts of a whole launch: those of a few small launches, scaled and added."""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gemmule.core.dtype import Kind
from gemmule.core.problem import GemmProblem, Problem

from .instrument import Row, Run
from .sample import Sample

_COLUMNS = (
    "warps", "threads", "requests", "bytes", "sectors", "ideal_sectors", "lines", "wavefronts", "ideal_wavefronts",
)  # fmt: skip
#: The class of instructions of tensor cores, and that of multiply-adds of integers, where those are the product's.
MATRIX, INTEGER_MULTIPLY_ADD = "matrix multiply", "mad s32"
#: Classes of TMA instructions, which pass by L1.
BULK_LOAD, BULK_STORE = "bulk load", "bulk store"
_BULK = (BULK_LOAD, BULK_STORE)
# Bytes of a pass.
_PASS = 128
_SECTOR = 32
_PACKAGE = Path(__file__).parents[2]
_LOADS = frozenset({"load shared", "matrix load"})
_STORES = frozenset({"store shared", "async copy"})


@dataclasses.dataclass(frozen=True)
class LineCounts:
    """Counts of the memory instructions of a source line, for one operand."""

    source: str  #: File and line; the file as it is called within the package, where it belongs to it.
    code: str  #: The line; nothing where the file cannot be read.
    kind: str  #: Class of the instructions, e.g. ``load global``.
    operand: str  #: ``a``, ``b``, ``c`` or ``d`` in global memory.
    #: warps, threads, requests, bytes, sectors, ideal_sectors, lines, wavefronts, ideal_wavefronts: As of the virtual
    #: GPU's counts.
    warps: int
    threads: int
    requests: int
    bytes: int
    sectors: int
    ideal_sectors: int
    lines: int
    wavefronts: int
    ideal_wavefronts: int

    @property
    def reads_global(self) -> bool:
        """Whether it reads global memory."""
        return self.sectors > 0 and self.kind not in ("store global", BULK_STORE)

    @property
    def bulk(self) -> bool:
        """Whether TMA moves it."""
        return self.kind in _BULK

    @property
    def passes(self) -> int:
        """Passes through the memory that is L1 cache and shared memory: 128 bytes, in one line or without conflicts.

        A request to global memory takes one for each line that it touches, and no less than what its threads are given
        takes. A copy of cp.async passes once, as it is written.
        """
        return 0 if self.bulk else max(self.lines, self.wavefronts or -(-self.bytes // _PASS))

    @property
    def needed_passes(self) -> int:
        """Passes without lines that need not be touched and without conflicts of banks."""
        return 0 if self.bulk else self.ideal_wavefronts or max(self.requests, -(-self.bytes // _PASS))

    @property
    def conflicts(self) -> int:
        """Wavefronts that conflicts of banks add."""
        return self.wavefronts - self.ideal_wavefronts


@dataclasses.dataclass(frozen=True)
class Totals:
    """Counts of a whole launch."""

    warps: int  #: Instructions that warps issue.
    by_class: dict[str, tuple[int, int]]  #: Executions by warps and by threads for each class of instructions.
    by_line: tuple[LineCounts, ...]  #: The memory instructions by source line and operand, in the order of the code.
    #: Floating-point operations for each class of instructions; of a product of integers those of multiply-adds too,
    #: the few that compute addresses of 32 bits among them.
    operations_by_class: dict[str, int]
    l2_bytes: int  #: Bytes that the L2 cache reads and writes.
    #: Bytes of shared memory that pass without threads, by class of instructions: what bulk loads write, in every CTA
    #: that gets it; what bulk stores read; and what products of warpgroups read.
    engine_bytes: dict[str, int] = dataclasses.field(default_factory=dict)

    def total(self, column: str, *kinds: str) -> int:
        """Return the sum of a column over the memory instructions, those of the classes `kinds` if any are given."""
        return sum(getattr(line, column) for line in self.by_line if not kinds or line.kind in kinds)

    @property
    def operations(self) -> int:
        """Operations that were counted, all together."""
        return sum(self.operations_by_class.values())

    @property
    def multiply_adds(self) -> int:
        """Instructions of warps that multiply and add numbers, or small matrices."""
        return sum(
            warps
            for kind, (warps, _) in self.by_class.items()
            if kind.startswith("fma ") or kind in (MATRIX, INTEGER_MULTIPLY_ADD)
        )

    @property
    def load_conflicts(self) -> int:
        """Wavefronts that bank conflicts add to loads from shared memory."""
        return sum(line.conflicts for line in self.by_line if line.kind in _LOADS)

    @property
    def store_conflicts(self) -> int:
        """Wavefronts that bank conflicts add to stores into shared memory, those of cp.async included."""
        return sum(line.conflicts for line in self.by_line if line.kind in _STORES)

    @property
    def l1_sectors(self) -> int:
        """Sectors of the requests that pass through L1."""
        return sum(line.sectors for line in self.by_line if not line.bulk)

    @property
    def engine_passes(self) -> int:
        """Passes of shared memory that products and copies out of it take.

        Those of copies into it are no part: an H100 ran products in 0.92 of the time that all of them would take.
        """
        return -(-sum(count for kind, count in self.engine_bytes.items() if kind != BULK_LOAD) // _PASS)

    @property
    def shared_bytes(self) -> int:
        """Bytes that threads ask of shared memory or put there."""
        return sum(line.bytes for line in self.by_line if line.wavefronts)


def totals(samples: Sequence[Sample], runs: Sequence[Run]) -> Totals:
    """Scale and add the counts of all samples."""
    code = runs[0].instructions
    columns = [
        {name: sum(s.weight * getattr(run.instructions[i], name) for s, run in zip(samples, runs, strict=True))
         for name in _COLUMNS}
        for i in range(len(code))
    ]  # fmt: skip
    operands = [max((run.operands[i] for run in runs), key=len) for i in range(len(code))]
    flop: dict[str, int] = {}
    for sample, run in zip(samples, runs, strict=True):
        for kind, count in run.flop_by_class.items():
            flop[kind] = flop.get(kind, 0) + sample.weight * count
    by_class: dict[str, tuple[int, int]] = {}
    engine: dict[str, int] = {}
    for i, row in enumerate(code):
        if moved := sum(s.weight * run.instructions[i].engine_bytes for s, run in zip(samples, runs, strict=True)):
            engine[row.kind] = engine.get(row.kind, 0) + moved
    bulk = sum(column["sectors"] for row, column in zip(code, columns, strict=True) if row.kind in _BULK)
    # In kernels with tensor cores they compute addresses.
    integers = _multiplies_integers(samples[0].problem) and not any(row.kind == MATRIX for row in code)
    for row, column in zip(code, columns, strict=True):
        kind = row.kind
        if integers and kind == "integer" and row.text.partition("mad.lo.s32")[1]:
            kind = INTEGER_MULTIPLY_ADD
            flop[kind] = flop.get(kind, 0) + 2 * column["threads"]
        warps, threads = by_class.get(kind, (0, 0))
        by_class[kind] = (warps + column["warps"], threads + column["threads"])
    return Totals(
        warps=sum(column["warps"] for column in columns),
        by_class={kind: pair for kind, pair in sorted(by_class.items(), key=lambda item: -item[1][0]) if pair[0]},
        by_line=_by_line(code, columns, operands),
        operations_by_class=flop,
        l2_bytes=_SECTOR * bulk + sum(s.weight * run.l2_bytes for s, run in zip(samples, runs, strict=True)),
        engine_bytes=engine,
    )


def _multiplies_integers(problem: Problem) -> bool:
    return isinstance(problem, GemmProblem) and problem.a.dtype.kind is Kind.INTEGER


def _by_line(code: Sequence[Row], columns: Sequence[dict[str, int]], operands: Sequence[str]) -> tuple[LineCounts, ...]:
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    for row, column, operand in zip(code, columns, operands, strict=True):
        if column["requests"]:
            sums = found.setdefault((row.source, row.kind, operand), dict.fromkeys(_COLUMNS, 0))
            for name in _COLUMNS:
                sums[name] += column[name]
    return tuple(
        LineCounts(*_place(source), kind, operand, *sums.values()) for (source, kind, operand), sums in found.items()
    )


def _place(source: str) -> tuple[str, str]:
    """Return where a line is, without the folders of this computer, and its text."""
    name, _, number = source.rpartition(":")
    parts = Path(name).parts
    if _PACKAGE.name in parts[:-1]:
        # The package may have been elsewhere when the kernel was compiled.
        inside = Path(*parts[len(parts) - parts[::-1].index(_PACKAGE.name) :])
        text = linecache.getline(str(_PACKAGE / inside), int(number)).strip()
        return f"{inside.as_posix()}:{number}", text
    return f"{Path(name).name}:{number}" if name else "", ""


def as_dict(line: LineCounts) -> dict[str, Any]:
    """Return a line's counts as plain data."""
    return dataclasses.asdict(line) | {"bank_conflicts": line.conflicts}
