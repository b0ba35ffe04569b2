"""The first of several kernels that is faster, and those that are not asked for."""

from __future__ import annotations

import pickle

import pytest

from gemmule.core.alternatives import Alternatives
from gemmule.core.gpu_rates import H200_RATES


def below_three(problem, cost, gpu):
    return cost > 3


def below_two(problem, cost, gpu):
    return cost > 2


def never_tested(problem, cost, gpu):
    raise AssertionError


@pytest.mark.parametrize(("cost", "name"), [(4, "first"), (2.5, "second"), (1, None)])
def test_the_first_that_is_faster(cost, name):
    alternatives = Alternatives(("first", below_three), ("second", below_two))
    assert pickle.loads(pickle.dumps(alternatives))(None, cost, H200_RATES) == name


def test_other_kernels_are_not_predicted():
    alternatives = Alternatives(("left out", never_tested), ("wanted", below_two))
    assert alternatives(None, 4, H200_RATES, {"wanted"}) == "wanted"
    assert alternatives(None, 4, H200_RATES, set()) is None
