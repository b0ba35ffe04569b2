"""A kernel explained: its figures, and what they say."""

from __future__ import annotations

import dataclasses
from typing import Any

from gemmule.core.chip import Chip
from gemmule.core.launch import Launch
from gemmule.core.occupancy import Occupancy
from gemmule.core.problem import GemmProblem, Problem
from gemmule.core.spec import Choice

from .behind_l2 import Behind
from .limits import ARITHMETIC, ASSUMED_LATENCY, Limit, Waiting
from .sample import extents
from .timeline import Timeline
from .timeline_json import timeline_dict
from .totals import BULK_STORE, Totals, as_dict
from .traffic import LevelTraffic

SECTOR = 32
_READS, _WRITES = ("load global", "load generic", "async copy"), ("store global",)
# Bulk copies are no requests of a warp.
_STORES = (*_WRITES, BULK_STORE)


@dataclasses.dataclass(frozen=True)
class Published:
    """The roofline of the analyses that the ladder follows, by their rule of counting.

    Where every thread loads for itself, they take the size of an element for each transaction of 32 bytes; where a CTA
    shares what it loads, all bytes.
    """

    sectors_per_warp_step: float  #: Transactions of a warp's loads for each step of k.
    transaction_bytes: int  #: Bytes that one counts as.
    flop_per_byte: float  #: Operations for each of these bytes.
    #: That times the bandwidth of device memory, or the peak; None where the chip cannot launch the kernel or its peak
    #: is not known.
    bound_gflops: float | None


