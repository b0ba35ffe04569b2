"""Random products, streamed ones of a block lower triangle included."""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np
from layouts import Alignment, Shape, itemsize_of, random_layout
from problems import FuzzProblem, Sketch
from recipes import EPILOGUES, GATED, GUARDED, INT8_PRODUCTS, RECIPES, RESULTS, WITH_BETA, Recipe
from shared_draws import Rng, jittered, random_extents, random_library, random_stream

_SPECIAL = (0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e-40)
#: Types whose products hold a bound for numbers of any size.
_SPANNED = frozenset({"float32", "float64", "complex64", "complex128"})
_ADVERSARIAL = ("spans", "opposed", "subnormal")
_WHOLE = (0, 1, -1, 3, -7, 2**20 + 1, -(2**31))


def sketched(kind: str, rng: Rng, most: int, libraries: tuple[str, ...]) -> Sketch:
    """Draw what the kernel of a product depends on."""
    recipe = RECIPES[kind]
    a, b, precision = recipe.types[rng.integers(len(recipe.types))]
    floats = not (a.startswith("int") and b.startswith("int"))
    is_complex = "complex" in a + b
    epilogue = None
    if recipe.epilogues and floats and not is_complex and rng.random() < 0.45:
        epilogue = str(rng.choice(EPILOGUES))
        if epilogue == "absmax" and {"float64", "int32"} & {a, b}:
            epilogue = "bias"
    outs = RESULTS.get((a, b), ("float32",))
    if recipe.own_only or recipe.gram or recipe.operation == "staircase":
        outs = (a, a, "float32") if recipe.gram and not is_complex else (a,)
    out = str(rng.choice(outs))
    gram = recipe.gram or (a == b and recipe.operation == "product" and rng.random() < 0.03)
    gram = gram and epilogue not in GATED
    triangle = recipe.operation == "staircase"
    parts = ((), ()) if triangle else _parts(rng, gram)
    unit = 16 if recipe.aligned in ("all", "operands") and rng.random() < 0.7 else 1
    if rng.random() < 0.2:
        unit = 16
    extents = random_extents(
        rng, recipe, most, max(math.prod(x or 1 for x in parts[0]), math.prod(x or 1 for x in parts[1]))
    )
    alignments = _alignments(rng, recipe, (a, b, out), result_in_rows=triangle)
    addend = str(rng.choice(("none", "none", "read", "unread")))
    if epilogue in GATED or gram or (epilogue is not None and epilogue not in WITH_BETA):
        addend = "read" if epilogue == "residual" else "none"
    target = str(rng.choice(("new", "given", "given", "c")))
    if target == "c" and addend == "none":
        target = "given"
    vector = ""
    if recipe.free and epilogue is None and not gram and rng.random() < 0.1:
        vector = str(rng.choice(("a", "b")))
    library = random_library(rng, libraries, {a, b, out}, plain=epilogue is None and not vector and parts == ((), ()))
    # Arrays of JAX are not written.
    library = "torch" if library == "jax" and epilogue == "absmax" else library
    if triangle:
        library, target = "torch", "given"
        addend = "none" if addend == "unread" else addend
    if library == "jax":
        target = "new"
    if library in ("jax", "numpy"):
        # On a GPU they are contiguous, however they lie on the host.
        anyhow = Alignment(contiguous=True) if library == "jax" else Alignment(1, free=True)
        alignments, gram = dict.fromkeys(alignments, anyhow), False
    conjugates = is_complex and library != "numpy" and rng.random() < 0.6
    lazy, options = _conjugates(rng, library, {"a": a, "b": b}) if conjugates else ("", {})
    return Sketch(
        kind, recipe.operation, a, b, out, precision, epilogue, extents, unit, parts, alignments, addend, target,
        library, gram, vector, lazy, options,
    )  # fmt: skip


