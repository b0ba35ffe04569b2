"""Random problems: a kernel first, then types, shapes and layouts that dispatch gives to it.

A `Sketch` is what a compiled kernel depends on: types, order, alignment, epilogue. `detailed` makes problems of it,
with shapes that vary a little, scalars, values, offsets and outputs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from layouts import Alignment, Layout, Shape, itemsize_of, random_layout

Rng = np.random.Generator
#: Types that a product may be rounded to, for types of A and B.
RESULTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("bfloat16", "bfloat16"): ("bfloat16",) * 6 + ("float32", "float32", "float16", "float8_e4m3fn"),
    ("float16", "float16"): ("float16",) * 4 + ("float32", "bfloat16", "float8_e5m2"),
    ("float32", "float32"): ("float32",) * 8 + ("bfloat16",),
    ("float64", "float64"): ("float64",) * 6 + ("float32",),
    ("int8", "int8"): ("int32", "int32", "int8"),
    ("int32", "int32"): ("int32",),
    ("float8_e4m3fn", "float8_e4m3fn"): ("float32", "float8_e4m3fn", "bfloat16"),
    ("float8_e4m3fn", "float8_e5m2"): ("float32", "float8_e5m2", "float16"),
    ("float8_e5m2", "float8_e5m2"): ("float32", "float8_e5m2"),
    ("bfloat16", "float16"): ("float32",),
    ("bfloat16", "float32"): ("float32",),
    ("float32", "float64"): ("float64",),
    ("int8", "float32"): ("float32",),
    ("int32", "float32"): ("float64",),
    ("int32", "int8"): ("int32",),
    ("bfloat16", "float8_e4m3fn"): ("bfloat16", "float32"),
    ("float8_e4m3fn", "bfloat16"): ("bfloat16", "float32"),
    ("float16", "float8_e5m2"): ("float16", "float32"),
    ("float8_e5m2", "float16"): ("float16", "float32"),
}
HALF = (("bfloat16", "bfloat16"), ("float16", "float16"))
FLOAT8 = (("float8_e4m3fn", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "float8_e5m2"))
MIXED = (
    ("bfloat16", "float8_e4m3fn"), ("float8_e4m3fn", "bfloat16"), ("float16", "float8_e5m2"),
    ("float8_e5m2", "float16"),
)  # fmt: skip
SINGLE, DOUBLE, INT8 = ("float32", "float32"), ("float64", "float64"), ("int8", "int8")
INT8_PRODUCTS = ("ozaki-14", "ozaki-15", "ozaki-16")
#: Epilogues of floats, by name; see `arguments.EPILOGUES`.
EPILOGUES = (
    "bias", "relu", "gelu", "silu", "gelu_tanh", "residual", "two_matrices", "swiglu", "pairs", "second", "absmax",
)  # fmt: skip
#: Those of two products, and those that may have beta * C.
GATED, WITH_BETA = frozenset({"swiglu", "pairs", "second"}), frozenset({"relu", "gelu_tanh", "absmax"})
_SPECIAL = (0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e-40)
_WHOLE = (0, 1, -1, 3, -7, 2**20 + 1, -(2**31))
_TRANSPOSED = {1: ("int8", "float8_e4m3fn"), 2: ("bfloat16", "float16"), 4: ("float32", "int32"), 8: ("float64",)}
_CUPY = frozenset({"float16", "float32", "float64", "int8", "int32"})
_JAX = _CUPY | {"bfloat16"}
#: Most elements of all arrays of a problem, and most multiplications.
_MOST_ELEMENTS, _MOST_WORK = 2**25, 2**34


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Which problems a kernel is likely to be chosen for.

    Attributes
    ----------
    types : tuple of (str, str, str or None)
        Types of A and B, and the precision that is allowed.
    sides : tuple of (int, int)
        Least and greatest M, N and K.
    majors : str
        ``any``, ``along K``, or ``across K``: one operand at least is not K-major.
    aligned : str
        Which arrays have lines of whole 16 bytes: ``all``, ``operands``, ``some``, ``any``.
    epilogues : bool
        Whether there may be epilogues.
    gram : bool
        Whether B is A transposed.
    own_only : bool
        Whether the result has the type of A, or float32.
    free : bool
        Whether gaps and negative and zero strides may come.
    operation : str
        ``product``, ``transpose``, or ``staircase`` (so records name it), a product of which a block lower triangle is
        needed.
    edges : float
        Share of extents that are 0 or 1.
    sizes : tuple of int
        Bytes of the elements of transposes.
    """

    types: tuple[tuple[str, str, str | None], ...] = ()
    sides: tuple[tuple[int, int], ...] = ((8, 400),) * 3
    majors: str = "any"
    aligned: str = "any"
    epilogues: bool = False
    gram: bool = False
    own_only: bool = False
    free: bool = False
    operation: str = "product"
    edges: float = 0.03
    sizes: tuple[int, ...] = ()


