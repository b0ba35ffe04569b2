"""Products as a batch of products over parts of K: the launches, computed by NumPy, make the product."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.core.block_triangle import BlockTriangle
from gemmule.core.dtype import FLOAT32, Precision, dtype_named, numpy_dtype
from gemmule.core.epilogue import ACC, Epilogue, Expression
from gemmule.core.k_parts import PARTS, SUMS_OF_PARTS, KParts, has_k_parts
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, contiguous_gemm

#: Bytes of padding in front of and behind an operand.
_PAD = 512


class Memory:
    """Operands and workspaces by name, each in bytes of its own."""

    def __init__(self) -> None:
        self._bytes: dict[str, np.ndarray] = {}

    def add(self, name: str, nbytes: int) -> None:
        """Add memory of that size, poisoned."""
        self._bytes[name] = np.full(nbytes, 0xFF, np.uint8)

    def view(self, name: str, matrix: StridedMatrix, batch: tuple[int, ...], beyond: int = 0) -> np.ndarray:
        """Return a matrix's elements, `beyond` bytes behind its beginning."""
        dtype = numpy_dtype(matrix.dtype.name)
        shape, strides = (
            (*batch, matrix.rows, matrix.cols),
            (*matrix.batch_strides, matrix.row_stride, matrix.col_stride),
        )
        begin = _PAD + beyond
        return np.ndarray(shape, dtype, self._bytes[name], begin, [one * dtype.itemsize for one in strides])


def computed(problem: GemmProblem, names: dict[str, str], beyond: dict[str, int], memory: Memory) -> None:
    """Compute one launch."""

    def view(name: str, matrix: StridedMatrix) -> np.ndarray:
        return memory.view(names.get(name, name), matrix, problem.batch, beyond.get(name, 0))

    acc = numpy_dtype(problem.accumulator.name)
    total = np.zeros((*problem.batch, problem.m, problem.n), acc)
    if problem.k:
        total = problem.alpha * (view("a", problem.a).astype(acc) @ view("b", problem.b).astype(acc))
    if problem.c is not None:
        total = total + problem.beta * view("c", problem.c)
    if problem.epilogue is not None:
        values = {name: view(name, matrix).astype(acc) for name, matrix in problem.epilogue.inputs().items()}
        values |= {f"s{place}": number for place, number in enumerate(problem.epilogue.numbers)}
        operations = {"add": np.add, "mul": np.multiply, "maximum": np.maximum}
        total = problem.epilogue.expression.evaluate({ACC: total, **values}.__getitem__, acc.type, operations)
    view("d", problem.d)[...] = total


def run(problem: GemmProblem, parts: int, memory: Memory) -> None:
    """Compute the launches of a form in their order."""
    form = KParts(parts)
    for name, nbytes in form.workspaces(problem).items():
        memory.add(name, nbytes + 2 * _PAD)
    product, names = form.product(problem)
    steps = form.steps(problem)
    for step in (one for one in steps if not one.is_last):
        computed(step.problem, step.operands, dict(step.beyond), memory)
    computed(product, names, {}, memory)
    for step in (one for one in steps if one.is_last):
        computed(step.problem, step.operands, dict(step.beyond), memory)


def filled(problem: GemmProblem, rng: np.random.Generator) -> Memory:
    """Return memory with small whole numbers in the inputs."""
    memory = Memory()
    for name, matrix in problem.operands().items():
        dtype = numpy_dtype(matrix.dtype.name)
        span = 1 + abs(matrix.row_stride) * (matrix.rows - 1) + abs(matrix.col_stride) * (matrix.cols - 1)
        memory.add(name, span * dtype.itemsize + 2 * _PAD)
        if name != "d":
            view = memory.view(name, matrix, problem.batch)
            view[...] = rng.integers(-2, 3, view.shape)
    return memory


