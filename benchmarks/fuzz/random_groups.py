"""Random products of groups: empty groups, single rows, ends anywhere, rows that belong to no group."""

from __future__ import annotations

from layouts import Alignment, Shape, itemsize_of, random_layout
from problems import FuzzProblem, Sketch
from recipes import FLOAT8_GROUP_RESULTS, GROUP_RESULTS, RECIPES, Recipe
from shared_draws import Rng, jittered, random_extents, random_library, random_stream

_GROUPS = (1, 2, 3, 5, 8, 16, 40, 130)
_EPILOGUES = ("bias", "relu", "gelu", "silu", "gelu_tanh", "swiglu")
#: Roles of what divides the work.
DIVIDERS = ("offsets", "matrices")


def sketched(kind: str, rng: Rng, most: int, libraries: tuple[str, ...]) -> Sketch:
    """Draw what the kernel of a grouped product depends on."""
    recipe = RECIPES[kind]
    a, b, precision = recipe.types[rng.integers(len(recipe.types))]
    float8 = precision == "float8"
    # 8-bit floats are contiguous along K, which is not divided then.
    divided = str(rng.choice([one for one in recipe.forms if not (float8 and one == "k")]))
    outs = FLOAT8_GROUP_RESULTS if float8 else GROUP_RESULTS[a]
    out, epilogue, forms = str(rng.choice(outs)), None, {}
    if divided == "m" and float8 and rng.random() < 0.6:
        forms = {
            "scale_a": str(rng.choice(("tensor", "line"))),
            "scale_b": str(rng.choice(("tensor", "matrix", "line"))),
        }
        forms["bias"] = str(rng.choice(("none", "line")))
    elif divided == "m" and rng.random() < 0.5:
        epilogue = str(rng.choice(_EPILOGUES))
        epilogue = "relu" if epilogue == "swiglu" and a == "float32" else epilogue
        forms["bias"] = "line" if epilogue in ("bias", "swiglu") else str(rng.choice(("none", "line")))
    library = random_library(rng, tuple(x for x in libraries if x != "jax"), {a, b, out}, plain=False)
    extents = list(random_extents(rng, recipe, most, 4))
    if divided == "row":
        extents[0] = min(extents[0], 40)
    return Sketch(
        kind, "grouped_gemm", a, b, out, precision, epilogue, tuple(extents), 16 if recipe.aligned == "all" else 1,
        ((), ()), _alignments(rng, recipe, (a, b, out), divided, float8=float8), "none",
        str(rng.choice(("new", "given"))), library, options={"forms": forms}, divided=divided,
        # Rows cannot name one of no matrices.
        groups=0 if divided != "row" and rng.random() < 0.01 else int(rng.choice(_GROUPS)),
    )  # fmt: skip


def _alignments(
    rng: Rng, recipe: Recipe, types: tuple[str, str, str], divided: str, *, float8: bool
) -> dict[str, Alignment]:
    """Return layouts; the divided dimension is not the contiguous one where TMA loads operands."""
    column = {"a": bool(rng.integers(2)), "b": bool(rng.integers(2))}
    if recipe.aligned == "all":
        column |= {"m": {"a": False}, "row": {"a": False}, "n": {"b": True}, "k": {"a": True, "b": False}}[divided]
        column |= {"a": False, "b": True} if float8 else {}
    sizes = dict(zip(("a", "b", "out"), map(itemsize_of, types), strict=True))
    return {
        name: Alignment(
            16 if recipe.aligned == "all" and name != "out" else int(rng.choice((16, size))), column.get(name, False)
        )
        for name, size in sizes.items()
    }


def detailed(drawn: Sketch, rng: Rng, seed: int, index: int) -> FuzzProblem:
    """Draw a grouped product of a sketch."""
    m, n, k = (jittered(rng, extent, drawn.unit if name != drawn.divided else 1)
               for name, extent in zip("mnk", drawn.extents, strict=True))  # fmt: skip
    groups, divided = drawn.groups, drawn.divided
    columns = 2 * n if drawn.epilogue == "swiglu" else n
    shapes: dict[str, Shape] = {
        "a": (groups, m, k) if divided == "n" else (m, k),
        "b": (groups, k, columns) if divided in ("m", "row") else (k, columns),
    }
    dtypes = {"a": drawn.a, "b": drawn.b}
    forms = drawn.options["forms"]
    one, lines = (1,), {"scale_a": (m, 1), "scale_b": (groups, 1, columns), "bias": (groups, columns)}
    for name, form in forms.items():
        if form != "none":
            shapes[name] = {"tensor": one, "matrix": (groups, 1, 1), "line": lines[name]}[form]
            own = "bfloat16" if "float8" in drawn.a else drawn.a
            dtypes[name] = own if name == "bias" else "float32"
    result = (groups, m, n) if divided == "k" else (m, n)
    divider = DIVIDERS[divided == "row"]
    extent = {"m": m, "n": n, "k": k, "row": groups}[divided]
    numbers = _matrices(rng, m, extent) if divided == "row" else _ends(rng, groups, extent)
    shapes |= {divider: (len(numbers),), "out": result}
    dtypes |= {divider: "int32", "out": drawn.out}
    layouts = {
        name: random_layout(
            rng, shape, dtypes[name], drawn.alignments.get(name, Alignment(4)), reverses=False, repeats=False
        )
        for name, shape in shapes.items()
    }  # fmt: skip
    values = str(rng.choice(("normal", "whole", "wide", *(() if drawn.epilogue == "swiglu" else ("special",)))))
    fits = drawn.library == "torch" and drawn.target == "new" and _torch_takes(drawn)
    return FuzzProblem(
        seed, index, drawn.kind, drawn.operation, m, n, k, shapes, dtypes, layouts, result,
        drawn.precision, 1.0, 0.0, drawn.epilogue, values, drawn.target,
        drawn.library, random_stream(rng, drawn.library, [m, n, k]), divided=divided, numbers=numbers,
        frontend="torch" if fits and rng.random() < 0.5 else "",
    )  # fmt: skip


def _torch_takes(drawn: Sketch) -> bool:
    """Return whether a function of `gemmule.torch` computes it: one of the operands' type, or one with scales."""
    scaled = "scale_a" in drawn.options["forms"]
    plain = drawn.divided != "row" and drawn.epilogue is None and drawn.out == drawn.a == drawn.b
    return plain or (scaled and drawn.options["forms"]["scale_b"] != "matrix")


def _ends(rng: Rng, groups: int, extent: int) -> tuple[int, ...]:
    """Return ends that do not decrease: some beyond the extent, which a GPU cuts off."""
    style = rng.random()
    if style < 0.5:
        found = sorted(int(x) for x in rng.integers(0, extent + 1, groups))
    elif style < 0.65:
        found = [min(number, extent) for number in range(1, groups + 1)]
    elif style < 0.8:
        found = [min(64 * (number + 1), extent) for number in range(groups)]
    else:
        only = int(rng.integers(groups)) if groups else 0
        found = [0] * only + [extent] * (groups - only)
    if found and rng.random() < 0.5:
        found[-1] = extent
    if found and rng.random() < 0.05:
        found[-1] = extent + int(rng.integers(1, 1000))
    return tuple(found)


def _matrices(rng: Rng, rows: int, count: int) -> tuple[int, ...]:
    """Return the number of a matrix for each row: a few of them none, of which a GPU makes rows of zeros."""
    odd = rng.random() < 0.2
    return tuple(
        int(rng.choice((-1, count, count + 7)))
        if not count or (odd and rng.random() < 0.2)
        else int(rng.integers(count))
        for _ in range(rows)
    )
