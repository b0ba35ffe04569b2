"""Sketches and problems of all operations, drawn for a recipe."""

from __future__ import annotations

import random_groups
import random_products
import random_scales
import random_transposes
from problems import FuzzProblem, Sketch
from recipes import RECIPES
from shared_draws import Rng

_SKETCHED = {
    "product": random_products.sketched, "staircase": random_products.sketched,
    "transpose": random_transposes.sketched, "grouped": random_groups.sketched,
    "scaled": random_scales.sketched_product, "quantize": random_scales.sketched_quantisation,
}  # fmt: skip
_DETAILED = {
    "product": random_products.detailed, "staircase": random_products.detailed,
    "transpose": random_transposes.detailed, "grouped": random_groups.detailed,
    "scaled": random_scales.detailed_product, "quantize": random_scales.detailed_quantisation,
}  # fmt: skip


def sketch(kind: str, rng: Rng, *, most: int, libraries: tuple[str, ...]) -> Sketch:
    """Draw what a kernel depends on, such that dispatch is likely to choose one of the recipe.

    Parameters
    ----------
    kind : str
        The recipe, one of `KINDS`.
    rng : Generator
        Source of random numbers.
    most : int
        Greatest extent.
    libraries : tuple of str
        Libraries whose arrays may be given.
    """
    return _SKETCHED[RECIPES[kind].operation](kind, rng, most, libraries)


def detailed(drawn: Sketch, rng: Rng, seed: int, index: int) -> FuzzProblem:
    """Draw a problem of a sketch.

    Parameters
    ----------
    drawn : Sketch
        What its kernel depends on.
    rng : Generator
        Source of random numbers.
    seed, index : int
        Where values come from.
    """
    return _DETAILED[RECIPES[drawn.kind].operation](drawn, rng, seed, index)
