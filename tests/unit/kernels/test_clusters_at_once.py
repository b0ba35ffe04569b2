"""Clusters that run at once, beside those that were seen to, and the CTAs of the busiest SM."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.kernels.hopper.tile_config import CLUSTERS
from gemmule.kernels.parts.clusters_at_once import ClusterPlaces, clusters_at_once

#: CTAs of a cluster, CTAs an SM, and clusters that ran at once, or were said to by the driver's occupancy calculator.
SEEN = [(3, 2, 79), (4, 2, 62), (4, 3, 92), (6, 2, 39), (6, 3, 62), (8, 2, 30), (8, 3, 45), (16, 1, 7), (16, 2, 14)]


@pytest.mark.parametrize(("ctas", "each", "clusters"), SEEN)
def test_beside_those_that_ran(ctas, each, clusters):
    assert clusters_at_once(ctas, each) == clusters


def test_beside_those_of_persistent_kernels():
    assert {ctas: clusters_at_once(ctas, 1) for ctas in CLUSTERS} == CLUSTERS


@pytest.mark.parametrize(
    ("clusters", "busiest"), [(1, 1), (17, 1), (18, 2), (39, 2), (40, 3), (62, 3), (63, 4), (124, 6)]
)
def test_one_cluster_too_many_shares_an_sm_or_waits(clusters, busiest):
    places = ClusterPlaces([(6, 3)])
    assert places.busiest(np.array([float(clusters)]), 132) == [busiest]


def test_single_ctas_are_spread_evenly():
    places = ClusterPlaces([(1, 2), (2, 2)])
    np.testing.assert_array_equal(places.busiest(np.array([133.0, 67.0]), 132), [2, 2])
    np.testing.assert_array_equal(places.busiest(np.array([265.0, 133.0]), 132), [3, 3])
    np.testing.assert_array_equal(places.busiest(np.array([0.0, 0.0]), 132), [1, 1])
    np.testing.assert_array_equal(places.busiest(np.array([114.0, 57.0]), 114), [1, 1])