def _conjugates(rng: Rng, library: str, types: dict[str, str]) -> tuple[str, dict[str, bool]]:
    """Return which operands are lazily conjugated tensors, and the flags of a call."""
    able = [name for name, dtype in types.items() if dtype.startswith("complex")]
    flags = {f"conj_{name}": True for name in able if rng.random() < 0.4}
    return "".join(name for name in able if library == "torch" and rng.random() < 0.5), flags


def _parts(rng: Rng, gram: bool) -> tuple[Shape, Shape]:
    """Return batches of A and B that broadcast."""
    drawn = rng.random()
    if drawn < 0.75:
        return (), ()
    batch: Shape = (int(rng.choice((0, 1, 2, 3, 5), p=(0.04, 0.1, 0.4, 0.3, 0.16))),)
    if drawn > 0.93:
        batch = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    if gram:
        return batch, batch

    def part() -> Shape:
        if rng.random() < 0.7:
            return batch
        return batch[1:] if rng.random() < 0.5 else (1, *batch[1:])

    return part(), part()


def _alignments(rng: Rng, recipe: Recipe, types: tuple[str, str, str], *, result_in_rows: bool) -> dict[str, Alignment]:
    a, b, out = types
    column = {name: bool(rng.integers(2)) for name in ("a", "b", "out")}
    column["out"] = column["out"] and not result_in_rows and rng.random() < 0.5
    if recipe.majors == "along K" and not (itemsize_of(a) == itemsize_of(b) == 2):
        column |= {"a": False, "b": True}
    if recipe.majors == "across K" and not column["a"] and column["b"]:
        column["b"] = False
    whole = {name: recipe.aligned == "all" or rng.random() < 0.3 for name in ("a", "b", "out", "further")}
    if recipe.aligned == "operands":
        whole |= {"a": True, "b": True, "out": False}
    if recipe.aligned == "some" and whole["a"] and whole["b"] and whole["out"]:
        whole[str(rng.choice(("a", "b", "out")))] = False
    item = {"a": itemsize_of(a), "b": itemsize_of(b), "out": itemsize_of(out), "further": 1}
    return {
        name: Alignment(
            16 if whole[name] else int(rng.choice((item[name], item[name], 4, 8))), column.get(name, False), recipe.free
        )
        for name in whole
    }


def detailed(drawn: Sketch, rng: Rng, seed: int, index: int) -> FuzzProblem:
    """Draw a product of a sketch."""
    extents = [jittered(rng, extent, drawn.unit) for extent in drawn.extents]
    if drawn.gram:
        extents[1] = extents[0]
    m, n, k = extents
    first = 0
    if drawn.operation == "staircase":
        first = 256 * int(rng.integers(3))
        n = max(n, first + m)
    whole = drawn.a.startswith("int") and drawn.b.startswith("int")
    alpha, beta = _scalars(rng, drawn, whole, k)
    shapes: dict[str, Shape] = {"a": (*drawn.parts[0], m, k), "b": (*drawn.parts[1], k, n)}
    result = (*np.broadcast_shapes(*drawn.parts), m, n)
    if drawn.vector == "a":
        shapes["a"], result, m = (k,), (*drawn.parts[1], n), 1
    elif drawn.vector == "b":
        shapes["b"], result, n = (k,), (*drawn.parts[0], m), 1
    dtypes = {"a": drawn.a, "b": drawn.b}
    _add_inputs(shapes, dtypes, drawn.epilogue, result)
    if drawn.addend != "none":
        shapes["c"], dtypes["c"] = result, drawn.out
    shapes["out"], dtypes["out"] = result, drawn.out
    values = _values(rng, drawn)
    if values in _ADVERSARIAL and not (cmath.isfinite(alpha) and abs(alpha) > 1e-3):
        # Else nothing of them would be seen.
        alpha = 0.5
    plain = alpha == 1 and drawn.addend == "none" and drawn.epilogue is None and not drawn.options
    operation = "matmul" if drawn.operation == "product" and plain and rng.random() < 0.5 else "gemm"
    kinds = drawn.alignments
    reverses = drawn.library in ("cupy", "numpy")
    layouts = {
        name: random_layout(
            rng, shape, dtypes[name], kinds["out"] if name == "c" else kinds.get(name, kinds["further"]),
            reverses=reverses, repeats=name not in ("out", "c"),
        )
        for name, shape in shapes.items()
    }  # fmt: skip
    if drawn.gram:
        del layouts["b"], shapes["b"]
    return FuzzProblem(
        seed, index, drawn.kind, "staircase" if drawn.operation == "staircase" else operation, m, n, k, shapes,
        dtypes, layouts, result, drawn.precision, alpha, beta, drawn.epilogue, values, drawn.target,
        drawn.library, random_stream(rng, drawn.library, extents), drawn.gram, first, drawn.lazy, drawn.options,
    )  # fmt: skip


