"""Random transposes and permutations."""

from __future__ import annotations

import math

from layouts import Alignment, Shape, random_layout
from problems import FuzzProblem, Sketch
from recipes import RECIPES, Recipe
from shared_draws import Rng, jittered, random_extents, random_library, random_stream

_TRANSPOSED = {
    1: ("int8", "float8_e4m3fn"), 2: ("bfloat16", "float16"), 4: ("float32", "int32"), 8: ("float64", "complex64"),
    16: ("complex128",),
}  # fmt: skip
#: Axes of permutations.
_AXES = (3, 8)


def sketched(kind: str, rng: Rng, most: int, libraries: tuple[str, ...]) -> Sketch:
    """Draw what the kernel of a transpose depends on."""
    recipe = RECIPES[kind]
    size = int(rng.choice(recipe.sizes))
    dtype = str(rng.choice(_TRANSPOSED[size]))
    in_place = kind == "transpose_in_place"
    batch: Shape = () if rng.random() < 0.6 else (int(rng.integers(1, 5)),)
    operation, axes = "transpose" if batch and rng.random() < 0.3 and not in_place else "matrix_transpose", None
    if "permutation" in recipe.forms:
        operation, extents = "transpose", _extents_of_axes(rng, recipe, most)
        axes = _random_axes(rng, len(extents), keeps_last="rows" in recipe.forms)
        batch = ()
    else:
        extents = random_extents(rng, recipe, most, 1)
        extents = (*batch, *((extents[0],) * 2 if in_place else extents))
        if batch and rng.random() < 0.3:
            operation = "transpose"
            axes = (0, 2, 1) if in_place else _random_axes(rng, 3, keeps_last=False)
    library = random_library(rng, libraries, {dtype}, plain=False)
    library = "torch" if in_place and library == "jax" else library
    target = "x" if in_place else str(rng.choice(("new", "given"))) if library != "jax" else "new"
    unit = max(16 // size, 1) if recipe.aligned == "all" or rng.random() < 0.3 else 1
    alignments = {
        name: Alignment(
            16 if recipe.aligned == "all" else int(rng.choice((16, size))), free=recipe.free and not in_place,
            contiguous=library == "jax",
        )
        for name in ("x", "out")
    }  # fmt: skip
    return Sketch(
        kind, operation, dtype, dtype, dtype, None, None, extents, unit, (batch, ()), alignments, "none", target,
        library, options={} if axes is None else {"axes": axes},
    )  # fmt: skip


def _extents_of_axes(rng: Rng, recipe: Recipe, most: int) -> tuple[int, ...]:
    """Return extents of 3 to 8 axes, many of them short."""
    least, greatest = recipe.sides[0]
    top = min(greatest, most)
    while True:
        axes = int(rng.integers(_AXES[0], _AXES[1] + 1))
        found = [round(math.exp(rng.uniform(math.log(least), math.log(top)))) for _ in range(axes)]
        found = [int(rng.integers(2)) if rng.random() < recipe.edges else one for one in found]
        if math.prod(found) <= min(recipe.elements, most**3):
            return tuple(found)


def _random_axes(rng: Rng, count: int, *, keeps_last: bool) -> tuple[int, ...]:
    moved = count - 1 if keeps_last else count
    return (*(int(axis) for axis in rng.permutation(moved)), *range(moved, count))


def detailed(drawn: Sketch, rng: Rng, seed: int, index: int) -> FuzzProblem:
    """Draw a transpose of a sketch."""
    count = len(drawn.parts[0])
    last = [_jittered_axis(rng, extent, drawn.unit) for extent in drawn.extents[count:]]
    if drawn.kind == "transpose_in_place":
        last[1] = last[0]
    shape = (*drawn.extents[:count], *last)
    axes = drawn.options.get("axes")
    if axes is None:
        kept = 0 if drawn.operation == "transpose" else count
        axes = (*range(kept), *reversed(range(kept, len(shape))))
    shapes = {"x": shape, "out": tuple(shape[axis] for axis in axes)}
    layouts = {
        name: random_layout(
            rng, extents, drawn.a, drawn.alignments[name],
            reverses=drawn.library == "cupy", repeats=name == "x" and drawn.target != "x",
        )
        for name, extents in shapes.items()
    }  # fmt: skip
    return FuzzProblem(
        seed, index, drawn.kind, drawn.operation, *shape[-2:], 0, shapes, dict.fromkeys(shapes, drawn.a), layouts,
        shapes["out"], target=drawn.target, library=drawn.library, stream=random_stream(rng, drawn.library, last),
        options=drawn.options,
    )  # fmt: skip


def _jittered_axis(rng: Rng, extent: int, unit: int) -> int:
    # What is compiled for a short axis depends on it: others are drawn anew then.
    return max(extent + int(rng.integers(-1, 2)), 1) if 1 < extent < 16 else jittered(rng, extent, unit)
