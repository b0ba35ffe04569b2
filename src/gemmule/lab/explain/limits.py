"""Times of each unit of a chip for a launch: the longest is the least that the launch can take.

Rates of an SM for each of its cycles:

- its schedulers issue one instruction of a warp each;
- shared memory and the L1 cache, which are one memory, serve one pass: 128 bytes of shared memory without conflicts of
  banks, or of one line of global memory (`LineCounts.passes`; a test holds them against an H100's counters);
- the arithmetic units do what the chip's peak rate says.

Work is counted for the SM that has the most CTAs. Device memory is the whole chip's, and so is the L2
cache, whose bandwidth is published for none: it counts where it is given.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from gemmule.core.chip import Chip
from gemmule.core.problem import GemmProblem, Problem

from .totals import MATRIX, Totals

#: Cycles from a request to device memory to its answer: an assumption, in the order of what is measured on GPUs.
ASSUMED_LATENCY = 600
_WAVEFRONT = 128

ARITHMETIC, ISSUE, L1, L2, MEMORY = "arithmetic", "instruction issue", "L1 and shared memory", "L2", "device memory"
_PEAKS = {"f32": "fp32", "f64": "fp64", "s32": "int32"}
# Tensor cores by the type that they multiply: another type's are no substitute: the type is part of the instruction.
_TENSOR = {
    "float64": "fp64_tensor",
    "float32": "tf32_tensor",
    "float16": "fp16_tensor",
    "bfloat16": "bf16_tensor",
    "float8_e4m3fn": "fp8_tensor",
    "float8_e5m2": "fp8_tensor",
    "int8": "int8_tensor",
    "complex128": "fp64_tensor",
}


@dataclasses.dataclass(frozen=True)
class Limit:
    """The time of one unit alone."""

    unit: str  #: The unit.
    amount: float  #: Total traffic or operations.
    what: str  #: Counted quantity.
    rate: float  #: Most of it in a second, of the whole chip.
    seconds: float  #: The least time.
    #: Factor in it: CTAs of the SM with the most, over their number on average. 1 for what all share.
    uneven: float = 1.0
    means: str = ""  #: Owner of the rate, for arithmetic units.


@dataclasses.dataclass(frozen=True)
class Waiting:
    """Waiting for device memory."""

    rounds: int  #: Waits of a warp.
    distance: int  #: Instructions between a load and the use of its value, in the order of the PTX; the median.
    hidden_cycles: int  #: Cycles that they take at least, with the warps that share a scheduler.
    #: Seconds that the launch waits if all warps of an SM wait at the same time, and a request takes
    #: `ASSUMED_LATENCY` cycles; None where the chip's clock is not known.
    exposed_seconds: float | None


def busiest_share(ctas: int, multiprocessors: int) -> float:
    """Return the share of the CTAs that the SM with the most of them has."""
    return -(-ctas // multiprocessors) / ctas


def limits(
    problem: Problem, totals: Totals, chip: Chip, ctas: tuple[int, int], memory: tuple[int, float],
    l2_bandwidth: float | None,
) -> tuple[Limit, ...]:  # fmt: skip
    """Return the time of each unit, the longest first.

    Parameters
    ----------
    ctas : tuple of int
        Pieces of work that an SM does as a whole, and CTAs that share them: the same, unless CTAs stay and
        compute tile after tile.
    memory : tuple of int and float
        Bytes that pass through device memory, and its bandwidth.
    l2_bandwidth : float or None
        Bytes a second of the L2 cache, where it is known.
    """
    # Units of an SM are idle where it has fewer CTAs than others.
    uneven = busiest_share(ctas[0], min(ctas[1], chip.sms)) * chip.sms
    found = [Limit(MEMORY, memory[0], "bytes", memory[1], memory[0] / memory[1])]
    if l2_bandwidth is not None:
        found.append(Limit(L2, totals.l2_bytes, "bytes", l2_bandwidth, totals.l2_bytes / l2_bandwidth))
    if isinstance(problem, GemmProblem) and (one := _arithmetic(problem, totals, chip, uneven)) is not None:
        found.append(one)
    if chip.boost_hz is not None:
        cycles = chip.sms * chip.boost_hz
        rate = cycles * chip.sm.partitions
        found.append(Limit(ISSUE, totals.warps, "instructions of warps", rate, uneven * totals.warps / rate, uneven))
        passes = totals.total("passes") + totals.engine_passes
        rate = cycles * chip.sm.shared_bytes_per_clock / _WAVEFRONT
        found.append(Limit(L1, passes, "wavefronts of 128 bytes", rate, uneven * passes / rate, uneven))
    return tuple(sorted(found, key=lambda limit: -limit.seconds))


def missing(problem: Problem, totals: Totals, chip: Chip) -> tuple[str, ...]:
    """Return why the time of a unit that the launch needs is not known, for each such unit."""
    found = []
    if chip.boost_hz is None:
        found.append(f"the clock of {chip.name} is not in the table, so {ISSUE}, and {L1}, are left out")
    if isinstance(problem, GemmProblem):
        unknown = [kind for kind in totals.operations_by_class if _unit_of(kind, problem, chip) is None]
        found += [f"{_lacks(kind, problem, chip)}, so {ARITHMETIC} is left out" for kind in unknown]
    return tuple(found)


def _lacks(kind: str, problem: GemmProblem, chip: Chip) -> str:
    if kind == MATRIX:
        return f"{chip.name} has no tensor cores for {problem.a.dtype}"
    return f"the table has no peak of {chip.name} for {kind.replace('mad s32', 'multiply-adds of 32-bit integers')}"


def _unit_of(kind: str, problem: GemmProblem, chip: Chip) -> tuple[str, float] | None:
    """Return the unit that executes a class of instructions, and its peak; None where the chip's table has none."""
    name = _TENSOR.get(problem.a.dtype.name) if kind == MATRIX else _PEAKS.get(kind.rpartition(" ")[2])
    rate: float | None = getattr(chip.peaks, name) if name is not None else None
    if name is None or rate is None:
        return None
    unit, _, tensor = name.partition("_")
    return f"{unit} {'tensor cores' if tensor else 'units'}", rate


