"""Samples of grids of parameters in which each few values occur together: combinatorial testing."""

from __future__ import annotations

import itertools
import random


def covering(rows, strength, once=()):
    """Return the places of few rows that have every combination of `strength` values which the rows have.

    Values of the columns `once` need no combination with others: each occurs. Rows with most new combinations come
    first; the sample is the same in every process.
    """
    every = [*zip(*rows, strict=True)]
    columns, single = [*dict.fromkeys(every)], {every[column] for column in once}
    places = range(len(rows))
    joined = [number for number, column in enumerate(columns) if column not in single]
    if len(joined) <= strength and not single:
        return [*places]
    axes = [*itertools.combinations(joined, min(strength, len(joined)))]
    axes += [(columns.index(column),) for column in single]
    found = [{(axis, *(columns[one][place] for one in axis)) for axis in axes} for place in places]
    missing, chosen = set().union(*found), []
    left = random.Random(len(rows)).sample(places, len(rows))
    for most in range(len(axes), 0, -1):
        for place in left:
            new = found[place] & missing
            if len(new) >= most:
                chosen.append(place)
                missing -= new
    return sorted(chosen)
