"""The order of a launch's clusters by where they lie, as a permutation of their indices."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

#: Where a cluster lies: its GPC, and a part of that within which L2 coalesces requests.
Place = tuple[int, int]


def order_by_place(places: Sequence[Place], run: int) -> tuple[int, ...]:
    """Return for each cluster its index in the order of places, a permutation whatever these are.

    `run` clusters in a row share loads. As many whole runs as fit lie in one part of a GPC, then in one GPC; the rest
    of the clusters make up others.

    Parameters
    ----------
    places : sequence of (int, int)
        Place of each cluster, in the order in which they are launched.
    run : int
        Clusters with the same tile of weights.
    """
    left = sorted(range(len(places)), key=places.__getitem__)
    order: list[int] = []
    for level in range(2, 0, -1):
        rest: list[int] = []
        for near in _grouped(left, places, level):
            whole = len(near) - len(near) % run
            order += near[:whole]
            rest += near[whole:]
        left = rest
    found = [0] * len(places)
    for index, cluster in enumerate((*order, *left)):
        found[cluster] = index
    return tuple(found)


def _grouped(clusters: Iterable[int], places: Sequence[Place], level: int) -> list[list[int]]:
    """Return the clusters, sorted by place, of each GPC, or with a level of 2 of each part of one."""
    return [list(near) for _, near in itertools.groupby(clusters, key=lambda cluster: places[cluster][:level])]
