"""Random products of 8-bit floats with scales, and quantisation."""

from __future__ import annotations

import dataclasses

from layouts import Alignment, Shape, random_layout
from problems import FuzzProblem, Sketch
from recipes import RECIPES, SCALED_RESULTS
from shared_draws import Rng, jittered, random_extents, random_stream

from gemmule.core.block_scales import BLOCK

#: What a scale is for: everything, a line, 128 elements of one, or blocks of 128 x 128.
_FORMS = ("tensor", "line", "line by K", "block")


def sketched_product(kind: str, rng: Rng, most: int, libraries: tuple[str, ...]) -> Sketch:
    """Draw what the kernel of a scaled product depends on."""
    del libraries
    recipe = RECIPES[kind]
    a, b, precision = recipe.types[rng.integers(len(recipe.types))]
    # Several blocks of K also where other extents are small.
    deep = dataclasses.replace(recipe, sides=(recipe.sides[2],) * 3)
    extents = (*random_extents(rng, recipe, most, 1)[:2], random_extents(rng, deep, 8 * most, 1)[2])
    aligned = recipe.aligned == "all"
    # Scales by blocks need lines of whole 16 bytes.
    forms = {name: str(rng.choice(_FORMS if aligned else _FORMS[:2])) for name in ("scale_a", "scale_b")}
    optional = {name: str(rng.choice(("none", "none", "given"))) for name in ("bias", "scale_result")}
    as_loaded = aligned and rng.random() < 0.7
    alignments = {
        "a": Alignment(16 if as_loaded else 1, not as_loaded and bool(rng.integers(2))),
        "b": Alignment(16 if as_loaded else 1, as_loaded or bool(rng.integers(2))),
        "out": Alignment(16 if aligned else 1),
    }
    scales = Alignment(4, bool(rng.integers(2)), free=rng.random() < 0.3)
    return Sketch(
        kind, "scaled_gemm", a, b, str(rng.choice(SCALED_RESULTS)), precision, str(rng.choice(("", "absmax"))) or None,
        extents, 16 if aligned else 1, ((), ()), alignments | dict.fromkeys(forms, scales), "none",
        str(rng.choice(("new", "given"))), "torch", options={"forms": forms | optional},
    )  # fmt: skip


def detailed_product(drawn: Sketch, rng: Rng, seed: int, index: int) -> FuzzProblem:
    """Draw a scaled product of a sketch."""
    m, n, k = (
        jittered(rng, extent, unit) for extent, unit in zip(drawn.extents, (1, drawn.unit, drawn.unit), strict=True)
    )
    shapes: dict[str, Shape] = {"a": (m, k), "b": (k, n)}
    dtypes = {"a": drawn.a, "b": drawn.b}
    blocks, forms = -(-k // BLOCK), drawn.options["forms"]
    for name, lines in (("scale_a", m), ("scale_b", n)):
        oriented = {"tensor": (1, 1), "line": (lines, 1), "line by K": (lines, blocks)}.get(
            forms[name], (-(-lines // BLOCK), blocks)
        )
        shapes[name] = oriented if name == "scale_a" else oriented[::-1]
        dtypes[name] = "float32"
    for name, shape, dtype in (("bias", (n,), "bfloat16"), ("scale_result", (1,), "float32")):
        if forms[name] == "given":
            shapes[name], dtypes[name] = shape, dtype
    shapes["out"], dtypes["out"] = (m, n), drawn.out
    layouts = {
        name: random_layout(
            rng, shape, dtypes[name], drawn.alignments.get(name, Alignment(4)), reverses=False, repeats=False
        )
        for name, shape in shapes.items()
    }  # fmt: skip
    by_torch = drawn.target == "new" and drawn.epilogue is None and rng.random() < 0.5
    return FuzzProblem(
        seed, index, drawn.kind, drawn.operation, m, n, k, shapes, dtypes, layouts, (m, n), drawn.precision, 1.0, 0.0,
        drawn.epilogue, str(rng.choice(("normal", "whole", "wide", "special"))), drawn.target, drawn.library,
        random_stream(rng, drawn.library, [m, n, k]), frontend="torch" if by_torch else "",
    )  # fmt: skip


def sketched_quantisation(kind: str, rng: Rng, most: int, libraries: tuple[str, ...]) -> Sketch:
    """Draw what the kernel of a quantisation depends on."""
    del libraries
    recipe = RECIPES[kind]
    of, to, _ = recipe.types[rng.integers(len(recipe.types))]
    options = {
        "by": str(rng.choice(recipe.forms)), "dtype": to,
        "scale_dtype": str(rng.choice(("float32", "float32", "float8_e8m0fnu"))),
    }  # fmt: skip
    whole = rng.random() < 0.5
    given = Alignment(16) if whole else Alignment(1, bool(rng.integers(2)), free=rng.random() < 0.5)
    groups: Shape = (int(rng.integers(1, 5)),) if rng.random() < 0.3 else ()
    return Sketch(
        kind, "quantize", of, of, to, None, None, random_extents(rng, recipe, most, 1), 16 if whole else 1,
        (groups, ()), {"x": given}, "none", "new", "torch", options=options,
    )  # fmt: skip


def detailed_quantisation(drawn: Sketch, rng: Rng, seed: int, index: int) -> FuzzProblem:
    """Draw a quantisation of a sketch."""
    rows, cols = jittered(rng, drawn.extents[0], 1), jittered(rng, drawn.extents[1], drawn.unit)
    shape = (*drawn.parts[0], rows, cols)
    layout = random_layout(rng, shape, drawn.a, drawn.alignments["x"], reverses=False, repeats=True)
    by_torch = drawn.options["scale_dtype"] == "float32" and rng.random() < 0.3
    return FuzzProblem(
        seed, index, drawn.kind, drawn.operation, rows, cols, 0, {"x": shape}, {"x": drawn.a, "out": drawn.out},
        {"x": layout}, shape, values=str(rng.choice(("normal", "wide", "special", "spans", "subnormal", "zero"))),
        library=drawn.library, stream=random_stream(rng, drawn.library, [rows, cols]), options=drawn.options,
        frontend="torch" if by_torch else "",
    )  # fmt: skip