def _of(pairs: tuple[tuple[str, str], ...], precision: str | None = None) -> tuple[tuple[str, str, str | None], ...]:
    return tuple((*pair, precision) for pair in pairs)


_TF32 = _of((SINGLE,), "tf32")
RECIPES: dict[str, Recipe] = {
    "mma_sync_gemm": Recipe(
        _of(HALF) * 2 + _TF32 * 2 + _of((INT8,)), ((4, 420),) * 3, aligned="some", epilogues=True, edges=0.04
    ),
    "mma_sync_unaligned": Recipe(
        _of(HALF), ((4, 300), (4, 300), (4, 1500)), aligned="some", epilogues=True, edges=0.04
    ),
    "hopper_gemm": Recipe(
        _of(HALF) * 3 + _TF32 + _of((INT8,)) + _of(FLOAT8, "float8"), ((8, 640),) * 3, "along K", "all", epilogues=True
    ),
    "hopper_gemm_unaligned": Recipe(_of(HALF), ((8, 500),) * 3, aligned="operands", own_only=True),
    "hopper_gemm_repacked": Recipe(_of(HALF), ((60, 900),) * 3, aligned="some", epilogues=True),
    "bf16x6_gemm": Recipe(_of((SINGLE,), "bf16x6"), ((60, 420),) * 3),
    "hopper_gemm_upcast": Recipe(
        _of(FLOAT8) + _of(FLOAT8, "float8") + _of(MIXED), ((8, 500),) * 3, epilogues=True, edges=0.08
    ),
    "ozaki_gemm": Recipe(tuple((*DOUBLE, one) for one in INT8_PRODUCTS), ((2000, 2700), (2000, 2700), (2200, 3200))),
    "hopper_syrk": Recipe(_of(HALF) * 2 + _TF32, ((60, 1400), (60, 1400), (16, 1200)), "any", "some", gram=True),
    "hopper_gemm_w8a16": Recipe(
        _of(MIXED) + _of(FLOAT8), ((1, 90), (64, 1200), (64, 1600)), "along K", "all", epilogues=True
    ),
    "hopper_gemm_k_major": Recipe(_of((INT8,)) + _TF32 + _of(FLOAT8, "float8"), ((300, 1700),) * 3, "across K"),
    "simt_gemm": Recipe(_of((SINGLE,)), ((1, 420),) * 3, epilogues=True, edges=0.04),
    "simt_batched": Recipe(_of((SINGLE, DOUBLE)), ((1, 70),) * 3, free=True, edges=0.08),
    "simt_syrk": Recipe(_of((SINGLE,)), ((1, 600), (1, 700), (1, 200)), operation="staircase"),
    "float64_gemm": Recipe(
        _of((DOUBLE,)) * 3 + tuple((*DOUBLE, one) for one in INT8_PRODUCTS), ((1, 300),) * 3, epilogues=True, edges=0.04
    ),
    "float64_syrk": Recipe(_of((DOUBLE,)), ((1, 600), (1, 700), (1, 200)), operation="staircase"),
    "gemm_reference": Recipe(
        _of(tuple(RESULTS)) + _TF32, ((1, 200),) * 3, epilogues=True, free=True, edges=0.08
    ),
    "transpose_tiled": Recipe(sides=((1, 700),) * 2, operation="transpose", sizes=(1, 2, 4, 8), aligned="some"),
    "transpose_in_place": Recipe(sides=((1, 500),) * 2, operation="transpose", sizes=(1, 2, 4, 8)),
    "transpose_whole_sectors": Recipe(sides=((16, 700),) * 2, operation="transpose", sizes=(4, 8), aligned="some"),
    "transpose_in_registers": Recipe(sides=((4, 900),) * 2, operation="transpose", sizes=(1, 2), aligned="all"),
    "transpose_gathered": Recipe(sides=((30, 1200),) * 2, operation="transpose", sizes=(1, 2)),
    "transpose_word_aligned": Recipe(sides=((100, 2000),) * 2, operation="transpose", sizes=(1, 2)),
    "transpose_skinny": Recipe(sides=((2, 30), (1000, 9000)), operation="transpose", sizes=(1, 2, 4, 8)),
    "transpose_reference": Recipe(
        sides=((1, 300),) * 2, operation="transpose", sizes=(1, 2, 4, 8), free=True, edges=0.3
    ),
}  # fmt: skip
#: Every kernel that dispatch can choose on a Hopper GPU, products five times for each three of transposes.
KINDS: tuple[str, ...] = tuple(RECIPES)
SCHEDULE: tuple[str, ...] = tuple(
    kind
    for turn in range(5)
    for kind, recipe in RECIPES.items()
    if turn < (3 if recipe.operation == "transpose" else 5)
)


