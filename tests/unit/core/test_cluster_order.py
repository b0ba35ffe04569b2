"""Orders of clusters by place."""

import itertools
import random

import pytest

from gemmule.core.cluster_order import order_by_place
from gemmule.core.launch import ClusterOrderParam


def parts_of_runs(places, run):
    """Return for each whole run of indices the places of its clusters."""
    order = order_by_place(places, run)
    place_of = dict(zip(order, places, strict=True))
    return [{place_of[i] for i in range(first, first + run)} for first in range(0, len(places) - run + 1, run)]


@pytest.mark.parametrize("run", [1, 2, 3, 4, 5, 8, 70])
@pytest.mark.parametrize("count", [1, 2, 7, 66, 132])
def test_every_cluster_has_an_index_of_its_own(count, run):
    rng = random.Random(count * run)
    places = [(rng.randrange(8), rng.randrange(2)) for _ in range(count)]
    assert sorted(order_by_place(places, run)) == list(range(count))


def test_runs_lie_in_one_part_of_a_gpc():
    # Launched round the GPCs, four clusters for each half.
    places = [(gpc, half) for half in range(2) for _ in range(4) for gpc in range(8)]
    for run in (1, 2, 4):
        assert all(len(run_places) == 1 for run_places in parts_of_runs(places, run))


def test_what_a_part_leaves_over_shares_the_gpc():
    places = [(gpc, half) for half in range(2) for _ in range(4) for gpc in range(8)]
    runs = parts_of_runs(places, 3)
    assert sum(len(one) == 1 for one in runs) >= 16
    assert sum(len({gpc for gpc, _ in one}) == 1 for one in runs) >= 16


def test_words_of_a_permutation():
    order = list(itertools.chain(range(5, 13), range(5)))
    words = [ClusterOrderParam(13, 2, 1, word).bytes_of(order) for word in range(2)]
    assert [*words[0], *words[1][:5]] == order
    assert ClusterOrderParam(13, 2, 1, 1).pack({}) == bytes([8, 9, 10, 11, 12, 0, 0, 0])
