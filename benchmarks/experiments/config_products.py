"""Products that configs are timed for: random ones of a type, those that a draw lost, or those of a file."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from gemmule.core.dtype import Precision
from gemmule.core.problem import GemmProblem
from gemmule.lab.products import LAYOUTS, gemm_problem
from gemmule.lab.records import read_records

_LEAST, _MOST = 64, 8192
#: By type: the outputs' type, precision, what extents are multiples of, layouts, and the most operations of a product.
#: Inputs of `tf32` are float32.
TYPES: dict[str, tuple[str, str | None, int, tuple[str, ...], float]] = {
    "tf32": ("float32", "tf32", 4, ("nn", "tn", "tt"), 1e11),
    "bfloat16": ("bfloat16", None, 8, LAYOUTS, 2e12),
    "float8_e4m3fn": ("bfloat16", "float8", 16, ("nt",), 2e12),
    "float32": ("float32", None, 4, LAYOUTS, 1e11),
    "float64": ("float64", None, 2, LAYOUTS, 1e11),
    "float16": ("float16", None, 1, LAYOUTS, 1e11),
    "int8": ("int32", None, 16, ("nt",), 2e12),
    "complex64": ("complex64", None, 2, ("nn",), 5e10),
    "complex128": ("complex128", None, 1, ("nn",), 5e10),
}
_SQUARES = (4096, 2048, 1024, 512, 3072, 1536, 256)
#: Of float32, TF32 and float64 every so many-th product has odd extents.
_ONE_ODD_OF = 3
#: Largest difference of the logarithms of similar products' extents.
_SIMILAR = 0.3


def draws(seed: int, dtype: str) -> Iterator[GemmProblem]:
    """Yield random products."""
    _, _, unit, layouts, most = TYPES[dtype]
    numbers = random.Random(seed)  # noqa: S311  # sizes, no secrets
    for number in itertools.count():
        logs = (numbers.uniform(math.log(_LEAST), math.log(_MOST)) for _ in range(3))
        m, n, k = (max(round(math.exp(log) / unit), 1) * unit for log in logs)
        layout = numbers.choice(layouts)
        if dtype in ("float32", "float64", "tf32") and number % _ONE_ODD_OF == _ONE_ODD_OF - 1:
            m, n, k = m | 1, n | 1, k | 1
            # Of TF32 with aligned rows, other kernels take K-major operands.
            layout = numbers.choice(LAYOUTS) if dtype == "tf32" else layout
        if 2.0 * m * n * k <= most:
            yield _problem(m, n, k, dtype, layout)


def lost(records: Sequence[Path], dtype: str, below: float, similar: int, seed: int) -> list[GemmProblem]:
    """Return the products of draws' records that were slower than cuBLASLt's top heuristic, the slowest first.

    `similar` products of a seed follow each, whose extents differ by up to a third.
    """
    _, precision, unit, layouts, _ = TYPES[dtype]
    least: dict[tuple[int, int, int, str], float] = {}
    for path in records:
        for one in read_records(path):
            wanted = ("float32", "tf32") if dtype == "tf32" else (dtype, precision or "ieee")
            if one["record"] != "gemm" or (one["dtype"], one["precision"]) != wanted or one["chosen_by"] != "dispatch":
                continue
            ratio = one.get("yardstick_first_us", math.inf) / one["median_us"]
            aligned = not any(one[x] % unit for x in "mnk")
            if ratio < below and one["layout"] in layouts and (aligned or dtype in ("float32", "float64", "tf32")):
                key = one["m"], one["n"], one["k"], one["layout"]
                least[key] = min(ratio, least.get(key, ratio))
    numbers, found = random.Random(seed), list[GemmProblem]()  # noqa: S311  # sizes, no secrets
    for *extents, layout in sorted(least, key=least.__getitem__):
        sizes = [extents]
        for _ in range(similar):
            near = [round(x * math.exp(numbers.uniform(-_SIMILAR, _SIMILAR)) / unit) * unit for x in extents]
            sizes.append([max(x, unit) | extents[2] % unit for x in near])
        found += [_problem(m, n, k, dtype, layout) for m, n, k in sizes]
    return found


def listed(path: Path, dtype: str) -> list[GemmProblem]:
    """Return the products of a file: M, N, K and the layout, a line each."""
    words = map(str.split, path.read_text().splitlines())
    return [_problem(int(m), int(n), int(k), dtype, layout) for m, n, k, layout in words]


def squares(dtype: str) -> list[GemmProblem]:
    """Return squares from 256 to 4096."""
    return [_problem(side, side, side, dtype, "nn") for side in _SQUARES]


def _problem(m: int, n: int, k: int, dtype: str, layout: str) -> GemmProblem:
    out, precision, *_ = TYPES[dtype]
    problem = gemm_problem(m, n, k, "float32" if dtype == "tf32" else dtype, out, layout)
    return dataclasses.replace(problem, precision=Precision.parse(precision))