@dataclasses.dataclass(frozen=True)
class Sketch:
    """What a compiled kernel depends on.

    Attributes
    ----------
    kind : str
        The kernel that is wanted.
    extents : tuple of int
        M, N and K, about; rows and columns of a transpose.
    unit : int
        What extents other than 0 and 1 are multiples of.
    parts : tuple of (tuple of int)
        Batches of A and B, which broadcast.
    alignments : mapping of str to Alignment
        By array.
    addend : str
        Whether there is a C: ``none``, ``read``, or ``unread``, where beta is 0.
    gram : bool
        Whether B is A transposed.
    vector : str
        Which operand is a vector: ``a``, ``b`` or neither.
    """

    kind: str
    operation: str
    a: str
    b: str
    out: str
    precision: str | None
    epilogue: str | None
    extents: tuple[int, ...]
    unit: int
    parts: tuple[Shape, Shape]
    alignments: Mapping[str, Alignment]
    addend: str
    target: str
    library: str
    gram: bool = False
    vector: str = ""


@dataclasses.dataclass(frozen=True)
class FuzzProblem:
    """A problem, with all that makes it.

    Attributes
    ----------
    seed, index : int
        The run, and the problem in it: where values come from.
    shapes, dtypes, layouts : dict
        By the arrays' names: a, b, c, out, x, and the inputs of epilogues.
    result : tuple of int
        Shape of the result.
    values : str
        What operands are made of: normal, whole, wide or special numbers.
    target : str
        new, given, c, or x (in place): where the result goes.
    first : int
        Of a block triangle, the columns before the first step.
    """

    seed: int
    index: int
    kind: str
    operation: str
    m: int
    n: int
    k: int
    shapes: dict[str, Shape]
    dtypes: dict[str, str]
    layouts: dict[str, Layout]
    result: Shape
    precision: str | None = None
    alpha: Any = 1
    beta: Any = 0
    epilogue: str | None = None
    values: str = "normal"
    target: str = "new"
    library: str = "torch"
    stream: int = 0
    gram: bool = False
    first: int = 0

    def describe(self) -> str:
        """Return it in a line."""
        arrays = ", ".join(
            f"{name} {self.dtypes[name]}{list(shape)} {self.layouts[name]}" for name, shape in self.shapes.items()
        )
        return (
            f"{self.operation} {self.m}x{self.n}x{self.k} precision={self.precision} alpha={self.alpha} "
            f"beta={self.beta} epilogue={self.epilogue} values={self.values} target={self.target} gram={self.gram} "
            f"library={self.library} stream={self.stream}: {arrays}"
        )


def sketch(kind: str, rng: Rng, *, most: int, libraries: tuple[str, ...]) -> Sketch:
    """Draw what a kernel depends on, such that dispatch is likely to choose `kind`.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    rng : Generator
        Source of random numbers.
    most : int
        Greatest extent.
    libraries : tuple of str
        Libraries whose arrays may be given.
    """
    recipe = RECIPES[kind]
    if recipe.operation == "transpose":
        return _sketched_transpose(kind, recipe, rng, most, libraries)
    a, b, precision = recipe.types[rng.integers(len(recipe.types))]
    floats = not (a.startswith("int") and b.startswith("int"))
    epilogue = None
    if recipe.epilogues and floats and rng.random() < 0.45:
        epilogue = str(rng.choice(EPILOGUES))
        if epilogue == "absmax" and {"float64", "int32"} & {a, b}:
            epilogue = "bias"
    outs = RESULTS.get((a, b), ("float32",))
    if recipe.own_only or recipe.gram or recipe.operation == "staircase":
        outs = (a, a, "float32") if recipe.gram and a != "float64" else (a,)
    out = str(rng.choice(outs))
    gram = recipe.gram or (a == b and recipe.operation == "product" and rng.random() < 0.03)
    gram = gram and epilogue not in GATED
    triangle = recipe.operation == "staircase"
    parts = ((), ()) if triangle else _parts(rng, gram)
    unit = 16 if recipe.aligned in ("all", "operands") and rng.random() < 0.7 else 1
    if rng.random() < 0.2:
        unit = 16
    extents = _extents(rng, recipe, most, max(math.prod(x or 1 for x in parts[0]), math.prod(x or 1 for x in parts[1])))
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
    library = _library(rng, libraries, {a, b, out}, plain=epilogue is None and not vector and parts == ((), ()))
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
    return Sketch(
        kind, recipe.operation, a, b, out, precision, epilogue, extents, unit, parts, alignments, addend, target,
        library, gram, vector,
    )  # fmt: skip


