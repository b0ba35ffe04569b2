"""The products that are measured, and their random inputs."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import numpy as np

from gemmule.core.cpus import usable_cpus
from gemmule.core.dtype import DType, Kind, accumulator, dtype_named
from gemmule.core.errors import ArgumentError
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.name_suggestions import unknown_name
from gemmule.core.problem import GemmProblem, mark_own_transpose

Array = np.ndarray[Any, np.dtype[Any]]

LAYOUTS = ("nn", "nt", "tn", "tt")
#: Types that are measured; each is multiplied by itself.
MEASURED_DTYPES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "int32",
    "complex64",
    "complex128",
)
# Elements that one random generator makes: enough to keep a thread busy for milliseconds.
_CHUNK = 1 << 20


def output_type(dtype: str, out_dtype: str | None) -> str:
    """Return the output's type: the requested one, else int32 for integers and the inputs' own for all others.

    Raises
    ------
    ArgumentError
        If a type is not one that is measured.
    """
    if dtype not in MEASURED_DTYPES:
        raise ArgumentError(unknown_name("dtype", dtype, MEASURED_DTYPES))
    if out_dtype is None:
        kind = dtype_named(dtype)
        return accumulator(kind, kind).name if kind.kind is Kind.INTEGER else dtype
    if out_dtype not in MEASURED_DTYPES:
        raise ArgumentError(unknown_name("output dtype", out_dtype, MEASURED_DTYPES))
    return out_dtype


def gemm_problem(
    m: int,
    n: int,
    k: int,
    dtype: str,
    out_dtype: str,
    layout: str,
    *,
    misaligned: bool = False,
    batch: tuple[int, ...] = (),
) -> GemmProblem:
    """Return D = A @ B of compact matrices: D row-major, A and B by `layout`, ``n`` row-major, ``t`` column-major.

    With `misaligned`, each begins one element after an aligned address.
    """
    kind, out = dtype_named(dtype), dtype_named(out_dtype)

    def rows_of(element: DType, rows: int, cols: int) -> StridedMatrix:
        return contiguous(element, rows, cols, batch, element.itemsize if misaligned else 16)

    def stored(rows: int, cols: int, letter: str) -> StridedMatrix:
        return rows_of(kind, rows, cols) if letter == "n" else rows_of(kind, cols, rows).transposed()

    return GemmProblem(m, n, k, batch, stored(m, k, layout[0]), stored(k, n, layout[1]), None, rows_of(out, m, n))


def own_product(problem: GemmProblem) -> GemmProblem:
    """Return the product of a matrix and its own transpose, in the same memory.

    Raises
    ------
    ArgumentError
        If B's memory is not the transpose of A's.
    """
    found = mark_own_transpose(problem, same=True)
    if not found.own_transpose:
        raise ArgumentError(
            f"{problem.m} x {problem.n} x {problem.k}, {problem.layout}: B is A transposed, in the same memory, only "
            "where M = N and the layout is nt or tn"
        )
    return found


def random_inputs(problem: GemmProblem, seed: int) -> dict[str, Array]:
    """Return A and B in memory order: normal(0, 1) parts, or integers uniform over int8."""
    if problem.own_transpose:
        return _own_transpose(problem, seed)
    seeds = np.random.SeedSequence([seed, problem.m, problem.n, problem.k]).spawn(2)
    return {
        name: _random(matrix, child, problem.batch)
        for (name, matrix), child in zip((("a", problem.a), ("b", problem.b)), seeds, strict=True)
    }


def _own_transpose(problem: GemmProblem, seed: int) -> dict[str, Array]:
    """Return A, and as B the same elements, of which it is the transpose."""
    a = _random(problem.a, np.random.SeedSequence([seed, problem.m, problem.n, problem.k]))
    shape = (problem.k, problem.n) if problem.b.is_row_major else (problem.n, problem.k)
    return {"a": a, "b": a.reshape(shape)}


def as_matrix(stored: Array, matrix: StridedMatrix) -> Array:
    """Return matrices stored as `stored`, row-major: a view."""
    return stored if matrix.is_row_major else np.swapaxes(stored, -2, -1)


def _random(matrix: StridedMatrix, seed: np.random.SeedSequence, batch: tuple[int, ...] = ()) -> Array:
    """Fill matrices in threads; the values depend on the seed only, not on the number of threads."""
    in_rows = matrix.is_row_major
    shape = (matrix.rows, matrix.cols) if in_rows else (matrix.cols, matrix.rows)
    values: Array = np.empty((*batch, *shape), matrix.dtype.numpy())
    flat = values.reshape(-1)
    starts = range(0, flat.size, _CHUNK)

    def fill(start: int, child: np.random.SeedSequence) -> None:
        part = flat[start : start + _CHUNK]
        part[...] = _values(np.random.Generator(np.random.SFC64(child)), matrix.dtype, part.size)

    with concurrent.futures.ThreadPoolExecutor(usable_cpus()) as pool:
        for done in [pool.submit(fill, *item) for item in zip(starts, seed.spawn(len(starts)), strict=True)]:
            done.result()
    return values


def _values(rng: np.random.Generator, dtype: DType, count: int) -> Array:
    if dtype.kind is Kind.INTEGER:
        # For wider types too, so that sums stay below 2**31.
        limits = np.iinfo(np.int8)
        return rng.integers(limits.min, limits.max, count, dtype.numpy(), endpoint=True)
    if dtype.kind is Kind.COMPLEX:
        return _values(rng, dtype.part, 2 * count).view(dtype.numpy())
    if dtype.itemsize >= 4:
        return rng.standard_normal(count, dtype.numpy())
    return rng.standard_normal(count, np.float32).astype(dtype.numpy())
