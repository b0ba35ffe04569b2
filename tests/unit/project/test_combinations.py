"""Samples of grids of parameters."""

from __future__ import annotations

import itertools

import pytest

from support.combinations import covering

GRID = [(a, a, b, c, d) for a, b, c, d in itertools.product(range(7), range(5), range(3), range(2))]


def combinations(rows, strength):
    return {
        (axes, *(row[axis] for axis in axes)) for row in rows for axes in itertools.combinations(range(5), strength)
    }


@pytest.mark.parametrize(("strength", "most"), [(1, 7), (2, 45), (3, 130)])
def test_each_few_values_occur_together_in_few_rows(strength, most):
    sample = [GRID[place] for place in covering(GRID, strength)]
    assert combinations(sample, strength) == combinations(GRID, strength)
    assert len(sample) <= most


def test_as_many_values_as_parameters_are_all_rows():
    assert covering(GRID, 4) == [*range(len(GRID))]


def test_values_that_never_occur_together_are_not_asked_for():
    rows = [row for row in GRID if row[2] != 3 or row[3] == 1]
    sample = [rows[place] for place in covering(rows, 2)]
    assert combinations(sample, 2) == combinations(rows, 2)


def test_of_a_column_alone_each_value_occurs():
    sample = [GRID[place] for place in covering(GRID, 2, (2,))]
    assert {row[2] for row in sample} == {row[2] for row in GRID}
    pairs = itertools.combinations((0, 3, 4), 2)
    assert all({(row[i], row[j]) for row in sample} == {(row[i], row[j]) for row in GRID} for i, j in pairs)
    assert len(sample) < len(covering(GRID, 2))
