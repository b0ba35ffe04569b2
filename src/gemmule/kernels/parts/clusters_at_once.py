"""Clusters that a GPU runs at once, and the CTAs of its busiest SM, for predicted times."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from .hopper_facts import SMS

Numbers = np.ndarray[Any, np.dtype[Any]]

#: SMs of the GPCs of an H100 or H200 SXM that have clusters of more CTAs than a TPC has SMs: a cluster is in one GPC.
#: They explain which numbers of 3 to 16 CTAs were seen to run at once, and the driver's occupancy calculator.
_GPCS, _TPC = (16, 16, 16, 16, 16, 18, 18, 8), 2


@functools.cache
def clusters_at_once(ctas: int, each: int) -> int:
    """Return how many clusters of so many CTAs run at once, none of whose SMs has more than `each` of these."""
    if ctas <= _TPC:
        return SMS * each // ctas
    return sum(each * sms // ctas for sms in _GPCS if sms >= ctas)


class ClusterPlaces:
    """Placement of the clusters of configs.

    Parameters
    ----------
    clusters : sequence of (int, int)
        CTAs of a cluster, and resident CTAs of an SM, of each config.
    """

    def __init__(self, clusters: Sequence[tuple[int, int]]) -> None:
        self._resident = np.array([resident for _, resident in clusters], np.float64)
        #: Clusters that run at once, and beyond which an SM has more than one CTA, two and so on: a row for each.
        self.at_once = np.array([clusters_at_once(*one) for one in clusters], np.float64)
        rows = range(1, max((resident for _, resident in clusters), default=1))
        self._fitting = np.array(
            [[clusters_at_once(ctas, row) if row < most else np.inf for ctas, most in clusters] for row in rows]
        ).reshape(len(rows), len(clusters))
        #: CTAs that run at once, of as many as all SMs could hold.
        self.reached = self.at_once * [ctas for ctas, _ in clusters] / (SMS * self._resident)

    def busiest(self, clusters: Numbers, multiprocessors: int) -> Numbers:
        """Return the CTAs of the busiest SM, one after another where they are more than resident ones."""
        clusters = clusters * (SMS / multiprocessors)
        rounds = np.floor(np.maximum(clusters - 1, 0) / self.at_once)
        last = clusters - rounds * self.at_once
        found: Numbers = rounds * self._resident + 1 + (last > self._fitting).sum(axis=0)
        return found
