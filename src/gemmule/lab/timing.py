"""Timing on a device, by the protocol."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence

from . import protocol
from .device import BenchDevice, Stopwatch, Work


@dataclasses.dataclass(frozen=True)
class Timing:
    """Samples of several works, taken in turns."""

    method: str  #: ``graph`` or ``events``.
    samples: tuple[tuple[float, ...], ...]  #: For each work its samples in order, in seconds a call.
    calls: tuple[int, ...]  #: Calls of a sample of each work.
    readings: Mapping[str, float]  #: Clocks and watts meanwhile.


def estimate(device: BenchDevice, work: Work) -> float:
    """Return roughly how long a call takes, in seconds, from one call that was not the first."""
    with device.stopwatch(work, 1, graph=False) as watch:
        return watch.queue()()


def load(device: BenchDevice, works: Sequence[Work], seconds: float) -> None:
    """Keep the device at work for that long, with samples that nobody keeps."""
    spent = 0.0
    with contextlib.ExitStack() as stack:
        watches = []
        for work in works:
            calls = protocol.calls_for(estimate(device, work), 1, graph=False)
            watches.append(stack.enter_context(device.stopwatch(work, calls, graph=False)))
        while spent < seconds:
            for watch in watches:
                spent += watch.queue()() * watch.calls
                if spent >= seconds:
                    break


def measure(
    device: BenchDevice,
    works: Sequence[Work],
    sets: int,
    budget: float,
    at_least: int = protocol.MIN_ROUNDS,
    *,
    warm_up: float = protocol.POINT_WARM_UP_SECONDS,
    before_last: Callable[[], None] = lambda: None,
) -> Timing:
    """Sample works in turns A B … B A.

    Parameters
    ----------
    works : sequence of callable
        Functions to time; each was called before.
    sets : int
        Buffer sets that they walk round.
    budget : float
        Seconds to spend, more only where `at_least` rounds need more.
    at_least : int
        Fewest rounds.
    warm_up : float
        Seconds of load before the first sample; a share of the budget at most.
    before_last : callable
        Is called before the very last sample, one of the first work, is queued; may queue something.
    """
    seconds = [estimate(device, work) for work in works]
    # Compared functions are timed in the same way.
    graph = min(seconds) < protocol.GRAPH_BELOW
    sample = protocol.sample_seconds(budget)
    calls = [protocol.calls_for(one, sets, graph=graph, sample=sample) for one in seconds]
    round_seconds = 2 * sum(one * count for one, count in zip(seconds, calls, strict=True))
    rounds = protocol.rounds_for(round_seconds, budget, at_least)
    samples: list[list[float]] = [[] for _ in works]
    with contextlib.ExitStack() as stack:
        watches = [
            stack.enter_context(device.stopwatch(work, count, graph=graph))
            for work, count in zip(works, calls, strict=True)
        ]
        _warm(watches, min(warm_up, protocol.WARM_UP_SHARE * budget))
        readings = stack.enter_context(device.readings())
        for number in range(rounds):
            # The whole round is queued before anything is waited for: the device does not idle between two samples.
            *turns, last = protocol.turns(len(works))
            queued = [(index, watches[index].queue()) for index in turns]
            if number == rounds - 1:
                before_last()
            queued.append((last, watches[last].queue()))
            for index, seconds_of in queued:
                samples[index].append(seconds_of())
    return Timing("graph" if graph else "events", tuple(map(tuple, samples)), tuple(calls), readings.summary())


def _warm(watches: Sequence[Stopwatch], seconds: float) -> None:
    spent = 0.0
    while spent < seconds:
        for watch in watches:
            spent += watch.queue()() * watch.calls
            if spent >= seconds:
                return
