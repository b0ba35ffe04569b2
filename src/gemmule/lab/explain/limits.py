"""What a launch takes of each unit of a chip, as time: the longest is the least that the launch can take.

Rates of a multiprocessor for each of its cycles:

- its schedulers issue one instruction of a warp each;
- shared memory and the L1 cache, which are one memory, serve one pass: 128 bytes of shared memory without conflicts of
  banks, or of one line of global memory (`LineCounts.passes`; a test holds them against an H100's counters);
- the arithmetic units do what the chip's peak rate says.

Work is counted for the multiprocessor that has the most CTAs. Device memory is the whole chip's, and so is the L2
cache, whose bandwidth is published for none: it counts where it is given.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from gemmule.core.chips import Chip
from gemmule.core.problem import GemmProblem, Problem
from gemmule.core.roofline import fastest_unit

from .totals import Totals

#: Cycles from a request to device memory to its answer: an assumption, in the order of what is measured on GPUs.
ASSUMED_LATENCY = 600
_WAVEFRONT = 128

ARITHMETIC, ISSUE, L1, L2, MEMORY = "arithmetic", "instruction issue", "L1 and shared memory", "L2", "device memory"
_PEAKS = {"f32": "fp32", "f64": "fp64"}


@dataclasses.dataclass(frozen=True)
class Limit:
    """What one unit would take, were it alone.

    Attributes
    ----------
    unit : str
        The unit.
    amount : float
        What passes through it, in all.
    what : str
        What is counted.
    rate : float
        Most of it in a second, of the whole chip.
    seconds : float
        The least time.
    """

    unit: str
    amount: float
    what: str
    rate: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Waiting:
    """Waiting for device memory.

    Attributes
    ----------
    rounds : int
        How often a warp waits.
    distance : int
        Instructions between a request and the use of what it brings, in the order of the PTX; the median.
    hidden_cycles : int
        Cycles that they take at least, with the warps that share a scheduler.
    exposed_seconds : float or None
        What the launch waits if all warps of a multiprocessor wait at the same time, and a request takes
        `ASSUMED_LATENCY` cycles; None where the chip's clock is not known.
    """

    rounds: int
    distance: int
    hidden_cycles: int
    exposed_seconds: float | None


def busiest_share(ctas: int, multiprocessors: int) -> float:
    """Return the share of the CTAs that the multiprocessor with the most of them has."""
    return -(-ctas // multiprocessors) / ctas


def limits(
    problem: Problem, totals: Totals, chip: Chip, ctas: int, memory: tuple[int, float], l2_bandwidth: float | None
) -> tuple[Limit, ...]:
    """Return what each unit takes, the longest first.

    Parameters
    ----------
    problem : GemmProblem or TransposeProblem
        What is computed.
    totals : Totals
        The counts.
    chip : Chip
        Where.
    ctas : int
        CTAs of the launch.
    memory : tuple of int and float
        Bytes that pass through device memory, and its bandwidth.
    l2_bandwidth : float or None
        Bytes a second of the L2 cache, where it is known.
    """
    # Units of a multiprocessor are idle where it has fewer CTAs than others.
    uneven = busiest_share(ctas, chip.sms) * chip.sms
    found = [Limit(MEMORY, memory[0], "bytes", memory[1], memory[0] / memory[1])]
    if l2_bandwidth is not None:
        found.append(Limit(L2, totals.l2_bytes, "bytes", l2_bandwidth, totals.l2_bytes / l2_bandwidth))
    if isinstance(problem, GemmProblem) and (one := _arithmetic(problem, totals, chip, uneven)) is not None:
        found.append(one)
    if chip.boost_hz is not None:
        cycles = chip.sms * chip.boost_hz
        rate = cycles * chip.sm.partitions
        found.append(Limit(ISSUE, totals.warps, "instructions of warps", rate, uneven * totals.warps / rate))
        passes = totals.total("passes")
        rate = cycles * chip.sm.shared_bytes_per_clock / _WAVEFRONT
        found.append(Limit(L1, passes, "passes of 128 bytes", rate, uneven * passes / rate))
    return tuple(sorted(found, key=lambda limit: -limit.seconds))


def _arithmetic(problem: GemmProblem, totals: Totals, chip: Chip, uneven: float) -> Limit | None:
    """Return the time in the arithmetic units; None where the chip's table has no rate of them."""
    seconds, done, fastest = 0.0, 0.0, 0.0
    rate: float | None
    for kind, flop in totals.flop_by_class.items():
        name, _, element = kind.rpartition(" ")
        if kind == "matrix multiply":
            slots, rate = flop, fastest_unit(chip, problem.a.dtype, problem.b.dtype, problem.precision)[1]
        else:
            peak = _PEAKS.get(element)
            rate = getattr(chip.peaks, peak) if peak is not None else None
            # An addition takes the place of a multiply-add.
            slots = flop if name == "fma" else 2 * flop
        if rate is None:
            return None
        seconds, done, fastest = seconds + slots / rate, done + flop, max(fastest, rate)
    return Limit(ARITHMETIC, done, "FLOP", fastest, uneven * seconds) if done else None


def waiting(
    rounds: Sequence[tuple[int, Sequence[int]]], chip: Chip, ctas: int, blocks: int, warps: int
) -> Waiting | None:
    """Return how a launch waits for device memory; None if no warp does.

    Parameters
    ----------
    rounds : sequence of (int, sequence of int)
        The distances of one warp in each sample, and the sample's factor.
    chip : Chip
        Where.
    ctas, blocks, warps : int
        CTAs of the launch, those that a multiprocessor holds at a time, and warps of one.
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