def _library(rng: Rng, libraries: tuple[str, ...], types: set[str], *, plain: bool) -> str:
    drawn = rng.random()
    if drawn < 0.05 and "jax" in libraries and types <= _JAX:
        return "jax"
    if drawn < 0.09 and plain and "numpy" in libraries:
        return "numpy"
    return "cupy" if drawn < 0.25 and "cupy" in libraries and types <= _CUPY else "torch"


def _sketched_transpose(kind: str, recipe: Recipe, rng: Rng, most: int, libraries: tuple[str, ...]) -> Sketch:
    size = int(rng.choice(recipe.sizes))
    dtype = str(rng.choice(_TRANSPOSED[size]))
    in_place = kind == "transpose_in_place"
    extents = _extents(rng, recipe, most, 1)
    extents = (extents[0],) * 2 if in_place else extents
    batch = () if rng.random() < 0.6 else (int(rng.integers(1, 5)),)
    library = _library(rng, libraries, {dtype}, plain=False)
    library = "torch" if in_place and library == "jax" else library
    target = "x" if in_place else str(rng.choice(("new", "given"))) if library != "jax" else "new"
    unit = 16 // size if recipe.aligned == "all" or rng.random() < 0.3 else 1
    alignments = {
        name: Alignment(
            16 if recipe.aligned == "all" else int(rng.choice((16, size))), free=recipe.free and not in_place,
            contiguous=library == "jax",
        )
        for name in ("x", "out")
    }  # fmt: skip
    operation = "transpose" if batch and rng.random() < 0.3 and not in_place else "matrix_transpose"
    return Sketch(
        kind, operation, dtype, dtype, dtype, None, None, extents, unit, (batch, ()), alignments, "none", target,
        library,
    )  # fmt: skip


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


def _extents(rng: Rng, recipe: Recipe, most: int, count: int) -> tuple[int, ...]:
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
    extents = [_jittered(rng, extent, drawn.unit) for extent in drawn.extents]
    if drawn.kind == "transpose_in_place" or drawn.gram:
        extents[1] = extents[0]
    if RECIPES[drawn.kind].operation == "transpose":
        return _detailed_transpose(drawn, rng, (seed, index), extents)
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
    plain = alpha == 1 and drawn.addend == "none" and drawn.epilogue is None
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
    # Where infinities become NaN, none is multiplied.
    choices = ["normal", "whole", "whole", "wide", "special"]
    if drawn.epilogue in GATED or drawn.precision in ("bf16x6", *INT8_PRODUCTS):
        choices.remove("special")
    return FuzzProblem(
        seed, index, drawn.kind, "staircase" if drawn.operation == "staircase" else operation, m, n, k, shapes,
        dtypes, layouts, result, drawn.precision, alpha, beta, drawn.epilogue, str(rng.choice(choices)), drawn.target,
        drawn.library, _stream(rng, drawn.library, extents), drawn.gram, first,
    )  # fmt: skip


def _detailed_transpose(drawn: Sketch, rng: Rng, at: tuple[int, int], extents: list[int]) -> FuzzProblem:
    rows, cols = extents
    batch = drawn.parts[0]
    axes_reversed = drawn.operation == "transpose"
    result = (cols, rows, *batch) if axes_reversed else (*batch, cols, rows)
    shapes, dtypes = {"x": (*batch, rows, cols), "out": result}, dict.fromkeys(("x", "out"), drawn.a)
    layouts = {
        name: random_layout(
            rng, shape, drawn.a, drawn.alignments[name],
            reverses=drawn.library == "cupy", repeats=name == "x" and drawn.target != "x",
        )
        for name, shape in shapes.items()
    }  # fmt: skip
    return FuzzProblem(
        *at, drawn.kind, drawn.operation, rows, cols, 0, shapes, dtypes, layouts, result, target=drawn.target,
        library=drawn.library, stream=_stream(rng, drawn.library, extents),
    )  # fmt: skip


def _stream(rng: Rng, library: str, extents: list[int]) -> int:
    # PyTorch has a pool of memory for each stream: large arrays are of one.
    return int(rng.choice((0, 0, 1, 2))) if library == "torch" and max(extents) < 1000 else 0


def _jittered(rng: Rng, extent: int, unit: int) -> int:
    if extent <= 1:
        return extent
    found = extent + unit * int(rng.integers(-1, 2)) if unit > 1 else extent + int(rng.integers(-3, 4))
    return max(-(-found // unit) * unit, unit)


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
