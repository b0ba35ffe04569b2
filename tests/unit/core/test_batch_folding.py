"""Batches that are one larger product: which are, and that it is the same one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.core.arch import Arch
from gemmule.core.batch_folding import fold_batch
from gemmule.core.dtype import BFLOAT16, FLOAT32
from gemmule.core.epilogue import Epilogue, Expression
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import MAX_EXTENT
from gemmule.dispatch.select import choose

M, N, K = 3, 4, 5


def problem_of(batch, a=None, b=None, c=None, d=None, m=M, n=N, dtype=FLOAT32, bias=None):
    """A product over a batch; of each operand its (row, col, *batch) strides, contiguous if they are not given."""

    def matrix(rows, cols, strides):
        if strides is None:
            return contiguous(dtype, rows, cols, batch)
        return StridedMatrix(dtype, rows, cols, *strides[:2], strides[2:])

    addend = None if c is None else matrix(m, n, c)
    problem = GemmProblem(m, n, K, batch, matrix(m, K, a), matrix(K, n, b), addend, matrix(m, n, d), 1, 1 if c else 0)
    if bias is None:
        return problem
    return dataclasses.replace(problem, epilogue=Epilogue(Expression(("acc", "e0", "add 0 1")), (matrix(m, n, bias),)))


def elements(matrix, batch, buffer):
    shape = (*batch, matrix.rows, matrix.cols)
    strides = (*matrix.batch_strides, matrix.row_stride, matrix.col_stride)
    return np.lib.stride_tricks.as_strided(buffer, shape, [8 * stride for stride in strides])


def computed(problem, rng_seed):
    """What a product leaves in the memory of D, from the strides alone."""
    rng = np.random.default_rng(rng_seed)
    memory = {name: rng.standard_normal(4000) for name in problem.operands()}
    at = {name: elements(matrix, problem.batch, memory[name]) for name, matrix in problem.operands().items()}
    at["d"][...] = at["a"] @ at["b"] + at.get("c", 0) + at.get("e0", 0)
    return memory["d"]


# batch, strides, and (m, n, batch) after.
CASES = {
    "B the same for all": ((6,), {"b": (N, 1, 0)}, (6 * M, N, ())),
    "over two dimensions": ((2, 6), {"b": (N, 1, 0, 0)}, (12 * M, N, ())),
    "over the inner one": ((2, 6), {"b": (N, 1, K * N, 0)}, (6 * M, N, (2,))),
    "over the outer one, whose rows do not follow": ((2, 6), {"b": (N, 1, 0, K * N)}, (M, N, (2, 6))),
    "over both ends, the inner of which follows": ((2, 3, 4), {"b": (N, 1, 0, K * N, 0)}, (4 * M, N, (2, 3))),
    "with C": ((6,), {"b": (N, 1, 0), "c": (N, 1, M * N)}, (6 * M, N, ())),
    "with a row for C": ((6,), {"b": (N, 1, 0), "c": (0, 1, 0)}, (6 * M, N, ())),
    "with a C that is the same for all": ((6,), {"b": (N, 1, 0), "c": (N, 1, 0)}, (M, N, (6,))),
    "with a bias for columns": ((6,), {"b": (N, 1, 0), "bias": (0, 1, 0)}, (6 * M, N, ())),
    "with a bias for rows": ((6,), {"b": (N, 1, 0), "bias": (1, 0, 0)}, (M, N, (6,))),
    "with a bias for all rows": ((2, 6), {"b": (N, 1, 0, 0), "bias": (1, 0, 6 * M, M)}, (12 * M, N, ())),
    "rows of A that are padded": ((6,), {"a": (K + 2, 1, M * (K + 2)), "b": (N, 1, 0)}, (6 * M, N, ())),
    "matrices of A that are padded": ((6,), {"a": (K, 1, M * K + 1), "b": (N, 1, 0)}, (M, N, (6,))),
    "a gap in D": ((6,), {"b": (N, 1, 0), "d": (N, 1, M * N + 2)}, (M, N, (6,))),
    "A column-major": ((6,), {"a": (1, M, M * K), "b": (N, 1, 0)}, (M, N, (6,))),
    "B transposed": ((6,), {"b": (1, K, 0)}, (6 * M, N, ())),
    "batches that differ": ((6,), {}, (M, N, (6,))),
    "vectors, however far apart": ((6,), {"a": (0, 1, 17), "b": (N, 1, 0), "d": (0, 1, 9), "m": 1}, (6, N, ())),
    "vectors whose dimensions do not merge": (
        (2, 6), {"a": (0, 1, 100, 7), "b": (N, 1, 0, 0), "d": (0, 1, 90, 4), "m": 1}, (6, N, (2,))
    ),
    "columns": ((6,), {"a": (K, 1, 0), "b": (1, K, K * N), "d": (1, M, M * N)}, (M, 6 * N, ())),
    "columns of a row-major D do not follow": ((6,), {"a": (K, 1, 0)}, (M, N, (6,))),
    "single columns": ((6,), {"a": (K, 1, 0), "b": (1, 0, K), "d": (1, 0, M), "n": 1}, (M, 6, ())),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_becomes_one_product(name):
    batch, given, expected = CASES[name]
    problem = problem_of(batch, **given)
    found = fold_batch(problem)
    assert (found.m, found.n, found.batch) == expected
    assert found.flop == problem.flop
    assert found.bytes_min == problem.bytes_min
    np.testing.assert_allclose(computed(found, 1), computed(problem, 1), atol=1e-12)


def test_extents_stay_within_32_bits():
    most = MAX_EXTENT // M
    assert fold_batch(problem_of((most,), b=(N, 1, 0))).m == most * M
    problem = problem_of((most + 1,), b=(N, 1, 0))
    assert fold_batch(problem) == problem


def test_nothing_to_compute_stays_as_it_is():
    for problem in (problem_of((0,), b=(N, 1, 0)), problem_of((6,), b=(N, 1, 0), m=0), problem_of((), b=(N, 1))):
        assert fold_batch(problem) == problem


def test_a_kernel_for_tensor_cores_takes_what_would_be_many_launches_of_a_few_rows():
    batch, m, n, k = (4, 8), 5, 256, 128
    problem = GemmProblem(
        m, n, k, batch,
        contiguous(BFLOAT16, m, k, batch),
        dataclasses.replace(contiguous(BFLOAT16, n, k), batch_strides=(0, 0)).transposed(),
        None,
        contiguous(BFLOAT16, m, n, batch),
    )  # fmt: skip
    arch = Arch.for_device(9, 0)
    assert choose(fold_batch(problem), arch).spec.name == "hopper_gemm"
