"""Random products: what is multiplied, how it lies in memory, what it is made of: numbers from a seed and an index."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from random_lies import Lie, Shape, order_of, random_lie

MOST = 5000
#: Types of A and B, with how often they are drawn, and the types that their product may be rounded to.
PAIRS: dict[tuple[str, str], tuple[float, tuple[str, ...]]] = {
    ("bfloat16", "bfloat16"): (0.32, ("bfloat16",) * 6 + ("float32", "float32", "float16")),
    ("float16", "float16"): (0.16, ("float16",) * 4 + ("float32", "bfloat16")),
    ("float32", "float32"): (0.2, ("float32",) * 8 + ("bfloat16",)),
    ("float64", "float64"): (0.1, ("float64",) * 6 + ("float32",)),
    ("int8", "int8"): (0.08, ("int32", "int8")),
    ("int32", "int32"): (0.03, ("int32",)),
    ("float8_e4m3fn", "float8_e4m3fn"): (0.04, ("float32", "float8_e4m3fn", "bfloat16")),
    ("float8_e4m3fn", "float8_e5m2"): (0.02, ("float32", "float8_e5m2")),
    ("bfloat16", "float16"): (0.02, ("float32",)),
    ("bfloat16", "float32"): (0.02, ("float32",)),
    ("float32", "float64"): (0.02, ("float64",)),
    ("int8", "float32"): (0.02, ("float32",)),
    ("int32", "float32"): (0.01, ("float64",)),
    ("int32", "int8"): (0.01, ("int32",)),
}
#: Epilogues with a product of floats each, by name; see `random_endings`.
ENDINGS = (
    "bias", "relu", "gelu", "silu", "gelu_tanh", "residual", "two_matrices", "swiglu", "pairs", "second", "absmax",
)  # fmt: skip
#: Those that two products go into, and those that may have beta * C.
GATED, WITH_BETA = frozenset({"swiglu", "pairs", "second"}), frozenset({"relu", "gelu_tanh", "absmax"})
_ENDING_SHARE = 0.3
# Types of products that have epilogues; of each epilogue a run takes two products, so that fewer kernels are compiled.
_ENDING_TYPES = (*["bfloat16"] * 4, "float16", "float16", "float32", "float32", "float64", "float8_e4m3fn")
_SPECIAL = (0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e-40)
_WHOLE = (0, 1, -1, 3, -7, 2**20 + 1, -(2**31))
# Most operations: of products that tensor cores compute, mostly and now and then; of others.
_FLOP, _RARE_FLOP, _SLOW_FLOP = 2e10, 2.5e11, 2e9
_MOST_ELEMENTS = 2**26


@dataclasses.dataclass(frozen=True)
class RandomProblem:
    """A product, its arrays described.

    Attributes
    ----------
    shapes, dtypes, lies : dict
        By the arrays' names: a, b, c, out, and the inputs of epilogues.
    result : tuple of int
        Shape of the result.
    values : dict of str to str
        What an operand is made of: normal, whole, wide, special.
    target : str
        new, given or c: where the result goes.
    """

    seed: int
    index: int
    m: int
    n: int
    k: int
    shapes: dict[str, Shape]
    dtypes: dict[str, str]
    lies: dict[str, Lie]
    result: Shape
    precision: str | None
    alpha: Any
    beta: Any
    ending: str | None
    values: str
    target: str
    library: str
    stream: int
    operation: str

    def describe(self) -> str:
        """Return it in a line."""
        arrays = ", ".join(
            f"{name} {self.dtypes[name]}{list(shape)} {self.lies[name]}" for name, shape in self.shapes.items()
        )
        return (
            f"{self.operation} {self.m}x{self.n}x{self.k} precision={self.precision} alpha={self.alpha} "
            f"beta={self.beta} ending={self.ending} values={self.values} target={self.target} library={self.library} "
            f"stream={self.stream}: {arrays}"
        )


def draw(seed: int, index: int, *, most: int = MOST, cupy: bool = True) -> RandomProblem:
    """Return a problem.

    Parameters
    ----------
    seed, index : int
        The run, and the problem in it.
    most : int
        Greatest extent.
    cupy : bool
        Whether arrays may be CuPy's, which can be walked backwards.
    """
    rng = np.random.default_rng((seed, index))
    pairs = list(PAIRS)
    a, b = pairs[rng.choice(len(pairs), p=_shares())]
    ending, along = None, None
    if rng.random() < _ENDING_SHARE:
        ending = str(rng.choice(ENDINGS))
        own = np.random.default_rng((seed, 0, ENDINGS.index(ending)))
        kinds = [(str(own.choice(_ENDING_TYPES)), bool(own.integers(2)), bool(own.integers(2))) for _ in range(2)]
        a, *along = kinds[rng.integers(2)]
        b = a
    whole = a.startswith("int") and b.startswith("int")
    out = str(rng.choice(PAIRS[a, b][1] if ending is None else PAIRS[a, b][1][:1]))
    precision = "tf32" if a == b == "float32" and rng.random() < 0.5 else None
    if ending == "absmax" and a == "float64":
        ending = None
    aligned = rng.random() < 0.7
    batch = _batch(rng)
    m, n, k = _extents(rng, most, aligned, math.prod(batch), fast=_is_fast(a, b, precision))
    alpha, beta = _scalars(rng, whole, k, ending)
    shapes: dict[str, Shape] = {"a": (*_part(rng, batch), m, k), "b": (*_part(rng, batch), k, n)}
    result = (*np.broadcast_shapes(shapes["a"][:-2], shapes["b"][:-2]), m, n)
    vectors = rng.random() < 0.04 and ending is None
    if vectors and rng.random() < 0.5:
        shapes["a"], result = (k,), (*shapes["b"][:-2], n)
        m = 1
    elif vectors:
        shapes["b"], result = (k,), (*shapes["a"][:-2], m)
        n = 1
    dtypes = {"a": a, "b": b}
    _add_inputs(shapes, dtypes, ending, result)
    operation = "matmul" if alpha == 1 and beta == 0 and ending is None and rng.random() < 0.5 else "gemm"
    if operation == "gemm" and ending not in GATED and (beta != 0 or ending == "residual" or rng.random() < 0.1):
        outs = PAIRS[a, b][1]
        shapes["c"], dtypes["c"] = result, out if rng.random() < 0.9 or ending else str(rng.choice(outs))
    target = str(rng.choice(("new", "given", "given", "given")))
    if "c" in shapes and dtypes["c"] == out and rng.random() < 0.2:
        target = "c"
    shapes["out"], dtypes["out"] = result, out
    flips = cupy and {*dtypes.values()} <= {"float16", "float32", "float64", "int8", "int32"} and rng.random() < 0.1
    lies = {name: random_lie(rng, name, shape, dtypes[name], aligned, flips) for name, shape in shapes.items()}
    if along is not None:
        # One way in which A and B lie for each of the run's epilogues.
        for name, is_col in zip("ab", along, strict=True):
            lies[name] = dataclasses.replace(lies[name], order=order_of(len(shapes[name]), is_col), step=1)
    values = str(rng.choice(("normal", "whole", "whole", "wide", "special")))
    if values == "special" and ending in GATED:
        values = "normal"
    return RandomProblem(
        seed, index, m, n, k, shapes, dtypes, lies, result, precision, alpha, beta, ending, values, target,
        "cupy" if flips else "torch", 0 if flips else int(rng.choice((0, 0, 1, 2))), operation,
    )  # fmt: skip


def _shares() -> np.ndarray[Any, np.dtype[np.float64]]:
    shares = np.array([share for share, _ in PAIRS.values()])
    found: np.ndarray[Any, np.dtype[np.float64]] = shares / shares.sum()
    return found


def _is_fast(a: str, b: str, precision: str | None) -> bool:
    return a == b and (a in ("bfloat16", "float16", "int8", "float64") or precision == "tf32")


def _batch(rng: np.random.Generator) -> Shape:
    kind = rng.random()
    if kind < 0.75:
        return ()
    if kind < 0.93:
        return (int(rng.choice((0, 1, 2, 3, 5, 16, 40), p=(0.03, 0.1, 0.3, 0.27, 0.15, 0.1, 0.05))),)
    return (int(rng.integers(1, 4)), int(rng.integers(1, 5)))


def _part(rng: np.random.Generator, batch: Shape) -> Shape:
    """Return the batch of an operand, of which some is broadcast."""
    if not batch or rng.random() < 0.7:
        return batch
    return batch[1:] if rng.random() < 0.5 else (1, *batch[1:])


def _extents(rng: np.random.Generator, most: int, aligned: bool, count: int, *, fast: bool) -> tuple[int, int, int]:
    limit = _SLOW_FLOP if not fast else _RARE_FLOP if rng.random() < 0.03 else _FLOP
    while True:
        m, n, k = (_extent(rng, most, aligned) for _ in range(3))
        flop, elements = 2.0 * m * n * k * count, (m * n + m * k + n * k) * max(count, 1)
        if flop <= limit and elements <= _MOST_ELEMENTS:
            return m, n, k


def _extent(rng: np.random.Generator, most: int, aligned: bool) -> int:
    kind = rng.random()
    if kind < 0.02:
        return 0
    if kind < 0.06:
        return 1
    if kind < 0.2:
        found = int(rng.integers(most + 1))
    elif kind < 0.3:
        found = int(2 ** rng.integers(4, 13)) + int(rng.integers(-1, 2))
    else:
        found = round(math.exp(rng.uniform(0, math.log(most))))
    if aligned and rng.random() < 0.9:
        found = -(-found // 16) * 16
    return min(found, most)


def _scalars(rng: np.random.Generator, whole: bool, k: int, ending: str | None) -> tuple[Any, Any]:
    if whole:
        alpha = 1 if rng.random() < 0.5 else int(rng.choice(_WHOLE))
        return alpha, 0 if rng.random() < 0.5 else int(rng.choice(_WHOLE))

    def one(plain: float) -> float:
        kind = rng.random()
        if kind < 0.5:
            return plain
        return float(rng.normal()) if kind < 0.75 else float(rng.choice(_SPECIAL))

    alpha, beta = one(1.0), one(0.0)
    if k == 0 and not math.isfinite(alpha):
        alpha = 2.0
    if ending is not None:
        # What functions make of infinity and NaN is seen on values, not on all of the matrix at once.
        alpha = alpha if math.isfinite(alpha) else 0.5
        beta = beta if math.isfinite(beta) and ending in WITH_BETA else 0.0
    return alpha, beta


def _add_inputs(shapes: dict[str, Shape], dtypes: dict[str, str], ending: str | None, result: Shape) -> None:
    """Add what an epilogue reads, and give B the columns that it needs."""
    m, n = result[-2:] if len(result) > 1 else (1, 1)
    own = dtypes["a"] if "float8" not in dtypes["a"] else "bfloat16"
    if ending in ("bias", "gelu", "residual"):
        shapes["bias"], dtypes["bias"] = (n,), own
    elif ending == "relu":
        shapes["bias"], dtypes["bias"] = (m, 1), own
    elif ending == "two_matrices":
        shapes["x"], dtypes["x"] = (m, n), own
        shapes["y"], dtypes["y"] = (1, n), own
    elif ending == "swiglu":
        shapes["bias"], dtypes["bias"] = (2 * n,), own
    if ending in ("swiglu", "pairs"):
        shapes["b"] = (*shapes["b"][:-1], 2 * n)
    if ending == "second":
        shapes["up"], dtypes["up"] = shapes["b"], dtypes["b"]