def expected(problem: GemmProblem, memory: Memory) -> np.ndarray:
    a, b = (memory.view(name, matrix, problem.batch) for name, matrix in (("a", problem.a), ("b", problem.b)))
    wide = np.complex128 if problem.accumulator.name.startswith("complex") else np.float64
    return problem.alpha * (a.astype(wide) @ b.astype(wide))


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("k", [8192, 8201, 12288 + 64])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("result", ["rows", "columns"])
def test_launches_make_the_product(parts, k, dtype, result):
    problem = contiguous_gemm(5, 3, k, (dtype, dtype, "float32" if dtype == "bfloat16" else dtype), alpha=2.0)
    if result == "columns":
        problem = problem.transposed()
    assert has_k_parts(problem)
    memory = filled(problem, np.random.default_rng(k))
    run(problem, parts, memory)
    np.testing.assert_array_equal(memory.view("d", problem.d, ()), expected(problem, memory))


@pytest.mark.parametrize("parts", PARTS)
def test_c_and_an_epilogue_come_last(parts):
    problem = contiguous_gemm(4, 6, 9001, ("float32",) * 4, beta=3.0)
    bias = StridedMatrix(FLOAT32, 4, 6, 0, 1)
    relu = Expression((ACC, "e0", "add 0 1", "=0.0", "maximum 2 3"))
    problem = dataclasses.replace(problem, epilogue=Epilogue(relu, (bias,)))
    assert has_k_parts(problem)
    memory = filled(problem, np.random.default_rng(parts))
    run(problem, parts, memory)
    c, added = memory.view("c", problem.c, ()), memory.view("e0", bias, ())
    want = np.maximum(expected(problem, memory) + 3.0 * c + added, 0)
    np.testing.assert_array_equal(memory.view("d", problem.d, ()), want)


def test_a_part_is_whole_vectors_where_k_is():
    problem = contiguous_gemm(5, 3, 10000 * 32, ("bfloat16",) * 3)
    product, _ = KParts(64).product(problem)
    assert product.k % 32 == 0
    left = problem.k - 64 * product.k
    assert 0 <= left < 64 * 32


@pytest.mark.parametrize(
    "problem",
    [
        contiguous_gemm(5, 3, 4096, ("float32",) * 3),
        contiguous_gemm(512, 512, 10**5, ("float32",) * 3),
        contiguous_gemm(5, 3, 10**5, ("float32",) * 3, batch=(2,)),
        contiguous_gemm(5, 3, 10**5, ("int8", "int8", "int32")),
        contiguous_gemm(5, 3, 10**5, ("complex64",) * 4, beta=1.0),
        dataclasses.replace(contiguous_gemm(5, 3, 10**5, ("float32",) * 3), precision=Precision.BF16X6),
        dataclasses.replace(contiguous_gemm(5, 3, 10**5, ("float64",) * 3), precision=Precision.OZAKI),
        dataclasses.replace(contiguous_gemm(5, 5, 10**5, ("float32",) * 3), needed=BlockTriangle()),
        contiguous_gemm(0, 3, 10**5, ("float32",) * 3),
    ],
)
def test_other_products_stay_whole(problem):
    assert not has_k_parts(problem)


def test_a_conjugate_result_stays_whole():
    # The additions see the floats of complex numbers.
    problem = contiguous_gemm(5, 3, 10**5, ("complex64",) * 3)
    assert has_k_parts(problem)
    assert not has_k_parts(dataclasses.replace(problem, d=dataclasses.replace(problem.d, conj=True)))


def test_what_is_left_of_k_is_as_aligned_as_where_it_begins():
    problem = contiguous_gemm(4, 4, 8201, ("float8_e4m3fn", "float8_e4m3fn", "float32"))
    left, _ = KParts(8).steps(problem)
    assert left.beyond["a"] == 8200
    assert left.problem.a.alignment == 8


def test_sums_are_in_the_accumulators_type():
    problem = contiguous_gemm(5, 3, 10**5, ("bfloat16",) * 3)
    product, names = KParts(8).product(problem)
    assert names == {"d": SUMS_OF_PARTS}
    assert product.d.dtype == dtype_named("float32")
