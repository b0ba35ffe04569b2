"""What problems of all operations draw: extents, libraries, streams."""

from __future__ import annotations

import math

import numpy as np
from recipes import Recipe

Rng = np.random.Generator
_CUPY = frozenset({"float16", "float32", "float64", "int8", "int32", "complex64", "complex128"})
_JAX = _CUPY | {"bfloat16"}
#: Most elements of all arrays of a problem, and most multiplications.
_MOST_ELEMENTS, _MOST_WORK = 2**26, 2**35


def random_library(rng: Rng, libraries: tuple[str, ...], types: set[str], *, plain: bool) -> str:
    """Return the library of a problem's arrays, one that has such types; NumPy's are of plain problems only."""
    drawn = rng.random()
    if drawn < 0.05 and "jax" in libraries and types <= _JAX:
        return "jax"
    if drawn < 0.09 and plain and "numpy" in libraries:
        return "numpy"
    return "cupy" if drawn < 0.25 and "cupy" in libraries and types <= _CUPY else "torch"


def random_extents(rng: Rng, recipe: Recipe, most: int, count: int) -> tuple[int, ...]:
    """Return extents of so many matrices as a recipe has them, some of them 0 or 1."""
    while True:
        found = []
        for least, greatest in recipe.sides:
            drawn = rng.random()
            if drawn < recipe.edges:
                found.append(int(drawn < 0.6 * recipe.edges))
                continue
            top = min(greatest, most)
            found.append(round(math.exp(rng.uniform(math.log(min(least, top)), math.log(top)))))
        if recipe.operation == "product" and rng.random() < recipe.edges / 4:
            found[:2] = [1, 1]
        if math.prod(found) * count <= _MOST_WORK and sum(found) * max(found) * count <= _MOST_ELEMENTS:
            return tuple(found)


def random_stream(rng: Rng, library: str, extents: list[int]) -> int:
    """Return the number of the stream."""
    # PyTorch has a pool of memory for each stream: large arrays are of one.
    return int(rng.choice((0, 0, 1, 2))) if library == "torch" and max(extents) < 1000 else 0


def jittered(rng: Rng, extent: int, unit: int) -> int:
    """Return an extent a little larger or smaller, a multiple of the unit; 0 and 1 as they are."""
    if extent <= 1:
        return extent
    found = extent + unit * int(rng.integers(-1, 2)) if unit > 1 else extent + int(rng.integers(-3, 4))
    return max(-(-found // unit) * unit, unit)