def tensor_peak(problem: GemmProblem, chip: Chip) -> float | None:
    """Return the peak of the tensor cores for the type that a product multiplies; None where the table has none."""
    found = _unit_of(MATRIX, problem, chip)
    return found[1] if found is not None else None


def _arithmetic(problem: GemmProblem, totals: Totals, chip: Chip, uneven: float) -> Limit | None:
    """Return the time in the arithmetic units; None where the chip's table has no rate of one of them.

    Units of different kinds, such as tensor cores and those that finish their sums, work at the same time: the one that
    needs longest counts.
    """
    seconds: dict[str, float] = {}
    done, fastest = 0.0, ("", 0.0)
    for kind, flop in totals.operations_by_class.items():
        if (unit := _unit_of(kind, problem, chip)) is None:
            return None
        # An addition takes the place of a multiply-add.
        slots = flop if kind == MATRIX or kind.startswith("fma ") else 2 * flop
        seconds[unit[0]] = seconds.get(unit[0], 0.0) + slots / unit[1]
        done, fastest = done + flop, max(fastest, unit, key=lambda one: one[1])
    longest = max(seconds.values(), default=0.0)
    return Limit(ARITHMETIC, done, "FLOP", fastest[1], uneven * longest, uneven, fastest[0]) if done else None


def waiting(
    rounds: Sequence[tuple[int, Sequence[int]]], chip: Chip, ctas: int, blocks: int, warps: int
) -> Waiting | None:
    """Return how a launch waits for device memory; None if no warp does.

    Parameters
    ----------
    rounds : sequence of (int, sequence of int)
        The distances of one warp in each sample, and the sample's factor.
    ctas, blocks, warps : int
        CTAs of the launch, those that an SM holds at a time, and warps of one.
    """
    together = min(blocks, -(-ctas // chip.sms))
    in_turn = max(1, together * warps // chip.sm.partitions)
    everything = sorted(distance for _, distances in rounds for distance in distances)
    if not everything or not together:
        return None
    cycles = sum(
        weight * sum(max(0, ASSUMED_LATENCY - distance * in_turn) for distance in distances)
        for weight, distances in rounds
    )
    distance = everything[len(everything) // 2]
    turns = math.ceil(ctas / (chip.sms * together))
    return Waiting(
        rounds=sum(weight * len(distances) for weight, distances in rounds),
        distance=distance,
        hidden_cycles=distance * in_turn,
        exposed_seconds=None if chip.boost_hz is None else turns * max(cycles, 0) / chip.boost_hz,
    )