def _values(rng: Rng, drawn: Sketch) -> str:
    """Return what operands are made of."""
    choices = ["normal", "whole", "whole", "wide", "special"]
    # Where infinities become NaN, none is multiplied.
    if drawn.epilogue in GATED or drawn.precision in ("bf16x6", *INT8_PRODUCTS):
        choices.remove("special")
    exact = drawn.a == drawn.b in _SPANNED and drawn.epilogue is None
    if exact and drawn.precision == GUARDED:
        choices += [*_ADVERSARIAL, *_ADVERSARIAL]
    elif exact and drawn.precision is None:
        choices += list(_ADVERSARIAL)
    return str(rng.choice(choices))


def _scalars(rng: Rng, drawn: Sketch, whole: bool, k: int) -> tuple[Any, Any]:
    reads = drawn.addend == "read" and drawn.epilogue != "residual"
    if whole:
        alpha = 1 if rng.random() < 0.5 else int(rng.choice(_WHOLE))
        return alpha, int(rng.choice([one for one in _WHOLE if one])) if reads else 0

    def one(plain: float) -> float:
        kind = rng.random()
        if kind < 0.5:
            return plain
        return float(rng.normal()) if kind < 0.75 else float(rng.choice(_SPECIAL))

    alpha, beta = one(1.0), one(0.5)
    if k == 0 and not math.isfinite(alpha):
        alpha = 2.0
    if "complex" in drawn.out and drawn.precision != GUARDED and rng.random() < 0.4:
        # A real scalar multiplies each part alone; of others both parts are finite.
        alpha, beta = (complex(x if math.isfinite(x) else 0.5, rng.normal()) for x in (alpha, beta))
    if drawn.epilogue is not None or drawn.precision in ("bf16x6", *INT8_PRODUCTS):
        # What functions make of infinity and NaN is seen on values, not on all of the matrix at once.
        alpha, beta = (x if math.isfinite(x) else 0.5 for x in (alpha, beta))
    return alpha, (beta or 1.0) if reads else 0.0


def _add_inputs(shapes: dict[str, Shape], dtypes: dict[str, str], epilogue: str | None, result: Shape) -> None:
    """Add what an epilogue reads, and give B the columns that it needs."""
    m, n = result[-2:] if len(result) > 1 else (1, 1)
    # CuPy, which multiplies integers too, has no bfloat16.
    own = "float32" if "int" in dtypes["a"] else "bfloat16" if "float8" in dtypes["a"] else dtypes["a"]
    vectors: dict[str, Shape] = {
        "bias": (n,), "gelu": (n,), "residual": (n,), "relu": (m, 1), "swiglu": (2 * n,),
    }  # fmt: skip
    if epilogue in vectors:
        shapes["bias"], dtypes["bias"] = vectors[epilogue], own
    if epilogue == "two_matrices":
        shapes["x"], dtypes["x"] = (m, n), own
        shapes["y"], dtypes["y"] = (1, n), own
    if epilogue in ("swiglu", "pairs"):
        shapes["b"] = (*shapes["b"][:-1], 2 * n)
    if epilogue == "second":
        shapes["up"], dtypes["up"] = shapes["b"], dtypes["b"]
