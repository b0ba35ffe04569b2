"""Samples of grids of parameters in which each few values occur together: combinatorial testing."""

from __future__ import annotations

import itertools
import random


def covering(rows, strength):
    """Return the places of few rows that have every combination of `strength` values which the rows have.

    Rows with most new combinations come first; the sample is the same in every process.
    """
    columns = [*dict.fromkeys(zip(*rows, strict=True))]
    places = range(len(rows))
    if len(columns) <= strength:
        return [*places]
    axes = [*itertools.combinations(range(len(columns)), strength)]
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
