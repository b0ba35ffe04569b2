"""The protocol of measurements, as arithmetic: how many buffers, calls and rounds, in which order, what is compared.

A sample is one or more calls in a row, and lasts long enough to be timed well. Two pieces of work are sampled A B B A,
so that a drift of the clock affects both alike. Each A is compared with the adjacent B.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

#: Buffer sets together hold this many times the L2 cache.
CACHES = 3
#: Most buffer sets; only tiny products would need more.
MAX_SETS = 2048
#: Most calls of a sample, unless there are more buffer sets.
MAX_CALLS = 4096
#: Work that is shorter, in seconds, is timed as graphs: the host could not queue it fast enough.
GRAPH_BELOW = 300e-6
#: A sample lasts at least this long, in seconds, or is a single call: less only where the budget of a point is short.
SAMPLE_SECONDS, SAMPLE_SHARE = 5e-3, 0.02
#: Rounds A B B A of a measurement: at least, so that there are three samples, and at most.
MIN_ROUNDS, MAX_ROUNDS = 2, 25
#: Fewest rounds in which the baseline's algorithms are compared with each other.
SURVEY_ROUNDS = 3
#: Seconds of load before the first figure, before each later one, and before one that the device had to wait for.
WARM_UP_SECONDS, POINT_WARM_UP_SECONDS, COLD_WARM_UP_SECONDS = 3.0, 0.1, 0.3
#: Most of a point's budget that its load before the first sample takes.
WARM_UP_SHARE = 0.4
#: The device has cooled down after that many seconds without load.
PAUSE_SECONDS = 0.5
#: M = N = K of the product that is the load before the first figure.
WARM_UP_EDGE = 4096
#: Largest distance from 1 of the baseline's ratio to itself: of its median, and of the limits of four of five.
CONTROL_WITHIN, CONTROL_SPREAD_WITHIN = 0.01, 0.05


def buffer_sets(set_bytes: int, l2_bytes: int) -> int:
    """Return how many buffer sets of `set_bytes` a measurement walks round."""
    return max(1, min(MAX_SETS, math.ceil(CACHES * l2_bytes / max(set_bytes, 1))))


def sample_seconds(budget: float) -> float:
    """Return how long a sample lasts at least where a point may take `budget` seconds."""
    return min(SAMPLE_SECONDS, SAMPLE_SHARE * budget)


def calls_for(seconds: float, sets: int, *, graph: bool, sample: float = SAMPLE_SECONDS) -> int:
    """Return the calls of a sample of at least `sample` seconds, of work that takes `seconds` a call.

    A graph goes round all buffer sets, once or several times: each replay starts with the same one, so that with fewer
    calls the rest would never be used.
    """
    wanted = max(1, min(math.ceil(sample / max(seconds, 1e-9)), MAX_CALLS))
    return math.ceil(wanted / sets) * sets if graph else wanted


def rounds_for(round_seconds: float, budget: float, at_least: int = MIN_ROUNDS) -> int:
    """Return how many rounds of that length fit into a budget of seconds, within the limits."""
    return max(at_least, min(MAX_ROUNDS, int(budget / max(round_seconds, 1e-9))))


def turns(works: int) -> list[int]:
    """Return the order of one round: 0 1 … 1 0, for two works A B B A."""
    return [*range(works), *reversed(range(works))]


@dataclasses.dataclass(frozen=True)
class Ratios:
    """Paired ratios: the median, and the 10th and 90th percentile."""

    median: float
    low: float
    high: float


def paired_ratios(ours: Sequence[float], theirs: Sequence[float]) -> Ratios:
    """Return theirs / ours, sample by sample: above 1 where ours are faster."""
    ratios = sorted(b / a for a, b in zip(ours, theirs, strict=True))
    return Ratios(statistics.median(ratios), _quantile(ratios, 0.1), _quantile(ratios, 0.9))


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, between two of them on the straight line."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