@dataclasses.dataclass(frozen=True)
class Before:
    """A launch that prepares operands for the one that is explained."""

    kernel: str  #: Its kernel.
    bytes: int  #: Bytes that it reads and writes.
    seconds: float  #: The least time, at the bandwidth of device memory.


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A kernel explained."""

    #: problem, choice, chip, recipe: What is computed by which kernel, where, and its launch.
    problem: Problem
    choice: Choice
    chip: Chip
    recipe: Launch
    arch: str  #: Target of the compiled code.
    arch_note: str  #: Why that is not the chip's own, where it is not.
    toolchain: str  #: Compiler and version.
    samples: tuple[tuple[tuple[int, ...], int], ...]  #: Extents that were counted, and the factor of each.
    #: Rows and columns of the result of a CTA's tile, or of a cluster's; of a product its K too, None, and of a
    #: transpose the matrices of the batch first.
    tile: tuple[int | None, ...]
    #: registers, spill_bytes, shared_bytes: Of a thread, of a thread, of a CTA.
    registers: int
    spill_bytes: int
    shared_bytes: int
    occupancy: Occupancy  #: CTAs that an SM holds.
    totals: Totals  #: The counts.
    levels: tuple[LevelTraffic, ...]  #: Bytes by level.
    behind_l2: Behind  #: Traffic between the L2 cache and device memory.
    bandwidth: float  #: Bandwidth of device memory, bytes a second.
    limits: tuple[Limit, ...]  #: Least times, the longest first.
    #: Why the time of a unit is not known, for each such unit. With any, nobody can say which takes the longest.
    missing: tuple[str, ...]
    waiting: Waiting | None  #: Waits for device memory.
    published: Published | None  #: The simple roofline of a product.
    next: str | None  #: Advice on the next change; None where units are missing.
    tiles: int = 0  #: CTAs that there would be if each computed one tile: more than there are where CTAs stay.
    #: Registers of a thread that warps ask for by themselves, giving up or taking some; none where no warp does.
    warp_registers: tuple[int, ...] = ()
    timeline: Timeline | None = None  #: The pipeline of a kernel whose k-tiles TMA loads.
    before: tuple[Before, ...] = ()  #: Launches that prepare operands, that of the kernel which was named first.

    @property
    def named(self) -> str:
        """The kernel that was named: the first launch."""
        return self.before[0].kernel if self.before else self.choice.spec.name

    @property
    def persistent(self) -> bool:
        """Whether CTAs stay and compute tile after tile."""
        return self.tiles > self.ctas

    @property
    def matrix_tile(self) -> tuple[int | None, ...]:
        """Rows and columns of the tile: of a product the first two extents, of a transpose the last two."""
        return self.tile[:2] if isinstance(self.problem, GemmProblem) else self.tile[-2:]

    @property
    def flop(self) -> int:
        """Operations of the product; 0 for a transpose."""
        return self.problem.flop if isinstance(self.problem, GemmProblem) else 0

    @property
    def ctas(self) -> int:
        """CTAs of the launch."""
        x, y, z = self.recipe.grid
        return x * y * z

    @property
    def sampled(self) -> bool:
        """Whether smaller problems were counted, and not the problem itself."""
        return len(self.samples) > 1 or self.samples[0][1] != 1

    @property
    def longest(self) -> Limit | None:
        """The unit that takes the longest; None where the kernel cannot be launched or a unit's time is not known."""
        return self.limits[0] if self.limits and not self.missing else None

    @property
    def least_seconds(self) -> float | None:
        """The time of the unit that takes the longest, where that is known."""
        return self.longest.seconds if self.longest is not None else None

    @property
    def arithmetic(self) -> Limit | None:
        """The arithmetic units that the kernel uses, where their rate is known."""
        return next((limit for limit in self.limits if limit.unit == ARITHMETIC), None)

    @property
    def peak(self) -> float | None:
        """The peak of these units, operations a second."""
        return self.arithmetic.rate if self.arithmetic is not None else None

    @property
    def waiting_seconds(self) -> float | None:
        """The least time, with waiting for device memory; None where it is not known."""
        if self.least_seconds is None or self.waiting is None or self.waiting.exposed_seconds is None:
            return None
        return self.least_seconds + self.waiting.exposed_seconds

    @property
    def l2_hit_rates(self) -> tuple[float, float] | None:
        """Hit rates of L2, with CTAs in step and not; None for a transpose."""
        if not isinstance(self.problem, GemmProblem):
            return None
        stored = SECTOR * self.totals.total("sectors", *_STORES)
        return self.behind_l2.hit_rates(self.totals.l2_bytes - stored, stored, self.chip.l2_partitions)

    @property
    def multiply_add_share(self) -> float:
        """Multiply-adds, or products of small matrices, as a share of all instructions of warps."""
        return self.totals.multiply_adds / max(self.totals.warps, 1)

    def rate(self, seconds: float | None) -> float | None:
        """Return GFLOP/s of a product, or GB/s of a transpose (each element in and out), that takes so long."""
        if not seconds:
            return None
        return (self.flop or self.problem.bytes_min) / seconds / 1e9

    def sectors_per_request(self, *kinds: str) -> float | None:
        """Return the sectors that a request to global memory touches on average, of those classes of instructions."""
        lines = [line for line in self.totals.by_line if line.kind in kinds and line.sectors]
        return sum(line.sectors for line in lines) / sum(line.requests for line in lines) if lines else None

    @property
    def read_sectors_per_request(self) -> float | None:
        """Sectors that a read of global memory touches."""
        return self.sectors_per_request(*_READS)

    @property
    def write_sectors_per_request(self) -> float | None:
        """Sectors that a write of global memory touches."""
        return self.sectors_per_request(*_WRITES)

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        problem, totals, published = self.problem, self.totals, self.published
        product = isinstance(problem, GemmProblem)
        found: dict[str, Any] = {
            "kernel": self.choice.spec.name,
            "operation": self.choice.spec.operation,
            "config": self.choice.config.as_dict(),
            "signature": dict(self.choice.signature(problem)),
            "shape": list(extents(problem)),
            "dtype": (problem.a if isinstance(problem, GemmProblem) else problem.source).dtype.name,
            "layout": problem.layout if isinstance(problem, GemmProblem) else None,
            "chip": self.chip.name,
            "arch": self.arch,
            "arch_note": self.arch_note or None,
            "compiler": self.toolchain,
            "method": {
                "extrapolated": self.sampled,
                "samples": [{"shape": list(shape), "factor": factor} for shape, factor in self.samples],
            },
            "grid": list(self.recipe.grid),
            "threads": self.recipe.threads,
            "ctas": self.ctas,
            "tile": list(self.matrix_tile),
            "registers": self.registers,
            "spill_bytes": self.spill_bytes,
            "shared_memory_bytes": self.shared_bytes,
            "ctas_per_multiprocessor": self.occupancy.blocks,
            "active_warps": self.occupancy.active_warps,
            "occupancy": self.occupancy.occupancy,
            "occupancy_limit": list(self.occupancy.limited_by),
            "why_not_launched": self.occupancy.reason,
            "operations": self.flop,
            "operations_counted": totals.operations if product else None,
            "sectors_per_warp_step": published.sectors_per_warp_step if published else None,
            "transaction_bytes": published.transaction_bytes if published else None,
            "flop_per_byte": published.flop_per_byte if published else None,
            "bandwidth_gbps": self.bandwidth / 1e9,
            "bound_gflops": published.bound_gflops if published else None,
            "peak_gflops": self.peak / 1e9 if self.peak is not None else None,
            "peak_unit": self.arithmetic.means if self.arithmetic is not None else None,
            "sectors_per_request": {
                "load": self.read_sectors_per_request,
                "store": self.write_sectors_per_request,
            },
            "coalescing": totals.total("ideal_sectors") / max(totals.total("sectors"), 1),
            "load_bank_conflicts": totals.load_conflicts,
            "store_bank_conflicts": totals.store_conflicts,
            "bytes_by_level": {
                level.name: {
                    "bytes": level.bytes,
                    "counted": level.counted,
                    "formula_bytes": level.formula_bytes,
                    "formula": level.formula or None,
                    "flop_per_byte": self.flop / level.bytes if product and level.bytes else None,
                }
                for level in self.levels
            },
            "l2_hit_rate": self.l2_hit_rates and dict(zip(("in_step", "apart"), self.l2_hit_rates, strict=True)),
            "memory_bytes_apart": self.behind_l2.apart_bytes,
            "instructions": totals.warps,
            "instruction_mix": {
                kind: {"warps": warps, "threads": threads, "share": warps / totals.warps}
                for kind, (warps, threads) in totals.by_class.items()
            },
            "multiply_add_share": self.multiply_add_share if product else None,
            "limits": [
                {
                    "unit": limit.unit,
                    "amount": limit.amount,
                    "of": limit.what,
                    "rate": limit.rate,
                    "uneven": limit.uneven,
                    "seconds": limit.seconds,
                    "gflops" if product else "gbps": self.rate(limit.seconds),
                }
                for limit in self.limits
            ],
            "missing": list(self.missing),
            "limited_by": self.longest.unit if self.longest is not None else None,
            "attainable_gflops" if product else "attainable_gbps": self.rate(self.least_seconds),
            "latency": self._latency(),
            "by_line": [as_dict(line) for line in totals.by_line],
            "next": self.next,
            "tiles": self.tiles,
            "warp_registers": list(self.warp_registers),
            "timeline": timeline_dict(self.timeline) if self.timeline is not None else None,
            "before": [dataclasses.asdict(one) for one in self.before],
        }
        return found

    def _latency(self) -> dict[str, Any] | None:
        if self.waiting is None:
            return None
        return {
            "rounds": self.waiting.rounds,
            "instructions_between": self.waiting.distance,
            "cycles_between": self.waiting.hidden_cycles,
            "assumed_cycles": ASSUMED_LATENCY,
            "exposed_seconds": self.waiting.exposed_seconds,
            "gflops_if_all_wait" if self.flop else "gbps_if_all_wait": self.rate(self.waiting_seconds),
        }
